//! How an emulated machine is set up: its seed, what the device can do, how fibers are scheduled.

/// What the emulated device can do.
///
/// A kernel that takes different paths on different hardware asks [`crate::device::target`], so that
/// one source can be tested as if it ran on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Compute capability times ten: 80, 90, 100.
    pub capability: u32,
    /// Whether the architecture-specific features are there (`compute_90a`, `compute_100a`).
    pub arch_specific: bool,
}

/// How the next runnable fiber is chosen. Every choice follows from [`Config::seed`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Schedule {
    /// Any runnable fiber of any resident block, each with the same probability.
    #[default]
    Random,
    /// First come, first served. Useful to see what a kernel does "normally"; finds few races.
    RoundRobin,
    /// As [`Schedule::Random`], but most of the time a victim drawn from the seed (a warp, a block
    /// or a whole grid) does not run at all, for about `stretch` scheduler steps. Finds races that
    /// need one side to be much later than the other.
    Stall {
        /// Mean length of a stall in scheduler steps.
        stretch: u32,
    },
}

/// Settings of a [`crate::Machine`].
///
/// ```
/// let config = simt::Config { seed: 42, ..simt::Config::default() };
/// let machine = simt::Machine::new(config);
/// # drop(machine);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Everything random follows from it: interleaving, poison patterns, when copies land.
    pub seed: u64,
    /// What [`crate::device::target`] answers.
    pub target: Target,
    /// Blocks of one grid that are resident at a time. The blocks of a cooperative launch are always
    /// all resident.
    pub max_resident_blocks: u32,
    /// Consecutive spins, by all threads together and without any progress, after which waiting is
    /// reported as a livelock.
    pub spin_limit: u64,
    /// Stack of one emulated thread in bytes, without its guard page.
    pub stack_bytes: usize,
    /// How the next runnable fiber is chosen.
    pub schedule: Schedule,
    /// Mean number of checked memory accesses between two preemptions of a thread that would
    /// otherwise run on to its next synchronization. Small values search for races harder.
    pub preempt_every: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            target: Target {
                capability: 90,
                arch_specific: false,
            },
            max_resident_blocks: 8,
            spin_limit: 1 << 20,
            stack_bytes: 128 << 10,
            schedule: Schedule::Random,
            preempt_every: 256,
        }
    }
}
