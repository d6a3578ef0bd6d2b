//! Dispatch over virtual ranks of one device, or by the reference.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use tokenyard::reference::ep::{
    ExpectedRows, Order, QuantizedTokens, RankTokens, ReceivedBytes, ScaleLayout, Setup,
    payload_bytes,
};

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
        let Timed { value, time } = match self {
            Engine::Device { .. } => bail!("not yet"),
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

/// Outputs before a dispatch: zeros, and no source.
fn blank(setup: &Setup) -> ReceivedBytes {
    let rows = setup.max_received_rows();
    let layout = ScaleLayout::of(setup);
    let tiled = usize::from(layout == ScaleLayout::Tiles);
    ReceivedBytes {
        tokens: vec![0; rows * payload_bytes(setup.format, setup.hidden_size)],
        scales: vec![0; layout.bytes(setup)],
        row_offsets: vec![0; setup.groups() + 1],
        expert_ids: vec![0; setup.groups()],
        src_info: vec![[-1, -1]; rows],
        scales_offsets: vec![0; tiled * setup.groups()],
    }
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
