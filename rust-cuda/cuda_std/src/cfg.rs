//! Which device the code runs on.
//!
//! Each question is a constant in PTX, where the branch not taken disappears, and asks the emulated
//! target on a CPU, so that one kernel source takes every path under test.

/// The compute capability of a device, in ascending order.
///
/// The published variants below [`Compute70`](Self::Compute70) remain for `match`es that name them;
/// the compiler no longer targets those devices.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ComputeCapability {
    Compute35,
    Compute37,
    Compute50,
    Compute52,
    Compute53,
    Compute60,
    Compute61,
    Compute62,
    Compute70,
    Compute72,
    Compute75,
    Compute80,
    Compute86,
    Compute87,
    Compute89,
    Compute90,
    Compute100,
    Compute101,
    Compute103,
    Compute120,
    Compute121,
}

impl ComputeCapability {
    /// The capability this code is compiled for, or that the emulator stands for.
    ///
    /// The name is the published one, from when the builder passed the capability in an environment
    /// variable; now it follows from the target CPU. A capability this enum does not know counts as
    /// the greatest known one below it.
    #[inline(always)]
    pub fn from_cuda_arch_env() -> Self {
        match capability() {
            121.. => Self::Compute121,
            120 => Self::Compute120,
            103.. => Self::Compute103,
            101.. => Self::Compute101,
            100 => Self::Compute100,
            90.. => Self::Compute90,
            89 => Self::Compute89,
            87.. => Self::Compute87,
            86 => Self::Compute86,
            80.. => Self::Compute80,
            75.. => Self::Compute75,
            72.. => Self::Compute72,
            70.. => Self::Compute70,
            62.. => Self::Compute62,
            61 => Self::Compute61,
            60 => Self::Compute60,
            53.. => Self::Compute53,
            52 => Self::Compute52,
            50.. => Self::Compute50,
            37.. => Self::Compute37,
            _ => Self::Compute35,
        }
    }
}

/// The compute capability as a number: 90 stands for 9.0, 101 for 10.1.
///
/// In PTX it is the greatest one not above the target that this compiler has a name for (12.0 at
/// most). On the CPU it is the emulated target's, and outside a kernel 7.0: the least, so that pure
/// functions which ask for a conversion instruction do without.
#[inline(always)]
pub fn capability() -> u32 {
    by_target! {
        gpu: {
            if core::cfg!(target_feature = "sm_120") {
                120
            } else if core::cfg!(target_feature = "sm_101") {
                101
            } else if core::cfg!(target_feature = "sm_100") {
                100
            } else if core::cfg!(target_feature = "sm_90") {
                90
            } else if core::cfg!(target_feature = "sm_89") {
                89
            } else if core::cfg!(target_feature = "sm_87") {
                87
            } else if core::cfg!(target_feature = "sm_86") {
                86
            } else if core::cfg!(target_feature = "sm_80") {
                80
            } else if core::cfg!(target_feature = "sm_75") {
                75
            } else if core::cfg!(target_feature = "sm_72") {
                72
            } else {
                70
            }
        },
        cpu: emulated_target().capability,
    }
}

/// Whether integer warp reductions (`redux.sync`) exist: compute capability 8.0.
#[inline(always)]
pub fn has_redux() -> bool {
    capability() >= 80
}

/// Whether `cvt` to and from E4M3 exists: compute capability 8.9.
#[inline(always)]
pub fn has_e4m3_cvt() -> bool {
    capability() >= 89
}

/// Whether bulk asynchronous copies, tensor maps and their `mbarrier` forms exist: compute
/// capability 9.0.
#[inline(always)]
pub fn has_bulk_copy() -> bool {
    capability() >= 90
}

/// Whether `cvt` to and from E2M1 and UE8M0 exists: an architecture-specific 10.x or 12.x target
/// (`sm_100a` and the like).
#[inline(always)]
pub fn has_fp4_cvt() -> bool {
    by_target! {
        gpu: core::cfg!(any(
            target_feature = "sm_100a",
            target_feature = "sm_101a",
            target_feature = "sm_120a",
        )),
        cpu: {
            let target = emulated_target();
            target.arch_specific && target.capability >= 100
        },
    }
}

/// The target of the emulated device, or the least one outside a kernel.
#[cfg(not(target_arch = "nvptx64"))]
fn emulated_target() -> simt::Target {
    if simt::device::on_device() {
        simt::device::target()
    } else {
        simt::Target {
            capability: 70,
            arch_specific: false,
        }
    }
}

/// Reports an instruction that the emulated target does not have.
///
/// Outside a kernel there is no target and everything is allowed, so that hosts and tests can use
/// the arithmetic.
#[cfg(not(target_arch = "nvptx64"))]
#[track_caller]
pub(crate) fn require(has: fn() -> bool, instruction: &str) {
    if simt::device::on_device() && !has() {
        let target = simt::device::target();
        simt::device::trap(&std::format!(
            "`{instruction}` does not exist on compute capability {}.{}{}",
            target.capability / 10,
            target.capability % 10,
            if target.arch_specific { "a" } else { "" },
        ));
    }
}
