//! Outputs fenced in by memory that must not change, over a background that shows what was written.

use anyhow::Result;
use tokenyard::DeviceBuffer;

/// Bytes before and after each output that must keep their content. A multiple of the 256 that
/// device memory is aligned to, so that outputs are aligned as they would be without.
pub const GUARD: usize = 256;

/// What memory holds before anything is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Bytes that follow no pattern: one that was not written is taken for the right one once in
    /// 256 times, a store that is missing practically never.
    Noise,
    /// The same byte everywhere.
    Byte(u8),
}

impl Background {
    /// `len` bytes of it; `salt` makes noise differ from other noise.
    pub fn bytes(self, len: usize, salt: u64) -> Vec<u8> {
        match self {
            Background::Byte(byte) => vec![byte; len],
            Background::Noise => {
                let mut bytes = vec![0; len];
                fastrand::Rng::with_seed(salt).fill(&mut bytes);
                bytes
            }
        }
    }
}

/// The two outputs, each with [`GUARD`] bytes before and after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Guard, quantized rows, guard.
    pub data: Vec<u8>,
    /// Guard, scale tiles, guard.
    pub scales: Vec<u8>,
}

impl Memory {
    /// The quantized rows.
    pub fn data(&self) -> &[u8] {
        &self.data[GUARD..self.data.len() - GUARD]
    }

    /// The scale tiles.
    pub fn scales(&self) -> &[u8] {
        &self.scales[GUARD..self.scales.len() - GUARD]
    }
}

/// The part of a buffer between its guards. The buffer must outlive it, and the work that gets it.
pub(crate) fn inside(guarded: &mut DeviceBuffer<u8>) -> Result<DeviceBuffer<u8>> {
    let len = guarded.len() - 2 * GUARD;
    let device = guarded.device().clone();
    let start = guarded.as_mut_ptr().wrapping_add(GUARD);
    // SAFETY: the range lies within `guarded`, which the caller keeps until the work is done.
    Ok(unsafe { DeviceBuffer::from_raw(&device, start, len)? })
}
