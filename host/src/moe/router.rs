//! The router on a device.

use super::error::{MoeError, check_length, to_u32};
use super::weights::{MoeShape, MoeWeights};
use crate::backend::LaunchConfig;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use crate::stream::Stream;
use half::bf16;
use kernels_gpu::moe::{self, THREADS, grid_size};

/// Chooses the experts of tokens: those with the largest logits, with softmax weights over the chosen.
#[derive(Debug)]
pub struct Router {
    shape: MoeShape,
    /// `[H, E]`.
    matrix: DeviceBuffer<f32>,
    /// `[max_tokens, E]`.
    logits: DeviceBuffer<f32>,
}

impl Router {
    /// A router for up to `max_tokens` tokens at a time.
    ///
    /// # Errors
    ///
    /// More logits than a kernel can count; a device that cannot allocate.
    pub fn new(device: &Device, weights: &MoeWeights, max_tokens: usize) -> Result<Self, MoeError> {
        let shape = weights.shape();
        let logits = max_tokens.saturating_mul(shape.experts);
        to_u32("the number of logits", logits)?;
        Ok(Self {
            shape,
            matrix: device.upload(weights.router())?,
            logits: device.alloc(logits)?,
        })
    }

    /// Routes `tokens`, `[T, H]`: global expert ids and weights, both `[T, K]`, the largest weight first and the lower
    /// id first among equal logits. Neither allocates nor waits. One router is used on one stream at a time.
    ///
    /// A logit is the sum over h = 0, 1, … of `token[h] * router[h, expert]`, in f32 by fused multiply-add.
    ///
    /// # Errors
    ///
    /// Lengths that do not go together, more tokens than the router was made for, things of another device.
    pub fn route(
        &mut self,
        stream: &Stream,
        tokens: &DeviceBuffer<bf16>,
        ids: &mut DeviceBuffer<i32>,
        weights: &mut DeviceBuffer<f32>,
    ) -> Result<(), MoeError> {
        let MoeShape {
            hidden_size,
            experts,
            top_k,
            ..
        } = self.shape;
        let device = self.matrix.device();
        device.check_same("the stream", stream.device())?;
        device.check_same("the tokens", tokens.device())?;
        device.check_same("the expert ids", ids.device())?;
        device.check_same("the weights", weights.device())?;
        let count = tokens.len() / hidden_size;
        check_length("tokens", tokens.len(), count * hidden_size)?;
        check_length("ids", ids.len(), count * top_k)?;
        check_length("weights", weights.len(), count * top_k)?;
        let limit = self.logits.len() / experts;
        if count > limit {
            return Err(MoeError::TooLarge {
                what: "the number of tokens",
                value: count,
                limit,
            });
        }
        if count == 0 {
            return Ok(());
        }
        let line = |threads: usize| LaunchConfig::line(grid_size(threads as u64), THREADS, 0);
        // SAFETY: lengths were checked above, those of the matrix and the logits when they were made; the launches
        // are those that the kernels ask for.
        unsafe {
            stream.launch(
                line(count * experts)?,
                moe::moe_router_logits::Args {
                    tokens: tokens.as_ptr().cast(),
                    router: self.matrix.as_ptr(),
                    count: count as u32,
                    hidden: hidden_size as u32,
                    experts: experts as u32,
                    logits: self.logits.as_mut_ptr(),
                },
            )?;
            stream.launch(
                line(count)?,
                moe::moe_router_topk::Args {
                    logits: self.logits.as_ptr(),
                    count: count as u32,
                    experts: experts as u32,
                    top_k: top_k as u32,
                    ids: ids.as_mut_ptr(),
                    weights: weights.as_mut_ptr(),
                },
            )?;
        }
        Ok(())
    }
}
