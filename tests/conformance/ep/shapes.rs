//! Shapes and ids that dispatch and combine are both put to: those of the list of faults that public projects had, and
//! a hidden size after the other.

use fastrand::Rng;
use half::bf16;
use tokenyard::ep::TokenFormat;
use tokenyard::reference::ep::Setup;
use tokenyard_tests::Context;
use tokenyard_tests::ep::{EpCase, RankInput, Traffic};

use super::small;

/// Two small ranks with tokens of so many elements.
pub(super) fn of_hidden_size(format: TokenFormat, hidden_size: usize, seed: u64) -> EpCase {
    let setup = Setup {
        hidden_size,
        ..small(format, 2)
    };
    EpCase::new(setup, &[2, 1], Traffic::Uniform, seed)
}

/// As many tokens as `setup` allows on each of `ranks` ranks, which have `experts` experts each; K = 8. The protocol
/// was first tested with 32 of them, and 7168 elements.
pub(super) fn published(setup: Setup, ranks: usize, experts: usize) -> EpCase {
    let counts = vec![setup.max_tokens_per_rank; ranks];
    let setup = Setup {
        experts: ranks * experts,
        ranks,
        top_k: 8,
        ..setup
    };
    EpCase::new(setup, &counts, Traffic::Uniform, 1)
}

/// Rank 0 has no tokens and all the experts that are asked for.
pub(super) fn nothing_to_send(format: TokenFormat) -> EpCase {
    let setup = Setup {
        experts: 24,
        ranks: 4,
        top_k: 6,
        ..Setup::new(format, 64, 4)
    };
    EpCase::new(setup, &[0, 4, 4, 4], Traffic::Same(0), 1)
}

/// No ids and no tokens, K = 8 and 7168 elements, beside ranks that have some; and nowhere any.
pub(super) fn empty_ids(format: TokenFormat) -> [EpCase; 2] {
    let setup = Setup {
        experts: 16,
        ranks: 4,
        top_k: 8,
        ..Setup::new(format, 7168, 2)
    };
    [[2, 0, 1, 2], [0, 0, 0, 0]]
        .map(|counts| EpCase::new(setup.clone(), &counts, Traffic::Uniform, 2))
}

/// Around powers of two, up to 4,097; in the emulator up to 129.
pub(super) fn any_token_count(
    context: &Context,
    format: TokenFormat,
) -> impl Iterator<Item = EpCase> {
    let all = [1, 2, 3, 127, 129, 2048, 4095, 4096, 4097];
    let counts = all.into_iter().take(context.pick(all.len(), 5));
    counts.map(move |tokens| {
        let setup = Setup {
            experts: 8,
            ranks: 2,
            top_k: 2,
            ..Setup::new(format, 64, tokens)
        };
        EpCase::new(setup, &[tokens, tokens], Traffic::Skewed, 3)
    })
}

/// 16 of 896 experts.
pub(super) fn many_experts(context: &Context, format: TokenFormat, hidden_size: usize) -> EpCase {
    let tokens = context.pick(32, 1);
    let setup = Setup {
        experts: 896,
        ranks: context.pick(8, 2),
        top_k: 16,
        ..Setup::new(format, hidden_size, tokens)
    };
    let counts = vec![tokens; setup.ranks];
    EpCase::new(setup, &counts, Traffic::Uniform, 5)
}

/// 22 of 512 experts over 16 ranks; one expert a token; every expert for every token.
pub(super) fn top_k(context: &Context, format: TokenFormat) -> impl Iterator<Item = EpCase> {
    let (most, hidden_size) = context.pick((16, 1024), (4, 64));
    let shapes = [
        (512, most, 22),
        (8, 2, 1),
        (8, 2, 8),
        (32, 4, 32),
        (1, 1, 1),
    ];
    shapes.into_iter().map(move |(experts, ranks, top_k)| {
        let setup = Setup {
            experts,
            ranks,
            top_k,
            ..Setup::new(format, hidden_size, 2)
        };
        EpCase::new(setup, &vec![2; ranks], Traffic::Uniform, 6)
    })
}

/// -1 in some positions, in whole tokens, in all; and how many rows each of the two ranks gets.
pub(super) fn absent_ids(format: TokenFormat) -> [(EpCase, [u32; 2]); 3] {
    let setup = Setup {
        experts: 4,
        ranks: 2,
        top_k: 2,
        ..Setup::new(format, 64, 3)
    };
    let case = EpCase::new(setup, &[3, 3], Traffic::Uniform, 7);
    [
        ([-1, 0, -1, -1, 2, -1], [1, 1]),
        ([-1, -1, -1, -1, 3, 1], [1, 1]),
        ([-1; 6], [0, 0]),
    ]
    .map(|(first, rows)| {
        let mut case = case.clone();
        case.ranks[0].topk_ids = first.to_vec();
        case.ranks[1].topk_ids = vec![-1; 6];
        (case, rows)
    })
}

/// One rank's 38,000 BF16 tokens, each to eight experts: the last of 304,000 rows lie beyond 4 GiB. Elements are what
/// `element` draws.
pub(super) fn offsets_beyond_32_bits(element: impl Fn(&mut Rng) -> bf16) -> EpCase {
    const TOKENS: usize = 38_000;
    const TOP_K: usize = 8;
    let setup = Setup {
        experts: TOP_K,
        top_k: TOP_K,
        ..Setup::new(TokenFormat::Bf16, 7168, TOKENS)
    };
    let elements = TOKENS * setup.hidden_size;
    let mut case = EpCase::new(setup, &[0], Traffic::Same(0), 8).deterministic();
    let random = &mut Rng::with_seed(8);
    case.ranks[0] = RankInput {
        tokens: (0..elements).map(|_| element(random)).collect(),
        topk_ids: (0..TOP_K as i32).cycle().take(TOP_K * TOKENS).collect(),
    };
    case
}

/// Half of three ranks' tokens are padding.
pub(super) fn padding_tokens(context: &Context, format: TokenFormat) -> EpCase {
    let half = context.pick(512, 16);
    let setup = Setup {
        experts: 8,
        ranks: 4,
        top_k: 2,
        ..Setup::new(format, 64, 2 * half)
    };
    let mut case = EpCase::new(setup, &[2 * half; 4], Traffic::Uniform, 9);
    for rank in &mut case.ranks[1..] {
        rank.topk_ids[2 * half..].fill(-1);
    }
    case
}

/// NaN logits give the same expert eight times; and others are named again among eight. In any order, and in that of
/// tokens.
pub(super) fn repeated_ids(format: TokenFormat) -> [EpCase; 2] {
    let setup = Setup {
        experts: 16,
        ranks: 2,
        top_k: 8,
        ..Setup::new(format, 64, 4)
    };
    let mut case = EpCase::new(setup, &[4, 4], Traffic::Uniform, 10);
    for rank in &mut case.ranks {
        rank.topk_ids[8..16].fill(0);
        rank.topk_ids[24..32].copy_from_slice(&[5, 5, -1, 7, 5, 7, 9, 9]);
    }
    [case.clone(), case.deterministic()]
}

/// Two ranks with five tokens, as many as they may have.
pub(super) fn full(hidden_size: usize) -> EpCase {
    let setup = Setup {
        hidden_size,
        ..small(TokenFormat::Bf16, 2)
    };
    EpCase::new(setup, &[5, 5], Traffic::Uniform, 11)
}

/// The same with a sixth token on rank 1.
pub(super) fn one_token_too_many(full: &EpCase) -> EpCase {
    let mut over = full.clone();
    over.refill(&[5, 6], Traffic::Uniform, &mut Rng::with_seed(11));
    over
}

/// Global ids 2, 3, 0, 5, 2, 7 of eight experts on four ranks.
pub(super) fn local_numbers(format: TokenFormat) -> EpCase {
    let setup = Setup {
        experts: 8,
        ranks: 4,
        ..Setup::new(format, 64, 6)
    };
    let mut case = EpCase::new(setup, &[6, 0, 0, 0], Traffic::Uniform, 13);
    case.ranks[0].topk_ids = vec![2, 3, 0, 5, 2, 7];
    case
}

/// Every token of two ranks to experts 0 to 7, of values 0 and 1.
pub(super) fn every_token_to_the_same(context: &Context) -> EpCase {
    let (tokens, experts, hidden_size) = context.pick((1024, 256, 7168), (24, 16, 64));
    let setup = Setup {
        experts,
        ranks: 2,
        top_k: 8,
        ..Setup::new(TokenFormat::Bf16, hidden_size, tokens)
    };
    let mut case = EpCase::new(setup, &[tokens, tokens], Traffic::Same(0), 15);
    let random = &mut Rng::with_seed(15);
    for value in case.ranks.iter_mut().flat_map(|rank| &mut rank.tokens) {
        *value = bf16::from_f32(u8::from(random.bool()).into());
    }
    case
}
