//! The stored vectors, straight on a device: expectations that neither the kernels nor the reference
//! had a part in.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use tokenyard::options::{DeadBlocks, Format, NanPolicy, QuantizeOptions, ScaleRounding};
use tokenyard::reference::scale_offset;
use tokenyard_tests::shapes::slots;
use tokenyard_tests::{Context, Launch, Problem, Rows, Suite, data};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        suite.both(&format!("vectors::blocks::{format}"), move |context| {
            stored_blocks(context, format)
        });
    }
    suite.both("vectors::scale_layout", scale_layout);
}

#[derive(Deserialize)]
struct Blocks {
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    name: String,
    bf16: Vec<String>,
    expected: BTreeMap<String, Expected>,
    #[serde(default)]
    global_encode_scale_f32: Option<String>,
    #[serde(default)]
    recipes_agree: Option<bool>,
}

#[derive(Deserialize)]
struct Expected {
    scale: String,
    #[serde(alias = "packed")]
    data: String,
}

/// Quantizes one block, alone in its row, on every device: its scale byte and its elements.
fn quantized(
    context: &Context,
    format: Format,
    block: &Block,
    sf: f32,
    options: QuantizeOptions,
) -> Result<Vec<(u8, Vec<u8>)>> {
    let bits = block.bf16.iter().map(|text| Ok(data::hex(text)? as u16));
    let rows = Rows::bf16_bits(bits.collect::<Result<Vec<_>>>()?);
    let problem = Problem {
        sf: vec![sf],
        options,
        ..Problem::new(format, format.block_size(), slots(&[1]), rows)
    };
    context
        .devices()
        .iter()
        .map(|device| {
            let memory = problem.run(device, Launch::default())?;
            Ok((memory.scales()[0], memory.data().to_vec()))
        })
        .collect()
}

/// Which of a block's expectations are ours, under which options.
///
/// NVFP4 blocks are stored for several public recipes. Where those agree, so must we; where they do
/// not, ours is the one that rounds the scale exactly and inverts it as `te` does. For
/// `tiny_tensor` and blocks whose scale underflows there is no stored expectation of the default
/// policy.
fn ours(format: Format, block: &Block) -> Vec<(&Expected, QuantizeOptions)> {
    let hardened = QuantizeOptions::default();
    let strict = QuantizeOptions {
        dead_blocks: DeadBlocks::Strict,
        ..hardened
    };
    let expected = |name: &str| block.expected.get(name);
    if format == Format::Nvfp4 {
        let name = block.name.as_str();
        return match (expected("exact"), expected("te")) {
            _ if name == "tiny_tensor" => Vec::new(),
            (_, Some(te)) if ["scale_subnormal_tie", "scale_underflow"].contains(&name) => {
                vec![(te, strict)]
            }
            (Some(exact), _) if block.recipes_agree == Some(true) => vec![(exact, hardened)],
            (Some(exact), Some(te)) if te.scale == exact.scale => vec![(te, hardened)],
            (Some(exact), _) => vec![(exact, hardened)],
            _ => Vec::new(),
        };
    }
    let mut all = Vec::new();
    for scale_rounding in ScaleRounding::ALL {
        for nan_policy in NanPolicy::ALL {
            if let Some(expected) = expected(scale_rounding.name()) {
                let options = QuantizeOptions {
                    scale_rounding,
                    nan_policy,
                    ..hardened
                };
                all.push((expected, options));
            }
        }
    }
    all
}

fn stored_blocks(context: &Context, format: Format) -> Result<()> {
    let mut checked = 0;
    for block in data::blocks::<Blocks>(format)?.blocks {
        let sf = match &block.global_encode_scale_f32 {
            Some(text) => f32::from_bits(data::hex(text)?),
            None => 1.0,
        };
        for (expected, options) in ours(format, &block) {
            let expected = (
                data::hex(&expected.scale)? as u8,
                data::hex_bytes(&expected.data)?,
            );
            for found in quantized(context, format, &block, sf, options)? {
                ensure!(
                    found == expected,
                    "{format}, {}, {options:?}: expected {expected:02x?}, found {found:02x?}",
                    block.name
                );
            }
            checked += 1;
        }
    }
    let stored = match format {
        Format::Nvfp4 => 15,
        Format::Mxfp4 => 14 * 6,
        _ => 11 * 6,
    };
    ensure!(
        checked == stored,
        "{checked} expectations were checked, not {stored}"
    );
    Ok(())
}

#[derive(Deserialize)]
struct Layout {
    probes: Vec<Probe>,
}

#[derive(Deserialize)]
struct Probe {
    k_blocks: usize,
    row: usize,
    col: usize,
    offset: usize,
}

/// Every probed scale is where the vectors say, for a scale byte that no other probe has nearby.
fn scale_layout(context: &Context) -> Result<()> {
    const ROWS: usize = 301;
    let mut by_width: BTreeMap<usize, Vec<Probe>> = BTreeMap::new();
    for probe in data::scale_layout::<Layout>()?.probes {
        by_width.entry(probe.k_blocks).or_default().push(probe);
    }
    ensure!(
        by_width.len() == 5,
        "the vectors probe {} widths",
        by_width.len()
    );
    for (k_blocks, probes) in by_width {
        // Row r, block b has amax 2^((3 r + b) % 40): its own scale byte, as far as neighbours go.
        let exponent = |row: usize, block: usize| (3 * row + block) % 40;
        let columns = k_blocks * 32;
        let values = (0..ROWS * columns)
            .map(|index| 2f32.powi(exponent(index / columns, index % columns / 32) as i32));
        let rows = Rows::rounded(tokenyard::InputType::Bf16, values);
        let problem = Problem::new(Format::Mxfp4, columns, slots(&[ROWS as u32]), rows);
        let memory = problem.run(&context.device(), Launch::default())?;
        for Probe {
            row, col, offset, ..
        } in probes
        {
            ensure!(offset == scale_offset(0, row, col, k_blocks.div_ceil(4)));
            // 2^n / 6 rounds up to 2^(n - 2).
            let expected = 127 - 2 + exponent(row, col) as u8;
            let found = *memory
                .scales()
                .get(offset)
                .context("an offset past the scales")?;
            ensure!(
                found == expected,
                "{k_blocks} blocks, row {row}, block {col}: expected {expected} at {offset}, found {found}"
            );
        }
    }
    Ok(())
}
