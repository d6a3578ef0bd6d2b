//! What operations need beyond their tensors.

use crate::ep::EpGroup;

/// A group of ranks for operations by name.
#[derive(Debug)]
pub struct EpSession {
    pub(super) group: EpGroup,
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
        Self { group }
    }

    /// The group, to [check](EpGroup::check) it for example.
    pub fn group(&self) -> &EpGroup {
        &self.group
    }

    /// The tables of addresses that the group's operations must be given.
    pub fn pointer_tables(&self) -> PointerTables {
        let addresses = self
            .group
            .ranks()
            .iter()
            .map(|rank| rank.buffer_addresses());
        let mut tables = PointerTables {
            send: Vec::new(),
            recv: Vec::new(),
            recv_count: Vec::new(),
        };
        for [send, recv, recv_count] in addresses {
            tables.send.push(send);
            tables.recv.push(recv);
            tables.recv_count.push(recv_count);
        }
        tables
    }
}
