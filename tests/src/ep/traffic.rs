//! Tokens, and the experts that they go to.

use fastrand::Rng;
use half::bf16;
use tokenyard::ep::TokenFormat;
use tokenyard::options::{Format, InputType};
use tokenyard::reference::ep::{RankTokens, Setup};

use crate::values::{Rows, hazards};

/// What one rank brings along.
#[derive(Clone, Debug)]
pub struct RankInput {
    /// `[T, H]`.
    pub tokens: Vec<bf16>,
    /// `[T, K]`.
    pub topk_ids: Vec<i32>,
}

impl RankInput {
    /// As the reference takes it.
    pub fn reference(&self) -> RankTokens<'_> {
        RankTokens {
            tokens: bytemuck::cast_slice(&self.tokens),
            topk_ids: &self.topk_ids,
        }
    }
}

/// Which experts tokens go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Any K distinct experts.
    Uniform,
    /// K distinct experts, low numbers far more often.
    Skewed,
    /// The same K experts for every token, from this one on.
    Same(usize),
    /// As `Skewed`, but a position now and then, and some tokens, have no expert (-1).
    Holes,
    /// Any ids: beyond the last expert, negative, and the same one twice.
    Hostile,
}

impl Traffic {
    /// Every kind, for a setup of at least two experts.
    pub const ALL: [Traffic; 5] = [
        Traffic::Uniform,
        Traffic::Skewed,
        Traffic::Same(1),
        Traffic::Holes,
        Traffic::Hostile,
    ];
}

/// `[tokens, K]` ids.
pub fn ids(setup: &Setup, tokens: usize, traffic: Traffic, random: &mut Rng) -> Vec<i32> {
    let (experts, top_k) = (setup.experts, setup.top_k);
    let token = |random: &mut Rng| -> Vec<i32> {
        let mut distinct = |skewed: bool| {
            let mut ids: Vec<i32> = Vec::with_capacity(top_k);
            while ids.len() < top_k.min(experts) {
                let place = if skewed {
                    random.f64() * random.f64()
                } else {
                    random.f64()
                };
                let drawn = (place * experts as f64) as i32;
                // One that is taken gives way to the next that is free: rare ones would take for ever to draw.
                let mut others = (drawn..experts as i32).chain(0..drawn);
                let free = others.find(|id| !ids.contains(id));
                ids.extend(free);
            }
            ids
        };
        match traffic {
            Traffic::Uniform => distinct(false),
            Traffic::Skewed | Traffic::Holes => distinct(true),
            Traffic::Same(first) => (0..top_k).map(|k| ((first + k) % experts) as i32).collect(),
            Traffic::Hostile => (0..top_k)
                .map(|_| match random.u8(..8) {
                    0 => -1,
                    1 => experts as i32 + random.i32(0..3),
                    2 => random.i32(..),
                    _ => random.i32(0..(experts as i32).min(3)),
                })
                .collect(),
        }
    };
    let mut all = Vec::with_capacity(tokens * top_k);
    for _ in 0..tokens {
        let mut ids = token(random);
        ids.resize(top_k, -1);
        if traffic == Traffic::Holes {
            let whole = random.u8(..6) == 0;
            for id in &mut ids {
                if whole || random.u8(..4) == 0 {
                    *id = -1;
                }
            }
        }
        all.extend(ids);
    }
    all
}

/// `[tokens, H]` values that the format finds hard.
pub fn values(setup: &Setup, tokens: usize, random: &mut Rng) -> Vec<bf16> {
    let hidden = setup.hidden_size;
    let format = match setup.format {
        TokenFormat::Nvfp4 => Format::Nvfp4,
        TokenFormat::Mxfp4 => Format::Mxfp4,
        TokenFormat::Mxfp8 | TokenFormat::Fp8Block128 => Format::Mxfp8,
        _ => {
            let patterns = (0..tokens * hidden).map(|_| random.u16(..));
            return patterns.map(bf16::from_bits).collect();
        }
    };
    match Rows::rounded(InputType::Bf16, hazards(format, tokens, hidden, random)) {
        Rows::Bf16(values) => values,
        other => unreachable!("rounded to BF16, got {:?}", other.input_type()),
    }
}
