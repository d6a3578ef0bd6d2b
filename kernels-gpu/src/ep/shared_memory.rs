//! What a block's shared memory is used for.

use super::format::StagedMessage;
use super::message::{MAX_TOP_K, MessageLayout};
use cuda_std::shared::dynamic_shared_mem;
use cuda_std::view::SharedView;

/// Messages under construction: while one leaves, the next is made.
pub(super) const STAGES: u32 = 2;

/// Bytes of the addresses that one message goes to.
const DESTINATION_BYTES: u32 = MAX_TOP_K * 8;

/// Bytes for prefix sums: a word for each warp that a block can have.
const SCRATCH_BYTES: u32 = 32 * 4;

/// Dynamic shared memory of every entry, for messages of this layout.
pub const fn shared_bytes(layout: &MessageLayout) -> usize {
    (STAGES * (layout.bytes + DESTINATION_BYTES) + SCRATCH_BYTES) as usize
}

/// The block's [`shared_bytes`].
#[derive(Clone, Copy)]
pub(super) struct SharedMemory {
    base: *mut u8,
    layout: MessageLayout,
}

impl SharedMemory {
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

    /// Message under construction `stage`, below [`STAGES`].
    #[inline(always)]
    pub(super) fn message(&self, stage: u32) -> StagedMessage {
        // SAFETY: by the contract of `new`; a layout's size is a multiple of 16.
        unsafe {
            StagedMessage::new(
                self.base.add((stage * self.layout.bytes) as usize),
                self.layout,
            )
        }
    }

    /// Where the copies of message `stage` go, by position among the token's experts: the address of a slot, marked if
    /// it is on another node, or 0 where there is nobody.
    #[inline(always)]
    pub(super) fn destinations(&self, stage: u32) -> SharedView<u64> {
        let offset = STAGES * self.layout.bytes + stage * DESTINATION_BYTES;
        // SAFETY: by the contract of `new`; multiples of 16.
        unsafe { SharedView::new(self.base.add(offset as usize).cast(), MAX_TOP_K as usize) }
    }

    /// For [`block_exclusive_sum`](crate::prefix_sum::block_exclusive_sum).
    #[inline(always)]
    pub(super) fn scratch(&self) -> SharedView<u32> {
        let offset = STAGES * (self.layout.bytes + DESTINATION_BYTES);
        // SAFETY: by the contract of `new`; multiples of 16.
        unsafe {
            SharedView::new(
                self.base.add(offset as usize).cast(),
                (SCRATCH_BYTES / 4) as usize,
            )
        }
    }
}
