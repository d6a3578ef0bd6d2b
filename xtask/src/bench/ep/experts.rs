//! What experts make of rows, and what must come of it.
//!
//! Every expert output follows from the token and position that it is of: so whoever knows a rank's tokens knows what
//! the rank must get home, though not in which rows other ranks had them. That holds for processes too.

use anyhow::Result;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use tokenyard::ep::RowElement;
use tokenyard::reference::ep::{
    CombineInput, ExpectedRows, RankTokens, Setup, Weights, combine, returned_row,
};

use super::cases::{Case, RankInput, bf16_rows};

/// Different rows: a prime, so that neither tokens nor positions repeat them in step.
const ROWS: usize = 1021;

/// Tokens of all ranks up to which every one is compared.
const COMPARED_TOKENS: usize = 1024;

/// Of more tokens, so many of each rank are.
const SAMPLED_TOKENS: usize = 128;

/// The expert outputs of a case.
pub struct Experts {
    /// `[ROWS, H]`.
    rows: Vec<bf16>,
    hidden_size: usize,
    top_k: usize,
    tokens: usize,
    /// Tokens of each rank that are compared, in order.
    sampled: Vec<usize>,
}

impl Experts {
    /// Those of a case.
    pub fn new(case: &Case) -> Self {
        let (tokens, extents) = (case.tokens, case.extents);
        Self {
            rows: bf16_rows(ROWS, extents.hidden_size),
            hidden_size: extents.hidden_size,
            top_k: extents.top_k,
            tokens,
            sampled: match tokens * extents.ranks <= COMPARED_TOKENS {
                true => (0..tokens).collect(),
                false => sampled(tokens),
            },
        }
    }

    /// Whether every token is compared.
    pub fn samples_all(&self) -> bool {
        self.sampled.len() == self.tokens
    }

    /// Whether a token of any rank is compared.
    pub fn samples(&self, token: usize) -> bool {
        self.sampled.binary_search(&token).is_ok()
    }

    /// The sampled tokens of each rank.
    pub fn sampled(&self) -> &[usize] {
        &self.sampled
    }

    /// A rank's sampled tokens, and only those.
    pub fn sampled_input(&self, input: &RankInput) -> RankInput {
        let take = |width| {
            self.sampled
                .iter()
                .map(move |&t| t * width..(t + 1) * width)
        };
        RankInput {
            tokens: take(self.hidden_size)
                .flat_map(|range| input.tokens[range].to_vec())
                .collect(),
            topk_ids: take(self.top_k)
                .flat_map(|range| input.topk_ids[range].to_vec())
                .collect(),
            weights: take(self.top_k)
                .flat_map(|range| input.weights[range].to_vec())
                .collect(),
        }
    }

    /// All rows that there are, one after the other: what unsampled rows are filled with.
    pub fn filling(&self) -> &[bf16] {
        &self.rows
    }

    /// What the expert at position `k` of a rank's token makes of it.
    pub fn output(&self, rank: usize, token: usize, k: usize) -> &[bf16] {
        let row = ((rank * self.tokens + token) * self.top_k + k) % ROWS;
        &self.rows[row * self.hidden_size..][..self.hidden_size]
    }

    /// What rank `me` must get for its sampled tokens, `[sampled, H]`: the reference's combine of a group in which
    /// nobody has any other token.
    ///
    /// # Errors
    /// As the reference's own.
    pub fn combined(&self, case: &Case, me: usize, input: &RankInput) -> Result<Vec<bf16>> {
        let own = self.sampled_input(input);
        let nothing = RankTokens {
            tokens: &[],
            topk_ids: &[],
        };
        let mut tokens = vec![nothing; case.extents.ranks];
        tokens[me] = own.reference();
        let setup = Setup {
            max_tokens_per_rank: self.sampled.len(),
            ..case.setup()
        };
        let ranks = (0..case.extents.ranks).map(|rank| {
            let rows = ExpectedRows::new(&setup, &tokens, rank)?;
            let (src_info, outputs) = self.home_rows(case, me, &rows);
            Ok((rows, src_info, outputs))
        });
        let ranks: Vec<_> = ranks.collect::<Result<_>>()?;
        let home: Vec<_> = ranks
            .iter()
            .map(|(rows, src_info, outputs)| CombineInput {
                rows,
                src_info,
                outputs,
            })
            .collect();
        let weights = Weights {
            weights: &own.weights,
            fused: true,
        };
        let sums = combine(
            &setup,
            me,
            &own.reference(),
            &home,
            weights,
            RowElement::Bf16,
        )?;
        Ok(sums.into_iter().map(bf16::from_f32).collect())
    }

    /// Of a rank that has rows of sampled tokens of `me` alone: where each is from, and what it is when it has come
    /// home.
    fn home_rows(&self, case: &Case, me: usize, rows: &ExpectedRows) -> (Vec<[i32; 2]>, Vec<f32>) {
        let hidden = self.hidden_size;
        // Rows that padding put between groups are from nowhere.
        let mut src_info = vec![[-1; 2]; rows.rows()];
        for cell in &rows.cells {
            for (row, &(index, k)) in cell.rows.clone().zip(&cell.pairs) {
                src_info[row] = [index as i32, k as i32];
            }
        }
        let mut outputs = vec![0.0; rows.rows() * hidden];
        outputs
            .par_chunks_mut(hidden)
            .zip(&src_info)
            .filter(|(_, source)| source[0] >= 0)
            .for_each(|(home, &[index, k])| {
                let output = self.output(me, self.sampled[index as usize], k as usize);
                match returned_row(case.combine, output.reinterpret_cast()) {
                    Some(row) => home.copy_from_slice(&row),
                    None => output.convert_to_f32_slice(home),
                }
            });
        (src_info, outputs)
    }
}

/// Tokens at equal distances, the first and the last among them.
fn sampled(tokens: usize) -> Vec<usize> {
    let count = SAMPLED_TOKENS.min(tokens);
    let last = count.max(2) - 1;
    (0..count)
        .map(|index| index * (tokens - 1) / last)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::cases::tests::EXTENTS;
    use super::super::cases::{COMBINE_FORMATS, cases};
    use super::*;

    #[test]
    fn samples_are_distinct_and_reach_both_ends() {
        for tokens in [129, 256, 4096] {
            let sampled = sampled(tokens);
            assert_eq!(sampled.len(), SAMPLED_TOKENS);
            assert!(sampled.is_sorted_by(|a, b| a < b), "{sampled:?}");
            assert_eq!((sampled[0], sampled[127]), (0, tokens - 1));
        }
        let case = cases(&[], &[], &[300], EXTENTS).remove(0);
        let experts = Experts::new(&case);
        assert!(!experts.samples_all() && experts.samples(299) && !experts.samples(1));
    }

    #[test]
    fn a_sample_is_combined_as_if_all_were() {
        // 257 tokens of 4 ranks are more than are compared.
        for &combine in &COMBINE_FORMATS {
            let case = cases(&[], &[combine], &[257], EXTENTS).remove(0);
            let (experts, inputs) = (Experts::new(&case), case.inputs().unwrap());
            let combined = experts.combined(&case, 2, &inputs[2]).unwrap();
            let hidden = EXTENTS.hidden_size;
            let index = 100;
            let token = experts.sampled()[index];
            let mut sums = vec![0.0_f32; hidden];
            for k in 0..EXTENTS.top_k {
                let output = experts.output(2, token, k);
                let row = returned_row(combine, output.reinterpret_cast());
                let row = row.unwrap_or_else(|| output.to_f32_vec());
                let weight = inputs[2].weights[token * EXTENTS.top_k + k];
                for (sum, value) in sums.iter_mut().zip(row) {
                    *sum = weight.mul_add(value, *sum);
                }
            }
            let expected: Vec<bf16> = sums.into_iter().map(bf16::from_f32).collect();
            assert_eq!(combined[index * hidden..][..hidden], expected);
        }
    }
}
