//! Bytes that a dispatch and a combine move.

use serde::{Deserialize, Serialize};
use tokenyard::ep::{CombineFormat, TokenFormat};
use tokenyard::reference::ep::{payload_bytes, scale_columns};

use super::cases::{Case, Extents, RankInput};

/// Bytes of an element of a token, of expert outputs and of combined tokens: all are BF16.
const ELEMENT_BYTES: u64 = 2;

/// Bytes that a step of a round moves, each number that of the GPU that has the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Over its link to other GPUs, in the busier direction. Nothing with one GPU.
    ///
    /// Dispatch: messages, each as long as it is in memory, one for each token and rank on another GPU that has one
    /// of its experts. Combine: rows as they travel home, one for each token and expert on another GPU.
    pub link: u64,
    /// In its memory: every tensor's bytes each time that they are read or written.
    ///
    /// Dispatch: its tokens read; messages to its ranks written, and read; received rows written, elements and block
    /// scales. Combine: expert outputs read; rows to its tokens written, and read; combined tokens written. Ids,
    /// counts, weights, and what says where rows are from, are left out: they are less than 1 % at published shapes.
    pub memory: u64,
}

/// Bytes of both halves of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// To the experts.
    pub dispatch: Moved,
    /// And home.
    pub combine: Moved,
}

/// What one GPU has to do with, in numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    tokens: u64,
    /// Messages that its ranks get, their own ones too.
    messages: u64,
    /// Of messages between GPUs, those that it sends and those that it gets.
    remote_messages: [u64; 2],
    /// Rows of its experts.
    rows: u64,
    /// Rows that come home to its tokens, from its own experts too.
    home_rows: u64,
    /// Of rows between GPUs, those that it sends home and those that it gets.
    remote_rows: [u64; 2],
}

impl Traffic {
    /// Of a case over `gpus` GPUs, which have as many ranks each, whose messages take `message_bytes` each.
    pub fn new(case: &Case, inputs: &[RankInput], gpus: usize, message_bytes: u32) -> Self {
        let hidden = case.extents.hidden_size;
        let (message, home_row) = (
            u64::from(message_bytes),
            home_row_bytes(case.combine, hidden),
        );
        let (element_row, received_row) = (
            ELEMENT_BYTES * hidden as u64,
            received_row_bytes(case.format, hidden),
        );
        let counts = count(case.extents, inputs, gpus);
        let most = |bytes: &dyn Fn(&Counts) -> u64| counts.iter().map(bytes).max().unwrap_or(0);
        let busier = |[out, back]: [u64; 2]| out.max(back);
        Self {
            dispatch: Moved {
                link: most(&|gpu| busier(gpu.remote_messages) * message),
                memory: most(&|gpu| {
                    gpu.tokens * element_row + 2 * gpu.messages * message + gpu.rows * received_row
                }),
            },
            combine: Moved {
                link: most(&|gpu| busier(gpu.remote_rows) * home_row),
                memory: most(&|gpu| {
                    gpu.rows * element_row + 2 * gpu.home_rows * home_row + gpu.tokens * element_row
                }),
            },
        }
    }
}

/// Bytes of a row on its way home.
pub fn home_row_bytes(format: CombineFormat, hidden_size: usize) -> u64 {
    format.row_bytes(hidden_size) as u64
}

/// Bytes of a received row: elements and block scales.
fn received_row_bytes(format: TokenFormat, hidden_size: usize) -> u64 {
    let (columns, scale_bytes) = scale_columns(format, hidden_size);
    (payload_bytes(format, hidden_size) + columns * scale_bytes) as u64
}

fn count(extents: Extents, inputs: &[RankInput], gpus: usize) -> Vec<Counts> {
    let Extents {
        top_k,
        experts,
        ranks,
        ..
    } = extents;
    let gpu_of = |rank: usize| rank * gpus / ranks;
    let mut counts = vec![Counts::default(); gpus];
    for (rank, input) in inputs.iter().enumerate() {
        let own = gpu_of(rank);
        for ids in input.topk_ids.chunks(top_k) {
            counts[own].tokens += 1;
            counts[own].home_rows += ids.len() as u64;
            let owners = ids.iter().map(|&id| id as usize * ranks / experts);
            let mut owners: Vec<usize> = owners.collect();
            for gpu in owners.iter().map(|&owner| gpu_of(owner)) {
                counts[gpu].rows += 1;
                if gpu != own {
                    counts[gpu].remote_rows[0] += 1;
                    counts[own].remote_rows[1] += 1;
                }
            }
            // One message to each rank, however many of the token's experts it has.
            owners.sort_unstable();
            owners.dedup();
            for gpu in owners.into_iter().map(gpu_of) {
                counts[gpu].messages += 1;
                if gpu != own {
                    counts[own].remote_messages[0] += 1;
                    counts[gpu].remote_messages[1] += 1;
                }
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::super::cases::cases;
    use super::super::cases::tests::EXTENTS;
    use super::*;

    /// Two tokens a rank with two experts each. Experts 0 and 1 are of rank 0, and so on.
    fn inputs() -> Vec<RankInput> {
        let ids = [[0, 1, 2, 3], [0, 7, 2, 3], [4, 5, 4, 6], [0, 1, 2, 3]];
        let inputs = ids.map(|ids| RankInput {
            tokens: Vec::new(),
            topk_ids: ids.into(),
            weights: Vec::new(),
        });
        inputs.into()
    }

    fn traffic(format: TokenFormat, gpus: usize) -> Traffic {
        let case = cases(&[format], &[], &[2], EXTENTS).remove(0);
        Traffic::new(&case, &inputs(), gpus, 100)
    }

    #[test]
    fn a_rank_gets_a_token_once_and_returns_it_once_for_each_expert() {
        // Four GPUs. Rank 0: a token with both experts on itself, one with both on rank 1. Rank 1: one on 0 and 3, one
        // on itself. Rank 2: one on itself, one on itself and 3. Rank 3: one on 0, one on 1.
        let traffic = traffic(TokenFormat::Bf16, 4);
        // Two messages leave ranks 1 and 3 each; two come to ranks 0, 1 and 3.
        assert_eq!(traffic.dispatch.link, 200);
        // Four rows leave rank 1 for tokens of ranks 0 and 3, and four come to rank 3.
        assert_eq!(traffic.combine.link, 4 * 512);
        // Rank 0: two tokens read, three messages, five rows; rank 1 the same, with six rows.
        assert_eq!(traffic.dispatch.memory, 2 * 512 + 2 * 300 + 6 * 512);
        // Rank 1: six rows read, four come home to its two tokens.
        assert_eq!(traffic.combine.memory, 6 * 512 + 2 * 4 * 512 + 2 * 512);
    }

    #[test]
    fn only_what_leaves_a_gpu_is_on_its_link() {
        // Two GPUs with two ranks each: rank 1 sends one to rank 3, rank 3 two to ranks 0 and 1.
        let two = traffic(TokenFormat::Bf16, 2);
        assert_eq!((two.dispatch.link, two.combine.link), (200, 4 * 512));
        let one = traffic(TokenFormat::Bf16, 1);
        assert_eq!((one.dispatch.link, one.combine.link), (0, 0));
        // All of it is in one memory: 8 tokens, 10 messages, 16 rows.
        assert_eq!(one.dispatch.memory, 8 * 512 + 2 * 1000 + 16 * 512);
        assert_eq!(one.combine.memory, 16 * 512 + 2 * 16 * 512 + 8 * 512);
    }

    #[test]
    fn rows_are_as_long_as_their_formats_make_them() {
        assert_eq!(received_row_bytes(TokenFormat::Mxfp8, 7168), 7168 + 224);
        assert_eq!(received_row_bytes(TokenFormat::Nvfp4, 7168), 3584 + 448);
        assert_eq!(
            received_row_bytes(TokenFormat::Fp8Block128, 7168),
            7168 + 224
        );
        assert_eq!(home_row_bytes(CombineFormat::Bf16, 7168), 14336);
        let mxfp8 = traffic(TokenFormat::Mxfp8, 1);
        assert_eq!(mxfp8.dispatch.memory, 8 * 512 + 2 * 1000 + 16 * (256 + 8));
    }
}
