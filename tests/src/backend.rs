//! Where cases run: emulated devices by the seed, and the GPU.

use std::env;
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use tokenyard::device::{Schedule, Target};
use tokenyard::{Device, EmulatorOptions};

/// The emulated GPUs: without the copy engine, with it, and with the conversion instructions too.
pub const TARGETS: [Target; 3] = [
    Target {
        capability: 80,
        arch_specific: false,
    },
    Target {
        capability: 90,
        arch_specific: false,
    },
    Target {
        capability: 100,
        arch_specific: true,
    },
];

/// The schedules that the emulator offers. Stalls of a few thousand steps are about as long as a block
/// takes to get from one barrier to the next but one: of all lengths, they find most of the races
/// between a read and the overwriting of what it reads.
pub const SCHEDULES: [Schedule; 6] = [
    Schedule::Random,
    Schedule::RoundRobin,
    Schedule::Stall { stretch: 40 },
    Schedule::Stall { stretch: 2000 },
    Schedule::Stall { stretch: 4000 },
    Schedule::Stall { stretch: 8000 },
];

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Kernels on the CPU. Every case makes its own devices.
    Emulator,
    /// The first GPU. All cases share it.
    Cuda,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Emulator => "emulator",
            Backend::Cuda => "cuda",
        })
    }
}

/// What the environment asks for; the table is in the [crate documentation](crate).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The first emulator seed.
    pub first_seed: u64,
    /// How many seeds, at least 1.
    pub seeds: u64,
    /// Whether the emulator goes through everything.
    pub exhaustive: bool,
    /// Whether a missing GPU is a failure.
    pub require_cuda: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            first_seed: 0,
            seeds: 4,
            exhaustive: false,
            require_cuda: false,
        }
    }
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A variable that is set and is no number.
    pub fn from_env() -> Result<Self> {
        let unset = Self::default();
        Ok(Self {
            first_seed: number("TOKENYARD_SEED", unset.first_seed)?,
            seeds: number("TOKENYARD_SEEDS", unset.seeds)?.max(1),
            exhaustive: number("TOKENYARD_EXHAUSTIVE", 0)? != 0,
            require_cuda: number("TOKENYARD_REQUIRE_CUDA", 0)? != 0,
        })
    }
}

fn number<T: FromStr>(variable: &str, unset: T) -> Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    match env::var(variable) {
        Ok(text) if !text.is_empty() => text
            .parse()
            .with_context(|| format!("{variable} is {text:?}; it must be a whole number")),
        _ => Ok(unset),
    }
}

/// The GPU, opened once, or why there is none.
///
/// # Errors
/// The reason, in words.
pub fn gpu() -> Result<&'static Device, &'static str> {
    static GPU: OnceLock<Result<Device, String>> = OnceLock::new();
    GPU.get_or_init(|| Device::cuda(0).map_err(|error| error.to_string()))
        .as_ref()
        .map_err(String::as_str)
}

/// What a case is given: the kind of device that it runs on, and how thorough to be.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The kind of device.
    pub backend: Backend,
    /// What the environment asked for.
    pub settings: Settings,
}

impl Context {
    /// A device: a new emulated one of compute capability 9.0, or the GPU.
    pub fn device(&self) -> Device {
        match self.backend {
            Backend::Emulator => Device::emulator(self.settings.first_seed),
            Backend::Cuda => self.shared_gpu(),
        }
    }

    /// One device for each path that kernels can take: the emulated [`TARGETS`], or the GPU.
    pub fn devices(&self) -> Vec<Device> {
        match self.backend {
            Backend::Emulator => TARGETS
                .into_iter()
                .map(|target| emulator(target, Schedule::Random, self.settings.first_seed))
                .collect(),
            Backend::Cuda => vec![self.shared_gpu()],
        }
    }

    /// A device for each seed and schedule, the targets taking turns; the GPU several times over,
    /// as its schedule is its own.
    pub fn replays(&self) -> Vec<(String, Device)> {
        let seeds = self.seeds();
        match self.backend {
            Backend::Emulator => seeds
                .flat_map(|seed| SCHEDULES.into_iter().enumerate().map(move |it| (seed, it)))
                .map(|(seed, (turn, schedule))| {
                    let target = TARGETS[(seed as usize + turn) % TARGETS.len()];
                    let device = emulator(target, schedule, seed);
                    (format!("{schedule:?}, {}", device.description()), device)
                })
                .collect(),
            Backend::Cuda => seeds
                .map(|run| (format!("run {run}"), self.shared_gpu()))
                .collect(),
        }
    }

    /// The same with `factor` times as many seeds.
    pub fn with_more_seeds(mut self, factor: u64) -> Self {
        self.settings.seeds = self.settings.seeds.saturating_mul(factor);
        self
    }

    /// The seeds to go through.
    pub fn seeds(&self) -> std::ops::Range<u64> {
        let first = self.settings.first_seed;
        first..first.saturating_add(self.settings.seeds)
    }

    /// Whether a case should go through everything: on a GPU, or when asked to.
    pub fn is_exhaustive(&self) -> bool {
        self.backend == Backend::Cuda || self.settings.exhaustive
    }

    /// `all` where the case goes through everything, else `some`.
    pub fn pick<T>(&self, all: T, some: T) -> T {
        if self.is_exhaustive() { all } else { some }
    }

    fn shared_gpu(&self) -> Device {
        match gpu() {
            Ok(device) => device.clone(),
            Err(reason) => unreachable!("cuda cases run where there is a GPU only: {reason}"),
        }
    }
}

/// An emulated device.
pub fn emulator(target: Target, schedule: Schedule, seed: u64) -> Device {
    let mut options = EmulatorOptions::default();
    options.seed = seed;
    options.target = target;
    options.schedule = schedule;
    Device::emulator_with(options)
}
