//! The file that `quantize` writes and `dequantize` reads.

use std::collections::HashMap;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tokenyard::options::{COLUMN_MULTIPLE, Format, QuantizeOptions};
use tokenyard::routing::Routing;

use super::input::tensor_scales;
use super::{FileError, Tensor, TensorFile, write_atomically};

/// Version of the file layout, noted in `__metadata__`.
const LAYOUT_VERSION: &str = "1";

/// Rows and blocks of one scale tile, as the tensor's last three extents spell them.
const TILE_SHAPE: [usize; 3] = [32, 4, 4];

/// Quantized rows with everything that is needed to read them back.
///
/// | Tensor | Type and shape | Content |
/// |---|---|---|
/// | `data` | `U8 [R, K/2]` or `F8_E4M3 [R, K]` | element codes; of two E2M1 codes the first is in the low bits |
/// | `scales` | `U8 [Mt, Kt, 32, 4, 4]` | block scales in the 128x4 layout, occupied tiles only |
/// | `row_offsets` | `U32 [E+1]` | where each slot's rows begin |
/// | `scales_offsets` | `U32 [E]` | `tile_start(i) = row_offsets[i] / 128 + scales_offsets[i]` |
/// | `expert_ids` | `I32 [E]` | the expert that each slot holds |
/// | `source_rows` | `I32 [R]` | the input row that each row came from |
/// | `sf` | `F32 [X]` | encode factor per expert |
///
/// `__metadata__` holds `format`, `columns` (K), the policies, `producer` and `version`.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedFile {
    /// What the codes mean.
    pub format: Format,
    /// K: elements of a row.
    pub columns: usize,
    /// The policies that were in force.
    pub options: QuantizeOptions,
    /// Which rows belong to which expert.
    pub routing: Routing,
    /// `[R]`: the input row that each row came from.
    pub source_rows: Vec<i32>,
    /// `[R, bytes_per_row]`
    pub data: Vec<u8>,
    /// `[Mt, Kt, 32, 4, 4]`, Mt being the occupied tiles.
    pub scales: Vec<u8>,
    /// `[X]`
    pub tensor_scales: Vec<f32>,
}

impl QuantizedFile {
    /// Bytes of `data` and `scales`: what the format makes of the rows.
    pub fn payload_bytes(&self) -> usize {
        self.data.len() + self.scales.len()
    }

    /// The whole file as it is written.
    pub fn to_bytes(&self) -> Vec<u8> {
        let rows = self.routing.rows();
        let data_dtype = match self.format.data_dtype() {
            "F8_E4M3" => Dtype::F8_E4M3,
            _ => Dtype::U8,
        };
        let [sub_rows, groups, blocks] = TILE_SHAPE;
        let column_tiles = self.format.column_tiles(self.columns);
        let slots = self.routing.experts();
        let row_offsets = bytes_of(self.routing.row_offsets(), u32::to_le_bytes);
        let scales_offsets = bytes_of(self.routing.scales_offsets(), u32::to_le_bytes);
        let expert_ids = bytes_of(self.routing.expert_ids(), i32::to_le_bytes);
        let source_rows = bytes_of(&self.source_rows, i32::to_le_bytes);
        let sf = bytes_of(&self.tensor_scales, f32::to_le_bytes);
        serialize(
            vec![
                (
                    "data",
                    data_dtype,
                    vec![rows, self.format.bytes_per_row(self.columns)],
                    &self.data,
                ),
                (
                    "scales",
                    Dtype::U8,
                    vec![
                        self.routing.occupied_tiles(),
                        column_tiles,
                        sub_rows,
                        groups,
                        blocks,
                    ],
                    &self.scales,
                ),
                ("row_offsets", Dtype::U32, vec![slots + 1], &row_offsets),
                ("scales_offsets", Dtype::U32, vec![slots], &scales_offsets),
                ("expert_ids", Dtype::I32, vec![slots], &expert_ids),
                ("source_rows", Dtype::I32, vec![rows], &source_rows),
                ("sf", Dtype::F32, vec![self.tensor_scales.len()], &sf),
            ],
            self.notes(),
        )
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// [`FileError::NotAFile`], [`FileError::Write`]
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        let bytes = self.to_bytes();
        write_atomically(path, |out| out.write_all(&bytes))
    }

    /// Reads a file that [`QuantizedFile::write`] wrote, or one just like it.
    ///
    /// # Errors
    /// [`FileError`]: unreadable, malformed, or tensors that contradict each other or the notes.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        Self::from_file(&TensorFile::open(path)?)
    }

    /// As [`QuantizedFile::read`], from a file that is open already.
    ///
    /// # Errors
    /// As [`QuantizedFile::read`].
    pub fn from_file(file: &TensorFile) -> Result<Self, FileError> {
        let format: Format = file.parsed_note("format", "nvfp4, mxfp4 or mxfp8")?;
        let columns: usize = file.parsed_note("columns", "the number of elements in a row")?;
        let options = QuantizeOptions {
            scale_rounding: file.parsed_note("scale_rounding", "rceil, floor or even")?,
            dead_blocks: file.parsed_note("dead_blocks", "hardened or strict")?,
            nan_policy: file.parsed_note("nan_policy", "ignore or propagate")?,
        };
        let wrong_note = |key, expected: &str, found: &str| FileError::WrongMetadata {
            path: file.path().to_owned(),
            key,
            expected: expected.to_owned(),
            found: found.to_owned(),
        };
        let version = file.note("version")?;
        if version != LAYOUT_VERSION {
            return Err(wrong_note("version", LAYOUT_VERSION, version));
        }
        if !columns.is_multiple_of(COLUMN_MULTIPLE) {
            let expected = format!("a multiple of {COLUMN_MULTIPLE}");
            return Err(wrong_note("columns", &expected, &columns.to_string()));
        }

        let data = file.require("data")?;
        match format.data_dtype() {
            "F8_E4M3" => data.require_dtype(Dtype::F8_E4M3, "F8_E4M3")?,
            _ => data.require_dtype(Dtype::U8, "U8")?,
        }
        let bytes_per_row = format.bytes_per_row(columns);
        let expected = format!("[R, {bytes_per_row}] for {columns} columns of {format}");
        let [rows, width] = data.extents(&expected)?;
        if width != bytes_per_row {
            return Err(data.wrong_shape(&expected));
        }

        let routing = read_routing(file, rows)?;
        let source_rows = file.require("source_rows")?;
        source_rows.require_shape("[R]", &[rows])?;
        let scales = file.require("scales")?;
        scales.require_dtype(Dtype::U8, "U8")?;
        let [sub_rows, groups, blocks] = TILE_SHAPE;
        scales.require_shape(
            "[Mt, Kt, 32, 4, 4]",
            &[
                routing.occupied_tiles(),
                format.column_tiles(columns),
                sub_rows,
                groups,
                blocks,
            ],
        )?;
        Ok(Self {
            tensor_scales: tensor_scales(file.require("sf")?, &routing)?,
            source_rows: source_rows.to_i32()?,
            data: data.bytes().to_vec(),
            scales: scales.bytes().to_vec(),
            format,
            columns,
            options,
            routing,
        })
    }

    fn notes(&self) -> HashMap<String, String> {
        [
            ("format", self.format.to_string()),
            ("columns", self.columns.to_string()),
            ("scale_rounding", self.options.scale_rounding.to_string()),
            ("dead_blocks", self.options.dead_blocks.to_string()),
            ("nan_policy", self.options.nan_policy.to_string()),
            (
                "producer",
                concat!("tokenyard ", env!("CARGO_PKG_VERSION")).to_owned(),
            ),
            ("version", LAYOUT_VERSION.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// Reads the index vectors and checks them against each other.
fn read_routing(file: &TensorFile, rows: usize) -> Result<Routing, FileError> {
    let tensor = file.require("row_offsets")?;
    let [entries] = tensor.extents("[E+1]")?;
    let slots = entries.saturating_sub(1);
    let row_offsets = tensor.to_u32()?;
    let vector = |name| -> Result<Tensor<'_>, FileError> {
        let tensor = file.require(name)?;
        tensor.require_shape("[E]", &[slots])?;
        Ok(tensor)
    };
    let expert_ids = vector("expert_ids")?.to_i32()?;
    let routing =
        Routing::from_row_offsets(&row_offsets, Some(&expert_ids), rows).map_err(|error| {
            FileError::WrongValue {
                path: file.path().to_owned(),
                tensor: "row_offsets".to_owned(),
                expected: "a routing".to_owned(),
                found: error.to_string(),
            }
        })?;
    let given = vector("scales_offsets")?;
    for (slot, (found, expected)) in given
        .to_u32()?
        .into_iter()
        .zip(routing.scales_offsets())
        .enumerate()
    {
        if found != *expected {
            let expected = format!("{expected}, as the row offsets say,");
            return Err(given.wrong_value(expected, slot, found));
        }
    }
    Ok(routing)
}

/// The bytes of a file with one tensor: `hidden_states` F32 `[rows, columns]`.
pub fn dequantized_bytes(rows: usize, columns: usize, values: &[f32]) -> Vec<u8> {
    let bytes = bytes_of(values, f32::to_le_bytes);
    serialize(
        vec![("hidden_states", Dtype::F32, vec![rows, columns], &bytes)],
        HashMap::new(),
    )
}

/// Lays out a safetensors file. The same content gives the same bytes.
pub(super) fn serialize(
    tensors: Vec<(&str, Dtype, Vec<usize>, &[u8])>,
    notes: HashMap<String, String>,
) -> Vec<u8> {
    let views = tensors.into_iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(dtype, shape, bytes)
            .expect("the caller's shapes are those of its buffers");
        (name, view)
    });
    let mut file =
        safetensors::serialize(views, Some(notes)).expect("a header of a few tensors is small");
    // The library writes the notes in the arbitrary order of a hash map. A JSON value has its keys
    // sorted, and is as long in any order.
    let (length, rest) = file.split_at_mut(size_of::<u64>());
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let sorted = serde_json::from_slice::<serde_json::Value>(&rest[..length])
        .expect("the library writes JSON")
        .to_string();
    rest[..sorted.len()].copy_from_slice(sorted.as_bytes());
    rest[sorted.len()..length].fill(b' ');
    file
}

/// Little-endian bytes of `values`.
pub(super) fn bytes_of<const N: usize, T: Copy>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}
