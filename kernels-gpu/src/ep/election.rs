//! The last block of a launch to have sent everything, which tells the receivers so.

use super::arguments::{Counters, Shape};
use super::faults::Fault;
use cuda_std::atomic::scoped::{AcqRel, Relaxed};
use cuda_std::thread;

impl Counters {
    /// Reports that this block has sent everything, and says whether it is the last to: then what all blocks have sent
    /// happened before, and the counter is ready for the next round. All threads of a block call it together, behind a
    /// barrier that follows what it sent, and get the same answer.
    ///
    /// With the planted fault `first` the first block to report takes itself for the last.
    #[inline(always)]
    pub(super) fn is_last_to_send(&self, shape: &Shape, first: Fault) -> bool {
        let last = match shape.plants(first) {
            true => 1,
            false => thread::grid_dim_x(),
        };
        let is_last = thread::thread_idx_x() == 0 && self.sent().fetch_add(1, AcqRel) + 1 == last;
        if thread::sync_threads_or(is_last as u32) == 0 {
            return false;
        }
        if thread::thread_idx_x() == 0 {
            self.sent().store(0, Relaxed);
        }
        true
    }
}
