//! Handles without their borrow, for callers that name what was received again when they combine it.

use super::PendingCombine;
use super::operands::ExpertOutputs;
use crate::ep::batch::BatchIdentity;
use crate::ep::group::EpGroup;
use crate::ep::received::{Dispatched, GroupDispatched, Received};
use std::sync::Arc;

/// What a [`Dispatched`] knows beside what was received.
///
/// The memory that it is resumed with need not hold what was received: kernels do not trust it. It decides what comes
/// home, not where in whose memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchRecord {
    rank: usize,
    round: u64,
    batch: BatchIdentity,
}

/// What a [`PendingCombine`] knows beside its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReturnRecord {
    rank: usize,
    batch: BatchIdentity,
    index: u64,
    round: u64,
}

impl Dispatched<'_> {
    pub(crate) fn record(&self) -> DispatchRecord {
        DispatchRecord {
            rank: self.rank,
            round: self.round,
            batch: self.batch,
        }
    }
}

impl DispatchRecord {
    /// The handle again, of a rank of `group`, whose it was.
    pub(crate) fn resume<'r>(self, group: &EpGroup, received: &'r mut Received) -> Dispatched<'r> {
        Dispatched {
            received,
            state: Arc::clone(&group.ranks()[self.rank].state),
            rank: self.rank,
            round: self.round,
            batch: self.batch,
        }
    }

    /// The handle of all ranks, in order, if they are of one round.
    pub(crate) fn resume_all<'r>(
        records: &[Self],
        group: &EpGroup,
        received: &'r mut [Received],
    ) -> Option<GroupDispatched<'r>> {
        let round = records.first()?.round;
        records
            .iter()
            .all(|record| record.round == round)
            .then(|| GroupDispatched {
                received,
                state: Arc::clone(&group.ranks()[0].state),
                round,
                batches: records.iter().map(|record| record.batch).collect(),
            })
    }
}

impl PendingCombine<'_> {
    pub(crate) fn record(&self) -> ReturnRecord {
        ReturnRecord {
            rank: self.rank,
            batch: self.batch,
            index: self.index,
            round: self.round,
        }
    }
}

impl ReturnRecord {
    /// The handle again, of a rank of `group`, whose it was.
    pub(crate) fn resume<'r>(
        self,
        group: &EpGroup,
        received: &'r mut Received,
        outputs: ExpertOutputs<'r>,
    ) -> PendingCombine<'r> {
        PendingCombine {
            received,
            outputs,
            state: Arc::clone(&group.ranks()[self.rank].state),
            rank: self.rank,
            batch: self.batch,
            index: self.index,
            round: self.round,
        }
    }
}
