//! Which GPUs of this machine reach which.

use super::{cust_error, driver_error};
use crate::error::DeviceError;
use cust::CudaFlags;
use cust::device::Device;
use cust::sys;
use std::fmt;

/// The GPUs that the driver sees, and the paths between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Names, by ordinal.
    pub gpus: Vec<String>,
    /// One for each two different GPUs, in both directions.
    pub paths: Vec<GpuPath>,
}

/// What the driver says of kernels of one GPU that use the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPath {
    /// Ordinal of the GPU whose kernels it is about.
    pub from: u32,
    /// Ordinal of the GPU whose memory it is about.
    pub to: u32,
    /// Whether there is a path at all.
    pub access: bool,
    /// Whether atomic operations are done where the memory is. NVLink does that; PCI Express does not.
    pub native_atomics: bool,
    /// The driver's rank of the path among those of this machine; 0 is the fastest.
    pub performance_rank: u32,
}

impl Topology {
    /// Asks the driver. Opens no GPU.
    ///
    /// # Errors
    ///
    /// No driver, or one that refuses to answer.
    pub fn of_gpus() -> Result<Self, DeviceError> {
        cuda_driver::driver_available()?;
        cust::init(CudaFlags::empty()).map_err(cust_error("cuInit"))?;
        let count = Device::num_devices().map_err(cust_error("cuDeviceGetCount"))?;
        let devices = (0..count)
            .map(|ordinal| Device::get_device(ordinal).map_err(cust_error("cuDeviceGet")))
            .collect::<Result<Vec<_>, _>>()?;
        let name = |device: &Device| device.name().map_err(cust_error("cuDeviceGetName"));
        let gpus = devices.iter().map(name).collect::<Result<_, _>>()?;
        let mut paths = Vec::new();
        for (from, &first) in (0..).zip(&devices) {
            for (to, &second) in (0..).zip(&devices) {
                if from == to {
                    continue;
                }
                use sys::CUdevice_P2PAttribute_enum as Attribute;
                let ask = |attribute| p2p_attribute(attribute, first, second);
                paths.push(GpuPath {
                    from,
                    to,
                    access: ask(Attribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? != 0,
                    native_atomics: ask(
                        Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                    )? != 0,
                    performance_rank: ask(Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?,
                });
            }
        }
        Ok(Self { gpus, paths })
    }
}

fn p2p_attribute(
    attribute: sys::CUdevice_P2PAttribute,
    from: Device,
    to: Device,
) -> Result<u32, DeviceError> {
    let mut value = 0;
    // SAFETY: the value is written before the call returns.
    unsafe {
        driver!(cuDeviceGetP2PAttribute(
            &mut value,
            attribute,
            from.as_raw(),
            to.as_raw()
        ))?;
    }
    Ok(value as u32)
}

impl fmt::Display for Topology {
    /// One line: how many GPUs, the pairs without a path, and what the paths are.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gpus.len() < 2 {
            return match self.gpus.first() {
                Some(name) => write!(formatter, "one GPU ({name}): nothing to connect"),
                None => formatter.write_str("no GPU"),
            };
        }
        let pairs = |kept: &dyn Fn(&GpuPath) -> bool| {
            let kept = self.paths.iter().filter(|path| kept(path));
            kept.map(|path| format!("{}-{}", path.from, path.to))
                .collect::<Vec<_>>()
        };
        write!(formatter, "{} GPUs, ", self.gpus.len())?;
        let missing = pairs(&|path| !path.access);
        match missing.as_slice() {
            [] => formatter.write_str("every one reaches every other")?,
            missing => write!(formatter, "no path {}", missing.join(", "))?,
        }
        let native = pairs(&|path| path.access && path.native_atomics);
        match native.len() {
            0 => formatter.write_str(", none with native atomics (PCI Express)"),
            count if count == self.paths.len() => {
                formatter.write_str(", all with native atomics (NVLink)")
            }
            _ => write!(
                formatter,
                ", native atomics (NVLink): {}",
                native.join(", ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(gpus: u32, path: impl Fn(u32, u32) -> (bool, bool)) -> Topology {
        let pairs = (0..gpus).flat_map(|from| (0..gpus).map(move |to| (from, to)));
        let paths = pairs.filter(|(from, to)| from != to).map(|(from, to)| {
            let (access, native_atomics) = path(from, to);
            GpuPath {
                from,
                to,
                access,
                native_atomics,
                performance_rank: 0,
            }
        });
        Topology {
            gpus: vec!["NVIDIA H200".to_owned(); gpus as usize],
            paths: paths.collect(),
        }
    }

    #[test]
    fn a_line_says_who_reaches_whom() {
        let text = topology(1, |_, _| (true, true)).to_string();
        assert_eq!(text, "one GPU (NVIDIA H200): nothing to connect");
        let text = topology(8, |_, _| (true, true)).to_string();
        assert_eq!(
            text,
            "8 GPUs, every one reaches every other, all with native atomics (NVLink)"
        );
        let text = topology(3, |from, to| (from + to != 3, from + to == 1)).to_string();
        assert_eq!(
            text,
            "3 GPUs, no path 1-2, 2-1, native atomics (NVLink): 0-1, 1-0"
        );
        let text = topology(2, |_, _| (true, false)).to_string();
        assert!(text.ends_with("none with native atomics (PCI Express)"));
    }
}
