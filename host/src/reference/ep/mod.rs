//! The CPU reference of expert-parallel dispatch and combine: what each rank must have received, and
//! what comes back, written from the definition of the operation and sharing nothing with the kernels.
//!
//! R ranks own T tokens of H elements each, and K expert ids for every token. Expert g lives on rank
//! g / nl, as local expert g % nl, where nl = E / R. Dispatch quantizes each token once and delivers a
//! copy to every one of its experts; a rank lays out what it received by groups: with a shared expert,
//! group 0 holds the rank's own tokens and local expert e is group e + 1, else it is group e.
//!
//! | Step | Where | What |
//! |---|---|---|
//! | token to payload and scales | [`quantize_token`] | bit-exact in every format |
//! | the message on the wire | [`MessageParts`] | payload, scales, token index, all K ids, each aligned to 16 bytes |
//! | rows of a rank | [`ExpectedRows`] | one list of (token, k) for each (local expert, source rank), offsets, counter words |
//! | where scales lie | [`ScaleLayout`] | row-major, preshuffled slots, transposed, or 128x4 tiles |
//! | comparison | [`ExpectedRows::check`] | as sets where the order is free, byte for byte where it is not |
//! | the way back | [`returned_row`] | a row that travels quantized |
//! | the sum | [`combine`] | weighted, in the order of k |
//!
//! Rules that the definition leaves open, and that this project fixes:
//!
//! * An id outside `0..E`, -1 among them, means "no expert". Of equal ids in a token the first counts.
//!   The others send nothing, are not counted, and add nothing in combine.
//! * Values that are no numbers go through the formats as [`reference`](super) says, with the hardened
//!   policies; MXFP8's dead blocks are stored as scale 0 and elements 0.
//!
//! ```
//! use tokenyard::ep::TokenFormat;
//! use tokenyard::reference::ep::{ExpectedRows, RankTokens, Setup};
//!
//! // Two ranks with two experts each; two experts a token. Rank 0 has three tokens, rank 1 two.
//! let setup = Setup { experts: 4, ranks: 2, top_k: 2, ..Setup::new(TokenFormat::Bf16, 8, 3) };
//! let ranks = [
//!     RankTokens { tokens: &[0; 24], topk_ids: &[0, 2, 1, 3, 2, 0] },
//!     RankTokens { tokens: &[0; 16], topk_ids: &[2, 3, 0, 1] },
//! ];
//! let expected = ExpectedRows::new(&setup, &ranks, 0)?;
//! assert_eq!(expected.row_offsets, [0, 3, 5]);
//! assert_eq!(expected.cells[0].pairs, [(0, 0), (2, 1)]); // expert 0's rows from rank 0
//! assert_eq!(expected.handles[3], (1029, 1)); // expert 1's from rank 1 end at row 5
//! # Ok::<(), tokenyard::reference::ReferenceError>(())
//! ```

mod check;
mod combine;
mod returned;
mod rows;
mod scales;
mod token;

pub use check::{Order, ReceivedBytes, RowMismatch};
pub use combine::{CombineInput, Weights, combine, combine_unweighted};
pub use returned::returned_row;
pub use rows::{Cell, ExpectedRows, HANDLE_BIAS};
pub use scales::ScaleLayout;
pub use token::{MessageParts, QuantizedTokens, payload_bytes, quantize_token, scale_columns};

use super::{ReferenceError, check_length};
use crate::ep::TokenFormat;
use crate::options::ScaleRounding;

/// What all ranks agree on.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The format on the wire and of the received rows.
    pub format: TokenFormat,
    /// H: elements of a token.
    pub hidden_size: usize,
    /// K: ids of a token.
    pub top_k: usize,
    /// E: routed experts of all ranks.
    pub experts: usize,
    /// R.
    pub ranks: usize,
    /// C: most tokens that a rank may have.
    pub max_tokens_per_rank: usize,
    /// Whether a rank's own tokens come first, as group 0.
    pub fused_shared_expert: bool,
    /// Whether tokens are replicated and every rank keeps only those for its own experts.
    pub skip_a2a: bool,
    /// W: ranks that the rows of the shared expert are divided among when tokens are replicated; R unless
    /// told.
    pub allreduce_world_size: Option<usize>,
    /// M: rows of a slot, when the scales go straight to the preshuffled layout.
    pub scale_preshuffle: Option<usize>,
    /// How the MX formats choose their scale.
    pub scale_rounding: ScaleRounding,
    /// g: what NVFP4 multiplies amax by, the reciprocal of the checkpoint's input scale.
    pub global_factor: f32,
}

impl Setup {
    /// One rank with one expert, without options, with the format's usual scale rounding.
    pub fn new(format: TokenFormat, hidden_size: usize, max_tokens_per_rank: usize) -> Self {
        Self {
            format,
            hidden_size,
            top_k: 1,
            experts: 1,
            ranks: 1,
            max_tokens_per_rank,
            fused_shared_expert: false,
            skip_a2a: false,
            allreduce_world_size: None,
            scale_preshuffle: None,
            scale_rounding: match format {
                TokenFormat::Mxfp4 => ScaleRounding::Even,
                _ => ScaleRounding::Rceil,
            },
            global_factor: 1.0,
        }
    }

    /// nl: routed experts of one rank.
    pub fn local_experts(&self) -> usize {
        self.experts / self.ranks
    }

    /// Ranks that a rank receives from: all of them, or itself alone.
    pub fn sources(&self) -> usize {
        if self.skip_a2a { 1 } else { self.ranks }
    }

    /// ng: groups of a rank's received rows.
    pub fn groups(&self) -> usize {
        self.local_experts() + usize::from(self.fused_shared_expert)
    }

    /// Rows that each group's length is rounded up to: 4 where a scale has four bytes, so that a
    /// group's transposed scales begin on 16 bytes; else 1.
    pub fn row_multiple(&self) -> usize {
        match self.format {
            TokenFormat::Fp8Block128 => 4,
            _ => 1,
        }
    }

    /// Rows that a rank's outputs have room for. One token takes at most one row of each local expert,
    /// and one more of the shared expert; rounding adds less than a multiple to each group.
    pub fn max_received_rows(&self) -> usize {
        let tokens = self.max_tokens_per_rank;
        let routed = tokens * self.sources() * self.local_experts().min(self.top_k);
        let shared = usize::from(self.fused_shared_expert) * tokens;
        routed + shared + (self.row_multiple() - 1) * self.groups()
    }

    /// The expert of local experts that `id` names on rank `me`, if it is there.
    fn local_expert(&self, me: usize, id: i32) -> Option<usize> {
        let local = usize::try_from(id)
            .ok()?
            .checked_sub(me * self.local_experts())?;
        (local < self.local_experts()).then_some(local)
    }

    /// The tokens that rank `me` gives to the shared expert: all of its own or, when every rank has the
    /// same T of them, a slice, so that the ranks share the work evenly.
    pub fn shared_tokens(&self, me: usize, tokens: usize) -> std::ops::Range<usize> {
        if !self.fused_shared_expert {
            return 0..0;
        }
        if !self.skip_a2a {
            return 0..tokens;
        }
        let world = self.allreduce_world_size.unwrap_or(self.ranks);
        let (whole, rest) = (tokens / world, tokens % world);
        let start = me * whole + me.min(rest);
        start..start + (tokens + world).saturating_sub(me + 1) / world
    }
}

/// The ids of a token that count, with their positions: those that name an expert, and of equal ones
/// the first.
fn counted(ids: &[i32]) -> impl Iterator<Item = (usize, i32)> + '_ {
    ids.iter()
        .enumerate()
        .filter(|&(k, id)| *id >= 0 && !ids[..k].contains(id))
        .map(|(k, &id)| (k, id))
}

/// What one rank brings along.
#[derive(Clone, Copy, Debug)]
pub struct RankTokens<'a> {
    /// `[T, H]`: bfloat16 bit patterns.
    pub tokens: &'a [u16],
    /// `[T, K]`: global expert ids.
    pub topk_ids: &'a [i32],
}

impl RankTokens<'_> {
    /// T, after checking that both tensors have it.
    ///
    /// # Errors
    /// [`ReferenceError::Length`]: lengths that are no matrices of T rows, or T above the capacity.
    pub fn count(&self, setup: &Setup) -> Result<usize, ReferenceError> {
        let tokens = self.tokens.len() / setup.hidden_size.max(1);
        check_length("tokens", tokens * setup.hidden_size, self.tokens.len())?;
        check_length("topk_ids", tokens * setup.top_k, self.topk_ids.len())?;
        if tokens > setup.max_tokens_per_rank {
            return Err(ReferenceError::Length {
                what: "tokens of a rank",
                expected: setup.max_tokens_per_rank,
                given: tokens,
            });
        }
        Ok(tokens)
    }
}
