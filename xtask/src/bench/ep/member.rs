//! The ranks of one device: what they dispatch and combine, and how that is launched.

use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use half::bf16;
use tokenyard::ep::{
    Batch, CombineTarget, Dispatched, EpError, EpGroup, ExpertOutputs, GroupDispatched, Received,
    TokenFormat,
};
use tokenyard::{DeviceBuffer, Graph, Stream};

use super::cases::RankInput;

/// How rounds are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One launch for all ranks of the device to dispatch, and one to combine.
    Fused,
    /// Two for each rank, of which the first waits for nobody.
    Split,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Fused, Self::Split];
}

/// What a rank dispatches, on its device.
struct Input {
    tokens: DeviceBuffer<bf16>,
    topk_ids: DeviceBuffer<i32>,
    factor: DeviceBuffer<f32>,
}

/// What a rank combines.
struct Home {
    weights: DeviceBuffer<f32>,
    /// `[output_rows, H]`: what the experts make of the received rows.
    outputs: DeviceBuffer<bf16>,
    /// `[T, H]`.
    combined: DeviceBuffer<bf16>,
}

/// The ranks of one device.
pub struct Member {
    /// The group, as far as it is on this device.
    pub group: EpGroup,
    /// All its work.
    pub stream: Rc<Stream>,
    inputs: Vec<Input>,
    home: Vec<Home>,
}

/// What was dispatched, and can be combined.
pub enum Handles<'r> {
    /// In one launch.
    Fused(GroupDispatched<'r>),
    /// Rank by rank.
    Split(Vec<Dispatched<'r>>),
}

impl Handles<'_> {
    /// What each rank received.
    pub fn received(&self) -> Vec<&Received> {
        match self {
            Self::Fused(all) => all.received().iter().collect(),
            Self::Split(ranks) => ranks.iter().map(Dispatched::received).collect(),
        }
    }
}

/// Work of a device in one mode, recorded.
pub struct Graphs {
    /// Many dispatches.
    pub dispatches: Graph,
    /// As many, each combined before the next one.
    pub round_trips: Graph,
    /// One dispatch.
    pub dispatch: Graph,
    /// The combine of that one.
    pub combine: Graph,
}

impl Member {
    /// Puts the inputs of a group's ranks on their device. `inputs` has those of all ranks.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(group: EpGroup, inputs: &[RankInput], factor: f32) -> Result<Self> {
        let device = group.device().clone();
        let hidden_size = group.config().hidden_size();
        let output_elements = group.config().output_rows() * hidden_size;
        let (mut on_device, mut home) = (Vec::new(), Vec::new());
        for rank in group.ranks() {
            let input = &inputs[rank.number()];
            on_device.push(Input {
                tokens: device.upload(&input.tokens)?,
                topk_ids: device.upload(&input.topk_ids)?,
                factor: device.upload(&[factor])?,
            });
            home.push(Home {
                weights: device.upload(&input.weights)?,
                outputs: device.alloc(output_elements)?,
                combined: device.alloc(input.tokens.len())?,
            });
        }
        Ok(Self {
            stream: Rc::new(device.create_stream()?),
            inputs: on_device,
            home,
            group,
        })
    }

    /// Memory for what its ranks receive.
    ///
    /// # Errors
    /// Too little memory.
    pub fn allocate_received(&self) -> Result<Vec<Received>> {
        let ranks = self.group.ranks().iter();
        let received = ranks.map(|_| Ok(self.group.allocate_received()?));
        received.collect()
    }

    /// Numbers of its ranks.
    pub fn numbers(&self) -> Vec<usize> {
        let ranks = self.group.ranks().iter();
        ranks.map(|rank| rank.number()).collect()
    }

    /// Writes rows to the expert outputs of its rank `index`, from row `first` on.
    ///
    /// # Errors
    /// A device that fails.
    pub fn write_outputs(&mut self, index: usize, first: usize, rows: &[bf16]) -> Result<()> {
        let hidden_size = self.group.config().hidden_size();
        let outputs = &mut self.home[index].outputs;
        let start = first * hidden_size;
        ensure!(
            start + rows.len() <= outputs.len(),
            "more rows than outputs"
        );
        let place = outputs.as_mut_ptr().wrapping_add(start);
        // SAFETY: the rows lie within the buffer, checked above, which is borrowed meanwhile.
        let mut place = unsafe { DeviceBuffer::from_raw(outputs.device(), place, rows.len())? };
        place.upload_from(rows)?;
        Ok(())
    }

    /// Sets every byte of the combined tokens.
    ///
    /// # Errors
    /// A device that fails.
    pub fn fill_combined(&mut self, byte: u8) -> Result<()> {
        for home in &mut self.home {
            home.combined.fill(byte)?;
        }
        Ok(())
    }

    /// The combined tokens of its rank `index`. Waits for the device.
    ///
    /// # Errors
    /// A device that fails.
    pub fn combined(&self, index: usize) -> Result<Vec<bf16>> {
        Ok(self.home[index].combined.download()?)
    }

    /// Queues a dispatch, and waits for nothing.
    ///
    /// # Errors
    /// As the library's own.
    pub fn dispatch<'r>(
        &mut self,
        mode: Mode,
        received: &'r mut [Received],
    ) -> Result<Handles<'r>, EpError> {
        let Self {
            group,
            stream,
            inputs,
            ..
        } = self;
        let batches = batches(group, inputs);
        if mode == Mode::Fused {
            let dispatched = group.dispatch(stream, &batches, received)?;
            return Ok(Handles::Fused(dispatched));
        }
        let senders = group.ranks_mut().iter_mut().zip(&batches);
        let pending = senders.map(|(rank, batch)| rank.dispatch_async(stream, batch));
        let pending = pending.collect::<Result<Vec<_>, _>>()?;
        let receivers = group.ranks_mut().iter_mut().zip(pending).zip(received);
        let dispatched = receivers
            .map(|((rank, pending), received)| rank.dispatch_wait(stream, pending, received));
        Ok(Handles::Split(dispatched.collect::<Result<_, _>>()?))
    }

    /// Queues the combine of a dispatch, in the same mode, and waits for nothing.
    ///
    /// # Errors
    /// As the library's own.
    pub fn combine(&mut self, handles: Handles<'_>) -> Result<(), EpError> {
        let batches = batches(&self.group, &self.inputs);
        let home = self.home.iter_mut().map(|home| {
            let target = CombineTarget::weighted(&home.weights, &mut home.combined);
            (&home.outputs, target)
        });
        let (outputs, targets): (Vec<_>, Vec<_>) = home.unzip();
        let stream = &*self.stream;
        match handles {
            Handles::Fused(dispatched) => {
                let outputs: Vec<_> = outputs.into_iter().map(ExpertOutputs::from).collect();
                dispatched.combine(stream, &outputs, &batches, targets)?;
            }
            Handles::Split(dispatched) => {
                let senders = dispatched.into_iter().zip(outputs);
                let sent =
                    senders.map(|(dispatched, outputs)| dispatched.combine_async(stream, outputs));
                let sent = sent.collect::<Result<Vec<_>, _>>()?;
                for ((sent, batch), target) in sent.into_iter().zip(&batches).zip(targets) {
                    sent.wait(stream, batch, target)?;
                }
            }
        }
        Ok(())
    }

    /// Records the work of a mode, which does not run.
    ///
    /// # Errors
    /// As the library's own.
    pub fn record(
        &mut self,
        mode: Mode,
        rounds: usize,
        received: &mut [Received],
    ) -> Result<Graphs> {
        // Recording borrows the stream, and queueing the member: they are apart meanwhile.
        let stream = Rc::clone(&self.stream);
        let dispatches = stream
            .capture(|| (0..rounds).try_for_each(|_| self.dispatch(mode, received).map(drop)))?;
        let round_trips = stream.capture(|| {
            (0..rounds).try_for_each(|_| {
                let handles = self.dispatch(mode, received)?;
                self.combine(handles)
            })
        })?;
        let mut handles = None;
        let dispatch = stream.capture(|| {
            handles = Some(self.dispatch(mode, received)?);
            Ok::<_, EpError>(())
        })?;
        let handles = handles.context("nothing was dispatched")?;
        Ok(Graphs {
            dispatches,
            round_trips,
            dispatch,
            combine: stream.capture(|| self.combine(handles))?,
        })
    }
}

fn batches<'a>(group: &EpGroup, inputs: &'a [Input]) -> Vec<Batch<'a>> {
    let scaled = group.config().format() == TokenFormat::Nvfp4;
    let batches = inputs.iter().map(|input| {
        let batch = Batch::new(&input.tokens, &input.topk_ids);
        match scaled {
            true => batch.input_scale(&input.factor),
            false => batch,
        }
    });
    batches.collect()
}
