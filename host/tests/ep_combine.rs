//! Combine on the emulator: whole round trips, bit for bit what the reference says.

mod ep_support;

use ep_support::{DeviceInput, Input, PATTERN, check_idle, emulator, random_input, shared_rows};
use fastrand::Rng;
use half::{bf16, f16};
use tokenyard::ep::{
    Batch, CombineFormat, CombineOutput, CombineTarget, EpConfig, EpConfigBuilder, EpError,
    EpGroup, ExpertOutputs, PendingCombine, TokenFormat,
};
use tokenyard::reference::ep::{
    CombineInput, ExpectedRows, RankTokens, Setup, Weights, combine, combine_unweighted,
    quantize_token, scale_columns,
};
use tokenyard::reference::formats::{e2m1_decode, e4m3_decode, e8m0_decode};
use tokenyard::{DeviceBuffer, EmulatorOptions, options::ScaleRounding};

/// An element type of expert outputs.
trait Element: bytemuck::Pod + PartialEq + std::fmt::Debug {
    fn round(value: f32) -> Self;
    fn widen(self) -> f32;
    fn outputs(buffer: &DeviceBuffer<Self>) -> ExpertOutputs<'_>;
    fn target(buffer: &mut DeviceBuffer<Self>) -> CombineOutput<'_>;
}

macro_rules! elements {
    ($($element:ty, $round:expr, $widen:expr;)*) => {$(
        impl Element for $element {
            fn round(value: f32) -> Self {
                $round(value)
            }
            fn widen(self) -> f32 {
                $widen(self)
            }
            fn outputs(buffer: &DeviceBuffer<Self>) -> ExpertOutputs<'_> {
                buffer.into()
            }
            fn target(buffer: &mut DeviceBuffer<Self>) -> CombineOutput<'_> {
                buffer.into()
            }
        }
    )*};
}

elements! {
    bf16, bf16::from_f32, bf16::to_f32;
    f16, f16::from_f32, f16::to_f32;
    f32, |value| value, |value| value;
}

/// How a round is run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Split,
    Fused,
}

fn small(format: TokenFormat, combine: CombineFormat) -> EpConfigBuilder {
    EpConfig::builder(format)
        .hidden_size(64)
        .top_k(3)
        .experts(8)
        .ranks(2)
        .max_tokens_per_rank(6)
        .combine(combine)
}

fn setup(config: &EpConfig) -> Setup {
    Setup {
        top_k: config.top_k(),
        experts: config.experts(),
        ranks: config.ranks(),
        fused_shared_expert: config.fused_shared_expert(),
        skip_a2a: config.skip_a2a(),
        ..Setup::new(
            config.format(),
            config.hidden_size(),
            config.max_tokens_per_rank(),
        )
    }
}

/// What is left of a row when it has travelled as `format`.
fn travelled(format: CombineFormat, row: &[f32]) -> Vec<f32> {
    let (wire, block) = match format {
        CombineFormat::Mxfp8 => (TokenFormat::Mxfp8, 32),
        CombineFormat::Nvfp4 => (TokenFormat::Nvfp4, 16),
        _ => return row.to_vec(),
    };
    let bits: Vec<u16> = row.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
    let amax = row.iter().fold(0_f32, |amax, x| amax.max(x.abs()));
    let factor = match amax {
        0.0 => 1.0,
        amax => (f64::from(2688.0_f32) / f64::from(amax))
            .log2()
            .floor()
            .exp2() as f32,
    };
    let mut payload = vec![0; wire.payload_bytes(row.len())];
    let (columns, bytes) = scale_columns(wire, row.len());
    let mut scales = vec![0; columns * bytes];
    let rounding = ScaleRounding::Rceil;
    quantize_token(wire, rounding, factor, &bits, &mut payload, &mut scales);
    let value = |index: usize| match wire {
        TokenFormat::Mxfp8 => e4m3_decode(payload[index]) * e8m0_decode(scales[index / block]),
        _ => {
            let code = payload[index / 2] >> (index % 2 * 4) & 0xF;
            e2m1_decode(code) * e4m3_decode(scales[index / block]) / factor
        }
    };
    (0..row.len()).map(value).collect()
}

/// Runs `rounds` round trips with random tokens, outputs and weights, and holds each against the reference: exactly.
fn round_trips<E: Element>(config: EpConfig, seed: u64, form: Form, rounds: usize) {
    let mut options = EmulatorOptions::default();
    options.seed = seed;
    let rng = &mut Rng::with_seed(seed);
    let device = emulator(options);
    let mut group = EpGroup::new(&device, config.clone()).unwrap();
    for _ in 0..rounds {
        let everyone = rng.usize(0..=config.max_tokens_per_rank());
        let inputs: Vec<_> = (0..config.ranks())
            .map(|_| {
                let own = rng.usize(0..=config.max_tokens_per_rank());
                let tokens = if config.skip_a2a() { everyone } else { own };
                let mut input = random_input(rng, &config, tokens, 0.2);
                // One names an expert twice, and one that does not exist.
                if tokens > 1 && config.top_k() > 1 {
                    input.ids[1] = input.ids[0];
                    input.ids[config.top_k()] = config.experts() as i32;
                }
                input
            })
            .collect();
        for weighted in [true, false] {
            if weighted || !config.fused_shared_expert() {
                round_trip::<E>(&mut group, rng, &inputs, form, weighted);
            }
        }
    }
}

fn round_trip<E: Element>(
    group: &mut EpGroup,
    rng: &mut Rng,
    inputs: &[Input],
    form: Form,
    weighted: bool,
) {
    let config = group.config().clone();
    let device = group.device().clone();
    let stream = device.create_stream().unwrap();
    let (hidden, top_k, ranks) = (config.hidden_size(), config.top_k(), config.ranks());
    let tokens_of = |rank: usize| inputs[rank].ids.len() / top_k;

    let outputs: Vec<Vec<E>> = (0..ranks)
        .map(|_| {
            let values = (0..config.output_rows() * hidden)
                .map(|_| E::round((rng.f32() - 0.5) * f32::from(rng.i8(-3..4)).exp2()));
            values.collect()
        })
        .collect();
    let weights: Vec<Vec<f32>> = (0..ranks)
        .map(|rank| (0..tokens_of(rank) * top_k).map(|_| rng.f32()).collect())
        .collect();

    let device_inputs: Vec<_> = inputs
        .iter()
        .map(|input| DeviceInput::upload(&device, input))
        .collect();
    let batches: Vec<Batch<'_>> = device_inputs
        .iter()
        .map(|input| input.batch(&config))
        .collect();
    let device_outputs: Vec<_> = outputs
        .iter()
        .map(|rows| device.upload(rows).unwrap())
        .collect();
    let device_weights: Vec<_> = weights
        .iter()
        .map(|rows| device.upload(rows).unwrap())
        .collect();
    let mut combined: Vec<DeviceBuffer<E>> = (0..ranks)
        .map(|rank| {
            let rows = tokens_of(rank) * if weighted { 1 } else { top_k };
            device.alloc_filled(rows * hidden, PATTERN).unwrap()
        })
        .collect();
    let targets = combined
        .iter_mut()
        .zip(&device_weights)
        .map(|(out, weights)| {
            if weighted {
                CombineTarget::weighted(weights, E::target(out))
            } else {
                CombineTarget::unweighted(E::target(out))
            }
        });
    let targets: Vec<_> = targets.collect();
    let mut received: Vec<_> = (0..ranks)
        .map(|_| group.allocate_received().unwrap())
        .collect();
    for received in &mut received {
        received.fill(PATTERN).unwrap();
    }

    // Only the fused dispatch has a shared expert; the split combine may follow it.
    let fused_dispatch = form == Form::Fused || config.fused_shared_expert();
    let mut src_infos = Vec::new();
    if fused_dispatch {
        let dispatched = group.dispatch(&stream, &batches, &mut received).unwrap();
        for received in dispatched.received() {
            src_infos.push(received.src_info().download().unwrap());
        }
        if form == Form::Fused {
            let outputs: Vec<_> = device_outputs.iter().map(E::outputs).collect();
            dispatched
                .combine(&stream, &outputs, &batches, targets)
                .unwrap();
        } else {
            let sent: Vec<_> = dispatched
                .into_ranks()
                .zip(&device_outputs)
                .map(|(rank, outputs)| rank.combine_async(&stream, E::outputs(outputs)).unwrap())
                .collect();
            for ((sent, batch), target) in sent.into_iter().zip(&batches).zip(targets) {
                sent.wait(&stream, batch, target).unwrap();
            }
        }
    } else {
        let pending: Vec<_> = (group.ranks_mut().iter_mut())
            .zip(&batches)
            .map(|(rank, batch)| rank.dispatch_async(&stream, batch).unwrap())
            .collect();
        let mut sent: Vec<PendingCombine<'_>> = Vec::new();
        let ranks = group.ranks_mut().iter_mut().zip(pending).zip(&mut received);
        for (((rank, pending), received), outputs) in ranks.zip(&device_outputs) {
            let dispatched = rank.dispatch_wait(&stream, pending, received).unwrap();
            src_infos.push(dispatched.received().src_info().download().unwrap());
            sent.push(
                dispatched
                    .combine_async(&stream, E::outputs(outputs))
                    .unwrap(),
            );
        }
        for ((sent, batch), target) in sent.into_iter().zip(&batches).zip(targets) {
            sent.wait(&stream, batch, target).unwrap();
        }
    }
    group.check().unwrap();

    // What the reference says, of rows as they are after the way.
    let setup = setup(&config);
    let bits: Vec<Vec<u16>> = inputs
        .iter()
        .map(|input| input.tokens.iter().map(|token| token.to_bits()).collect())
        .collect();
    let tokens: Vec<RankTokens<'_>> = inputs
        .iter()
        .zip(&bits)
        .map(|(input, bits)| RankTokens {
            tokens: bits,
            topk_ids: &input.ids,
        })
        .collect();
    let rows: Vec<_> = (0..ranks)
        .map(|rank| ExpectedRows::new(&setup, &tokens, rank).unwrap())
        .collect();
    let format = config.combine().unwrap();
    let home: Vec<Vec<f32>> = (0..ranks)
        .map(|rank| {
            let (_, shared) = shared_rows(&config, tokens_of(rank), rank);
            let rows = outputs[rank].chunks(hidden).enumerate();
            rows.flat_map(|(row, values)| {
                let values: Vec<f32> = values.iter().map(|value| value.widen()).collect();
                if row < shared {
                    values
                } else {
                    travelled(format, &values)
                }
            })
            .collect()
        })
        .collect();
    for rank in 0..ranks {
        let found = combined[rank].download().unwrap();
        let expected = expected::<E>(
            &config, inputs, &rows, &src_infos, &home, &weights, rank, weighted,
        );
        let wrong = found
            .iter()
            .zip(&expected)
            .position(|(found, expected)| found != expected);
        assert_eq!(
            wrong, None,
            "first wrong element of rank {rank}, {form:?}, weighted: {weighted}"
        );
        assert_eq!(group.ranks()[rank].return_counters().unwrap().sent, 0);
        assert_eq!(group.ranks()[rank].return_counters().unwrap().ready, 0);
        let counts = group.ranks()[rank].return_counts().unwrap();
        assert!(counts.iter().all(|&count| count == u64::MAX));
        assert!(
            received[rank]
                .pairs()
                .download()
                .unwrap()
                .iter()
                .all(|pair| *pair == [0, 0])
        );
    }
    check_idle(group);
    let inputs: Vec<_> = (0..ranks)
        .map(|rank| CombineInput {
            rows: &rows[rank],
            src_info: &src_infos[rank],
            outputs: &home[rank],
        })
        .collect();
    for rank in 0..ranks {
        let own = &tokens[rank];
        let expected = if weighted {
            let weights = Weights {
                weights: &weights[rank],
                fused: true,
            };
            combine(&setup, rank, own, &inputs, weights, format.element()).unwrap()
        } else {
            let pattern: E = bytemuck::pod_read_unaligned(&[PATTERN; 4][..size_of::<E>()]);
            let before = vec![pattern.widen(); tokens_of(rank) * top_k * hidden];
            combine_unweighted(&setup, rank, own, &inputs, &before).unwrap()
        };
        let expected: Vec<_> = expected.into_iter().map(E::round).collect();
        let found = combined[rank].download().unwrap();
        assert_eq!(found, expected, "reference of rank {rank}");
    }
}

/// The same once more, for every element type.
#[allow(clippy::too_many_arguments)]
fn expected<E: Element>(
    config: &EpConfig,
    inputs: &[Input],
    rows: &[ExpectedRows],
    src_infos: &[Vec<[i32; 2]>],
    home: &[Vec<f32>],
    weights: &[Vec<f32>],
    me: usize,
    weighted: bool,
) -> Vec<E> {
    let (hidden, top_k, experts) = (config.hidden_size(), config.top_k(), config.local_experts());
    let untouched: E = bytemuck::pod_read_unaligned(&[PATTERN; 4][..size_of::<E>()]);
    let (first_shared, shared) = shared_rows(config, inputs[me].ids.len() / top_k, me);
    let mut result = Vec::new();
    for (token, ids) in inputs[me].ids.chunks(top_k).enumerate() {
        let mut sums = vec![0.0_f32; hidden];
        for (k, &id) in ids.iter().enumerate() {
            let owner = id as usize / experts;
            let counts = id >= 0
                && owner < config.ranks()
                && !ids[..k].contains(&id)
                && (!config.skip_a2a() || owner == me);
            let row = counts.then(|| {
                let cell = match config.skip_a2a() {
                    true => id as usize % experts,
                    false => id as usize % experts * config.ranks() + me,
                };
                let mut rows = rows[owner].cells[cell].rows.clone();
                let is_it = |row: &usize| src_infos[owner][*row] == [token as i32, k as i32];
                &home[owner][rows.find(is_it).unwrap() * hidden..][..hidden]
            });
            if !weighted {
                match row {
                    Some(row) => result.extend(row.iter().map(|&value| E::round(value))),
                    None => result.extend(std::iter::repeat_n(untouched, hidden)),
                }
                continue;
            }
            for (sum, &value) in sums.iter_mut().zip(row.into_iter().flatten()) {
                *sum = weights[me][token * top_k + k].mul_add(value, *sum);
            }
        }
        if weighted {
            let own = token.checked_sub(first_shared).filter(|&row| row < shared);
            result.extend(sums.into_iter().enumerate().map(|(column, sum)| {
                let routed = E::round(sum);
                match own {
                    Some(row) => E::round(routed.widen() + home[me][row * hidden + column]),
                    None => routed,
                }
            }));
        }
    }
    result
}

#[test]
fn a_round_trip_is_that_of_the_reference() {
    for (seed, form) in [(1, Form::Split), (2, Form::Fused)] {
        let config = small(TokenFormat::Bf16, CombineFormat::Bf16)
            .build()
            .unwrap();
        round_trips::<bf16>(config, seed, form, 3);
    }
}

#[test]
fn every_element_type_comes_home() {
    for (seed, form) in [(3, Form::Split), (4, Form::Fused)] {
        let config = small(TokenFormat::Mxfp4, CombineFormat::F16)
            .build()
            .unwrap();
        round_trips::<f16>(config, seed, form, 2);
        let config = small(TokenFormat::Mxfp4, CombineFormat::F32)
            .build()
            .unwrap();
        round_trips::<f32>(config, seed, form, 2);
    }
}

#[test]
fn quantized_rows_are_those_of_the_reference() {
    for (seed, form) in [(5, Form::Split), (6, Form::Fused)] {
        for format in [CombineFormat::Mxfp8, CombineFormat::Nvfp4] {
            let config = small(TokenFormat::Bf16, format)
                .hidden_size(288)
                .build()
                .unwrap();
            round_trips::<bf16>(config, seed, form, 2);
        }
    }
}

#[test]
fn padded_groups_tails_nodes_and_many_experts_of_a_token() {
    // Rows of padding between groups, more than a piece in a row, and columns that no warp fills.
    let config = small(TokenFormat::Fp8Block128, CombineFormat::Bf16)
        .hidden_size(2176)
        .top_k(8)
        .build()
        .unwrap();
    round_trips::<bf16>(config, 7, Form::Split, 2);
    // Nodes of two ranks, and of one.
    for ranks_per_node in [1, 2] {
        for format in [CombineFormat::Bf16, CombineFormat::Nvfp4] {
            let config = small(TokenFormat::Bf16, format)
                .ranks(4)
                .ranks_per_node(ranks_per_node)
                .build()
                .unwrap();
            round_trips::<bf16>(config, 8, Form::Split, 2);
        }
    }
    let config = small(TokenFormat::Bf16, CombineFormat::Bf16)
        .top_k(32)
        .experts(40)
        .hidden_size(8)
        .build()
        .unwrap();
    round_trips::<bf16>(config, 9, Form::Fused, 2);
}

#[test]
fn the_shared_expert_is_added_after_rounding() {
    for (seed, form) in [(10, Form::Split), (11, Form::Fused)] {
        for skip in [false, true] {
            let config = small(TokenFormat::Bf16, CombineFormat::Bf16)
                .fused_shared_expert(true)
                .skip_a2a(skip)
                .build()
                .unwrap();
            round_trips::<bf16>(config, seed, form, 3);
        }
        let config = small(TokenFormat::Bf16, CombineFormat::Mxfp8)
            .fused_shared_expert(true)
            .build()
            .unwrap();
        round_trips::<bf16>(config, seed, form, 2);
    }
}

#[test]
fn skip_mode_combines_what_a_rank_has_itself() {
    for (seed, form) in [(12, Form::Split), (13, Form::Fused)] {
        let config = small(TokenFormat::Bf16, CombineFormat::Bf16)
            .skip_a2a(true)
            .build()
            .unwrap();
        round_trips::<bf16>(config, seed, form, 3);
    }
}

#[test]
fn refusals_give_the_handle_back() {
    let device = emulator(EmulatorOptions::default());
    let stream = device.create_stream().unwrap();
    let config = small(TokenFormat::Bf16, CombineFormat::Bf16)
        .ranks(1)
        .build()
        .unwrap();
    let rows = config.output_rows() * 64;
    let mut group = EpGroup::new(&device, config).unwrap();
    let tokens = device.upload(&[bf16::ONE; 64]).unwrap();
    let ids = device.upload(&[0, -1, 5]).unwrap();
    let same_ids = device.upload(&[0, -1, 5]).unwrap();
    let weights = device.upload(&[0.25_f32, 0.5, 0.125]).unwrap();
    let batch = Batch::new(&tokens, &ids);
    let outputs = device.upload(&vec![bf16::ONE; rows]).unwrap();
    let halves = device.upload(&vec![f16::ONE; rows]).unwrap();
    let few = device.upload(&vec![bf16::ONE; rows - 64]).unwrap();
    let mut combined = device.alloc::<bf16>(64).unwrap();
    let mut received = group.allocate_received().unwrap();

    let rank = &mut group.ranks_mut()[0];
    let pending = rank.dispatch_async(&stream, &batch).unwrap();
    let dispatched = rank.dispatch_wait(&stream, pending, &mut received).unwrap();
    let refused = dispatched.combine_async(&stream, &halves).unwrap_err();
    assert!(
        matches!(*refused.error, EpError::CombineElement { .. }),
        "{}",
        refused.error
    );
    let refused = refused.handle.combine_async(&stream, &few).unwrap_err();
    assert!(
        matches!(*refused.error, EpError::InputLength { .. }),
        "{}",
        refused.error
    );
    let sent = refused.handle.combine_async(&stream, &outputs).unwrap();
    let target = CombineTarget::weighted(&weights, &mut combined);
    let refused = sent
        .wait(&stream, &Batch::new(&tokens, &same_ids), target)
        .unwrap_err();
    assert!(
        matches!(*refused.error, EpError::OtherBatch { rank: 0 }),
        "{}",
        refused.error
    );
    let target = CombineTarget::unweighted(&mut combined);
    let refused = refused.handle.wait(&stream, &batch, target).unwrap_err();
    assert!(
        matches!(*refused.error, EpError::InputLength { .. }),
        "{}",
        refused.error
    );
    let target = CombineTarget::weighted(&weights, &mut combined);
    refused.handle.wait(&stream, &batch, target).unwrap();
    group.check().unwrap();
    assert_eq!(combined.download().unwrap(), [bf16::from_f32(0.375); 64]);
}
