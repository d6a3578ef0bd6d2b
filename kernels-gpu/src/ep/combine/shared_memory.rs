//! What a block's shared memory is used for, where rows are quantized.

use super::super::format::StagedMessage;
use super::super::message::MessageLayout;
use super::format::CombineFormat;
use crate::WARP;
use crate::formats::Amax;
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::view::SharedView;
use cuda_std::{thread, warp};

/// Bytes for a maximum over the block: a word for each warp that a block can have.
const SCRATCH_BYTES: u32 = 32 * 4;

/// Dynamic shared memory of the entries that send, for rows of `hidden` elements.
pub const fn shared_bytes<F: CombineFormat>(hidden: u32) -> usize {
    match F::QUANTIZED {
        None => 0,
        Some(quantized) => (quantized.layout(hidden).bytes + SCRATCH_BYTES) as usize,
    }
}

/// The block's [`shared_bytes`].
#[derive(Clone, Copy)]
pub(super) struct RowMemory {
    base: *mut u8,
    layout: MessageLayout,
}

impl RowMemory {
    /// # Safety
    ///
    /// The launch gives [`shared_bytes`] of this layout.
    #[inline(always)]
    pub(super) unsafe fn new(layout: MessageLayout) -> Self {
        Self {
            base: dynamic_shared_mem(),
            layout,
        }
    }

    /// The row under construction.
    #[inline(always)]
    pub(super) fn message(self) -> StagedMessage {
        // SAFETY: by the contract of `new`.
        unsafe { StagedMessage::new(self.base, self.layout) }
    }

    /// The largest of the values of all threads. All threads of the block call it together.
    #[inline(always)]
    pub(super) fn block_max(self, value: Amax) -> Amax {
        // SAFETY: by the contract of `new`; a layout's size is a multiple of 16.
        let scratch = unsafe {
            let base = self.base.add(self.layout.bytes as usize);
            SharedView::<u32>::new(base.cast(), (SCRATCH_BYTES / 4) as usize)
        };
        let mut max = value;
        let mut distance = 1;
        while distance < WARP {
            // SAFETY: all lanes of the warp are here, as all threads of the block are.
            let (other, _) =
                unsafe { warp::warp_shuffle_xor(u32::MAX, max.to_word(), distance, WARP) };
            max = max.max(Amax::from_word(other));
            distance *= 2;
        }
        let thread = thread::thread_idx_x();
        if thread.is_multiple_of(WARP) {
            scratch.store((thread / WARP) as usize, max.to_word());
        }
        thread::sync_threads();
        let mut other = 0;
        while other < thread::block_dim_x() / WARP {
            max = max.max(Amax::from_word(scratch.load(other as usize)));
            other += 1;
        }
        max
    }
}
