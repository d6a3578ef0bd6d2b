//! A complete small layer on real activations, against the dense computation; and its parts.

use anyhow::{Context as _, Result, ensure};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use tokenyard::ep::{Batch, DequantizeError, EpConfig, EpConfigError, EpGroup, TokenFormat};
use tokenyard::moe::{ExpertMlp, MoeError, MoeLayer, MoeLayerConfig, MoeShape, MoeWeights, Router};
use tokenyard::reference::moe::{LayerError, LayerReport, WireFormat, route};
use tokenyard::{DeviceBuffer, TensorScales};
use tokenyard_tests::data::Sample;
use tokenyard_tests::{Context, Suite, compare};

pub fn register(suite: &mut Suite) {
    for format in TokenFormat::ALL {
        suite.both(&format!("moe::layer::{format}"), move |context| {
            layer(context, format)
        });
        suite.both(&format!("moe::widened_rows::{format}"), move |context| {
            widened_rows(context, format)
        });
    }
    suite.both("moe::error_falls_with_bits", error_falls_with_bits);
    suite.both("moe::layers_repeat", layers_repeat);
    suite.both("moe::router::matches_the_reference", router);
    suite.both("moe::router::equal_logits", equal_logits);
    suite.both("moe::router::no_finite_logits", no_finite_logits);
    suite.emulator("moe::a_wrong_result_is_found", a_wrong_result_is_found);
    suite.emulator("moe::refusals", refusals);
}

const EXPERTS: usize = 16;
const TOP_K: usize = 4;
const RANKS: usize = 4;
/// The seed of the weights, and that of the noise.
const SEED: u64 = 11;

/// Real activations, cut to what a layer of the suite takes.
struct Problem {
    weights: MoeWeights,
    tokens: Vec<bf16>,
    /// Tokens of each rank.
    counts: [usize; RANKS],
}

impl Problem {
    /// Uneven ranks, one of them without a token.
    fn new(context: &Context) -> Result<Self> {
        let most = context.pick(64, 24);
        Self::of([most, 0, 7, most / 2])
    }

    fn of(counts: [usize; RANKS]) -> Result<Self> {
        let sample = Sample::load()?.first(counts.iter().sum());
        let shape = MoeShape {
            hidden_size: sample.columns,
            intermediate_size: 64,
            experts: EXPERTS,
            top_k: TOP_K,
        };
        Ok(Self {
            weights: MoeWeights::random(shape, SEED)?,
            tokens: sample.hidden_states,
            counts,
        })
    }

    fn hidden_size(&self) -> usize {
        self.weights.shape().hidden_size
    }

    fn capacity(&self) -> usize {
        self.counts.into_iter().max().unwrap_or(1)
    }

    fn wire(&self, format: TokenFormat) -> WireFormat {
        WireFormat::for_tokens(format, self.tokens.reinterpret_cast())
    }

    fn config(&self, format: TokenFormat) -> MoeLayerConfig {
        MoeLayerConfig {
            wire: self.wire(format),
            ranks: RANKS,
            max_tokens_per_rank: self.capacity(),
        }
    }

    /// The tokens of each rank, on the device.
    fn upload(&self, device: &tokenyard::Device) -> Result<Vec<DeviceBuffer<bf16>>> {
        let mut rest = &self.tokens[..];
        let uploaded = self.counts.iter().map(|count| {
            let (tokens, behind) = rest.split_at(count * self.hidden_size());
            rest = behind;
            Ok(device.upload(tokens)?)
        });
        uploaded.collect()
    }

    /// The results of all tokens.
    fn run(&self, context: &Context, format: TokenFormat) -> Result<Vec<bf16>> {
        let device = context.device();
        let stream = device.create_stream()?;
        let mut layer = MoeLayer::new(&device, &self.weights, self.config(format))?;
        download(layer.forward(&stream, &self.upload(&device)?)?)
    }

    fn report(&self, format: TokenFormat, outputs: &[bf16]) -> Result<LayerReport> {
        Ok(LayerReport::new(
            &self.weights,
            self.wire(format),
            self.tokens.reinterpret_cast(),
            outputs.reinterpret_cast(),
            SEED,
        )?)
    }
}

fn download(outputs: Vec<DeviceBuffer<bf16>>) -> Result<Vec<bf16>> {
    let ranks = outputs.iter().map(DeviceBuffer::download);
    Ok(ranks.collect::<Result<Vec<_>, _>>()?.concat())
}

/// Every element within its rounding bound, the error within the budget; and as large as expected, as a layer that
/// left the tokens as they are would not show it.
fn layer(context: &Context, format: TokenFormat) -> Result<()> {
    let problem = Problem::new(context)?;
    let outputs = problem.run(context, format)?;
    let report = problem.report(format, &outputs)?;
    report.check().with_context(|| format!("{report:?}"))?;
    let least = 0.8 * report.expected - report.rounding;
    ensure!(
        report.error >= least,
        "the error is {:.2e}, below {least:.2e}: were tokens quantized at all? {report:?}",
        report.error,
    );
    Ok(())
}

/// BF16, which leaves tokens as they are, agrees far more closely than FP8, and that than FP4.
fn error_falls_with_bits(context: &Context) -> Result<()> {
    let problem = Problem::of([8; RANKS])?;
    let error = |format| -> Result<f64> {
        let outputs = problem.run(context, format)?;
        Ok(problem.report(format, &outputs)?.error)
    };
    let errors = [TokenFormat::Bf16, TokenFormat::Mxfp8, TokenFormat::Mxfp4].map(error);
    let [bf16, mxfp8, mxfp4] = errors;
    let (bf16, mxfp8, mxfp4) = (bf16?, mxfp8?, mxfp4?);
    ensure!(
        20.0 * bf16 < mxfp4 && 4.0 * bf16 < mxfp8 && 2.0 * mxfp8 < mxfp4,
        "relative errors: BF16 {bf16:.2e}, MXFP8 {mxfp8:.2e}, MXFP4 {mxfp4:.2e}"
    );
    Ok(())
}

/// The same layer, round after round, with other tokens in between: the same bits.
fn layers_repeat(context: &Context) -> Result<()> {
    let problem = Problem::of([5, 1, 0, 9])?;
    let device = context.device();
    let stream = device.create_stream()?;
    let mut layer = MoeLayer::new(
        &device,
        &problem.weights,
        problem.config(TokenFormat::Mxfp4),
    )?;
    let tokens = problem.upload(&device)?;
    let none: Vec<_> = (0..RANKS)
        .map(|_| device.alloc(0))
        .collect::<Result<_, _>>()?;
    let first = download(layer.forward(&stream, &tokens)?)?;
    ensure!(download(layer.forward(&stream, &none)?)?.is_empty());
    let second = download(layer.forward(&stream, &tokens)?)?;
    compare::values("results", &first, &second)
}

/// Rows on the far side of a dispatch, as [`WireFormat::pass`] says, bit for bit.
fn widened_rows(context: &Context, format: TokenFormat) -> Result<()> {
    let problem = Problem::of([6, 0, 3, 4])?;
    let (wire, hidden_size) = (problem.wire(format), problem.hidden_size());
    let expected = wire.pass(problem.tokens.reinterpret_cast(), hidden_size);
    let device = context.device();
    let stream = device.create_stream()?;
    let config = EpConfig::builder(format)
        .hidden_size(hidden_size)
        .top_k(TOP_K)
        .experts(EXPERTS)
        .ranks(RANKS)
        .max_tokens_per_rank(problem.capacity())
        .build()?;
    let mut group = EpGroup::new(&device, config)?;
    let tokens = problem.upload(&device)?;
    let ids = problem.counts.map(|count| {
        let id = |choice: usize| (choice * 5 % EXPERTS) as i32;
        (0..count * TOP_K).map(id).collect::<Vec<_>>()
    });
    let uploaded = ids.each_ref().map(|ids| device.upload(ids));
    let uploaded = uploaded.into_iter().collect::<Result<Vec<_>, _>>()?;
    let factor = device.upload(&[wire.global_factor])?;
    let batches = tokens.iter().zip(&uploaded).map(|(tokens, ids)| {
        let batch = Batch::new(tokens, ids);
        match format {
            TokenFormat::Nvfp4 => batch.input_scale(&factor),
            _ => batch,
        }
    });
    let batches: Vec<_> = batches.collect();
    let mut received = Vec::new();
    for _ in 0..RANKS {
        let mut outputs = group.allocate_received()?;
        // Rows that only round a group up are never written.
        outputs.fill(0)?;
        received.push(outputs);
    }
    group.dispatch(&stream, &batches, &mut received)?;
    let factors = vec![wire.global_factor; group.config().groups()];
    let factors = TensorScales::upload(&device, &factors)?;
    let factors = (format == TokenFormat::Nvfp4).then_some(&factors);
    let first_token: Vec<usize> = (0..RANKS)
        .map(|rank| problem.counts[..rank].iter().sum())
        .collect();
    let mut rows = 0;
    for (rank, received) in received.iter().enumerate() {
        let mut widened = device.alloc_filled(group.config().output_rows() * hidden_size, 0xFF)?;
        received.dequantize(&stream, factors, &mut widened)?;
        group.check()?;
        let widened = widened.download()?;
        let src_info = received.src_info().download()?;
        let mut end = 0;
        for (pair, [handle, count]) in received.pairs().download()?.into_iter().enumerate() {
            let source = pair % RANKS;
            let past = handle as usize - 1024;
            for row in past - count as usize..past {
                let token = first_token[source] + src_info[row][0] as usize;
                compare::floats(
                    "widened rows",
                    &expected.values[token * hidden_size..][..hidden_size],
                    &widened[row * hidden_size..][..hidden_size],
                    |column| format!("rank {rank}, row {row}, column {column}"),
                )?;
                rows += 1;
            }
            end = end.max(past);
        }
        let after = received.row_offsets().download()?.last().copied();
        let after = after.context("no offsets")? as usize;
        ensure!(after >= end, "rows end at {after}, pairs at {end}");
        let untouched = |value: &f32| value.to_bits() == u32::MAX;
        ensure!(
            widened[after * hidden_size..].iter().all(untouched),
            "rank {rank}: rows behind the last one were written"
        );
    }
    let sent: usize = problem.counts.iter().map(|count| count * TOP_K).sum();
    ensure!(rows == sent, "{rows} rows arrived, {sent} were sent");
    Ok(())
}

/// Ids exactly, weights within what f32 loses.
fn router(context: &Context) -> Result<()> {
    let problem = Problem::new(context)?;
    let tokens: Vec<f32> = problem.tokens.iter().map(|value| value.to_f32()).collect();
    let expected = route(&problem.weights, &tokens);
    let (ids, weights) = route_on_device(context, &problem.weights, &problem.tokens)?;
    compare::values("expert ids", &expected.ids, &ids)?;
    for (index, (found, exact)) in weights.iter().zip(&expected.weights).enumerate() {
        let error = (f64::from(*found) - exact).abs();
        let bound = expected.weight_errors[index / TOP_K] * exact;
        ensure!(
            error <= bound,
            "weight {index} is {found}, the reference has {exact}; rounding explains {bound:.1e}"
        );
    }
    Ok(())
}

fn route_on_device(
    context: &Context,
    weights: &MoeWeights,
    tokens: &[bf16],
) -> Result<(Vec<i32>, Vec<f32>)> {
    let shape = weights.shape();
    let device = context.device();
    let stream = device.create_stream()?;
    let count = tokens.len() / shape.hidden_size;
    let mut router = Router::new(&device, weights, count)?;
    let mut ids = device.alloc(count * shape.top_k)?;
    let mut chosen = device.alloc(count * shape.top_k)?;
    router.route(&stream, &device.upload(tokens)?, &mut ids, &mut chosen)?;
    Ok((ids.download()?, chosen.download()?))
}

/// A layer of nothing but a router.
fn router_weights(experts: usize, router: impl Fn(usize) -> f32) -> Result<MoeWeights> {
    let shape = MoeShape {
        hidden_size: 8,
        intermediate_size: 4,
        experts,
        top_k: 3,
    };
    let router = (0..8 * experts).map(|index| router(index % experts));
    let projection = vec![0.0; experts * shape.projection_len()];
    Ok(MoeWeights::new(
        shape,
        router.collect(),
        projection.clone(),
        projection.clone(),
        projection,
    )?)
}

/// Of equal logits the lower ids.
fn equal_logits(context: &Context) -> Result<()> {
    let weights = router_weights(6, |expert| if expert == 4 { 0.5 } else { 0.25 })?;
    let (ids, weights) = route_on_device(context, &weights, &[bf16::ONE; 8])?;
    compare::values("expert ids", &[4, 0, 1], &ids)?;
    // Logits 4, 2, 2.
    let least = 1.0 / (2.0 + 2f32.exp());
    let close = |(found, exact): (&f32, f32)| (found - exact).abs() < 1e-6;
    let expected = [1.0 - 2.0 * least, least, least];
    ensure!(weights.iter().zip(expected).all(close), "{weights:?}");
    Ok(())
}

/// Tokens that overflowed still go to experts that exist, each once, with weights that are numbers.
fn no_finite_logits(context: &Context) -> Result<()> {
    let infinite = |expert: usize| if expert.is_multiple_of(2) { 1.0 } else { -1.0 };
    let weights = router_weights(5, infinite)?;
    let tokens = [[bf16::NAN; 8], [bf16::INFINITY; 8], [bf16::NEG_INFINITY; 8]].concat();
    let (ids, weights) = route_on_device(context, &weights, &tokens)?;
    compare::values("expert ids", &[0, 1, 2, 0, 2, 4, 1, 3, 0], &ids)?;
    ensure!(
        weights.iter().all(|weight| weight.is_finite()),
        "{weights:?}"
    );
    let third = 1.0 / 3.0;
    compare::values("weights", &[third; 6], &weights[..6])?;
    compare::values("weights", &[0.5, 0.5, 0.0], &weights[6..])
}

/// The comparison finds one element beyond its bound, the weights of another layer, and a result for other tokens.
fn a_wrong_result_is_found(context: &Context) -> Result<()> {
    let problem = Problem::of([4, 0, 0, 4])?;
    let outputs = problem.run(context, TokenFormat::Mxfp4)?;
    problem.report(TokenFormat::Mxfp4, &outputs)?.check()?;

    let mut nudged = outputs.clone();
    nudged[300] = bf16::from_f32(nudged[300].to_f32() + 0.05);
    refused!(
        problem.report(TokenFormat::Mxfp4, &nudged)?.check(),
        LayerError::Rounding {
            token: 0,
            column: 300,
            ..
        }
    );
    nudged[300] = bf16::NAN;
    refused!(
        problem.report(TokenFormat::Mxfp4, &nudged)?.check(),
        LayerError::Rounding {
            token: 0,
            column: 300,
            ..
        }
    );
    // As if nothing had been quantized on the way.
    refused!(
        problem.report(TokenFormat::Bf16, &outputs)?.check(),
        LayerError::Rounding { .. }
    );
    let other = Problem {
        weights: MoeWeights::random(problem.weights.shape(), SEED + 1)?,
        ..problem
    };
    refused!(
        other.report(TokenFormat::Mxfp4, &outputs)?.check(),
        LayerError::Rounding { .. }
    );
    Ok(())
}

/// What does not fit is refused with its numbers.
fn refusals(context: &Context) -> Result<()> {
    let problem = Problem::of([2, 0, 1, 1])?;
    let shape = problem.weights.shape();
    let device = context.device();
    let stream = device.create_stream()?;
    refused!(
        MoeShape {
            intermediate_size: 6,
            ..shape
        }
        .check(),
        MoeError::Multiple {
            what: "intermediate_size",
            value: 6,
            multiple: 4
        }
    );
    refused!(
        MoeShape { top_k: 17, ..shape }.check(),
        MoeError::TooLarge {
            what: "top_k",
            value: 17,
            limit: 16
        }
    );
    refused!(
        MoeWeights::new(shape, vec![0.0; 3], vec![], vec![], vec![]),
        MoeError::Length {
            what: "router",
            found: 3,
            ..
        }
    );
    refused!(
        ExpertMlp::new(&device, &problem.weights, 12..17, 4),
        MoeError::TooLarge {
            value: 17,
            limit: 16,
            ..
        }
    );
    let uneven = MoeLayerConfig {
        ranks: 3,
        ..problem.config(TokenFormat::Mxfp4)
    };
    refused!(
        MoeLayer::new(&device, &problem.weights, uneven),
        MoeError::Config(EpConfigError::UnevenExperts {
            experts: 16,
            ranks: 3
        })
    );
    let config = problem.config(TokenFormat::Mxfp4);
    let mut layer = MoeLayer::new(&device, &problem.weights, config)?;
    let tokens = problem.upload(&device)?;
    refused!(
        layer.forward(&stream, &tokens[..3]),
        MoeError::Length {
            found: 3,
            expected: 4,
            ..
        }
    );
    let many = [device.upload(&vec![bf16::ONE; 3 * shape.hidden_size])?];
    let many: Vec<_> = many.into_iter().chain(tokens.into_iter().skip(1)).collect();
    refused!(
        layer.forward(&stream, &many),
        MoeError::TooLarge {
            value: 3,
            limit: 2,
            ..
        }
    );

    let config = EpConfig::builder(TokenFormat::Nvfp4)
        .hidden_size(64)
        .top_k(1)
        .experts(2)
        .max_tokens_per_rank(2)
        .build()?;
    let group = EpGroup::new(&device, config)?;
    let received = group.allocate_received()?;
    let rows = group.config().output_rows();
    let mut short = device.alloc(rows * 64 - 1)?;
    refused!(
        received.dequantize(&stream, None, &mut short),
        DequantizeError::OutputLength { .. }
    );
    let mut output = device.alloc(rows * 64)?;
    refused!(
        received.dequantize(&stream, None, &mut output),
        DequantizeError::TensorScales {
            given: None,
            expected: 2,
            ..
        }
    );
    let one = TensorScales::ones(&device, 1)?;
    refused!(
        received.dequantize(&stream, Some(&one), &mut output),
        DequantizeError::TensorScales {
            given: Some(1),
            expected: 2,
            ..
        }
    );
    Ok(())
}
