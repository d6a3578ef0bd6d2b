//! The test data, which the binary carries with it.

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use safetensors::{Dtype, SafeTensors};
use serde::de::DeserializeOwned;
use tokenyard::options::Format;

/// Hidden states of a sentence encoder, with a top-4-of-32 routing; `tests/data/README.md` says more.
const SAMPLE: &[u8] = include_bytes!("../data/minilm_moe.safetensors");

/// Real activations with their routing.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Rows of the hidden states.
    pub tokens: usize,
    /// Columns of the hidden states.
    pub columns: usize,
    /// `[tokens, columns]`.
    pub hidden_states: Vec<bf16>,
    /// Experts of a token.
    pub top_k: usize,
    /// Number of experts.
    pub experts: usize,
    /// `[tokens, top_k]`.
    pub topk_ids: Vec<i32>,
}

impl Sample {
    /// Reads the embedded file.
    ///
    /// # Errors
    /// A file that is not the one described.
    pub fn load() -> Result<Self> {
        let file = SafeTensors::deserialize(SAMPLE).context("minilm_moe.safetensors")?;
        let hidden_states = file.tensor("hidden_states")?;
        let topk_ids = file.tensor("topk_ids")?;
        ensure!(hidden_states.dtype() == Dtype::BF16 && topk_ids.dtype() == Dtype::I32);
        let (&[tokens, columns], &[rows, top_k]) = (hidden_states.shape(), topk_ids.shape()) else {
            bail!("hidden_states and topk_ids must be matrices");
        };
        ensure!(rows == tokens, "{tokens} tokens, but ids for {rows}");
        let topk_ids: Vec<i32> = bytemuck::pod_collect_to_vec(topk_ids.data());
        Ok(Self {
            tokens,
            columns,
            hidden_states: bytemuck::pod_collect_to_vec(hidden_states.data()),
            top_k,
            experts: topk_ids.iter().max().map_or(0, |&id| id as usize + 1),
            topk_ids,
        })
    }

    /// The first `tokens` tokens alone.
    pub fn first(mut self, tokens: usize) -> Self {
        self.tokens = tokens.min(self.tokens);
        self.hidden_states.truncate(self.tokens * self.columns);
        self.topk_ids.truncate(self.tokens * self.top_k);
        self
    }
}

/// The stored blocks of a format, as JSON.
const fn block_file(format: Format) -> &'static str {
    match format {
        Format::Nvfp4 => include_str!("../data/vectors/blocks_nvfp4.json"),
        Format::Mxfp4 => include_str!("../data/vectors/blocks_mxfp4.json"),
        _ => include_str!("../data/vectors/blocks_mxfp8.json"),
    }
}

/// Reads the stored blocks of a format.
///
/// # Errors
/// A file that does not have the shape of `T`.
pub fn blocks<T: DeserializeOwned>(format: Format) -> Result<T> {
    serde_json::from_str(block_file(format)).with_context(|| format!("stored blocks of {format}"))
}

/// The probes of the scale layout, as JSON.
const LAYOUT: &str = include_str!("../data/vectors/scale_layout_128x4.json");

/// Reads the stored probes of the scale layout.
///
/// # Errors
/// A file that does not have the shape of `T`.
pub fn scale_layout<T: DeserializeOwned>() -> Result<T> {
    serde_json::from_str(LAYOUT).context("stored probes of the scale layout")
}

/// A number written as `0x...`.
///
/// # Errors
/// Any other text.
pub fn hex(text: &str) -> Result<u32> {
    let digits = text
        .strip_prefix("0x")
        .with_context(|| format!("{text:?} lacks 0x"))?;
    u32::from_str_radix(digits, 16).with_context(|| format!("{text:?} is not hexadecimal"))
}

/// Bytes written as pairs of hexadecimal digits.
///
/// # Errors
/// Any other text.
pub fn hex_bytes(text: &str) -> Result<Vec<u8>> {
    ensure!(text.is_ascii(), "{text:?} is not hexadecimal");
    (0..text.len() / 2)
        .map(|byte| {
            let pair = &text[2 * byte..2 * byte + 2];
            u8::from_str_radix(pair, 16).with_context(|| format!("{text:?} is not hexadecimal"))
        })
        .collect()
}
