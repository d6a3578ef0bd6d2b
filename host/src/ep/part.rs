//! The ranks of a group that one device has.

use super::combine::CombineMemory;
use super::config::EpConfig;
use super::error::EpError;
use super::group::EpGroup;
use super::launch::{DISPATCH, LaunchShape, Launches};
use super::peers::{Kept, ReceiveMemory, Session};
use super::rank::EpRank;
use super::state::GroupState;
use crate::device::Device;
use kernels_gpu::ep::receipt::{GIVEN, ep_await_receipts, ep_give_receipts};
use kernels_gpu::ep::{ep_bind_rank, shared_bytes};
use std::ops::Range;
use std::sync::Arc;

/// The ranks of one device, before they know those of others.
pub(super) struct Part {
    state: Arc<GroupState>,
    ranks: Vec<EpRank>,
    /// What others write of each rank, in the order in which it was allocated: rows that come home and their counts,
    /// if the group combines; messages and their counts; receipts, if ranks order themselves.
    pub(super) addresses: Vec<Vec<u64>>,
}

impl Part {
    /// The ranks `local` of a group, on `device`. What others write comes from `memory`, which also says whether one
    /// host orders all ranks.
    pub(super) fn new(
        device: &Device,
        config: EpConfig,
        local: Range<usize>,
        launch: Option<LaunchShape>,
        memory: &mut ReceiveMemory,
    ) -> Result<Self, EpError> {
        let shared = shared_bytes(&config.message_layout());
        let (format, name) = (config.format(), config.format().name());
        let each = local.len();
        let launches = Launches::new(device, DISPATCH, format, name, each, shared, launch)?;
        let backend = device.backend();
        backend.load::<ep_bind_rank::Args>()?;
        backend.load::<ep_await_receipts::Args>()?;
        backend.load::<ep_give_receipts::Args>()?;
        let combine = config
            .combine()
            .map(|format| {
                CombineMemory::new(device, &config, format, local.clone(), launch, memory)
            })
            .transpose()?;
        let (ranks, receipts) = (config.ranks(), !memory.is_private());
        let state = GroupState::new(device, config, launches, combine, local.clone(), receipts)?;
        let state = Arc::new(state);
        let (mut own, mut addresses) = (Vec::new(), Vec::new());
        for number in local {
            let mut row = Vec::new();
            if let Some(combine) = &state.combine {
                row.extend(combine.addresses(number));
            }
            let rank = EpRank::allocate(&state, number, memory)?;
            row.extend(rank.addresses());
            if receipts {
                // Of dispatch, then of combine.
                let mut receipts = memory.alloc(device, 2 * ranks)?;
                receipts.upload_from(&vec![GIVEN; 2 * ranks])?;
                row.push(receipts.as_ptr() as u64);
            }
            addresses.push(row);
            own.push(rank);
        }
        Ok(Self {
            state,
            ranks: own,
            addresses,
        })
    }

    /// Tells the ranks where all ranks have what `addresses` says, and makes a group of them. `kept` is what that needs
    /// to live, if ranks order themselves.
    pub(super) fn connect(
        self,
        addresses: &[Vec<u64>],
        kept: Option<Kept>,
    ) -> Result<EpGroup, EpError> {
        let state = &self.state;
        let column = |first: usize, count: usize| -> Vec<u64> {
            let rows = addresses.iter();
            rows.flat_map(|row| &row[first..first + count])
                .copied()
                .collect()
        };
        let mut first = 0;
        if let Some(combine) = &state.combine {
            combine.upload_addresses(&column(first, 2))?;
            first += 2;
        }
        state.upload_addresses(&column(first, 2))?;
        if let Some(kept) = kept {
            let of_dispatch = column(first + 2, 1);
            let bytes = (addresses.len() * size_of::<u64>()) as u64;
            let of_combine: Vec<_> = of_dispatch.iter().map(|words| words + bytes).collect();
            let upload = |table: &[u64]| state.device.upload(table);
            let receipts = [upload(&of_dispatch)?, upload(&of_combine)?];
            state.set_session(Session::new(receipts, kept));
        }
        EpGroup::assemble(self.state, self.ranks)
    }
}
