//! Warps: the one collective from which shuffles, votes, matches and reductions are made.

use std::panic::Location;

use crate::context::Next;
use crate::device::WarpValues;
use crate::engine::Engine;
use crate::fault::FaultKind;
use crate::fiber::{FiberId, State};
use crate::geometry::WARP_SIZE;

const LANES: usize = WARP_SIZE as usize;

pub(crate) struct Warp {
    /// Lanes that have exited, or that a block of odd size does not have.
    gone: u32,
    /// Lanes that wait in an exchange. The arrays below hold for these.
    waiting: u32,
    masks: [u32; LANES],
    ops: [&'static str; LANES],
    values: [u64; LANES],
}

impl Warp {
    pub fn new(lanes: u32) -> Self {
        Self {
            gone: if lanes == WARP_SIZE {
                0
            } else {
                u32::MAX << lanes
            },
            waiting: 0,
            masks: [0; LANES],
            ops: [""; LANES],
            values: [0; LANES],
        }
    }

    /// A waiting lane with which a lane that arrives with `op` and `mask` is at odds.
    fn conflict(&self, op: &'static str, mask: u32) -> Option<u32> {
        let same = |a: &'static str, b: &'static str| std::ptr::eq(a, b) || a == b;
        // All lanes that wait in `mask` agree with each other: each was checked when it arrived.
        let first = (self.waiting & mask).trailing_zeros();
        if first < WARP_SIZE
            && (self.masks[first as usize] != mask || !same(self.ops[first as usize], op))
        {
            return Some(first);
        }
        lanes(self.waiting & !mask).find(|&other| self.masks[other as usize] & mask != 0)
    }
}

/// The lanes of a mask, lowest first.
fn lanes(mask: u32) -> impl Iterator<Item = u32> + Clone {
    std::iter::successors(Some(mask), |&rest| Some(rest & rest.wrapping_sub(1)))
        .take_while(|&rest| rest != 0)
        .map(u32::trailing_zeros)
}

impl Engine {
    /// The running lane meets the other lanes of `mask`. Once it goes on, the values are in `out`, which
    /// lies in the frame of the caller, on the lane's stack.
    pub(crate) fn warp_exchange(
        &mut self,
        id: FiberId,
        (op, mask, value): (&'static str, u32, u64),
        out: *mut WarpValues,
        location: &'static Location<'static>,
    ) -> Next {
        let fiber = &self.fibers[id];
        let (slot, linear) = (fiber.block, fiber.linear);
        let (number, lane) = ((linear / WARP_SIZE) as usize, linear % WARP_SIZE);
        let warp = &mut self.blocks[slot].warps[number];
        let bit = 1 << lane;
        if mask & bit == 0 {
            let message = format!("{op} with mask {mask:#010x}, which does not name lane {lane}");
            return self.fail(id, FaultKind::InvalidMask, location, message);
        }
        if mask & warp.gone != 0 {
            let message = format!(
                "{op} with mask {mask:#010x}, which names lanes that have exited or do not exist \
                 ({:#010x})",
                mask & warp.gone
            );
            return self.fail(id, FaultKind::WarpDivergence, location, message);
        }
        if let Some(other) = warp.conflict(op, mask) {
            let message = format!(
                "lane {lane} executes {op} with mask {mask:#010x}, while lane {other} waits in {} with \
                 mask {:#010x}",
                warp.ops[other as usize], warp.masks[other as usize]
            );
            return self.fail(id, FaultKind::WarpDivergence, location, message);
        }
        warp.values[lane as usize] = value;
        let others = mask & !bit;
        if others & !warp.waiting != 0 {
            warp.waiting |= bit;
            warp.masks[lane as usize] = mask;
            warp.ops[lane as usize] = op;
            let fiber = &mut self.fibers[id];
            fiber.exchange = out;
            fiber.location = location;
            self.scheduler.block(fiber, State::Warp { op, mask });
            return Next::Suspend;
        }
        warp.waiting &= !mask;
        let mut met = WarpValues {
            values: [0; LANES],
            mask,
        };
        for lane in lanes(mask) {
            met.values[lane as usize] = warp.values[lane as usize];
        }
        let first = number * LANES;
        let fibers = &self.blocks[slot].fibers;
        let member = |lane: u32| fibers[first + lane as usize];
        self.scheduler
            .share_spins(id, lanes(mask).map(member), &mut self.fibers);
        for other in lanes(others).map(member) {
            let fiber = &mut self.fibers[other];
            // SAFETY: the lane waits, so it is suspended in the call that set `exchange` to a value in
            // its own frame; nobody else accesses that value before the lane is resumed.
            unsafe { fiber.exchange.write(met) };
            self.scheduler.unblock(other, fiber);
        }
        // SAFETY: `out` is a value in the frame of the caller, which runs.
        unsafe { out.write(met) };
        Next::Continue
    }

    /// The lane has exited: nobody may wait for it.
    pub(crate) fn lane_exited(&mut self, id: FiberId) {
        let fiber = &self.fibers[id];
        let (slot, linear) = (fiber.block, fiber.linear);
        let (number, lane) = ((linear / WARP_SIZE) as usize, linear % WARP_SIZE);
        let block = &mut self.blocks[slot];
        let warp = &mut block.warps[number];
        warp.gone |= 1 << lane;
        let abandoned =
            lanes(warp.waiting).find(|&other| warp.masks[other as usize] & (1 << lane) != 0);
        if let Some(other) = abandoned {
            let waiting = block.fibers[number * LANES + other as usize];
            let message = format!(
                "lane {lane} exited while lane {other} waits for it in {} with mask {:#010x}",
                warp.ops[other as usize], warp.masks[other as usize]
            );
            let location = self.fibers[waiting].location;
            self.fail(id, FaultKind::WarpDivergence, location, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_of_a_mask() {
        assert_eq!(lanes(0).count(), 0);
        assert_eq!(lanes(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
        assert_eq!(lanes(u32::MAX).count(), 32);
    }

    #[test]
    fn a_short_warp_lacks_its_upper_lanes() {
        assert_eq!(Warp::new(32).gone, 0);
        assert_eq!(Warp::new(1).gone, 0xffff_fffe);
        assert_eq!(Warp::new(31).gone, 0x8000_0000);
    }
}
