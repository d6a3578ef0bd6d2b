//! What a rank dispatches.

use super::config::EpConfig;
use super::error::EpError;
use super::format::TokenFormat;
use crate::buffer::DeviceBuffer;
use crate::device::Device;
use half::bf16;
use kernels_gpu::ep::Rank;
use std::ptr;

/// A rank's tokens, and where they go. Borrows device memory: it must stay until the dispatch is done.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Batch<'a> {
    /// None of a batch that is combined, which takes no tokens.
    tokens: Option<&'a DeviceBuffer<bf16>>,
    topk_ids: &'a DeviceBuffer<i32>,
    count: Option<&'a DeviceBuffer<u32>>,
    input_scale: Option<&'a DeviceBuffer<f32>>,
}

impl<'a> Batch<'a> {
    /// `tokens` is `[T, H]`, `topk_ids` `[T, K]`: global expert ids.
    ///
    /// An id outside `0..E`, −1 for instance, is nobody: nothing is sent and nothing counted. An expert that a
    /// token names again is named once, in the first place. [`check_ids`](super::check_ids) finds both.
    pub fn new(tokens: &'a DeviceBuffer<bf16>, topk_ids: &'a DeviceBuffer<i32>) -> Self {
        Self {
            tokens: Some(tokens),
            topk_ids,
            count: None,
            input_scale: None,
        }
    }

    /// A batch by its ids alone, to be combined. It cannot be dispatched.
    pub(crate) fn of_ids(topk_ids: &'a DeviceBuffer<i32>) -> Self {
        Self {
            tokens: None,
            topk_ids,
            count: None,
            input_scale: None,
        }
    }

    /// Takes the number of tokens from the first word of `count` when the kernels run, instead of from the
    /// buffers' lengths, which are the most there can be. So one captured graph serves every number.
    pub fn count(mut self, count: &'a DeviceBuffer<u32>) -> Self {
        self.count = Some(count);
        self
    }

    /// The factor of the whole tensor, for NVFP4: the first of `scale`. It multiplies, so it is the reciprocal of
    /// what checkpoints call the input scale.
    pub fn input_scale(mut self, scale: &'a DeviceBuffer<f32>) -> Self {
        self.input_scale = Some(scale);
        self
    }

    /// Checks the batch for rank `rank`, and returns its part of the rank's arguments.
    pub(super) fn bind(
        &self,
        device: &Device,
        config: &EpConfig,
        rank: usize,
    ) -> Result<BoundBatch, EpError> {
        let length = |operand, found, expected| {
            if found == expected {
                return Ok(());
            }
            Err(EpError::InputLength {
                rank,
                operand,
                found,
                expected,
            })
        };
        device.check_same("the expert ids", self.topk_ids.device())?;
        let tokens = self.topk_ids.len() / config.top_k();
        length("topk_ids", self.topk_ids.len(), tokens * config.top_k())?;
        if let Some(values) = self.tokens {
            device.check_same("the tokens", values.device())?;
            length("tokens", values.len(), tokens * config.hidden_size())?;
        }
        if tokens > config.max_tokens_per_rank() {
            return Err(EpError::TooManyTokens {
                rank,
                tokens,
                capacity: config.max_tokens_per_rank(),
            });
        }
        if let Some(count) = self.count {
            device.check_same("the token count", count.device())?;
            length("the token count", count.len().min(1), 1)?;
        }
        let scaled = config.format() == TokenFormat::Nvfp4;
        if self.tokens.is_some() && self.input_scale.is_some() != scaled {
            return Err(EpError::InputScale {
                rank,
                given: self.input_scale.is_some(),
                format: config.format(),
            });
        }
        if let Some(scale) = self.input_scale {
            device.check_same("the input scale", scale.device())?;
            length("the input scale", scale.len().min(1), 1)?;
        }
        Ok(BoundBatch {
            token_limit: tokens as u32,
            token_count: self.count.map_or(ptr::null(), DeviceBuffer::as_ptr),
            tokens: self.tokens.map_or(ptr::null(), DeviceBuffer::as_ptr),
            topk_ids: self.topk_ids.as_ptr(),
            input_scale: self.input_scale.map_or(ptr::null(), DeviceBuffer::as_ptr),
        })
    }
}

/// The addresses of a checked [`Batch`].
#[derive(Clone, Copy)]
pub(super) struct BoundBatch {
    token_limit: u32,
    token_count: *const u32,
    tokens: *const bf16,
    topk_ids: *const i32,
    input_scale: *const f32,
}

/// What tells a batch that was dispatched from others: addresses and extents, not what lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchIdentity {
    tokens: u32,
    topk_ids: usize,
    token_count: usize,
}

impl BoundBatch {
    /// Tokens that it can have.
    pub(super) fn tokens(self) -> usize {
        self.token_limit as usize
    }

    /// What tells it from other batches.
    pub(super) fn identity(self) -> BatchIdentity {
        BatchIdentity {
            tokens: self.token_limit,
            topk_ids: self.topk_ids.addr(),
            token_count: self.token_count.addr(),
        }
    }

    /// The arguments of a rank with this input.
    pub(super) fn apply(self, rank: Rank) -> Rank {
        Rank {
            token_limit: self.token_limit,
            token_count: self.token_count,
            tokens: self.tokens.cast(),
            topk_ids: self.topk_ids,
            input_scale: self.input_scale,
            ..rank
        }
    }
}
