//! What operations need beyond their tensors.

use crate::ep::{DispatchRecord, EpGroup, EpRank, ReturnRecord};

/// A group of ranks for operations by name.
#[derive(Debug)]
pub struct EpSession {
    pub(super) group: EpGroup,
    /// Of each rank, the last dispatch, if it was not combined.
    pub(super) dispatched: Vec<Option<DispatchRecord>>,
    /// Of each rank, what it sent home and has not waited for.
    pub(super) returned: Vec<Option<ReturnRecord>>,
}

/// Addresses of the buffers of all ranks of a group, as operations take them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointerTables {
    /// `send_ptrs`: 0 for ranks without a send buffer, which only ranks of several nodes have.
    pub send: Vec<u64>,
    /// `recv_ptrs`: receive buffers.
    pub recv: Vec<u64>,
    /// `recv_count_ptrs`: receive counts.
    pub recv_count: Vec<u64>,
}

impl EpSession {
    /// A session of a group.
    pub fn new(group: EpGroup) -> Self {
        let ranks = group.config().ranks();
        Self {
            group,
            dispatched: vec![None; ranks],
            returned: vec![None; ranks],
        }
    }

    /// The group, to [check](EpGroup::check) it for example.
    pub fn group(&self) -> &EpGroup {
        &self.group
    }

    /// The tables of addresses that dispatch operations of the group must be given.
    pub fn pointer_tables(&self) -> PointerTables {
        let ranks = self.group.ranks().iter();
        ranks.map(EpRank::buffer_addresses).collect()
    }

    /// The tables of addresses that combine operations of the group must be given; empty if the group does not
    /// combine.
    pub fn combine_pointer_tables(&self) -> PointerTables {
        let ranks = self.group.ranks().iter();
        ranks.filter_map(EpRank::combine_addresses).collect()
    }
}

impl FromIterator<[u64; 3]> for PointerTables {
    /// Addresses of the send buffer, the receive buffer and the receive counts of every rank.
    fn from_iter<I: IntoIterator<Item = [u64; 3]>>(ranks: I) -> Self {
        let mut tables = PointerTables {
            send: Vec::new(),
            recv: Vec::new(),
            recv_count: Vec::new(),
        };
        for [send, recv, recv_count] in ranks {
            tables.send.push(send);
            tables.recv.push(recv);
            tables.recv_count.push(recv_count);
        }
        tables
    }
}
