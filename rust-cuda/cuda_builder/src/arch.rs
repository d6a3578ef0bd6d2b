//! The architectures that a kernel crate can be compiled for.

use std::fmt;
use std::str::FromStr;

/// Which devices run code compiled for an [`NvvmArch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ArchVariant {
    /// `compute_90`: every device of this compute capability or a later one.
    Base,
    /// `compute_100f`: devices of the same family, of this capability or a later one.
    Family,
    /// `compute_90a`: devices of exactly this capability; all of their instructions.
    Specific,
}

impl ArchVariant {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Base => "",
            Self::Family => "f",
            Self::Specific => "a",
        }
    }
}

macro_rules! architectures {
    ($($(#[$attribute:meta])* $name:ident = $capability:literal $variant:ident, $doc:literal;)*) => {
        /// A virtual architecture: what kernels are compiled for.
        ///
        /// `Compute90` is compute capability 9.0. With the suffix `a` the code may use every
        /// instruction of that capability and runs on it alone; with `f` it may use those of the
        /// family and runs on the family's devices.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        #[non_exhaustive]
        pub enum NvvmArch {
            $(#[doc = $doc] $(#[$attribute])* $name,)*
        }

        impl NvvmArch {
            /// Every architecture, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Ten times the compute capability: 90 for 9.0, whatever the variant.
            #[must_use]
            pub const fn capability(self) -> u32 {
                match self {
                    $(Self::$name => $capability,)*
                }
            }

            /// Base, family or architecture-specific.
            #[must_use]
            pub const fn variant(self) -> ArchVariant {
                match self {
                    $(Self::$name => ArchVariant::$variant,)*
                }
            }
        }
    };
}

architectures! {
    Compute70 = 70 Base, "Volta: V100.";
    Compute72 = 72 Base, "Volta: Xavier.";
    #[default] Compute75 = 75 Base, "Turing: T4. The default, and the oldest that CUDA 13 knows.";
    Compute80 = 80 Base, "Ampere: A100.";
    Compute86 = 86 Base, "Ampere: A10, A40, RTX 30.";
    Compute87 = 87 Base, "Ampere: Orin.";
    Compute88 = 88 Base, "Ampere: Orin successors (CUDA 13).";
    Compute89 = 89 Base, "Ada: L4, L40, RTX 40.";
    Compute90 = 90 Base, "Hopper: H100, H200.";
    Compute90a = 90 Specific, "Hopper, all instructions.";
    Compute100 = 100 Base, "Blackwell: B100, B200, GB200.";
    Compute100a = 100 Specific, "Blackwell B200, all instructions.";
    Compute100f = 100 Family, "Blackwell data-center family.";
    Compute101 = 101 Base, "Thor under CUDA 12; 11.0 from CUDA 13 on.";
    Compute101a = 101 Specific, "Thor under CUDA 12, all instructions.";
    Compute101f = 101 Family, "Thor under CUDA 12, family.";
    Compute103 = 103 Base, "Blackwell Ultra: B300, GB300.";
    Compute103a = 103 Specific, "Blackwell Ultra, all instructions.";
    Compute103f = 103 Family, "Blackwell Ultra, family.";
    Compute110 = 110 Base, "Thor (CUDA 13).";
    Compute110a = 110 Specific, "Thor, all instructions.";
    Compute110f = 110 Family, "Thor, family.";
    Compute120 = 120 Base, "Blackwell: RTX 50, RTX PRO.";
    Compute120a = 120 Specific, "Blackwell RTX, all instructions.";
    Compute120f = 120 Family, "Blackwell RTX, family.";
    Compute121 = 121 Base, "Blackwell: GB10.";
    Compute121a = 121 Specific, "Blackwell GB10, all instructions.";
    Compute121f = 121 Family, "Blackwell GB10, family.";
}

impl NvvmArch {
    /// Name of the real architecture, as `rustc` (`-Ctarget-cpu`), PTX (`.target`) and `ptxas`
    /// (`-arch`) spell it: `sm_90a`.
    #[must_use]
    pub fn sm(self) -> String {
        format!("sm_{}{}", self.capability(), self.variant().suffix())
    }

    /// Value of `CUDA_ARCH` while the kernels are compiled: the capability with a zero appended,
    /// like `__CUDA_ARCH__` in CUDA C++.
    #[must_use]
    pub fn cuda_arch(self) -> u32 {
        self.capability() * 10
    }

    /// Whether code for this architecture runs on a device of the given compute capability
    /// (ten times it, as [`capability`](Self::capability)).
    ///
    /// Devices of one family share their tens: 10.0 and 10.3, 12.0 and 12.1.
    #[must_use]
    pub fn runs_on(self, device_capability: u32) -> bool {
        match self.variant() {
            ArchVariant::Base => device_capability >= self.capability(),
            ArchVariant::Family => {
                device_capability >= self.capability()
                    && device_capability / 10 == self.capability() / 10
            }
            ArchVariant::Specific => device_capability == self.capability(),
        }
    }
}

/// As `compute_90a`.
impl fmt::Display for NvvmArch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "compute_{}{}",
            self.capability(),
            self.variant().suffix()
        )
    }
}

/// A name that is no [`NvvmArch`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown architecture {name:?}; expected sm_70 to sm_121, for example sm_90 or sm_100a")]
pub struct UnknownArch {
    /// The name.
    pub name: String,
}

/// From `sm_90a`, `compute_90a` or `90a`.
impl FromStr for NvvmArch {
    type Err = UnknownArch;

    fn from_str(name: &str) -> Result<Self, UnknownArch> {
        let short = name
            .strip_prefix("sm_")
            .or_else(|| name.strip_prefix("compute_"))
            .unwrap_or(name);
        Self::ALL
            .iter()
            .copied()
            .find(|arch| arch.sm()[3..] == *short)
            .ok_or_else(|| UnknownArch {
                name: name.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for &arch in NvvmArch::ALL {
            assert_eq!(arch.sm().parse(), Ok(arch));
            assert_eq!(arch.to_string().parse(), Ok(arch));
            assert_eq!(
                format!("{arch:?}"),
                arch.to_string().replace("compute_", "Compute")
            );
        }
        assert_eq!("90a".parse(), Ok(NvvmArch::Compute90a));
        for wrong in ["", "sm_", "sm_91", "90b", "sm_sm_90"] {
            assert_eq!(
                wrong.parse::<NvvmArch>(),
                Err(UnknownArch { name: wrong.into() })
            );
        }
    }

    #[test]
    fn capabilities_ascend() {
        assert!(NvvmArch::ALL.is_sorted_by_key(|arch| arch.capability()));
        assert_eq!(NvvmArch::Compute100a.cuda_arch(), 1000);
    }

    #[test]
    fn variants_say_where_code_runs() {
        assert!(NvvmArch::Compute80.runs_on(90));
        assert!(!NvvmArch::Compute90.runs_on(89));
        assert!(NvvmArch::Compute90a.runs_on(90));
        assert!(!NvvmArch::Compute90a.runs_on(100));
        assert!(NvvmArch::Compute100f.runs_on(103));
        assert!(!NvvmArch::Compute100f.runs_on(110));
        assert!(!NvvmArch::Compute103f.runs_on(100));
    }
}
