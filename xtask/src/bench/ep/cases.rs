//! What is dispatched and combined.

use std::time::Duration;

use anyhow::{Result, ensure};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};
use tokenyard::ep::{CombineFormat, EpConfig, TokenFormat};
use tokenyard::options::InputType;
use tokenyard::reference::ep::{RankTokens, Setup};

use crate::bench::input::hidden_states;
use crate::files::HiddenStates;

/// H of the published measurements, and of all cases unless told.
pub const HIDDEN_SIZE: usize = 7168;

/// K and E of the same.
pub const TOP_K: usize = 8;
/// See [`TOP_K`].
pub const EXPERTS: usize = 256;

/// Tokens of each rank: a decoding batch to a prefill chunk.
pub const TOKENS: [usize; 9] = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// What rows can travel home as: expert outputs are BF16 in all cases.
pub const COMBINE_FORMATS: [CombineFormat; 3] = [
    CombineFormat::Bf16,
    CombineFormat::Mxfp8,
    CombineFormat::Nvfp4,
];

/// How long kernels wait for each other. Processes prepare a case each at its own pace, and hold results to the
/// reference between two rounds.
const DEADLINE: Duration = Duration::from_secs(60);

/// Tokens and experts as the cases have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extents {
    /// H.
    pub hidden_size: usize,
    /// K.
    pub top_k: usize,
    /// E.
    pub experts: usize,
    /// R.
    pub ranks: usize,
}

/// The extents of published measurements, on as many GPUs as ranks.
pub const EXTENTS_OF_MARKS: Extents = Extents {
    hidden_size: HIDDEN_SIZE,
    top_k: TOP_K,
    experts: EXPERTS,
    ranks: 8,
};

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The format on the wire.
    pub format: TokenFormat,
    /// The format on the way home: one of [`COMBINE_FORMATS`].
    pub combine: CombineFormat,
    /// T, of each rank.
    pub tokens: usize,
    /// What all cases of a run have in common.
    pub extents: Extents,
}

/// One rank's tensors on the host.
pub struct RankInput {
    /// `[T, H]`.
    pub tokens: Vec<bf16>,
    /// `[T, K]`: distinct experts, each as likely as any other.
    pub topk_ids: Vec<i32>,
    /// `[T, K]`: router weights, those of a token 1 together, but for rounding.
    pub weights: Vec<f32>,
}

impl RankInput {
    /// The same as the reference takes it.
    pub fn reference(&self) -> RankTokens<'_> {
        RankTokens {
            tokens: self.tokens.reinterpret_cast(),
            topk_ids: &self.topk_ids,
        }
    }
}

impl Case {
    /// Its name, the same in every run.
    pub fn id(&self) -> String {
        let Extents {
            hidden_size,
            top_k,
            experts,
            ranks,
        } = self.extents;
        format!(
            "{}+{}/{}x{hidden_size}-k{top_k}-e{experts}-r{ranks}",
            self.format.name(),
            self.combine.name(),
            self.tokens
        )
    }

    /// The library's description.
    ///
    /// # Errors
    /// Extents that cannot be.
    pub fn config(&self) -> Result<EpConfig> {
        let Extents {
            hidden_size,
            top_k,
            experts,
            ranks,
        } = self.extents;
        let config = EpConfig::builder(self.format)
            .hidden_size(hidden_size)
            .top_k(top_k)
            .experts(experts)
            .ranks(ranks)
            .max_tokens_per_rank(self.tokens)
            .combine(self.combine)
            .deadline(Some(DEADLINE));
        Ok(config.build()?)
    }

    /// The reference's description.
    pub fn setup(&self) -> Setup {
        Setup {
            experts: self.extents.experts,
            ranks: self.extents.ranks,
            top_k: self.extents.top_k,
            ..Setup::new(self.format, self.extents.hidden_size, self.tokens)
        }
    }

    /// What each rank has.
    ///
    /// # Errors
    /// As [`routing`](Self::routing).
    pub fn inputs(&self) -> Result<Vec<RankInput>> {
        let Extents {
            hidden_size, ranks, ..
        } = self.extents;
        let mut inputs = self.routing()?;
        let rows = bf16_rows(self.tokens * ranks, hidden_size);
        let ranks = rows.chunks(self.tokens * hidden_size);
        for (input, rows) in inputs.iter_mut().zip(ranks) {
            input.tokens = rows.to_vec();
        }
        Ok(inputs)
    }

    /// The same without the tokens.
    ///
    /// # Errors
    /// More experts for a token than there are.
    pub fn routing(&self) -> Result<Vec<RankInput>> {
        let Extents {
            top_k,
            experts,
            ranks,
            ..
        } = self.extents;
        ensure!(
            top_k <= experts,
            "{top_k} experts for each token, of {experts}"
        );
        let random = &mut fastrand::Rng::with_seed(self.tokens as u64);
        let inputs = (0..ranks).map(|_| RankInput {
            tokens: Vec::new(),
            topk_ids: (0..self.tokens)
                .flat_map(|_| random.choose_multiple(0..experts as i32, top_k))
                .collect(),
            weights: (0..self.tokens)
                .flat_map(|_| router_weights(top_k, random))
                .collect(),
        });
        Ok(inputs.collect())
    }
}

/// `[rows, columns]` as models have them; see [`hidden_states`].
pub fn bf16_rows(rows: usize, columns: usize) -> Vec<bf16> {
    match hidden_states(rows, columns, InputType::Bf16) {
        HiddenStates::Bf16(rows) => rows,
        _ => unreachable!("BF16 rows were asked for"),
    }
}

/// Weights of a token's experts. None is 0, so that every row counts in the sum.
fn router_weights(top_k: usize, random: &mut fastrand::Rng) -> Vec<f32> {
    let weights: Vec<f32> = (0..top_k).map(|_| 0.25 + random.f32()).collect();
    let sum: f32 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

/// The cases of a run: every format with every one for the way home, tokens innermost. What is empty stands for the
/// usual: every format, BF16, and [`TOKENS`].
pub fn cases(
    formats: &[TokenFormat],
    combines: &[CombineFormat],
    tokens: &[usize],
    extents: Extents,
) -> Vec<Case> {
    fn or<T: Copy>(wishes: &[T], usual: &[T]) -> Vec<T> {
        match wishes.is_empty() {
            true => usual.to_vec(),
            false => wishes.to_vec(),
        }
    }
    let mut cases = Vec::new();
    for format in or(formats, &TokenFormat::ALL) {
        for combine in or(combines, &[CombineFormat::Bf16]) {
            for tokens in or(tokens, &TOKENS) {
                cases.push(Case {
                    format,
                    combine,
                    tokens,
                    extents,
                });
            }
        }
    }
    cases
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Small enough for the emulator.
    pub const EXTENTS: Extents = Extents {
        hidden_size: 256,
        top_k: 2,
        experts: 8,
        ranks: 4,
    };

    #[test]
    fn a_run_without_wishes_has_every_format_and_number_of_tokens() {
        let all = cases(&[], &[], &[], EXTENTS);
        assert_eq!(all.len(), TokenFormat::ALL.len() * TOKENS.len());
        assert!(all.iter().all(|case| case.combine == CombineFormat::Bf16));
        let one = cases(
            &[TokenFormat::Mxfp4],
            &[CombineFormat::Nvfp4],
            &[3],
            EXTENTS,
        );
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].id(), "mxfp4+nvfp4/3x256-k2-e8-r4");
        let home = cases(&[TokenFormat::Mxfp4], &COMBINE_FORMATS, &[3, 4], EXTENTS);
        assert_eq!(home.len(), 6);
    }

    #[test]
    fn inputs_are_distinct_experts_and_the_same_every_time() {
        let case = cases(&[TokenFormat::Bf16], &[], &[5], EXTENTS).remove(0);
        let inputs = case.inputs().unwrap();
        assert_eq!(inputs.len(), 4);
        for input in &inputs {
            assert_eq!((input.tokens.len(), input.topk_ids.len()), (5 * 256, 10));
            assert!(input.topk_ids.chunks(2).all(|ids| ids[0] != ids[1]));
            let sums = input
                .weights
                .chunks(2)
                .map(|weights| weights.iter().sum::<f32>());
            assert!(sums.map(|sum| (sum - 1.0).abs()).all(|error| error < 1e-6));
        }
        let again = case.inputs().unwrap();
        assert_eq!(inputs[3].topk_ids, again[3].topk_ids);
        assert_eq!(inputs[3].weights, again[3].weights);
        assert_ne!(inputs[0].tokens, inputs[1].tokens);
    }
}
