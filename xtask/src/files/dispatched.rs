//! What `dispatch` reads and writes.

use std::collections::HashMap;
use std::path::Path;

use half::bf16;
use safetensors::Dtype;
use tokenyard::ep::TokenFormat;
use tokenyard::reference::ep::{
    HANDLE_BIAS, RankTokens, ReceivedBytes, ScaleLayout, Setup, payload_bytes, scale_columns,
};

use super::quantized::{bytes_of, serialize};
use super::tensor_file::decode;
use super::{FileError, TensorFile, write_atomically};

/// Tokens and the experts that each goes to.
#[derive(Clone, Debug)]
pub struct TokensFile {
    /// `[T, H]`: bfloat16.
    pub tokens: Vec<bf16>,
    /// T.
    pub count: usize,
    /// H.
    pub hidden_size: usize,
    /// `[T, K]`.
    pub topk_ids: Vec<i32>,
    /// K.
    pub top_k: usize,
    /// NVFP4's global factor, where the file has `input_scales`.
    pub global_factor: Option<f32>,
}

impl TokensFile {
    /// Reads `path`.
    ///
    /// # Errors
    /// [`FileError`]: unreadable, malformed, or tensors of other types or extents.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let file = TensorFile::open(path)?;
        let tokens = file.require("hidden_states")?;
        tokens.require_dtype(Dtype::BF16, "BF16")?;
        let [count, hidden_size] = tokens.extents("[T, H]")?;
        let ids = file.require("topk_ids")?;
        let expected = format!("[T, K] with T = {count}");
        let [rows, top_k] = ids.extents(&expected)?;
        if rows != count {
            return Err(ids.wrong_shape(&expected));
        }
        let global_factor = match file.tensor("input_scales") {
            Some(scales) => {
                let factors = scales.to_f32()?;
                match factors.first() {
                    Some(&factor) if factor.is_finite() && factor > 0.0 => Some(factor),
                    Some(&factor) => {
                        return Err(scales.wrong_value("a finite factor above zero", 0, factor));
                    }
                    None => return Err(scales.wrong_shape("[1]")),
                }
            }
            None => None,
        };
        Ok(Self {
            tokens: decode(tokens.bytes(), bf16::from_le_bytes),
            count,
            hidden_size,
            topk_ids: ids.to_i32()?,
            top_k,
            global_factor,
        })
    }

    /// `count` tokens from `start`, as the reference takes them.
    pub fn slice(&self, start: usize, count: usize) -> RankTokens<'_> {
        use half::slice::HalfFloatSliceExt;
        RankTokens {
            tokens: self.tokens[start * self.hidden_size..][..count * self.hidden_size]
                .reinterpret_cast(),
            topk_ids: &self.topk_ids[start * self.top_k..][..count * self.top_k],
        }
    }
}

/// The received rows of all ranks.
///
/// | Tensor | Type and shape | Content |
/// |---|---|---|
/// | `rank{r}.tokens` | `BF16 [rows, H]`, `F8_E4M3 [rows, H]` or `U8 [rows, H/2]` | elements |
/// | `rank{r}.scales` | `U8 [rows, KS]`, `U8 [ng * M, KS]`, `F32 [KS, rows]` or `U8 [tiles, Kt, 32, 4, 4]` | block scales, absent with BF16 |
/// | `rank{r}.row_offsets` | `U32 [ng + 1]` | where the rows of each group begin |
/// | `rank{r}.scales_offsets` | `U32 [ng]` | with 128x4 scales: tiles to add to `row_offsets / 128` |
/// | `rank{r}.expert_ids` | `I32 [ng]` | the identity |
/// | `rank{r}.src_info` | `I32 [rows, 2]` | token on its source rank, and position; -1 in rows of the shared expert and of padding |
/// | `rank{r}.src_rank` | `I32 [rows]` | the source rank; -1 likewise |
#[derive(Clone, Debug)]
pub struct DispatchedFile {
    /// What the ranks agreed on.
    pub setup: Setup,
    /// One for each rank.
    pub ranks: Vec<RankRows>,
}

/// The received rows of a rank, without the memory that they leave unused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankRows {
    /// Rows, padding included.
    pub rows: usize,
    /// The outputs, cut to `rows`.
    pub received: ReceivedBytes,
    /// `[rows]`: the source rank, or -1.
    pub src_rank: Vec<i32>,
}

impl RankRows {
    /// Cuts a rank's outputs, which were zeros before, to their rows. `handles` are the words that combine reads: for each cell of
    /// local expert and source rank, where its rows end, and how many they are.
    pub fn new(
        setup: &Setup,
        rank: usize,
        mut received: ReceivedBytes,
        handles: &[(u32, u32)],
    ) -> Self {
        let rows = received.row_offsets.last().map_or(0, |&rows| rows as usize);
        let payload = payload_bytes(setup.format, setup.hidden_size);
        received.tokens.truncate(rows * payload);
        received.src_info.truncate(rows);
        let (columns, bytes) = scale_columns(setup.format, setup.hidden_size);
        match ScaleLayout::of(setup) {
            ScaleLayout::None | ScaleLayout::Slots { .. } => {}
            ScaleLayout::RowMajor => received.scales.truncate(rows * columns),
            ScaleLayout::Transposed => {
                let stride = received.scales.len() / columns.max(1);
                let cut = received.scales.chunks(stride.max(1));
                received.scales = cut.flat_map(|row| &row[..rows * bytes]).copied().collect();
            }
            ScaleLayout::Tiles => {
                let groups = received.row_offsets.windows(2);
                let tiles: u32 = groups.map(|ends| (ends[1] - ends[0]).div_ceil(128)).sum();
                received
                    .scales
                    .truncate(tiles as usize * columns.div_ceil(4) * 512);
            }
        }
        let mut src_rank = vec![-1; rows];
        for (cell, &(end, count)) in handles.iter().enumerate() {
            let end = end.saturating_sub(HANDLE_BIAS) as usize;
            let source = if setup.skip_a2a {
                rank
            } else {
                cell % setup.ranks
            };
            src_rank[end.saturating_sub(count as usize)..end].fill(source as i32);
        }
        for (info, _) in received
            .src_info
            .iter_mut()
            .zip(&src_rank)
            .filter(|it| *it.1 < 0)
        {
            *info = [-1, -1];
        }
        Self {
            rows,
            received,
            src_rank,
        }
    }
}

impl DispatchedFile {
    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// [`FileError::NotAFile`], [`FileError::Write`]
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let bytes = self.to_bytes();
        write_atomically(path, |out| out.write_all(&bytes))
    }

    /// The whole file as it is written.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
        for (rank, rows) in self.ranks.iter().enumerate() {
            let received = &rows.received;
            let mut add = |name: &str, dtype, shape: Vec<usize>, bytes: Vec<u8>| {
                tensors.push((format!("rank{rank}.{name}"), dtype, shape, bytes));
            };
            let (dtype, width) = self.elements();
            add(
                "tokens",
                dtype,
                vec![rows.rows, width],
                received.tokens.clone(),
            );
            if let Some((dtype, shape)) = self.scales(rows) {
                add("scales", dtype, shape, received.scales.clone());
            }
            let offsets = &received.row_offsets;
            add(
                "row_offsets",
                Dtype::U32,
                vec![offsets.len()],
                bytes_of(offsets, u32::to_le_bytes),
            );
            let tiles = &received.scales_offsets;
            if !tiles.is_empty() {
                let bytes = bytes_of(tiles, u32::to_le_bytes);
                add("scales_offsets", Dtype::U32, vec![tiles.len()], bytes);
            }
            let ids = &received.expert_ids;
            add(
                "expert_ids",
                Dtype::I32,
                vec![ids.len()],
                bytes_of(ids, i32::to_le_bytes),
            );
            let info = received.src_info.as_flattened();
            add(
                "src_info",
                Dtype::I32,
                vec![rows.rows, 2],
                bytes_of(info, i32::to_le_bytes),
            );
            let sources = bytes_of(&rows.src_rank, i32::to_le_bytes);
            add("src_rank", Dtype::I32, vec![rows.rows], sources);
        }
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name.as_str(), *dtype, shape.clone(), bytes.as_slice())
        });
        serialize(views.collect(), self.notes())
    }

    /// Type and number of what a row's elements are stored as.
    fn elements(&self) -> (Dtype, usize) {
        let hidden = self.setup.hidden_size;
        match self.setup.format {
            TokenFormat::Bf16 => (Dtype::BF16, hidden),
            TokenFormat::Fp8Block128 | TokenFormat::Mxfp8 => (Dtype::F8_E4M3, hidden),
            format => (Dtype::U8, payload_bytes(format, hidden)),
        }
    }

    fn scales(&self, rows: &RankRows) -> Option<(Dtype, Vec<usize>)> {
        let (columns, _) = scale_columns(self.setup.format, self.setup.hidden_size);
        Some(match ScaleLayout::of(&self.setup) {
            ScaleLayout::None => return None,
            ScaleLayout::RowMajor => (Dtype::U8, vec![rows.rows, columns]),
            ScaleLayout::Slots { rows } => (Dtype::U8, vec![self.setup.groups() * rows, columns]),
            ScaleLayout::Transposed => (Dtype::F32, vec![columns, rows.rows]),
            ScaleLayout::Tiles => {
                let across = columns.div_ceil(4);
                let tiles = rows.received.scales.len() / (across * 512).max(1);
                (Dtype::U8, vec![tiles, across, 32, 4, 4])
            }
        })
    }

    fn notes(&self) -> HashMap<String, String> {
        let setup = &self.setup;
        let preshuffle = setup.scale_preshuffle.unwrap_or(0);
        [
            ("format", setup.format.to_string()),
            ("hidden_size", setup.hidden_size.to_string()),
            ("top_k", setup.top_k.to_string()),
            ("experts", (setup.local_experts() * setup.ranks).to_string()),
            ("ranks", setup.ranks.to_string()),
            ("shared_expert", setup.fused_shared_expert.to_string()),
            ("skip_a2a", setup.skip_a2a.to_string()),
            ("preshuffle", preshuffle.to_string()),
            ("scale_rounding", setup.scale_rounding.to_string()),
            (
                "producer",
                concat!("tokenyard ", env!("CARGO_PKG_VERSION")).to_owned(),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}
