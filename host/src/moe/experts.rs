//! The experts on a device.

use super::error::{MoeError, check_length, to_u32};
use super::weights::{MoeShape, MoeWeights};
use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::stream::Stream;
use half::bf16;
use kernels_gpu::moe::{self, OUTPUTS, THREADS, grid_size};
use std::ops::Range;

/// The SwiGLU MLPs of some experts: `(silu(x Wg) * (x Wu)) Wd` for each row, with the matrices of the row's expert.
///
/// Sums are in f32, by fused multiply-add in rising order; the result is rounded to BF16 once.
#[derive(Debug)]
pub struct ExpertMlp {
    shape: MoeShape,
    experts: usize,
    max_rows: usize,
    gate: DeviceBuffer<f32>,
    up: DeviceBuffer<f32>,
    down: DeviceBuffer<f32>,
    /// `[max_rows, I]`: between the two launches.
    activated: DeviceBuffer<f32>,
}

impl ExpertMlp {
    /// The experts `experts` of `weights`, for buffers of `max_rows` rows.
    ///
    /// # Errors
    ///
    /// [`MoeError::Multiple`] for no experts; [`MoeError::TooLarge`] for experts that there are not, or more rows than
    /// a kernel can count; a device that cannot allocate.
    pub fn new(
        device: &Device,
        weights: &MoeWeights,
        experts: Range<usize>,
        max_rows: usize,
    ) -> Result<Self, MoeError> {
        let shape = weights.shape();
        if experts.is_empty() {
            return Err(MoeError::Multiple {
                what: "the number of experts",
                value: 0,
                multiple: 1,
            });
        }
        if experts.end > shape.experts {
            return Err(MoeError::TooLarge {
                what: "the end of the experts",
                value: experts.end,
                limit: shape.experts,
            });
        }
        to_u32("the number of rows", max_rows)?;
        Ok(Self {
            shape,
            experts: experts.len(),
            max_rows,
            gate: device.upload(weights.gate(experts.clone()))?,
            up: device.upload(weights.up(experts.clone()))?,
            down: device.upload(weights.down(experts))?,
            activated: device.alloc(max_rows.saturating_mul(shape.intermediate_size))?,
        })
    }

    /// Runs the experts over `rows`, `[max_rows, H]`, of which those of expert `e` are
    /// `row_offsets[e]..row_offsets[e + 1]`; `outputs` is `[max_rows, H]`. Other rows are neither read nor written.
    /// Neither allocates nor waits. One object is used on one stream at a time.
    ///
    /// # Errors
    ///
    /// Lengths that do not go together, things of another device.
    pub fn forward(
        &mut self,
        stream: &Stream,
        rows: &DeviceBuffer<f32>,
        row_offsets: &DeviceBuffer<u32>,
        outputs: &mut DeviceBuffer<bf16>,
    ) -> Result<(), MoeError> {
        let device = self.gate.device();
        device.check_same("the stream", stream.device())?;
        device.check_same("the rows", rows.device())?;
        device.check_same("the row offsets", row_offsets.device())?;
        device.check_same("the outputs", outputs.device())?;
        let values = self.max_rows * self.shape.hidden_size;
        check_length("rows", rows.len(), values)?;
        check_length("row_offsets", row_offsets.len(), self.experts + 1)?;
        check_length("outputs", outputs.len(), values)?;
        if self.max_rows == 0 {
            return Ok(());
        }
        let hidden = self.shape.hidden_size as u32;
        let intermediate = self.shape.intermediate_size as u32;
        let (groups, capacity) = (self.experts as u32, self.max_rows as u32);
        let line = |columns: u32| {
            let threads = u64::from(capacity) * u64::from(columns / OUTPUTS);
            LaunchConfig::line(grid_size(threads), THREADS, 0)
        };
        // SAFETY: lengths were checked above, those of the matrices when they were made; buffers are aligned to 16
        // bytes, extents are multiples of 4, and the launches are those that the kernels ask for.
        unsafe {
            stream.launch(
                line(intermediate)?,
                moe::moe_gate_up::Args {
                    rows: rows.as_ptr().cast(),
                    row_offsets: row_offsets.as_ptr(),
                    groups,
                    capacity,
                    hidden,
                    intermediate,
                    gate: self.gate.as_ptr().cast(),
                    up: self.up.as_ptr().cast(),
                    activated: self.activated.as_mut_ptr().cast(),
                },
            )?;
            stream.launch(
                line(hidden)?,
                moe::moe_down::Args {
                    activated: self.activated.as_ptr().cast(),
                    row_offsets: row_offsets.as_ptr(),
                    groups,
                    capacity,
                    hidden,
                    intermediate,
                    down: self.down.as_ptr().cast(),
                    outputs: outputs.as_mut_ptr().cast(),
                },
            )?;
        }
        Ok(())
    }
}
