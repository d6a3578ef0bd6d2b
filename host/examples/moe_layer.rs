//! A complete small Mixture-of-Experts layer on real hidden states: routed, dispatched over four virtual ranks in each
//! format, through the experts, combined; and compared with the dense computation on the CPU.
//!
//! `cargo run --package tokenyard --example moe_layer`

use half::bf16;
use half::slice::HalfFloatSliceExt;
use safetensors::SafeTensors;
use std::error::Error;
use std::time::Instant;
use tokenyard::Device;
use tokenyard::ep::TokenFormat;
use tokenyard::moe::{MoeLayer, MoeLayerConfig, MoeShape, MoeWeights};
use tokenyard::reference::moe::{LayerReport, WireFormat};

const HIDDEN_STATES: &[u8] = include_bytes!("../../tests/data/minilm_moe.safetensors");
const RANKS: usize = 4;
const TOKENS_PER_RANK: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let file = SafeTensors::deserialize(HIDDEN_STATES)?;
    let hidden_states = file.tensor("hidden_states")?;
    let hidden_size = hidden_states.shape()[1];
    let mut tokens: Vec<bf16> = bytemuck::pod_collect_to_vec(hidden_states.data());
    tokens.truncate(RANKS * TOKENS_PER_RANK * hidden_size);
    let shape = MoeShape {
        hidden_size,
        intermediate_size: 64,
        experts: 32,
        top_k: 4,
    };
    let weights = MoeWeights::random(shape, 1)?;

    let device = Device::best();
    println!("{}", device.description());
    let stream = device.create_stream()?;
    let on_ranks = tokens
        .chunks(TOKENS_PER_RANK * hidden_size)
        .map(|tokens| device.upload(tokens))
        .collect::<Result<Vec<_>, _>>()?;

    for format in TokenFormat::ALL {
        let wire = WireFormat::for_tokens(format, tokens.reinterpret_cast());
        let config = MoeLayerConfig {
            wire,
            ranks: RANKS,
            max_tokens_per_rank: TOKENS_PER_RANK,
        };
        let mut layer = MoeLayer::new(&device, &weights, config)?;
        let start = Instant::now();
        let outputs = layer.forward(&stream, &on_ranks)?;
        let time = start.elapsed();

        let mut found = Vec::new();
        for output in &outputs {
            found.extend(output.download()?);
        }
        let (tokens, found) = (tokens.reinterpret_cast(), found.reinterpret_cast());
        let report = LayerReport::new(&weights, wire, tokens, found, 1)?;
        report.check()?;
        println!(
            "{format:>6}: relative error {:.2e}, of which {:.2e} were expected and {:.2e} allowed; {time:.1?}",
            report.error,
            report.expected,
            report.budget(),
        );
    }
    Ok(())
}
