//! Which fiber runs next, what time it is, and whether anything still gets anywhere.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::thread;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::config::{Config, Schedule};
use crate::fiber::{Fiber, FiberId, State};

/// Virtual time in which every live thread gets about one step, in picoseconds: roughly the latency of
/// a load that misses every cache.
const ROUND_PS: u64 = 500_000;
const PS_PER_NS: u64 = 1_000;

/// Spins after which one fiber counts as doing nothing but spin.
const SATURATION: u32 = 16;

/// Largest power of two by which time runs faster while everybody spins.
const MAX_BOOST: u64 = 24;

/// Steps without any store, exit or landing are bounded by this times the spin limit. It catches loops
/// that the spin count cannot: failing read-modify-writes, plain loads, bare collectives.
const STALE_FACTOR: u64 = 64;

/// What a preemption at a plain access counts towards that bound: it stands for many accesses.
const PREEMPTION_WEIGHT: u64 = 16;

/// With others outside: spins in a row by everybody before the thread rests, and for how long. What is waited for is
/// theirs to do, and they may need this processor for it.
const OUTSIDE_PATIENCE: u64 = 4096;
const OUTSIDE_REST: Duration = Duration::from_micros(50);

/// Fibers that [`Schedule::Stall`] holds back.
#[derive(Clone, Copy)]
enum Victim {
    Warp { block: usize, warp: u32 },
    Block(usize),
    Grid(usize),
}

impl Victim {
    fn includes(self, fiber: &Fiber) -> bool {
        match self {
            Self::Warp { block, warp } => fiber.block == block && fiber.linear / 32 == warp,
            Self::Block(block) => fiber.block == block,
            Self::Grid(grid) => fiber.grid == grid,
        }
    }
}

pub(crate) struct Scheduler {
    schedule: Schedule,
    spin_limit: u64,
    ready: VecDeque<FiberId>,
    /// Runnable fibers of the current victim.
    held: Vec<FiberId>,
    victim: Option<Victim>,
    next_victim: u64,
    /// (wake-up time, number of the sleep, fiber), earliest first.
    sleepers: BinaryHeap<Reverse<(u64, u64, FiberId)>>,
    sleeps: u64,
    step: u64,
    time_ps: u64,
    tick_ps: u64,
    boost: u64,
    live: u64,
    /// Fibers that are running, ready, held or asleep.
    runnable: usize,
    /// How many of those have not yet spun `SATURATION` times since the last progress.
    fresh: usize,
    /// Number of the last progress; a fiber's spin count belongs to one of them.
    epoch: u64,
    /// Whether anybody has spun since then.
    spun: bool,
    /// Spins in a row while nobody was fresh.
    idle: u64,
    /// Steps since the last store, exit or landing.
    stale: u64,
    /// Since when others, outside the machine, act on its memory: the host's time, and the virtual time then.
    outside: Option<(Instant, u64)>,
}

impl Scheduler {
    pub fn new(config: &Config) -> Self {
        Self {
            schedule: config.schedule,
            spin_limit: config.spin_limit.max(1),
            ready: VecDeque::new(),
            held: Vec::new(),
            victim: None,
            next_victim: 0,
            sleepers: BinaryHeap::new(),
            sleeps: 0,
            step: 0,
            time_ps: 0,
            tick_ps: ROUND_PS,
            boost: 0,
            live: 0,
            runnable: 0,
            fresh: 0,
            epoch: 1,
            spun: false,
            idle: 0,
            stale: 0,
            outside: None,
        }
    }

    /// Others act on the machine's memory from here on. They live by the host's clock, so that is the time, and
    /// that only spinning goes on here does not mean that nothing happens.
    pub fn follow_the_host_clock(&mut self) {
        let now = self.time_ps;
        self.outside.get_or_insert_with(|| (Instant::now(), now));
    }

    /// Forgets all fibers.
    pub fn clear(&mut self) {
        self.ready.clear();
        self.held.clear();
        self.sleepers.clear();
        self.victim = None;
        self.live = 0;
        self.runnable = 0;
        self.fresh = 0;
        self.progress();
    }

    pub fn step(&self) -> u64 {
        self.step
    }

    pub fn now_ns(&self) -> u64 {
        self.time_ps / PS_PER_NS
    }

    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Threads that were started and have not exited.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// A thread starts. The caller makes it ready.
    pub fn thread_started(&mut self) {
        self.live += 1;
        self.tick_ps = ROUND_PS / self.live;
    }

    /// The running fiber has returned from its kernel.
    pub fn thread_exited(&mut self, fiber: &mut Fiber) {
        self.block(fiber, State::Exited);
        self.live -= 1;
        self.tick_ps = ROUND_PS / self.live.max(1);
        self.progress();
    }

    /// A fiber that was blocked, or is new, can run.
    pub fn unblock(&mut self, id: FiberId, fiber: &mut Fiber) {
        self.runnable += 1;
        self.fresh += usize::from(!self.is_saturated(fiber));
        self.requeue(id, fiber);
    }

    /// The running fiber lets others run.
    pub fn requeue(&mut self, id: FiberId, fiber: &mut Fiber) {
        fiber.state = State::Runnable;
        self.ready.push_back(id);
    }

    /// The running fiber waits for others.
    pub fn block(&mut self, fiber: &mut Fiber, state: State) {
        self.runnable -= 1;
        self.fresh -= usize::from(!self.is_saturated(fiber));
        fiber.state = state;
    }

    /// The running fiber sleeps for `ns` of virtual time.
    pub fn sleep(&mut self, id: FiberId, fiber: &mut Fiber, ns: u64) {
        fiber.state = State::Asleep;
        let wake = self.time_ps.saturating_add(ns.saturating_mul(PS_PER_NS));
        self.sleeps += 1;
        self.sleepers.push(Reverse((wake, self.sleeps, id)));
    }

    fn is_saturated(&self, fiber: &Fiber) -> bool {
        fiber.spin_epoch == self.epoch && fiber.spins >= SATURATION
    }

    /// Something that another thread may be waiting for has happened.
    pub fn progress(&mut self) {
        self.stale = 0;
        self.signal();
    }

    /// As [`Self::progress`], for what a waiting loop may also do (a read-modify-write): everybody has
    /// to look again, but the bound on steps without progress keeps counting.
    pub fn signal(&mut self) {
        if self.spun {
            self.epoch += 1;
            self.spun = false;
            self.idle = 0;
            self.boost = 0;
            self.fresh = self.runnable;
        }
    }

    /// The running fiber looked for something that was not there.
    pub fn spin(&mut self, fiber: &mut Fiber) {
        if fiber.spin_epoch != self.epoch {
            fiber.spin_epoch = self.epoch;
            fiber.spins = 0;
        }
        fiber.spins = fiber.spins.saturating_add(1);
        self.fresh -= usize::from(fiber.spins == SATURATION);
        self.spun = true;
        self.idle = if self.fresh == 0 { self.idle + 1 } else { 0 };
        // Deadlines in device code expire before the limit is reached.
        let beyond = self.idle.saturating_sub(self.spin_limit / 4);
        self.boost = (beyond.saturating_mul(64) / self.spin_limit).min(MAX_BOOST);
    }

    pub fn preempted(&mut self) {
        self.stale += PREEMPTION_WEIGHT;
    }

    /// Fibers that met in a collective spin together: the ones that wait for the one that looks are
    /// not getting anywhere either. `running` is the member that completed it, the rest is blocked.
    pub fn share_spins(
        &mut self,
        running: FiberId,
        members: impl Iterator<Item = FiberId> + Clone,
        fibers: &mut Slab<Fiber>,
    ) {
        if !self.spun {
            return;
        }
        let epoch = self.epoch;
        let spins = |fiber: &Fiber| {
            if fiber.spin_epoch == epoch {
                fiber.spins
            } else {
                0
            }
        };
        let most = members
            .clone()
            .map(|id| spins(&fibers[id]))
            .max()
            .unwrap_or(0);
        if most == 0 {
            return;
        }
        for id in members {
            let fiber = &mut fibers[id];
            if id == running && !self.is_saturated(fiber) && most >= SATURATION {
                self.fresh -= 1;
            }
            fiber.spins = most;
            fiber.spin_epoch = epoch;
        }
    }

    /// Whether all that can run has only been spinning for the spin limit, or nothing has been stored
    /// for very long, and nobody outside can change that.
    pub fn is_stuck(&self) -> bool {
        let stale = self.spin_limit.saturating_mul(STALE_FACTOR);
        self.outside.is_none() && (self.idle >= self.spin_limit || self.stale >= stale)
    }

    /// Advances time by one step and chooses the fiber to run.
    pub fn next(&mut self, rng: &mut fastrand::Rng, fibers: &mut Slab<Fiber>) -> Option<FiberId> {
        self.step += 1;
        self.stale += 1;
        self.advance_time();
        self.wake_sleepers(fibers);
        let next = match self.schedule {
            Schedule::RoundRobin => self.ready.pop_front(),
            Schedule::Random => self.pick(rng),
            Schedule::Stall { stretch } => self.pick_around_victim(rng, fibers, stretch),
        };
        if next.is_some() || self.sleepers.is_empty() {
            return next;
        }
        let Reverse((wake, ..)) = *self.sleepers.peek()?;
        if self.outside.is_some() {
            thread::sleep(Duration::from_nanos(
                wake.saturating_sub(self.time_ps) / PS_PER_NS,
            ));
        }
        self.time_ps = self.time_ps.max(wake);
        self.wake_sleepers(fibers);
        self.pick(rng)
    }

    fn advance_time(&mut self) {
        let Some((since, then)) = self.outside else {
            self.time_ps = self.time_ps.saturating_add(self.tick_ps << self.boost);
            return;
        };
        if self.idle > OUTSIDE_PATIENCE {
            self.idle = 0;
            thread::sleep(OUTSIDE_REST);
        }
        // Not behind a sleeper that was woken early.
        let elapsed = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let now = then.saturating_add(elapsed.saturating_mul(PS_PER_NS));
        self.time_ps = self.time_ps.max(now);
    }

    fn wake_sleepers(&mut self, fibers: &mut Slab<Fiber>) {
        while let Some(&Reverse((wake, _, id))) = self.sleepers.peek() {
            if wake > self.time_ps {
                break;
            }
            self.sleepers.pop();
            self.requeue(id, &mut fibers[id]);
        }
    }

    fn pick(&mut self, rng: &mut fastrand::Rng) -> Option<FiberId> {
        match self.ready.len() {
            0 => None,
            1 => self.ready.pop_front(),
            n => self.ready.swap_remove_back(rng.usize(..n)),
        }
    }

    fn pick_around_victim(
        &mut self,
        rng: &mut fastrand::Rng,
        fibers: &Slab<Fiber>,
        stretch: u32,
    ) -> Option<FiberId> {
        if self.step >= self.next_victim {
            self.release_victim();
            self.next_victim = self.step + 1 + rng.u64(..u64::from(stretch.max(1)) * 2);
            self.victim = self.draw_victim(rng, fibers);
        }
        loop {
            match self.pick(rng) {
                Some(id)
                    if self
                        .victim
                        .is_some_and(|victim| victim.includes(&fibers[id])) =>
                {
                    self.held.push(id);
                }
                Some(id) => return Some(id),
                // Everybody else waits for the victim.
                None if !self.held.is_empty() => self.release_victim(),
                None => return None,
            }
        }
    }

    fn release_victim(&mut self) {
        self.victim = None;
        self.ready.extend(self.held.drain(..));
    }

    fn draw_victim(&self, rng: &mut fastrand::Rng, fibers: &Slab<Fiber>) -> Option<Victim> {
        if self.ready.is_empty() {
            return None;
        }
        let fiber = &fibers[self.ready[rng.usize(..self.ready.len())]];
        Some(match rng.u8(..3) {
            0 => Victim::Warp {
                block: fiber.block,
                warp: fiber.linear / 32,
            },
            1 => Victim::Block(fiber.block),
            _ => Victim::Grid(fiber.grid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Dim3;

    /// A scheduler with `n` ready fibers, one warp per block.
    fn scheduler(n: usize, config: Config) -> (Scheduler, Slab<Fiber>, fastrand::Rng) {
        let mut scheduler = Scheduler::new(&config);
        let mut fibers = Slab::new();
        for number in 0..n {
            let id = fibers.insert(Fiber::new(0, number / 32, 0, Dim3::from(0), 0..0));
            scheduler.thread_started();
            scheduler.unblock(id, &mut fibers[id]);
        }
        (scheduler, fibers, fastrand::Rng::with_seed(config.seed))
    }

    #[test]
    fn round_robin_is_fair() {
        let config = Config {
            schedule: Schedule::RoundRobin,
            ..Config::default()
        };
        let (mut scheduler, mut fibers, mut rng) = scheduler(5, config);
        let order: Vec<_> = (0..10)
            .map(|_| {
                let id = scheduler.next(&mut rng, &mut fibers).unwrap();
                scheduler.requeue(id, &mut fibers[id]);
                id
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_victim_is_held_back_but_not_for_ever() {
        let config = Config {
            schedule: Schedule::Stall { stretch: 1000 },
            ..Config::default()
        };
        let (mut scheduler, mut fibers, mut rng) = scheduler(64, config);
        let mut longest = 0;
        let mut last = [0; 64];
        for step in 0..20_000 {
            let id = scheduler.next(&mut rng, &mut fibers).unwrap();
            longest = longest.max(step - std::mem::replace(&mut last[id], step));
            scheduler.requeue(id, &mut fibers[id]);
        }
        assert!((1_000..10_000).contains(&longest), "{longest}");
    }

    #[test]
    fn only_when_all_spin_is_it_a_livelock() {
        let config = Config {
            spin_limit: 100,
            ..Config::default()
        };
        let (mut scheduler, mut fibers, mut rng) = scheduler(3, config);
        let mut run = |scheduler: &mut Scheduler, steps, working: Option<FiberId>| {
            for _ in 0..steps {
                let id = scheduler.next(&mut rng, &mut fibers).unwrap();
                if working != Some(id) {
                    scheduler.spin(&mut fibers[id]);
                }
                scheduler.requeue(id, &mut fibers[id]);
            }
        };
        run(&mut scheduler, 1_000, Some(1));
        assert!(!scheduler.is_stuck());
        // The worker joins the others: from there on the limit counts.
        run(&mut scheduler, 100, None);
        assert!(!scheduler.is_stuck());
        run(&mut scheduler, 100, None);
        assert!(scheduler.is_stuck());
        scheduler.signal();
        assert!(!scheduler.is_stuck());
        // Read-modify-writes count as signals, yet not for ever.
        for _ in 0..100 * STALE_FACTOR {
            run(&mut scheduler, 1, None);
            scheduler.signal();
        }
        assert!(scheduler.is_stuck());
        scheduler.progress();
        assert!(!scheduler.is_stuck());
    }

    #[test]
    fn time_goes_faster_only_while_everybody_waits() {
        let config = Config {
            spin_limit: 10_000,
            ..Config::default()
        };
        let (mut scheduler, mut fibers, mut rng) = scheduler(2, config);
        let mut spin = |scheduler: &mut Scheduler, steps| {
            for _ in 0..steps {
                let id = scheduler.next(&mut rng, &mut fibers).unwrap();
                scheduler.spin(&mut fibers[id]);
                scheduler.requeue(id, &mut fibers[id]);
            }
        };
        spin(&mut scheduler, 2_000);
        // Half a microsecond for both to run once.
        assert_eq!(scheduler.now_ns(), 2_000 / 2 * 500);
        spin(&mut scheduler, 7_000);
        assert!(!scheduler.is_stuck() && scheduler.now_ns() > 1_000_000_000_000);
    }
}
