//! One dispatch, described.

use std::fmt;

use anyhow::{Result, ensure};
use fastrand::Rng;
use std::time::Duration;
use tokenyard::ep::{
    CombineFormat, EpConfig, EpConfigBuilder, EpConfigError, LaunchShape, SlotOrder, TokenFormat,
};
use tokenyard::reference::ep::{
    ExpectedRows, Order, QuantizedTokens, RankTokens, ReceivedBytes, ScaleLayout, Setup,
    payload_bytes,
};

use super::traffic::{RankInput, Traffic, ids, values};

/// What the ranks agree on, what they have, and how it is launched.
#[derive(Clone, Debug)]
pub struct EpCase {
    /// What the ranks agree on.
    pub setup: Setup,
    /// G.
    pub ranks_per_node: usize,
    /// Whether rows of a cell are in the order of tokens.
    pub order: Order,
    /// Blocks and threads; the library's own choice without.
    pub launch: Option<LaunchShape>,
    /// What rows travel home as, if they do.
    pub combine: Option<CombineFormat>,
    /// How long waits may take; the library's own choice without.
    pub deadline: Option<Duration>,
    /// One for each rank; under skip mode all equal.
    pub ranks: Vec<RankInput>,
}

impl EpCase {
    /// Ranks of `counts` tokens each.
    pub fn new(setup: Setup, counts: &[usize], traffic: Traffic, seed: u64) -> Self {
        let random = &mut Rng::with_seed(seed);
        let mut case = Self {
            ranks_per_node: setup.ranks,
            order: Order::Free,
            launch: None,
            combine: None,
            deadline: None,
            ranks: Vec::new(),
            setup,
        };
        case.refill(counts, traffic, random);
        case
    }

    /// Other tokens for the same setup.
    pub fn refill(&mut self, counts: &[usize], traffic: Traffic, random: &mut Rng) {
        let setup = &self.setup;
        let mut rank = |&count: &usize| RankInput {
            tokens: values(setup, count, random),
            topk_ids: ids(setup, count, traffic, random),
        };
        self.ranks = match setup.skip_a2a {
            true => vec![rank(&counts[0]); setup.ranks],
            false => counts.iter().map(rank).collect(),
        };
    }

    /// The library's description of it.
    ///
    /// # Errors
    /// As the library's own.
    pub fn config(&self) -> Result<EpConfig, EpConfigError> {
        self.builder().build()
    }

    /// The same, before it is checked.
    pub fn builder(&self) -> EpConfigBuilder {
        let setup = &self.setup;
        let mut builder = EpConfig::builder(setup.format)
            .hidden_size(setup.hidden_size)
            .top_k(setup.top_k)
            .experts(setup.experts)
            .max_tokens_per_rank(setup.max_tokens_per_rank)
            .ranks(setup.ranks)
            .ranks_per_node(self.ranks_per_node)
            .fused_shared_expert(setup.fused_shared_expert)
            .skip_a2a(setup.skip_a2a)
            .slot_order(match self.order {
                Order::Free => SlotOrder::Arrival,
                Order::Tokens => SlotOrder::Deterministic,
            });
        if let Some(world) = setup.allreduce_world_size {
            builder = builder.allreduce_world_size(world);
        }
        if let Some(rows) = setup.scale_preshuffle {
            builder = builder.scale_preshuffle(rows);
        }
        if matches!(setup.format, TokenFormat::Mxfp4 | TokenFormat::Mxfp8) {
            builder = builder.scale_rounding(setup.scale_rounding);
        }
        if let Some(format) = self.combine {
            builder = builder.combine(format);
        }
        if let Some(deadline) = self.deadline {
            builder = builder.deadline(Some(deadline));
        }
        builder
    }

    /// What every rank brings along, as the reference takes it.
    pub fn inputs(&self) -> Vec<RankTokens<'_>> {
        self.ranks.iter().map(RankInput::reference).collect()
    }

    /// What each rank must receive, and every rank's tokens, quantized.
    ///
    /// # Errors
    /// Tensors that do not fit the setup.
    pub fn expected(&self) -> Result<(Vec<ExpectedRows>, Vec<QuantizedTokens>)> {
        let inputs = self.inputs();
        let rows = (0..self.setup.ranks).map(|rank| ExpectedRows::new(&self.setup, &inputs, rank));
        let tokens = inputs
            .iter()
            .map(|rank| QuantizedTokens::new(&self.setup, rank));
        Ok((
            rows.collect::<Result<_, _>>()?,
            tokens.collect::<Result<_, _>>()?,
        ))
    }

    /// Of every rank, where its rows are from, if they are in the order of tokens. Rows that padding put between groups
    /// are from nowhere.
    ///
    /// # Errors
    /// A case of another order, or tensors that do not fit the setup.
    pub fn ordered_sources(&self) -> Result<Vec<Vec<[i32; 2]>>> {
        ensure!(
            self.order == Order::Tokens,
            "{self}: which row is whose is not known beforehand"
        );
        let (ranks, _) = self.expected()?;
        let sources = ranks.iter().map(|rank| {
            let mut sources = vec![[-1; 2]; rank.rows()];
            for cell in &rank.cells {
                for (row, &(token, k)) in cell.rows.clone().zip(&cell.pairs) {
                    sources[row] = [token as i32, k as i32];
                }
            }
            sources
        });
        Ok(sources.collect())
    }

    /// A rank's outputs when every byte of them is `byte`.
    pub fn background(&self, byte: u8) -> ReceivedBytes {
        let setup = &self.setup;
        let (rows, groups) = (setup.max_received_rows(), setup.groups());
        let layout = ScaleLayout::of(setup);
        let word = u32::from_ne_bytes([byte; 4]);
        let tiled = usize::from(layout == ScaleLayout::Tiles);
        ReceivedBytes {
            tokens: vec![byte; rows * payload_bytes(setup.format, setup.hidden_size)],
            scales: vec![byte; layout.bytes(setup)],
            row_offsets: vec![word; groups + 1],
            expert_ids: vec![word as i32; groups],
            src_info: vec![[word as i32; 2]; rows],
            scales_offsets: vec![word; tiled * groups],
        }
    }
}

impl fmt::Display for EpCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        let counts = self
            .ranks
            .iter()
            .map(|rank| rank.topk_ids.len() / setup.top_k.max(1));
        write!(
            f,
            "{}, H = {}, K = {}, E = {}, R = {}, G = {}, C = {}, T = {:?}",
            setup.format,
            setup.hidden_size,
            setup.top_k,
            setup.experts,
            setup.ranks,
            self.ranks_per_node,
            setup.max_tokens_per_rank,
            counts.collect::<Vec<_>>(),
        )?;
        for (flag, name) in [
            (setup.fused_shared_expert, "shared expert"),
            (setup.skip_a2a, "skip"),
            (self.order == Order::Tokens, "deterministic"),
        ] {
            if flag {
                write!(f, ", {name}")?;
            }
        }
        if let Some(rows) = setup.scale_preshuffle {
            write!(f, ", M = {rows}")?;
        }
        if let Some(format) = self.combine {
            write!(f, ", home as {format}")?;
        }
        Ok(())
    }
}
