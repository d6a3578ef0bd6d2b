//! Routing from top-k choices: properties over random choices, and real data end to end.

mod reference_support;

use proptest::prelude::*;
use reference_support::{DEFAULT, assert_within_error_bound, data_path};
use safetensors::SafeTensors;
use tokenyard::error_metrics::ErrorMetrics;
use tokenyard::options::Format;
use tokenyard::reference::formats::bf16_widen;
use tokenyard::reference::{Encoded, Input, Problem, dequantize_to_vec, quantize_to_vec};
use tokenyard::routing::Routing;

/// Random top-k choices: (ids, tokens, top_k, experts).
fn choices() -> impl Strategy<Value = (Vec<i32>, usize, usize, usize)> {
    (0_usize..300, 1_usize..9, 1_usize..70).prop_flat_map(|(tokens, top_k, experts)| {
        let ids = prop::collection::vec(-1..experts as i32, tokens * top_k);
        (ids, Just(tokens), Just(top_k), Just(experts))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every choice is one row of its expert; rows of an expert ascend by token.
    #[test]
    fn every_choice_is_a_row((ids, tokens, top_k, experts) in choices()) {
        let routing = Routing::from_topk(&ids, tokens, top_k, experts).unwrap();
        let source_rows = routing.source_rows().unwrap();
        prop_assert_eq!(routing.rows(), ids.iter().filter(|&&id| id >= 0).count());
        prop_assert_eq!(routing.routed_rows(), routing.rows());
        prop_assert_eq!(source_rows.len(), routing.rows());
        for expert in 0..experts {
            let expected: Vec<i32> = ids
                .iter()
                .enumerate()
                .filter(|&(_, &id)| id == expert as i32)
                .map(|(index, _)| (index / top_k) as i32)
                .collect();
            prop_assert_eq!(&source_rows[routing.slot_rows(expert)], &expected[..]);
        }
    }

    /// Grouping by offsets that a top-k routing computed is the same grouping.
    #[test]
    fn offsets_say_all_but_the_sources((ids, tokens, top_k, experts) in choices()) {
        let topk = Routing::from_topk(&ids, tokens, top_k, experts).unwrap();
        let offsets =
            Routing::from_row_offsets(topk.row_offsets(), Some(topk.expert_ids()), topk.rows())
                .unwrap();
        prop_assert_eq!(offsets.scales_offsets(), topk.scales_offsets());
        prop_assert_eq!(offsets.occupied_tiles(), topk.occupied_tiles());
        prop_assert_eq!(offsets.source_rows(), None);
    }

    /// Whatever bytes come in as ids: an answer or an error, never a panic.
    #[test]
    fn any_ids_are_answered(ids in prop::collection::vec(any::<i32>(), 0..40), top_k in 0_usize..5) {
        let tokens = ids.len().checked_div(top_k).unwrap_or(3);
        let _ = Routing::from_topk(&ids, tokens, top_k, 7);
        let offsets: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let _ = Routing::from_row_offsets(&offsets, None, usize::MAX >> 32);
    }

    /// Decoded values are values of the format: quantizing them again changes none. (Bytes may
    /// change: where the largest element was rounded down, a smaller scale can do.)
    #[test]
    fn quantizing_twice_is_quantizing_once(
        bits in prop::collection::vec(0x3000_u16..0x4700, 3 * 64),
        signs in prop::collection::vec(any::<bool>(), 3 * 64),
    ) {
        let values: Vec<f32> = bits
            .iter()
            .zip(signs)
            .map(|(&bits, negative)| bf16_widen(if negative { bits | 0x8000 } else { bits }))
            .collect();
        let routing = Routing::from_row_offsets(&[0, 2, 3], None, 3).unwrap();
        let sf = [1.0; 2];
        for format in [Format::Mxfp4, Format::Mxfp8] {
            let once = round_trip(format, Input::F32(&values), &routing, 64, &sf);
            let twice = round_trip(format, Input::F32(&once), &routing, 64, &sf);
            prop_assert_eq!(once, twice);
        }
    }
}

fn round_trip(
    format: Format,
    input: Input<'_>,
    routing: &Routing,
    columns: usize,
    sf: &[f32],
) -> Vec<f32> {
    let quantized = quantize_to_vec(&Problem {
        format,
        input,
        input_rows: input.len() / columns,
        columns,
        groups: routing.into(),
        sf,
        source_rows: routing.source_rows(),
        options: DEFAULT,
    })
    .unwrap();
    dequantize_to_vec(&Encoded {
        format,
        data: &quantized.data,
        scales: &quantized.scales,
        rows: routing.rows(),
        columns,
        groups: routing.into(),
        sf,
    })
    .unwrap()
}

/// Real activations with skewed routing come back as near as each format allows.
#[test]
fn real_activations() {
    let bytes = std::fs::read(data_path("minilm_moe.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (tokens, columns, top_k, experts) = (2048, 384, 4, 32);
    let states = file.tensor("hidden_states").unwrap();
    assert_eq!(states.shape(), [tokens, columns]);
    let states: Vec<u16> = states
        .data()
        .chunks(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    let ids = file.tensor("topk_ids").unwrap();
    assert_eq!(ids.shape(), [tokens, top_k]);
    let ids: Vec<i32> = ids
        .data()
        .chunks(4)
        .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
        .collect();

    let routing = Routing::from_topk(&ids, tokens, top_k, experts).unwrap();
    assert_eq!(routing.rows(), tokens * top_k);
    assert_eq!(routing.rows_per_expert().min(), Some(20));
    assert_eq!(routing.rows_per_expert().max(), Some(546));

    let grouped: Vec<f32> = routing
        .source_rows()
        .unwrap()
        .iter()
        .flat_map(|&row| &states[row as usize * columns..][..columns])
        .map(|&bits| bf16_widen(bits))
        .collect();
    let amax = grouped
        .iter()
        .fold(0.0_f32, |amax, value| amax.max(value.abs()));
    let encode = 448.0 * 6.0 / amax;
    let mut last = f64::NEG_INFINITY;
    for format in [Format::Mxfp4, Format::Nvfp4, Format::Mxfp8] {
        let sf = if format == Format::Nvfp4 { encode } else { 1.0 };
        let decoded = round_trip(
            format,
            Input::Bf16(&states),
            &routing,
            columns,
            &vec![sf; experts],
        );
        for (original, decoded) in grouped.chunks(columns).zip(decoded.chunks(columns)) {
            assert_within_error_bound(format, sf, original, decoded);
        }
        // Smaller blocks with finer scales beat larger ones, and eight bits beat four.
        let metrics = ErrorMetrics::between(&grouped, &decoded).unwrap();
        assert_eq!(metrics.left_out, 0);
        assert!(metrics.sqnr_db > last, "{format}: {metrics:?}");
        last = metrics.sqnr_db;
    }
}
