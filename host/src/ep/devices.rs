//! Groups over several devices of one process.

use super::config::EpConfig;
use super::error::EpError;
use super::group::EpGroup;
use super::launch::LaunchShape;
use super::part::Part;
use super::peers::{Kept, ReceiveMemory};
use crate::device::Device;

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
        let parts = devices.iter().enumerate().map(|(index, device)| {
            let local = index * each..(index + 1) * each;
            Part::new(device, config.clone(), local, launch, &mut memory)
        });
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let kept = memory.into_common();
        let addresses: Vec<_> = parts.iter().flat_map(|p| p.addresses.clone()).collect();
        let connect = |part: Part| part.connect(&addresses, Some(Kept::within(&kept)));
        parts.into_iter().map(connect).collect()
    }
}
