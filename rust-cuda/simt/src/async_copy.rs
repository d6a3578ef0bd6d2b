//! Bulk asynchronous copies. They read their source and write their destination as late as their contract
//! allows, or at a random moment before, so that a missing wait or fence shows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::panic::Location;

use crate::context::Next;
use crate::device::CopyPiece;
use crate::engine::Engine;
use crate::fault::FaultKind;
use crate::fiber::FiberId;
use crate::memory;

/// Steps within which a copy that is not left to the last moment takes its next stage: up to two to this
/// power, every power equally likely.
const DELAY_POWERS: u32 = 12;

type Where = &'static Location<'static>;

/// Where a copy goes, and what tells that it has landed.
enum Direction {
    /// Shared to global: bulk group `group` of a thread.
    Out { fiber: FiberId, group: u32 },
    /// Global to shared: completes bytes on an `mbarrier`.
    In { mbarrier: *mut u64 },
}

struct BulkCopy {
    direction: Direction,
    grid: usize,
    /// The block, until it exits.
    block: Option<usize>,
    pieces: Vec<CopyPiece>,
    zero: Vec<(*mut u8, usize)>,
    /// The bytes of all pieces, once they are read.
    data: Option<Vec<u8>>,
    /// Thread that issued it, for reports.
    issuer: FiberId,
    location: Where,
}

impl BulkCopy {
    fn read(&mut self) {
        let mut data = Vec::with_capacity(self.pieces.iter().map(|piece| piece.bytes).sum());
        for piece in &self.pieces {
            // SAFETY: the source was checked when the copy was issued: it lies in the shared memory of
            // the block, which lives until its copies are read, or in a global allocation, which `free`
            // releases only when no kernel is pending. No kernel code runs meanwhile.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.src, piece.bytes) });
        }
        self.data = Some(data);
    }
}

/// Copies in flight.
#[derive(Default)]
pub(crate) struct Copies {
    /// By number, in order of issue.
    in_flight: BTreeMap<u64, BulkCopy>,
    issued: u64,
    /// (step, copy) at which a copy takes its next stage.
    stages: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Copies {
    pub fn clear(&mut self) {
        self.in_flight.clear();
        self.stages.clear();
    }

    pub fn is_due(&self, step: u64) -> bool {
        self.stages
            .peek()
            .is_some_and(|&Reverse((due, _))| due <= step)
    }

    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    fn schedule(&mut self, number: u64, now: u64, rng: &mut fastrand::Rng) {
        let power = rng.u32(..=DELAY_POWERS);
        let delay = rng.u64(..1 << power);
        self.stages.push(Reverse((now + 1 + delay, number)));
    }
}

impl Engine {
    /// The running thread's generic writes become visible to copies that follow.
    pub(crate) fn fence_proxy_async(&mut self, id: FiberId) {
        self.fibers[id].fences += 1;
    }

    pub(crate) fn async_copy_out(
        &mut self,
        id: FiberId,
        pieces: &[CopyPiece],
        location: Where,
    ) -> Next {
        for piece in pieces {
            if let Err((kind, message)) = self
                .shared_range(id, piece.src.addr(), piece.bytes)
                .and_then(|offset| self.unfenced(id, offset, piece.bytes))
                .and_then(|()| self.global_range(id, piece.dst.addr(), piece.bytes))
            {
                return self.fail(id, kind, location, message);
            }
        }
        let fiber = &self.fibers[id];
        let (block, group) = (fiber.block, fiber.bulk_group);
        let copy = BulkCopy {
            direction: Direction::Out { fiber: id, group },
            grid: fiber.grid,
            block: Some(block),
            pieces: pieces.to_vec(),
            zero: Vec::new(),
            data: None,
            issuer: id,
            location,
        };
        let number = self.issue(copy);
        self.blocks[block].outbound.push(number);
        if self.rng.bool() {
            self.copies
                .schedule(number, self.scheduler.step(), &mut self.rng);
        }
        Next::Continue
    }

    pub(crate) fn async_copy_in(
        &mut self,
        id: FiberId,
        pieces: &[CopyPiece],
        zero: &[(*mut u8, usize)],
        mbarrier: *mut u64,
        location: Where,
    ) -> Next {
        let (grid, block) = (self.fibers[id].grid, self.fibers[id].block);
        if let Err(message) = self.mbarrier(block, mbarrier) {
            return self.fail(id, FaultKind::Mbarrier, location, message);
        }
        let destinations = pieces.iter().map(|piece| (piece.dst, piece.bytes));
        for (dst, bytes) in destinations.chain(zero.iter().copied()) {
            if let Err((kind, message)) = self.shared_range(id, dst.addr(), bytes) {
                return self.fail(id, kind, location, message);
            }
        }
        for piece in pieces {
            if let Err((kind, message)) = self.global_range(id, piece.src.addr(), piece.bytes) {
                return self.fail(id, kind, location, message);
            }
        }
        let copy = BulkCopy {
            direction: Direction::In { mbarrier },
            grid,
            block: Some(block),
            pieces: pieces.to_vec(),
            zero: zero.to_vec(),
            data: None,
            issuer: id,
            location,
        };
        let number = self.issue(copy);
        self.blocks[block].inbound.push(number);
        self.copies
            .schedule(number, self.scheduler.step(), &mut self.rng);
        Next::Continue
    }

    fn issue(&mut self, copy: BulkCopy) -> u64 {
        let number = self.copies.issued;
        self.copies.issued += 1;
        self.copies.in_flight.insert(number, copy);
        number
    }

    pub(crate) fn bulk_commit_group(&mut self, id: FiberId) {
        self.fibers[id].bulk_group += 1;
    }

    /// All but the latest `pending` committed groups of the running thread have read their source, and
    /// unless `read_only` written their destination.
    pub(crate) fn bulk_wait_group(&mut self, id: FiberId, pending: u32, read_only: bool) {
        let fiber = &self.fibers[id];
        let complete = fiber.bulk_group.saturating_sub(pending);
        for number in self.blocks[fiber.block].outbound.clone() {
            let Some(copy) = self.copies.in_flight.get_mut(&number) else {
                continue;
            };
            if !matches!(copy.direction, Direction::Out { fiber, group } if fiber == id && group < complete)
            {
                continue;
            }
            if copy.data.is_none() {
                copy.read();
                self.copies
                    .schedule(number, self.scheduler.step(), &mut self.rng);
            }
            if !read_only {
                self.land(number);
            }
        }
    }

    /// Takes the copies that are due one stage further.
    pub(crate) fn advance_copies(&mut self, step: u64) {
        while let Some(&Reverse((due, number))) = self.copies.stages.peek() {
            if due > step {
                return;
            }
            self.copies.stages.pop();
            let Some(copy) = self.copies.in_flight.get_mut(&number) else {
                continue;
            };
            match copy.direction {
                Direction::In { .. } => self.land(number),
                Direction::Out { .. } if copy.data.is_some() => self.land(number),
                Direction::Out { .. } => {
                    copy.read();
                    self.copies.schedule(number, step, &mut self.rng);
                }
            }
        }
    }

    /// Lands the copy that is due next, however late that is; false if no copy has a date.
    pub(crate) fn advance_next_copy(&mut self) -> bool {
        let next = self.copies.stages.peek().map(|&Reverse((due, _))| due);
        next.inspect(|&due| self.advance_copies(due)).is_some()
    }

    /// Lands everything in flight: time enough has passed.
    pub(crate) fn land_all(&mut self) {
        while let Some((&number, _)) = self.copies.in_flight.first_key_value() {
            self.land(number);
        }
    }

    fn land(&mut self, number: u64) {
        let Some(mut copy) = self.copies.in_flight.remove(&number) else {
            return;
        };
        if copy.data.is_none() {
            copy.read();
        }
        let data = copy.data.take().unwrap_or_default();
        let mut rest = data.as_slice();
        for piece in &copy.pieces {
            let (bytes, after) = rest.split_at(piece.bytes);
            rest = after;
            // SAFETY: the destination was checked when the copy was issued, and lives as the source does
            // (see `BulkCopy::read`); a copy into shared memory lands before its block's memory is given
            // up. `bytes` is a buffer of ours, so the two do not overlap.
            unsafe {
                piece
                    .dst
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
        }
        for &(dst, bytes) in &copy.zero {
            // SAFETY: as above.
            unsafe { dst.write_bytes(0, bytes) };
        }
        self.scheduler.progress();
        let list = match (copy.block, &copy.direction) {
            (None, _) => &mut self.grids[copy.grid].orphans,
            (Some(block), Direction::Out { .. }) => &mut self.blocks[block].outbound,
            (Some(block), Direction::In { .. }) => &mut self.blocks[block].inbound,
        };
        list.retain(|&other| other != number);
        if let (Direction::In { mbarrier }, Some(block)) = (&copy.direction, copy.block) {
            let pieces = copy.pieces.iter().map(|piece| (piece.dst, piece.bytes));
            let mut total = 0;
            for (dst, bytes) in pieces.chain(copy.zero.iter().copied()) {
                total += bytes;
                let shared = &mut self.blocks[block].shared;
                if let Some(offset) = shared.offset_of(dst.addr(), bytes) {
                    shared.note_async_write(offset, bytes);
                }
            }
            if let Err(message) = self.complete_tx(block, *mbarrier, total) {
                self.fail(copy.issuer, FaultKind::Mbarrier, copy.location, message);
            }
        }
    }

    /// The block has exited. What its copies have not read yet is gone.
    pub(crate) fn orphan_copies(&mut self, slot: usize) {
        let block = &mut self.blocks[slot];
        if let Some(&number) = block.inbound.first() {
            let count = block.inbound.len();
            let copy = &self.copies.in_flight[&number];
            let (issuer, location) = (copy.issuer, copy.location);
            let message =
                format!("the block exited with {count} copies into its shared memory in flight");
            self.fail(issuer, FaultKind::AsyncCopy, location, message);
            return;
        }
        let outbound = std::mem::take(&mut block.outbound);
        if outbound.is_empty() {
            return;
        }
        block
            .shared
            .repoison(memory::pattern(!self.config.seed, self.blocks_started));
        let grid = block.grid;
        for &number in &outbound {
            if let Some(copy) = self.copies.in_flight.get_mut(&number) {
                if copy.data.is_none() {
                    copy.read();
                }
                copy.block = None;
                self.copies
                    .schedule(number, self.scheduler.step(), &mut self.rng);
            }
        }
        self.grids[grid].orphans.extend(outbound);
    }

    /// A kernel's end is the last moment for the copies of its blocks.
    pub(crate) fn land_orphans(&mut self, grid: usize) {
        for number in std::mem::take(&mut self.grids[grid].orphans) {
            self.land(number);
        }
    }

    /// Offset of a range in the shared memory of the fiber's block.
    fn shared_range(
        &self,
        id: FiberId,
        address: usize,
        bytes: usize,
    ) -> Result<usize, (FaultKind, String)> {
        let block = &self.blocks[self.fibers[id].block];
        block.shared.offset_of(address, bytes).ok_or_else(|| {
            let (kind, what) = self.explain(id, address, bytes);
            (
                kind,
                format!("a bulk copy with {what} as its side in shared memory"),
            )
        })
    }

    fn global_range(
        &mut self,
        id: FiberId,
        address: usize,
        bytes: usize,
    ) -> Result<(), (FaultKind, String)> {
        if self.memory.contains(address, bytes) {
            return Ok(());
        }
        let (kind, what) = self.explain(id, address, bytes);
        Err((
            kind,
            format!("a bulk copy with {what} as its side in global memory"),
        ))
    }

    /// Whether every generic write to a range was followed by a proxy fence of the writing thread.
    fn unfenced(
        &self,
        id: FiberId,
        offset: usize,
        bytes: usize,
    ) -> Result<(), (FaultKind, String)> {
        let block = &self.blocks[self.fibers[id].block];
        for (at, writer) in block.shared.writers(offset, bytes) {
            let fiber = &self.fibers[block.fibers[writer.linear as usize]];
            if fiber.fences <= writer.fences {
                let message = format!(
                    "byte {} of the {bytes} that are copied was stored by thread {}, which has not \
                     executed a proxy fence (fence.proxy.async) since",
                    at - offset,
                    fiber.thread
                );
                return Err((FaultKind::MissingProxyFence, message));
            }
        }
        Ok(())
    }
}
