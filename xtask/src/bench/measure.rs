//! Timing: launches in CUDA graphs, over rotating buffers, in interleaved rounds.

use anyhow::{Context, Result};
use tokenyard::{
    Device, DeviceBuffer, DeviceError, DeviceRouting, Graph, GroupedQuantizer, Input, Quantized,
    ScaleStore, Stream, TensorScales, baseline,
};

use super::cases::Case;
use super::check::{Expected, POISON};
use crate::files::HiddenStates;

/// The inputs of all buffer sets together are this many times as large as the L2 cache, and with them
/// the outputs; so nothing that a launch touches is still there from its last time.
const L2_MULTIPLE: usize = 4;

/// Sets beyond this number are not made, however small they are: their outputs count too.
const MAX_SETS: usize = 4096;

/// A replay takes at least this long, so that what surrounds it on the stream does not count.
const REPLAY_US: f64 = 2000.0;

/// Launches in a graph, at most.
const MAX_LAUNCHES: usize = 16384;

/// Rows on the device.
enum DeviceRows {
    Bf16(DeviceBuffer<half::bf16>),
    F16(DeviceBuffer<half::f16>),
    F32(DeviceBuffer<f32>),
}

impl DeviceRows {
    fn upload(device: &Device, rows: &HiddenStates) -> Result<Self, DeviceError> {
        Ok(match rows {
            HiddenStates::Bf16(values) => Self::Bf16(device.upload(values)?),
            HiddenStates::F16(values) => Self::F16(device.upload(values)?),
            HiddenStates::F32(values) => Self::F32(device.upload(values)?),
        })
    }

    fn input(&self) -> Input<'_> {
        match self {
            Self::Bf16(buffer) => buffer.into(),
            Self::F16(buffer) => buffer.into(),
            Self::F32(buffer) => buffer.into(),
        }
    }
}

/// How the quantizer and its twin are launched. The bytes are the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch {
    /// Runs of columns that a block takes; the library's choice unless told.
    pub runs_per_block: Option<u32>,
    /// Threads of a block; likewise.
    pub threads_per_block: Option<u32>,
    /// How scale tiles are written.
    pub scale_store: ScaleStore,
}

/// What one launch reads and writes.
struct Set {
    input: DeviceRows,
    output: Quantized,
    copy_from: DeviceBuffer<[u32; 4]>,
    copy_to: DeviceBuffer<[u32; 4]>,
}

/// The microseconds of one launch in each round.
#[derive(Debug, Default)]
pub struct Samples {
    /// The quantizer.
    pub kernel: Vec<f64>,
    /// Its traffic twin.
    pub twin: Vec<f64>,
    /// A plain copy that reads and writes as many bytes, together, as the quantizer does.
    pub copy: Vec<f64>,
    /// A kernel that does nothing; empty unless asked for.
    pub empty: Vec<f64>,
    /// Launches in a replay of the quantizer.
    pub launches: usize,
}

/// A case in the memory of a device.
pub struct Bench<'a> {
    case: &'a Case,
    stream: Stream,
    quantizer: GroupedQuantizer,
    twin: GroupedQuantizer,
    routing: DeviceRouting,
    sf: TensorScales,
    sets: Vec<Set>,
}

/// What a graph repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    Kernel,
    Twin,
    Copy,
    Empty,
}

impl<'a> Bench<'a> {
    /// Allocates and fills the buffer sets.
    ///
    /// # Errors
    /// A device that cannot.
    pub fn new(
        device: &Device,
        case: &'a Case,
        launch: Launch,
        rows: &HiddenStates,
        routing: &tokenyard::Routing,
        row_tiles: usize,
        sf: &[f32],
    ) -> Result<Self> {
        let builder = || {
            let builder = GroupedQuantizer::builder(device, case.format)
                .columns(case.shape.columns)
                .input_type(case.input_type)
                .options(case.options())
                .scale_store(launch.scale_store);
            let builder = match launch.runs_per_block {
                Some(runs) => builder.runs_per_block(runs),
                None => builder,
            };
            match launch.threads_per_block {
                Some(threads) => builder.threads_per_block(threads),
                None => builder,
            }
        };
        let quantizer = builder().build()?;
        let twin = builder().traffic_twin().build()?;
        let bytes = bytes_of(rows);
        let sets = set_count(device.l2_bytes(), bytes.len());
        // Half of the bytes are read, half written.
        let words = copy_words(case.bytes(routing));
        let source: Vec<[u32; 4]> = bytes
            .chunks_exact(16)
            .cycle()
            .take(words)
            .map(|word| {
                let part = |index: usize| {
                    u32::from_le_bytes(std::array::from_fn(|byte| word[4 * index + byte]))
                };
                std::array::from_fn(part)
            })
            .collect();
        let sets = (0..sets)
            .map(|_| {
                Ok(Set {
                    input: DeviceRows::upload(device, rows)?,
                    output: quantizer.allocate(case.shape.rows, row_tiles)?,
                    copy_from: device.upload(&source)?,
                    copy_to: device.alloc_filled(words, POISON)?,
                })
            })
            .collect::<Result<_>>()
            .context("cannot allocate the buffers to rotate over")?;
        Ok(Self {
            case,
            stream: device.create_stream()?,
            quantizer,
            twin,
            routing: DeviceRouting::upload(device, routing)?,
            sf: TensorScales::upload(device, sf)?,
            sets,
        })
    }

    /// Number of buffer sets.
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Runs the quantizer once over every set, from a graph as in the measurement, and compares what
    /// the sets then hold. The first difference, in words, if there is one.
    ///
    /// # Errors
    /// A device that fails.
    pub fn check(&mut self, expected: &Expected<'_>) -> Result<Option<String>> {
        let sets = std::mem::take(&mut self.sets);
        self.sets = sets
            .into_iter()
            .map(|set| self.poisoned(set))
            .collect::<Result<_>>()?;
        let graph = self.capture(Candidate::Kernel, self.sets.len())?;
        // SAFETY: the graph refers to buffers of `self` alone, which live until the stream has been
        // waited for, and which nothing else uses.
        unsafe { graph.launch(&self.stream)? };
        self.stream.synchronize()?;
        for (index, set) in self.sets.iter().enumerate() {
            let data = set.output.data().download()?;
            let scales = set.output.scales().download()?;
            if let Some(difference) = expected.first_difference(&data, &scales) {
                return Ok(Some(format!("buffer set {index}: {difference}")));
            }
        }
        Ok(None)
    }

    /// Data and scales of the first set, as the last launch left them.
    ///
    /// # Errors
    /// A device that fails.
    pub fn output(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let output = &self.sets[0].output;
        Ok((output.data().download()?, output.scales().download()?))
    }

    fn poisoned(&self, set: Set) -> Result<Set> {
        let (rows, columns) = (set.output.rows(), set.output.columns());
        let row_tiles = set.output.row_tiles();
        let (mut data, mut scales) = set.output.into_buffers();
        data.fill(POISON)?;
        scales.fill(POISON)?;
        let format = self.case.format;
        let output = Quantized::from_buffers(format, rows, columns, row_tiles, data, scales)?;
        Ok(Set {
            output: self.quantizer.adopt(output)?,
            ..set
        })
    }

    /// Measures everything in turn, `rounds` times. Each round begins with another candidate.
    ///
    /// # Errors
    /// A device that fails.
    pub fn measure(&mut self, rounds: usize) -> Result<Samples> {
        let mut candidates = vec![Candidate::Kernel, Candidate::Copy, Candidate::Twin];
        if self.case.is_latency() {
            candidates.push(Candidate::Empty);
        }
        let mut graphs = Vec::new();
        for &candidate in &candidates {
            graphs.push(self.replay_of(candidate)?);
        }

        let mut times = vec![Vec::with_capacity(rounds); candidates.len()];
        for round in 0..rounds {
            let order: Vec<usize> = (0..candidates.len())
                .map(|place| (round + place) % candidates.len())
                .collect();
            // Without a time of its own: while it runs, the host queues the rest of the round, so that
            // the device never waits for a launch.
            let lead_in = *order.last().expect("there are candidates");
            // SAFETY: as in `check`.
            unsafe { graphs[lead_in].0.launch(&self.stream)? };
            let mut events = vec![self.stream.record()?];
            for &candidate in &order {
                // SAFETY: as in `check`.
                unsafe { graphs[candidate].0.launch(&self.stream)? };
                events.push(self.stream.record()?);
            }
            for (&candidate, pair) in order.iter().zip(events.windows(2)) {
                let milliseconds = f64::from(pair[1].elapsed_ms(&pair[0])?);
                times[candidate].push(milliseconds * 1e3 / graphs[candidate].1 as f64);
            }
        }

        let mut samples = Samples::default();
        for ((candidate, times), (_, launches)) in candidates.into_iter().zip(times).zip(graphs) {
            match candidate {
                Candidate::Kernel => (samples.kernel, samples.launches) = (times, launches),
                Candidate::Twin => samples.twin = times,
                Candidate::Copy => samples.copy = times,
                Candidate::Empty => samples.empty = times,
            }
        }
        Ok(samples)
    }

    /// A graph that takes long enough to be timed, and how many launches it holds.
    fn replay_of(&mut self, candidate: Candidate) -> Result<(Graph, usize)> {
        let sets = self.sets.len();
        let graph = self.capture(candidate, sets)?;
        // The first launch of a graph also uploads it.
        // SAFETY: as in `check`.
        unsafe { graph.launch(&self.stream)? };
        let start = self.stream.record()?;
        // SAFETY: as in `check`.
        unsafe { graph.launch(&self.stream)? };
        let end = self.stream.record()?;
        let once = f64::from(end.elapsed_ms(&start)?) * 1e3;
        let launches = launch_count(sets, once);
        if launches == sets {
            return Ok((graph, sets));
        }
        let graph = self.capture(candidate, launches)?;
        // SAFETY: as in `check`.
        unsafe { graph.launch(&self.stream)? };
        self.stream.synchronize()?;
        Ok((graph, launches))
    }

    /// Records `launches` launches, each on the next set.
    fn capture(&mut self, candidate: Candidate, launches: usize) -> Result<Graph> {
        let Self {
            stream,
            quantizer,
            twin,
            routing,
            sf,
            sets,
            ..
        } = self;
        let stream = &*stream;
        let count = sets.len();
        stream.capture(|| -> Result<()> {
            for launch in 0..launches {
                let set = &mut sets[launch % count];
                let input = set.input.input();
                match candidate {
                    Candidate::Kernel => {
                        quantizer.quantize_into(stream, input, routing, sf, &mut set.output)?;
                    }
                    Candidate::Twin => {
                        twin.quantize_into(stream, input, routing, sf, &mut set.output)?;
                    }
                    Candidate::Copy => {
                        baseline::copy(stream, &set.copy_from, &mut set.copy_to)?;
                    }
                    Candidate::Empty => baseline::empty(stream)?,
                }
            }
            Ok(())
        })
    }
}

/// How many buffer sets to rotate over.
fn set_count(l2_bytes: usize, input_bytes: usize) -> usize {
    (L2_MULTIPLE * l2_bytes)
        .div_ceil(input_bytes.max(1))
        .clamp(2, MAX_SETS)
}

/// How many launches make a replay long enough, in whole rotations, when one rotation over `sets` sets
/// takes so long.
fn launch_count(sets: usize, rotation_us: f64) -> usize {
    let rotations = (REPLAY_US / rotation_us).ceil().max(1.0) as usize;
    (sets * rotations).min(MAX_LAUNCHES.max(sets) / sets * sets)
}

/// 16-byte words that a copy of `bytes` bytes, read and written together, copies.
fn copy_words(bytes: u64) -> usize {
    bytes.div_ceil(2 * 16) as usize
}

fn bytes_of(rows: &HiddenStates) -> &[u8] {
    match rows {
        HiddenStates::Bf16(values) => bytemuck::cast_slice(values),
        HiddenStates::F16(values) => bytemuck::cast_slice(values),
        HiddenStates::F32(values) => bytemuck::cast_slice(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn buffers_rotate_past_the_cache() {
        // Two sets at least, for inputs larger than that.
        assert_eq!(set_count(50 * MIB, 448 * MIB), 2);
        assert_eq!(set_count(50 * MIB, 10 * MIB), 20);
        assert_eq!(set_count(50 * MIB, 1536 << 10), 134);
        assert_eq!(set_count(50 * MIB, 1), MAX_SETS);
        assert_eq!(set_count(0, 0), 2);
    }

    #[test]
    fn a_kernel_that_computes_nothing_does_not_pass() {
        use super::super::cases::{Filter, Suite, cases};
        use super::super::input::hidden_states;

        let filter = Filter {
            shapes: vec!["1x7168".to_owned()],
            ..Filter::default()
        };
        for case in cases(Suite::Marks, &filter) {
            let device = Device::emulator(5);
            let rows = hidden_states(1, case.shape.columns, case.input_type);
            let routing = case.shape.routing(false).unwrap();
            let sf = vec![1.0; case.shape.experts];
            let expected = Expected::new(&case, &rows, &routing, 2, &sf).unwrap();
            let mut bench =
                Bench::new(&device, &case, Launch::default(), &rows, &routing, 2, &sf).unwrap();
            assert_eq!(bench.check(&expected).unwrap(), None);
            std::mem::swap(&mut bench.quantizer, &mut bench.twin);
            let difference = bench.check(&expected).unwrap().unwrap();
            assert!(difference.starts_with("buffer set 0: "), "{difference}");
        }
    }

    #[test]
    fn replays_are_whole_rotations_and_long_enough() {
        assert_eq!(launch_count(2, 300.0), 14);
        assert_eq!(launch_count(134, 5000.0), 134);
        assert_eq!(launch_count(134, 400.0), 670);
        // An empty kernel over few sets would need more than a graph should hold.
        assert_eq!(launch_count(3, 0.1), MAX_LAUNCHES / 3 * 3);
        assert_eq!(launch_count(MAX_SETS, 4000.0), MAX_SETS);
    }

    #[test]
    fn a_copy_moves_as_many_bytes_as_the_quantizer() {
        assert_eq!(copy_words(85_983_232) * 32, 85_983_232);
        assert_eq!(copy_words(33), 2);
    }
}
