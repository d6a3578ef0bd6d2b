//! A quantized tensor, and the way back from it.

use super::error::{check_columns, to_u32};
use super::{QuantizeError, TensorScales};
use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::device_routing::DeviceRouting;
use crate::error::DeviceError;
use crate::options::Format;
use crate::stream::Stream;
use cuda_std::tma::TensorMap;
use kernels_gpu::dequantize;
use kernels_gpu::scale_tile::{Swizzle, TILE_BYTES};

/// A quantized tensor in device memory.
#[derive(Debug)]
pub struct Quantized {
    pub(super) format: Format,
    pub(super) columns: usize,
    pub(super) rows: usize,
    pub(super) row_tiles: usize,
    pub(super) data: DeviceBuffer<u8>,
    pub(super) scales: DeviceBuffer<u8>,
    /// What a tensor-map store needs to know of `scales`: the map, and the swizzle it was made for.
    pub(super) scale_map: Option<(DeviceBuffer<u8>, Swizzle)>,
}

impl Quantized {
    /// Wraps memory of the caller's.
    ///
    /// `data` holds `rows * format.bytes_per_row(columns)` bytes; `scales` holds
    /// `row_tiles * format.column_tiles(columns) * 512`.
    ///
    /// # Errors
    ///
    /// [`QuantizeError::BufferLength`], [`QuantizeError::Columns`], [`QuantizeError::TooLarge`].
    pub fn from_buffers(
        format: Format,
        rows: usize,
        columns: usize,
        row_tiles: usize,
        data: DeviceBuffer<u8>,
        scales: DeviceBuffer<u8>,
    ) -> Result<Self, QuantizeError> {
        check_columns(columns)?;
        to_u32("the number of rows", rows)?;
        to_u32("the number of row tiles", row_tiles)?;
        let (data_bytes, scale_bytes) = output_bytes(format, rows, columns, row_tiles)?;
        let check = |buffer, found, expected| {
            if found == expected {
                return Ok(());
            }
            Err(QuantizeError::BufferLength {
                buffer,
                found,
                expected,
                rows,
                columns,
            })
        };
        check("data", data.len(), data_bytes)?;
        check("scales", scales.len(), scale_bytes)?;
        data.device().check_same("the scales", scales.device())?;
        Ok(Self {
            format,
            columns,
            rows,
            row_tiles,
            data,
            scales,
            scale_map: None,
        })
    }

    /// Prepares `scales` for tensor-map stores with this swizzle.
    pub(super) fn describe_scales(&mut self, swizzle: Swizzle) -> Result<(), QuantizeError> {
        let device = self.scales.device().clone();
        let tiles = self.scales.len() / TILE_BYTES;
        let mut map = device.alloc(size_of::<TensorMap>())?;
        if tiles > 0 {
            // SAFETY: `map` has room for a tensor map, and `scales` is `tiles` tiles.
            unsafe {
                device.backend().encode_scale_map(
                    map.as_mut_ptr(),
                    self.scales.as_mut_ptr(),
                    tiles,
                    swizzle,
                )?;
            }
        }
        self.scale_map = Some((map, swizzle));
        Ok(())
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Row tiles of the scales tensor (Mt).
    pub fn row_tiles(&self) -> usize {
        self.row_tiles
    }

    /// Elements: `[rows, format.bytes_per_row(columns)]`, two E2M1 codes to a byte (the even
    /// element in the low nibble) or one E4M3 code.
    pub fn data(&self) -> &DeviceBuffer<u8> {
        &self.data
    }

    /// Block scales: `[row_tiles, format.column_tiles(columns), 32, 4, 4]` bytes.
    pub fn scales(&self) -> &DeviceBuffer<u8> {
        &self.scales
    }

    /// The buffers, for reuse elsewhere: data and scales.
    pub fn into_buffers(self) -> (DeviceBuffer<u8>, DeviceBuffer<u8>) {
        (self.data, self.scales)
    }

    /// Widens the tensor again: `[rows, columns]`. Rows of no slot, or of a slot whose expert has no
    /// tensor-wise factor, are 0.
    ///
    /// # Errors
    ///
    /// A routing of another shape, things of another device, a device that cannot allocate.
    pub fn dequantize(
        &self,
        stream: &Stream,
        routing: &DeviceRouting,
        tensor_scales: &TensorScales,
    ) -> Result<DeviceBuffer<f32>, QuantizeError> {
        let device = self.data.device();
        device.check_same("the stream", stream.device())?;
        device.check_same("the routing", routing.device())?;
        device.check_same("the tensor-wise factors", tensor_scales.0.device())?;
        if routing.rows() != self.rows {
            return Err(QuantizeError::OutputRows {
                found: self.rows,
                expected: routing.rows(),
            });
        }
        let mut output = device.alloc_filled::<f32>(self.rows * self.columns, 0)?;
        let rows = self.rows as u32;
        let columns = self.columns as u32;
        let config =
            LaunchConfig::line(dequantize::grid_size(rows, columns), dequantize::THREADS, 0)?;
        // One argument list for three entries of the same signature.
        macro_rules! launch {
            ($entry:ident) => {
                stream.launch(
                    config,
                    dequantize::$entry::Args {
                        data: self.data.as_ptr(),
                        scales: self.scales.as_ptr(),
                        row_tiles: self.row_tiles as u32,
                        rows,
                        columns,
                        row_offsets: routing.row_offsets.as_ptr(),
                        scales_offsets: routing.scales_offsets.as_ptr(),
                        expert_ids: routing.expert_ids.as_ptr(),
                        slots: routing.slots() as u32,
                        sf: tensor_scales.0.as_ptr(),
                        sf_len: tensor_scales.0.len() as u32,
                        output: output.as_mut_ptr().cast(),
                    },
                )
            };
        }
        // SAFETY: all extents are those of the buffers, checked when they were made; the launch is
        // the one that the kernel asks for.
        unsafe {
            match self.format {
                Format::Nvfp4 => launch!(dequantize_nvfp4),
                Format::Mxfp4 => launch!(dequantize_mxfp4),
                Format::Mxfp8 => launch!(dequantize_mxfp8),
            }?;
        }
        Ok(output)
    }
}

/// Bytes of the data and of the scales of a quantized tensor.
pub(super) fn output_bytes(
    format: Format,
    rows: usize,
    columns: usize,
    row_tiles: usize,
) -> Result<(usize, usize), QuantizeError> {
    let product = |a: usize, b: usize| {
        a.checked_mul(b).ok_or(DeviceError::TooLarge {
            elements: a,
            element_bytes: b,
        })
    };
    let data = product(rows, format.bytes_per_row(columns))?;
    let scales = product(row_tiles, format.column_tiles(columns) * TILE_BYTES)?;
    Ok((data, scales))
}
