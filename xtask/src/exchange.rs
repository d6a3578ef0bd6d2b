//! Dispatch over virtual ranks of one device, or by the reference.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use half::bf16;
use half::slice::HalfBitsSliceExt;
use tokenyard::ep::{
    Batch, EpConfig, EpConfigError, EpError, EpGroup, Received, SlotOrder, TokenFormat,
};
use tokenyard::reference::ep::{
    ExpectedRows, QuantizedTokens, RankTokens, ReceivedBytes, ScaleLayout, Setup, payload_bytes,
};
use tokenyard::{Device, DeviceBuffer, Stream};

use crate::engine::{Engine, Timed};
use crate::files::{DispatchedFile, RankRows, TokensFile};

/// A dispatch, described.
#[derive(Clone, Debug)]
pub struct DispatchPlan {
    /// What the ranks agree on.
    pub setup: Setup,
    /// Tokens of each rank; under skip mode all of them on each.
    pub counts: Vec<usize>,
    /// One launch for everything.
    pub fused: bool,
    /// Rows in the order of tokens.
    pub deterministic: bool,
}

impl DispatchPlan {
    /// Tokens as evenly divided as can be, the first ranks having one more.
    pub fn even_counts(tokens: usize, ranks: usize) -> Vec<usize> {
        (0..ranks)
            .map(|rank| tokens / ranks + usize::from(rank < tokens % ranks))
            .collect()
    }

    /// The library's description of it.
    ///
    /// # Errors
    /// What the library refuses.
    pub fn config(&self) -> Result<EpConfig, EpConfigError> {
        let setup = &self.setup;
        let mut builder = EpConfig::builder(setup.format)
            .hidden_size(setup.hidden_size)
            .top_k(setup.top_k)
            .experts(setup.experts)
            .max_tokens_per_rank(setup.max_tokens_per_rank)
            .ranks(setup.ranks)
            .fused_shared_expert(setup.fused_shared_expert)
            .skip_a2a(setup.skip_a2a)
            .slot_order(match self.deterministic {
                true => SlotOrder::Deterministic,
                false => SlotOrder::Arrival,
            });
        if let Some(rows) = setup.scale_preshuffle {
            builder = builder.scale_preshuffle(rows);
        }
        if setup.format.is_mx() {
            builder = builder.scale_rounding(setup.scale_rounding);
        }
        builder.build()
    }

    /// What each rank has of `file`.
    ///
    /// # Errors
    /// Counts that do not add up to the file's tokens, or are not one a rank.
    pub fn ranks<'a>(&self, file: &'a TokensFile) -> Result<Vec<RankTokens<'a>>> {
        if self.setup.skip_a2a {
            return Ok(vec![file.slice(0, file.count); self.setup.ranks]);
        }
        ensure!(
            self.counts.len() == self.setup.ranks,
            "--tokens-per-rank names {} ranks, --ranks {}",
            self.counts.len(),
            self.setup.ranks,
        );
        let sum: usize = self.counts.iter().sum();
        ensure!(
            sum == file.count,
            "--tokens-per-rank adds up to {sum} tokens; the file has {}",
            file.count,
        );
        let mut start = 0;
        let slices = self.counts.iter().map(|&count| {
            start += count;
            file.slice(start - count, count)
        });
        Ok(slices.collect())
    }
}

impl Engine {
    /// Dispatches `file` over the ranks of `plan`.
    ///
    /// # Errors
    /// A plan that does not fit the file, or whatever the device reports.
    pub fn dispatch(
        &self,
        file: &TokensFile,
        plan: &DispatchPlan,
    ) -> Result<Timed<DispatchedFile>> {
        let ranks = plan.ranks(file)?;
        let config = plan.config()?;
        let Timed { value, time } = match self {
            Engine::Device { device, .. } => dispatch_on_device(device, config, plan, &ranks),
            Engine::Reference => dispatch_by_reference(plan, &ranks),
        }
        .with_context(|| format!("cannot dispatch {} ({})", plan.setup.format, self.name()))?;
        let value = DispatchedFile {
            setup: plan.setup.clone(),
            ranks: value,
        };
        Ok(Timed { value, time })
    }
}

/// Outputs before a dispatch: zeros.
fn blank(setup: &Setup) -> ReceivedBytes {
    let rows = setup.max_received_rows();
    let layout = ScaleLayout::of(setup);
    let tiled = usize::from(layout == ScaleLayout::Tiles);
    ReceivedBytes {
        tokens: vec![0; rows * payload_bytes(setup.format, setup.hidden_size)],
        scales: vec![0; layout.bytes(setup)],
        row_offsets: vec![0; setup.groups() + 1],
        expert_ids: vec![0; setup.groups()],
        src_info: vec![[0, 0]; rows],
        scales_offsets: vec![0; tiled * setup.groups()],
    }
}

/// A rank's tokens on the device.
struct Uploaded {
    tokens: DeviceBuffer<bf16>,
    topk_ids: DeviceBuffer<i32>,
}

fn dispatch_on_device(
    device: &Device,
    config: EpConfig,
    plan: &DispatchPlan,
    ranks: &[RankTokens<'_>],
) -> Result<Timed<Vec<RankRows>>> {
    let setup = &plan.setup;
    let stream = device.create_stream()?;
    let mut group = EpGroup::new(device, config)?;
    let uploaded = ranks.iter().map(|rank| {
        Ok(Uploaded {
            tokens: device.upload(rank.tokens.reinterpret_cast::<bf16>())?,
            topk_ids: device.upload(rank.topk_ids)?,
        })
    });
    let uploaded = uploaded.collect::<Result<Vec<_>>>()?;
    let factor = device.upload(&[setup.global_factor])?;
    let batches = uploaded.iter().map(|rank| {
        let batch = Batch::new(&rank.tokens, &rank.topk_ids);
        match setup.format {
            TokenFormat::Nvfp4 => batch.input_scale(&factor),
            _ => batch,
        }
    });
    let batches: Vec<_> = batches.collect();
    let mut received = Vec::new();
    for _ in 0..setup.ranks {
        let mut outputs = group.allocate_received()?;
        outputs.fill(0)?;
        received.push(outputs);
    }
    let start = Instant::now();
    run(&mut group, &stream, &batches, &mut received, plan.fused)?;
    let time = start.elapsed();
    let mut value = Vec::new();
    for (rank, outputs) in received.iter().enumerate() {
        let handles: Vec<_> = outputs
            .pairs()
            .download()?
            .into_iter()
            .map(Into::into)
            .collect();
        let outputs = ReceivedBytes {
            tokens: outputs.tokens().download()?,
            scales: outputs.scales().download()?,
            row_offsets: outputs.row_offsets().download()?,
            expert_ids: outputs.expert_ids().download()?,
            src_info: outputs.src_info().download()?,
            scales_offsets: outputs.scales_offsets().download()?,
        };
        value.push(RankRows::new(setup, rank, outputs, &handles));
    }
    Ok(Timed { value, time })
}

fn run(
    group: &mut EpGroup,
    stream: &Stream,
    batches: &[Batch<'_>],
    received: &mut [Received],
    fused: bool,
) -> Result<(), EpError> {
    if fused {
        group.dispatch(stream, batches, received)?;
        return group.check();
    }
    let senders = group.ranks_mut().iter_mut().zip(batches);
    let pending = senders.map(|(rank, batch)| rank.dispatch_async(stream, batch));
    let pending = pending.collect::<Result<Vec<_>, _>>()?;
    let receivers = group.ranks_mut().iter_mut().zip(pending).zip(received);
    for ((rank, pending), received) in receivers {
        rank.dispatch_wait(stream, pending, received)?;
    }
    group.check()
}

fn dispatch_by_reference(
    plan: &DispatchPlan,
    ranks: &[RankTokens<'_>],
) -> Result<Timed<Vec<RankRows>>> {
    let setup = &plan.setup;
    let start = Instant::now();
    let quantized = quantized(setup, ranks)?;
    let mut value = Vec::new();
    for rank in 0..setup.ranks {
        let rows = ExpectedRows::new(setup, ranks, rank)?;
        let received = rows.in_token_order(&quantized, &blank(setup));
        value.push(RankRows::new(setup, rank, received, &rows.handles));
    }
    Ok(Timed {
        value,
        time: start.elapsed(),
    })
}

fn quantized(setup: &Setup, ranks: &[RankTokens<'_>]) -> Result<Vec<QuantizedTokens>> {
    let ranks = ranks.iter().map(|rank| QuantizedTokens::new(setup, rank));
    Ok(ranks.collect::<Result<_, _>>()?)
}
