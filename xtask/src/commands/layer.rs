//! The last part of `cargo xtask run`: a complete small Mixture-of-Experts layer on the input's first tokens, over four
//! virtual ranks, in several formats, held against the dense computation on the CPU.

use std::time::Duration;

use anyhow::{Context, Result};
use comfy_table::Table;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use serde::Serialize;
use tokenyard::Device;
use tokenyard::ep::TokenFormat;
use tokenyard::moe::{MoeLayer, MoeLayerConfig, MoeShape, MoeWeights};
use tokenyard::reference::moe::{LayerReport, WireFormat};

use crate::engine::{Timed, time_on};
use crate::exchange::DispatchPlan;
use crate::files::TokensFile;
use crate::report;

/// Ranks of the demonstration.
const RANKS: usize = 4;
/// The most tokens that it takes: so many that the emulator needs a second or two.
const MAX_TOKENS: usize = 128;
/// I: elements between an expert's projections.
const INTERMEDIATE_SIZE: usize = 64;
/// The seed of the weights, and of the noise that the budget is made of.
const SEED: u64 = 1;
/// What the tokens travel as.
const FORMATS: [TokenFormat; 4] = [
    TokenFormat::Bf16,
    TokenFormat::Mxfp8,
    TokenFormat::Nvfp4,
    TokenFormat::Mxfp4,
];

/// The layer in one format. Errors are relative to the results' RMS.
#[derive(Debug, Serialize)]
pub struct LayerResult {
    format: &'static str,
    tokens: usize,
    error: f64,
    /// What noise of the format's step makes.
    expected_error: f64,
    /// The most that the error may be.
    budget: f64,
    /// The most that an element used of what rounding may do to it.
    worst_of_rounding_bound: f64,
    seconds: f64,
    /// What is beyond its bound, if anything is.
    pub difference: Option<String>,
}

/// Runs the layer on the first tokens of `file`, with as many experts as it was routed to and random weights.
///
/// # Errors
/// Numbers that do not divide, a device that fails.
pub fn layers(device: &Device, file: &TokensFile, experts: usize) -> Result<Vec<LayerResult>> {
    let count = file.count.min(MAX_TOKENS);
    let tokens = &file.tokens[..count * file.hidden_size];
    let shape = MoeShape {
        hidden_size: file.hidden_size,
        intermediate_size: INTERMEDIATE_SIZE,
        experts,
        top_k: file.top_k,
    };
    let weights = MoeWeights::random(shape, SEED)?;
    let results = FORMATS.map(|format| {
        layer(device, &weights, tokens, format)
            .with_context(|| format!("cannot run a layer in {format}"))
    });
    results.into_iter().collect()
}

fn layer(
    device: &Device,
    weights: &MoeWeights,
    tokens: &[bf16],
    format: TokenFormat,
) -> Result<LayerResult> {
    let hidden_size = weights.shape().hidden_size;
    let counts = DispatchPlan::even_counts(tokens.len() / hidden_size, RANKS);
    let wire = WireFormat::for_tokens(format, tokens.reinterpret_cast());
    let config = MoeLayerConfig {
        wire,
        ranks: RANKS,
        max_tokens_per_rank: counts.iter().copied().max().unwrap_or(0).max(1),
    };
    let stream = device.create_stream()?;
    let mut layer = MoeLayer::new(device, weights, config)?;
    let mut rest = tokens;
    let mut on_ranks = Vec::new();
    for count in counts {
        let (own, behind) = rest.split_at(count * hidden_size);
        on_ranks.push(device.upload(own)?);
        rest = behind;
    }
    let Timed { value, time } = time_on(device, || Ok(layer.forward(&stream, &on_ranks)?))?;
    let mut outputs: Vec<bf16> = Vec::new();
    for rank in &value {
        outputs.extend(rank.download()?);
    }
    let (tokens, outputs) = (tokens.reinterpret_cast(), outputs.reinterpret_cast());
    let report = LayerReport::new(weights, wire, tokens, outputs, SEED)?;
    let difference = report.check().err();
    Ok(LayerResult {
        format: format.name(),
        tokens: tokens.len() / hidden_size,
        error: report.error,
        expected_error: report.expected,
        budget: report.budget(),
        worst_of_rounding_bound: report.worst_of_bound,
        seconds: time.as_secs_f64(),
        difference: difference.map(|error| format!("layer in {format}: {error}")),
    })
}

/// A line for each format.
pub fn table(results: &[LayerResult], backend: &str) -> Table {
    let titles = [
        "Layer",
        "Tokens",
        "Error",
        "Expected",
        "Budget",
        "Of rounding",
        "Time",
        "Backend",
        "Within",
    ];
    let mut table = report::table(titles, 1);
    for result in results {
        table.add_row([
            result.format.to_uppercase(),
            report::grouped(result.tokens as u64),
            format!("{:.5}", result.error),
            format!("{:.5}", result.expected_error),
            format!("{:.5}", result.budget),
            format!("{:.0} %", 100.0 * result.worst_of_rounding_bound),
            report::duration(Duration::from_secs_f64(result.seconds)),
            backend.to_owned(),
            match result.difference {
                None => "yes",
                Some(_) => "NO",
            }
            .to_owned(),
        ]);
    }
    table
}
