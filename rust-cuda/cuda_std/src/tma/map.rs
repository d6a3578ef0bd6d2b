//! Tensor maps: opaque to kernels.

/// The description of a tensor in global memory that the copy engine works from, 128 bytes.
///
/// For a GPU the host has the driver make it (`cuTensorMapEncodeTiled`) and hands its bytes over; for
/// the emulator it makes one with `TensorMap::emulated`. A kernel gets a pointer to it in global
/// memory: its alignment is more than the PTX backend can pass by value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct TensorMap(pub(super) [u64; 16]);

impl TensorMap {
    /// A map from the words the driver encoded.
    pub const fn from_words(words: [u64; 16]) -> Self {
        Self(words)
    }

    /// The words of the map.
    pub const fn words(&self) -> &[u64; 16] {
        &self.0
    }
}

/// How 16-byte chunks are permuted in shared memory, so that columns of a box spread over the banks.
///
/// The chunk's index within the span is XORed with the index of the 128-byte line, modulo the chunks
/// in the span. The innermost dimension of a box has the size of the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Swizzle {
    /// Rows follow each other as they are.
    #[default]
    None,
    /// A span of 32 bytes; the pattern repeats every 256.
    Bytes32,
    /// A span of 64 bytes; the pattern repeats every 512.
    Bytes64,
    /// A span of 128 bytes; the pattern repeats every 1024.
    Bytes128,
}

impl Swizzle {
    /// Where the byte at an address of shared memory really is.
    ///
    /// Applies to addresses, not to offsets in a buffer, unless the buffer is aligned to
    /// [`pattern_bytes`](Self::pattern_bytes). It is its own inverse.
    #[inline(always)]
    pub const fn apply(self, address: usize) -> usize {
        let chunks = match self {
            Self::None => 1,
            Self::Bytes32 => 2,
            Self::Bytes64 => 4,
            Self::Bytes128 => 8,
        };
        address ^ ((address >> 7) & (chunks - 1)) << 4
    }

    /// The bytes after which the pattern repeats. A box need not begin at a multiple of them, but only
    /// there is an offset in the box permuted as an address is.
    #[inline(always)]
    pub const fn pattern_bytes(self) -> usize {
        match self {
            Self::None => 128,
            Self::Bytes32 => 256,
            Self::Bytes64 => 512,
            Self::Bytes128 => 1024,
        }
    }

    /// The size of a box's innermost dimension, if the mode prescribes one.
    #[inline(always)]
    pub const fn span_bytes(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 => Some(128),
        }
    }
}
