//! Groups over several devices of one process.

use super::config::EpConfig;
use super::error::EpError;
use super::group::EpGroup;
use super::launch::{LaunchShape, Launches};
use super::peers::{ReceiveMemory, Session};
use super::rank::EpRank;
use super::state::GroupState;
use crate::device::Device;
use kernels_gpu::ep::receipt::GIVEN;
use kernels_gpu::ep::shared_bytes;
use std::sync::Arc;

/// The ranks of one device, before they know those of others.
struct Part {
    state: Arc<GroupState>,
    ranks: Vec<EpRank>,
    /// Where each rank receives, its receipts last.
    addresses: Vec<Vec<u64>>,
}

impl EpGroup {
    /// One group over several devices of this process: for each device a member, which has its ranks. With R ranks
    /// and D devices, device `d` has the ranks from `d * R / D` on.
    ///
    /// A member is used as a group on one device is, with streams of its device, by the same thread as the others or
    /// by another. What is queued on one device does not wait for the host: where a member waits for others, kernels
    /// wait for kernels. So all members are given a round before the host waits for one of them; a fused dispatch
    /// of a member also waits for those of the others.
    ///
    /// ```
    /// use half::bf16;
    /// use tokenyard::{Device, EmulatorOptions};
    /// use tokenyard::ep::{Batch, EpConfig, EpGroup, TokenFormat};
    ///
    /// let devices = Device::emulated_node(2, EmulatorOptions::default());
    /// let config = EpConfig::builder(TokenFormat::Mxfp4)
    ///     .hidden_size(64).top_k(2).experts(4).ranks(2).max_tokens_per_rank(4).build()?;
    /// let mut members = EpGroup::across(&devices, config)?;
    ///
    /// let mut inputs = Vec::new();
    /// for device in &devices {
    ///     let tokens = device.upload(&vec![bf16::ONE; 64])?;
    ///     inputs.push((device.create_stream()?, tokens, device.upload(&[0, 3])?));
    /// }
    /// let mut outputs = Vec::new();
    /// for (member, (stream, tokens, ids)) in members.iter_mut().zip(&inputs) {
    ///     let mut received = [member.allocate_received()?];
    ///     let _ = member.dispatch(stream, &[Batch::new(tokens, ids)], &mut received)?;
    ///     outputs.push(received);
    /// }
    /// for member in &members {
    ///     member.check()?;
    /// }
    /// assert_eq!(outputs[0][0].row_offsets().download()?, [0, 2, 2]);
    /// assert_eq!(outputs[1][0].row_offsets().download()?, [0, 0, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new). [`EpError::UnevenDevices`]; [`DeviceError::NoPath`](crate::DeviceError::NoPath) naming
    /// two devices, one of which cannot use the memory of the other.
    pub fn across(devices: &[Device], config: EpConfig) -> Result<Vec<Self>, EpError> {
        Self::across_with(devices, config, None)
    }

    /// [`across`](Self::across) with a grid and block of the caller's choice, on every device.
    ///
    /// # Errors
    ///
    /// As [`across`](Self::across) and [`with_launch`](Self::with_launch).
    pub fn across_with(
        devices: &[Device],
        config: EpConfig,
        launch: Option<LaunchShape>,
    ) -> Result<Vec<Self>, EpError> {
        let ranks = config.ranks();
        if devices.is_empty() || !ranks.is_multiple_of(devices.len()) {
            return Err(EpError::UnevenDevices {
                ranks,
                devices: devices.len(),
            });
        }
        for from in devices {
            for to in devices {
                from.reach(to)?;
            }
        }
        let mut memory = ReceiveMemory::common();
        let each = ranks / devices.len();
        let mut parts = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            let shared = shared_bytes(&config.message_layout());
            let launches = Launches::new(device, config.format(), each, shared, launch)?;
            let local = index * each..(index + 1) * each;
            let state = GroupState::new(device, config.clone(), launches, local.clone())?;
            let state = Arc::new(state);
            let (mut own, mut addresses) = (Vec::new(), Vec::new());
            for number in local {
                let rank = EpRank::allocate(&state, number, &mut memory)?;
                let mut receipts = memory.alloc(device, ranks)?;
                receipts.upload_from(&vec![GIVEN; ranks])?;
                let mut row = rank.addresses().to_vec();
                row.push(receipts.as_ptr() as u64);
                addresses.push(row);
                own.push(rank);
            }
            parts.push(Part {
                state,
                ranks: own,
                addresses,
            });
        }

        let kept = memory.into_common();
        let tables = parts.iter().flat_map(|part| part.addresses.clone());
        let mut tables: Vec<_> = tables.collect();
        let receipts: Vec<_> = tables.iter_mut().filter_map(Vec::pop).collect();
        let tables = tables.concat();
        let join = |part: Part| {
            part.state.upload_addresses(&tables)?;
            let receipts = part.state.device.upload(&receipts)?;
            let session = Session::within(receipts, Arc::clone(&kept));
            part.state.set_session(session);
            Self::assemble(part.state, part.ranks)
        };
        parts.into_iter().map(join).collect()
    }
}
