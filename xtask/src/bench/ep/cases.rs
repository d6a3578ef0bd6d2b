//! What is dispatched.

use anyhow::{Result, ensure};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde::{Deserialize, Serialize};
use tokenyard::ep::{EpConfig, TokenFormat};
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

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The format on the wire.
    pub format: TokenFormat,
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
            "{}/{}x{hidden_size}-k{top_k}-e{experts}-r{ranks}",
            self.format.name(),
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
            .max_tokens_per_rank(self.tokens);
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
    /// More experts for a token than there are.
    pub fn inputs(&self) -> Result<Vec<RankInput>> {
        let Extents {
            hidden_size,
            top_k,
            experts,
            ranks,
        } = self.extents;
        ensure!(
            top_k <= experts,
            "{top_k} experts for each token, of {experts}"
        );
        let HiddenStates::Bf16(rows) =
            hidden_states(self.tokens * ranks, hidden_size, InputType::Bf16)
        else {
            unreachable!("BF16 rows were asked for");
        };
        let mut random = fastrand::Rng::with_seed(self.tokens as u64);
        let mut ids = || random.choose_multiple(0..experts as i32, top_k);
        let inputs = rows
            .chunks(self.tokens * hidden_size)
            .map(|rows| RankInput {
                tokens: rows.to_vec(),
                topk_ids: (0..self.tokens).flat_map(|_| ids()).collect(),
            });
        Ok(inputs.collect())
    }
}

/// The cases of a run, formats outermost.
pub fn cases(formats: &[TokenFormat], tokens: &[usize], extents: Extents) -> Vec<Case> {
    let formats = match formats.is_empty() {
        true => TokenFormat::ALL.to_vec(),
        false => formats.to_vec(),
    };
    let tokens = match tokens.is_empty() {
        true => TOKENS.to_vec(),
        false => tokens.to_vec(),
    };
    formats
        .into_iter()
        .flat_map(|format| {
            tokens.clone().into_iter().map(move |tokens| Case {
                format,
                tokens,
                extents,
            })
        })
        .collect()
}

/// Bytes of messages that the GPU with the most of them sends to other GPUs in a round; with one GPU, to other
/// ranks on it.
///
/// Messages are counted whole, with padding and what they say of themselves: it is what the path carries.
pub fn busiest_bytes(case: &Case, inputs: &[RankInput], gpus: usize, message_bytes: u32) -> u64 {
    let Extents { experts, ranks, .. } = case.extents;
    let places = if gpus > 1 { gpus } else { ranks };
    let place_of = |rank: usize| rank * places / ranks;
    let mut sent = vec![0_u64; places];
    for (rank, input) in inputs.iter().enumerate() {
        let owners = input
            .topk_ids
            .iter()
            .map(|&id| id as usize * ranks / experts);
        let remote = owners.filter(|&owner| place_of(owner) != place_of(rank));
        sent[place_of(rank)] += remote.count() as u64 * u64::from(message_bytes);
    }
    let busiest = sent.into_iter().max().unwrap_or(0);
    match gpus {
        // All ranks share the memory of one GPU, and its rate.
        1 => busiest * ranks as u64,
        _ => busiest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENTS: Extents = Extents {
        hidden_size: 256,
        top_k: 2,
        experts: 8,
        ranks: 4,
    };

    #[test]
    fn a_run_without_wishes_has_every_format_and_number_of_tokens() {
        let all = cases(&[], &[], EXTENTS);
        assert_eq!(all.len(), TokenFormat::ALL.len() * TOKENS.len());
        let one = cases(&[TokenFormat::Mxfp4], &[3], EXTENTS);
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].id(), "mxfp4/3x256-k2-e8-r4");
    }

    #[test]
    fn only_what_leaves_a_place_counts() {
        let case = cases(&[TokenFormat::Bf16], &[2], EXTENTS).remove(0);
        let rank = |ids: [i32; 4]| RankInput {
            tokens: Vec::new(),
            topk_ids: ids.into(),
        };
        // Experts 0 and 1 are of rank 0, and so on.
        let inputs = [
            rank([0, 1, 2, 3]),
            rank([0, 7, 2, 3]),
            rank([4, 5, 4, 6]),
            rank([0, 1, 2, 3]),
        ];
        // Four GPUs: rank 3 sends four messages away.
        assert_eq!(busiest_bytes(&case, &inputs, 4, 100), 400);
        // Two: ranks 0 and 1 send one, ranks 2 and 3 the four of rank 3.
        assert_eq!(busiest_bytes(&case, &inputs, 2, 100), 400);
        // One: each of four ranks counts as the busiest.
        assert_eq!(busiest_bytes(&case, &inputs, 1, 100), 1600);
    }

    #[test]
    fn inputs_are_distinct_experts_and_the_same_every_time() {
        let case = cases(&[TokenFormat::Bf16], &[5], EXTENTS).remove(0);
        let inputs = case.inputs().unwrap();
        assert_eq!(inputs.len(), 4);
        for input in &inputs {
            assert_eq!((input.tokens.len(), input.topk_ids.len()), (5 * 256, 10));
            assert!(input.topk_ids.chunks(2).all(|ids| ids[0] != ids[1]));
        }
        assert_eq!(inputs[3].topk_ids, case.inputs().unwrap()[3].topk_ids);
        assert_ne!(inputs[0].tokens, inputs[1].tokens);
    }
}
