//! A case in the memory of one GPU, or of several: checked, and timed.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use half::bf16;
use tokenyard::ep::{Batch, EpConfig, EpError, EpGroup, Received, TokenFormat};
use tokenyard::reference::ep::{ExpectedRows, Order, QuantizedTokens, ReceivedBytes, Setup};
use tokenyard::{Device, DeviceBuffer, Graph, Stream, baseline};

use super::cases::{Case, RankInput};
use super::record::Checked;

/// Rounds in a graph: what surrounds a replay, and that GPUs do not begin together, hardly counts.
const ROUNDS: usize = 20;

/// Bytes of outputs up to which every one is compared.
const COMPARED_BYTES: u64 = 1 << 30;

/// Bytes of the copy that says what is attainable.
const COPY_BYTES: usize = 256 << 20;

/// Microseconds of a round in each sample: of the slowest GPU.
#[derive(Debug, Default)]
pub struct Samples {
    /// One launch for everything.
    pub fused: Vec<f64>,
    /// Two launches.
    pub split: Vec<f64>,
    /// Rounds in a sample.
    pub rounds_per_sample: usize,
}

/// How rounds are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Fused,
    Split,
}

/// What a rank dispatches, on its device.
struct Input {
    tokens: DeviceBuffer<bf16>,
    topk_ids: DeviceBuffer<i32>,
    factor: DeviceBuffer<f32>,
}

/// The ranks of one device.
struct Member {
    group: EpGroup,
    stream: Rc<Stream>,
    inputs: Vec<Input>,
    received: Vec<Received>,
}

/// A case on devices.
pub struct Bench {
    members: Vec<Member>,
    setup: Setup,
    config: EpConfig,
}

impl Member {
    fn new(group: EpGroup, inputs: &[RankInput], setup: &Setup) -> Result<Self> {
        let device = group.device().clone();
        let ranks = || group.ranks().iter();
        let inputs = ranks().map(|rank| {
            let input = &inputs[rank.number()];
            Ok(Input {
                tokens: device.upload(&input.tokens)?,
                topk_ids: device.upload(&input.topk_ids)?,
                factor: device.upload(&[setup.global_factor])?,
            })
        });
        let received = ranks().map(|_| Ok(group.allocate_received()?));
        Ok(Self {
            stream: Rc::new(device.create_stream()?),
            inputs: inputs.collect::<Result<_>>()?,
            received: received.collect::<Result<_>>()?,
            group,
        })
    }

    /// Queues a round, and waits for nothing.
    fn queue(&mut self, mode: Mode) -> Result<(), EpError> {
        let Self {
            group,
            stream,
            inputs,
            received,
        } = self;
        let scaled = group.config().format() == TokenFormat::Nvfp4;
        let batches = inputs.iter().map(|input| {
            let batch = Batch::new(&input.tokens, &input.topk_ids);
            match scaled {
                true => batch.input_scale(&input.factor),
                false => batch,
            }
        });
        let batches: Vec<_> = batches.collect();
        if mode == Mode::Fused {
            return group.dispatch(stream, &batches, received).map(drop);
        }
        let senders = group.ranks_mut().iter_mut().zip(&batches);
        let pending = senders.map(|(rank, batch)| rank.dispatch_async(stream, batch));
        let pending = pending.collect::<Result<Vec<_>, _>>()?;
        let receivers = group.ranks_mut().iter_mut().zip(pending).zip(received);
        for ((rank, pending), received) in receivers {
            rank.dispatch_wait(stream, pending, received)?;
        }
        Ok(())
    }

    /// Records rounds as a graph.
    fn capture(&mut self, mode: Mode) -> Result<Graph> {
        // Recording borrows the stream, and queueing the member: they are apart meanwhile.
        let stream = Rc::clone(&self.stream);
        let graph = stream.capture(|| (0..ROUNDS).try_for_each(|_| self.queue(mode)));
        Ok(graph?)
    }
}

impl Bench {
    /// Allocates a case on devices that reach each other, or on one.
    ///
    /// # Errors
    /// Devices that cannot.
    pub fn new(devices: &[Device], case: &Case, inputs: &[RankInput]) -> Result<Self> {
        let (config, setup) = (case.config()?, case.setup());
        let groups = match devices {
            // No receipts where one host orders everything.
            [device] => vec![EpGroup::new(device, config.clone())?],
            devices => EpGroup::across(devices, config.clone())?,
        };
        let members = groups.into_iter();
        let members = members.map(|group| Member::new(group, inputs, &setup));
        Ok(Self {
            members: members.collect::<Result<_>>()?,
            setup,
            config,
        })
    }

    /// A round in each mode, held to the reference.
    ///
    /// # Errors
    /// A device that fails, or the first difference.
    pub fn check(&mut self, inputs: &[RankInput]) -> Result<Checked> {
        let plan = self.config.memory_plan();
        let all = plan.received_bytes() * plan.ranks <= COMPARED_BYTES;
        let reference: Vec<_> = inputs.iter().map(RankInput::reference).collect();
        let quantized = match all {
            true => reference
                .iter()
                .map(|rank| QuantizedTokens::new(&self.setup, rank))
                .collect::<Result<Vec<_>, _>>()?,
            false => Vec::new(),
        };
        for mode in [Mode::Fused, Mode::Split] {
            for received in self
                .members
                .iter_mut()
                .flat_map(|member| &mut member.received)
            {
                received.fill(0)?;
            }
            for member in &mut self.members {
                member.queue(mode)?;
            }
            for member in &self.members {
                member.group.check()?;
                for (rank, received) in member.group.ranks().iter().zip(&member.received) {
                    let expected = ExpectedRows::new(&self.setup, &reference, rank.number())?;
                    compare(&expected, received, all.then_some(quantized.as_slice()))
                        .with_context(|| format!("{mode:?}, rank {}", rank.number()))?;
                }
            }
        }
        Ok(match all {
            true => Checked::Bytes,
            false => Checked::Rows,
        })
    }

    /// Times both modes in turn, `samples` times.
    ///
    /// # Errors
    /// A device that fails.
    pub fn measure(&mut self, samples: usize) -> Result<Samples> {
        const MODES: [Mode; 2] = [Mode::Fused, Mode::Split];
        let mut graphs = Vec::new();
        for mode in MODES {
            let members = self.members.iter_mut();
            let of_mode = members.map(|member| member.capture(mode));
            graphs.push(of_mode.collect::<Result<Vec<_>>>()?);
        }
        let mut times = [Vec::new(), Vec::new()];
        // The first replay of each also uploads it, and does not count.
        for sample in 0..=samples {
            for (graphs, times) in graphs.iter().zip(&mut times) {
                let mut events = Vec::new();
                for (member, graph) in self.members.iter().zip(graphs) {
                    let start = member.stream.record()?;
                    // SAFETY: the graph refers to buffers of the members, which live until their streams have been
                    // waited for, and which nothing else uses.
                    unsafe { graph.launch(&member.stream)? };
                    events.push((start, member.stream.record()?));
                }
                let mut slowest = 0.0_f64;
                for (start, end) in &events {
                    slowest = slowest.max(f64::from(end.elapsed_ms(start)?));
                }
                if sample > 0 {
                    times.push(slowest * 1e3 / ROUNDS as f64);
                }
            }
        }
        for member in &self.members {
            member.group.check()?;
        }
        let [fused, split] = times;
        Ok(Samples {
            fused,
            split,
            rounds_per_sample: ROUNDS,
        })
    }
}

/// Holds what a rank received to the reference: every byte, or the number of rows of everything.
fn compare(
    expected: &ExpectedRows,
    received: &Received,
    quantized: Option<&[QuantizedTokens]>,
) -> Result<()> {
    let row_offsets = received.row_offsets().download()?;
    ensure!(
        row_offsets == expected.row_offsets,
        "row offsets {row_offsets:?}, not {:?}",
        expected.row_offsets
    );
    let pairs = received.pairs().download()?;
    let handles = expected.handles.iter().map(|&(end, rows)| [end, rows]);
    ensure!(pairs == handles.collect::<Vec<_>>(), "rows of the pairs");
    let Some(quantized) = quantized else {
        return Ok(());
    };
    let found = ReceivedBytes {
        tokens: received.tokens().download()?,
        scales: received.scales().download()?,
        row_offsets,
        expert_ids: received.expert_ids().download()?,
        src_info: received.src_info().download()?,
        scales_offsets: received.scales_offsets().download()?,
    };
    let before = ReceivedBytes {
        tokens: vec![0; found.tokens.len()],
        scales: vec![0; found.scales.len()],
        row_offsets: vec![0; found.row_offsets.len()],
        expert_ids: vec![0; found.expert_ids.len()],
        src_info: vec![[0; 2]; found.src_info.len()],
        scales_offsets: vec![0; found.scales_offsets.len()],
    };
    Ok(expected.check(quantized, &before, &found, Order::Free)?)
}

/// The rate of a plain copy from each device to the next one, all at a time, in bytes a second of the slowest:
/// what the path allows a kernel. With one device it is a copy within its memory.
///
/// # Errors
/// Devices that cannot.
pub fn attainable(devices: &[Device], samples: usize) -> Result<f64> {
    let words = COPY_BYTES / 16;
    let mut places = Vec::new();
    for device in devices {
        let from = device.alloc_filled::<[u32; 4]>(words, 1)?;
        let to = device.alloc_filled::<[u32; 4]>(words, 0)?;
        places.push((device, device.create_stream()?, from, to));
    }
    let mut best = 0.0_f64;
    for _ in 0..samples.max(2) {
        let mut events = Vec::new();
        for (index, (device, stream, from, _)) in places.iter().enumerate() {
            let (next, .., to) = &places[(index + 1) % places.len()];
            device.reach(next)?;
            // SAFETY: it is written by this copy alone, which is waited for below, and lives longer.
            let mut to = unsafe { DeviceBuffer::from_raw(device, to.as_ptr().cast_mut(), words)? };
            let start = stream.record()?;
            baseline::copy(stream, from, &mut to)?;
            events.push((start, stream.record()?));
        }
        let mut slowest = 0.0_f64;
        for (start, end) in &events {
            slowest = slowest.max(f64::from(end.elapsed_ms(start)?) / 1e3);
        }
        best = best.max(COPY_BYTES as f64 / slowest);
    }
    Ok(best)
}
