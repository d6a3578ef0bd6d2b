//! Received rows, widened.

use super::format::TokenFormat;
use super::received::Received;
use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::error::DeviceError;
use crate::quantizer::TensorScales;
use crate::stream::Stream;
use kernels_gpu::dequantize::{self, rows};
use thiserror::Error;

/// Why received rows cannot be widened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DequantizeError {
    /// The device failed, or something lives on another one.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// The output is not as long as what was received can be.
    #[error("the output holds {found} values; {rows} rows of {hidden_size} are {expected}")]
    OutputLength {
        /// Values it holds.
        found: usize,
        /// Values that it should hold.
        expected: usize,
        /// [`EpConfig::output_rows`](super::EpConfig::output_rows).
        rows: usize,
        /// H.
        hidden_size: usize,
    },

    /// NVFP4 needs the factor of each group, and no other format has one.
    #[error("{} tensor-wise factors were given; {groups} groups of {format} need {expected}", given.unwrap_or(0))]
    TensorScales {
        /// Factors given, if any were.
        given: Option<usize>,
        /// Factors that go with the format.
        expected: usize,
        /// Groups of rows.
        groups: usize,
        /// The format.
        format: TokenFormat,
    },

    /// Scales in the slots of a matrix instruction are for that instruction alone.
    #[error(
        "scales in slots of {slot_rows} rows are for matrix instructions; there is no way back"
    )]
    Preshuffled {
        /// Rows of a slot.
        slot_rows: usize,
    },

    /// More rows than a kernel can count.
    #[error("{rows} rows of {hidden_size} are beyond what a kernel can count")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// H.
        hidden_size: usize,
    },
}

impl Received {
    /// Widens the rows that were received to `[output_rows, H]` of f32: element times scale, rounded once. Rows behind
    /// the last group are left alone; those that only round a group up (blockwise FP8) are widened as they lie. `tensor_scales` is for NVFP4 alone: for each group the factor that its rows were dispatched
    /// [with](super::Batch::input_scale).
    ///
    /// Neither allocates nor waits: the number of rows is read on the device. Queue it behind the dispatch.
    ///
    /// # Errors
    ///
    /// The first thing that does not fit, with its numbers; nothing was launched then.
    pub fn dequantize(
        &self,
        stream: &Stream,
        tensor_scales: Option<&TensorScales>,
        output: &mut DeviceBuffer<f32>,
    ) -> Result<(), DequantizeError> {
        let config = self.config();
        let (rows, hidden_size) = (config.output_rows(), config.hidden_size());
        let device = self.tokens().device();
        device.check_same("the stream", stream.device())?;
        device.check_same("the output", output.device())?;
        let expected = rows.saturating_mul(hidden_size);
        if output.len() != expected {
            return Err(DequantizeError::OutputLength {
                found: output.len(),
                expected,
                rows,
                hidden_size,
            });
        }
        if let Some(slot_rows) = config.scale_preshuffle() {
            return Err(DequantizeError::Preshuffled { slot_rows });
        }
        let (Ok(row_count), Ok(columns)) = (u32::try_from(rows), u32::try_from(hidden_size)) else {
            return Err(DequantizeError::TooLarge { rows, hidden_size });
        };
        let factors = self.factors(tensor_scales)?;
        let grid = dequantize::grid_size(row_count, columns);
        let launch = LaunchConfig::line(grid, dequantize::THREADS, 0)?;
        let data = self.tokens().as_ptr();
        let scales = self.scales().as_ptr();
        let row_offsets = self.row_offsets().as_ptr();
        // Where the last group ends.
        let row_end = row_offsets.wrapping_add(config.groups());
        let output = output.as_mut_ptr().cast();
        macro_rules! rows_in_order {
            ($entry:ident $(, $name:ident: $value:expr)*) => {
                stream.launch(
                    launch,
                    rows::$entry::Args {
                        data,
                        $($name: $value,)*
                        row_end,
                        rows: row_count,
                        columns,
                        output,
                    },
                )
            };
        }
        // SAFETY: the buffers have the lengths that the configuration leads to, which are those that the kernels
        // ask for; the output was checked above. Rows and tiles beyond them are guarded by the kernels.
        unsafe {
            match config.format() {
                TokenFormat::Bf16 => rows_in_order!(dequantize_rows_bf16),
                TokenFormat::Mxfp4 => rows_in_order!(dequantize_rows_mxfp4, scales: scales),
                TokenFormat::Mxfp8 => rows_in_order!(dequantize_rows_mxfp8, scales: scales),
                TokenFormat::Fp8Block128 => rows_in_order!(
                    dequantize_rows_fp8,
                    scales: scales.cast(),
                    scale_stride: config.scale_stride() as u32
                ),
                // In tiles, with offsets and ids: a grouped tensor like the quantizer's.
                TokenFormat::Nvfp4 => stream.launch(
                    launch,
                    dequantize::dequantize_nvfp4::Args {
                        data,
                        scales,
                        row_tiles: config.scale_tiles() as u32,
                        rows: row_count,
                        columns,
                        row_offsets,
                        scales_offsets: self.scales_offsets().as_ptr(),
                        expert_ids: self.expert_ids().as_ptr(),
                        slots: config.groups() as u32,
                        sf: factors,
                        sf_len: config.groups() as u32,
                        output,
                    },
                ),
            }?;
        }
        Ok(())
    }

    /// The address of the factors, if they are those that the format asks for.
    fn factors(&self, given: Option<&TensorScales>) -> Result<*const f32, DequantizeError> {
        let config = self.config();
        let expected = match config.format() {
            TokenFormat::Nvfp4 => Some(config.groups()),
            _ => None,
        };
        if given.map(|factors| factors.0.len()) != expected {
            return Err(DequantizeError::TensorScales {
                given: given.map(|factors| factors.0.len()),
                expected: expected.unwrap_or(0),
                groups: config.groups(),
                format: config.format(),
            });
        }
        let Some(factors) = given else {
            return Ok(std::ptr::null());
        };
        let device = self.tokens().device();
        device.check_same("the tensor-wise factors", factors.0.device())?;
        Ok(factors.0.as_ptr())
    }
}
