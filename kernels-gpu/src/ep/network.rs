//! Messages to ranks of other nodes.
//!
//! A network adapter does not read shared memory: it sends from a registered buffer, the rank's send rows. So a
//! message for another node is first stored there, whole, and then *put* from there to the slot.
//!
//! There is no network here yet. [`put`] is a copy by the threads of a warp, through the table of all ranks'
//! addresses, and the counts of [`monitor`](super::monitor) go the same way as those within a node. That
//! exercises which node, rank, slot and row is which. With a real one, the put of a message and the signal of
//! its count must go through the same queue, which delivers in order, or be fenced.

use super::format::StagedMessage;
use super::send::Sender;
use crate::WARP;
use core::simd::u32x4;
use cuda_std::thread;
use cuda_std::view::{IndirectViewMut, SharedView};

/// Sends a finished message to the destinations that are marked `remote`. All threads of the block call it.
///
/// # Safety
///
/// The rank's send rows and the destinations are valid; a destination is this message's alone.
#[inline(always)]
pub(super) unsafe fn put_copies(
    sender: Sender<'_>,
    token: u32,
    destinations: SharedView<u64>,
    message: StagedMessage,
    remote: u64,
) {
    let words = sender.layout.words();
    // SAFETY: the caller's obligation; the row of this token is written by this block alone, and tokens are at
    // most as many as rows.
    let row = unsafe {
        IndirectViewMut::<u32x4>::new(sender.rank.send_rows.add(token as usize * words), words)
    };
    let mut word = thread::thread_idx_x() as usize;
    while word < words {
        row.store(word, message.words().load(word));
        word += thread::block_dim_x() as usize;
    }
    thread::sync_threads();

    let mut position = thread::thread_idx_x() / WARP;
    while position < sender.shape.top_k {
        let address = destinations.load(position as usize);
        if address & remote != 0 {
            // SAFETY: the caller's obligation.
            let slot = unsafe { IndirectViewMut::new((address ^ remote) as *mut u32x4, words) };
            put(slot, row);
        }
        position += thread::block_dim_x() / WARP;
    }
}

/// One put, by a warp.
#[inline(always)]
fn put(slot: IndirectViewMut<u32x4>, row: IndirectViewMut<u32x4>) {
    let mut word = (thread::thread_idx_x() % WARP) as usize;
    while word < row.len() {
        slot.store(word, row.load(word));
        word += WARP as usize;
    }
}
