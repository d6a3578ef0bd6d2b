//! The kernels as the build script left them: PTX for several architectures, and machine code where
//! an assembler was at hand.

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// The kernels for one architecture.
#[derive(Debug)]
pub(crate) struct Image {
    /// Compute capability times ten.
    pub(crate) capability: u32,
    /// Runs on exactly this capability (`a` in the target's name).
    pub(crate) arch_specific: bool,
    pub(crate) ptx: &'static str,
    /// Machine code for this capability, if the build had `ptxas`.
    pub(crate) cubin: Option<&'static [u8]>,
}

impl Image {
    /// "compute_90", "compute_100a".
    pub(crate) fn target(&self) -> String {
        format!(
            "compute_{}{}",
            self.capability,
            if self.arch_specific { "a" } else { "" }
        )
    }

    /// Whether the machine code runs on a device: the same major capability, not below.
    fn cubin_for(&self, capability: u32) -> Option<&'static [u8]> {
        let same_generation = self.capability / 10 == capability / 10;
        let fits = same_generation && self.capability <= capability;
        let exact = !self.arch_specific || self.capability == capability;
        self.cubin.filter(|_| fits && exact)
    }
}

/// The kernels that this library carries, as PTX: the name of each architecture, `compute_90` for
/// instance, and the text. None when it was built without.
pub fn embedded_ptx() -> impl Iterator<Item = (String, &'static str)> {
    IMAGES.iter().map(|image| (image.target(), image.ptx))
}

/// What to load.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    Cubin(&'static [u8]),
    Ptx(&'static str),
}

/// The best image for a device of compute capability `capability` (times ten).
pub(crate) fn best_for(capability: u32) -> Option<(&'static Image, Code)> {
    let image = IMAGES
        .iter()
        .filter(|image| {
            if image.arch_specific {
                image.capability == capability
            } else {
                image.capability <= capability
            }
        })
        .max_by_key(|image| (image.capability, image.arch_specific))?;
    let code = image
        .cubin_for(capability)
        .map_or(Code::Ptx(image.ptx), Code::Cubin);
    Some((image, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target_for(capability: u32) -> Option<String> {
        best_for(capability).map(|(image, _)| image.target())
    }

    #[test]
    fn the_newest_image_that_a_device_can_run_is_chosen() {
        if MISSING.is_some() {
            assert!(IMAGES.is_empty());
            return;
        }
        assert_eq!(target_for(75), None);
        assert_eq!(target_for(80).as_deref(), Some("compute_80"));
        assert_eq!(target_for(89).as_deref(), Some("compute_80"));
        assert_eq!(target_for(90).as_deref(), Some("compute_90"));
        assert_eq!(target_for(100).as_deref(), Some("compute_100a"));
        // Code for 10.0a runs on nothing else, so 12.0 falls back to what is portable.
        assert_eq!(target_for(120).as_deref(), Some("compute_90"));
    }
}
