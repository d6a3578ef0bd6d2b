//! The largest magnitude of a block, while it is being gathered from several threads.

/// A largest magnitude as an integer, ordered so that one *signed integer* maximum combines partial
/// results under both NaN policies.
///
/// The bits of a non-negative `f32` order as the numbers do, and those of a NaN lie above infinity.
/// So a plain integer maximum lets a NaN win, which is what [`NanPolicy::Propagate`] wants. Under
/// [`NanPolicy::Ignore`] a part that holds nothing but NaN is [`Amax::NO_NUMBER`], which is below
/// everything, and loses unless all parts are so.
///
/// [`NanPolicy::Propagate`]: super::NanPolicy::Propagate
/// [`NanPolicy::Ignore`]: super::NanPolicy::Ignore
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amax(i32);

impl Amax {
    /// Only zeros seen.
    pub const ZERO: Self = Self(0);

    /// Only NaN seen.
    pub const NO_NUMBER: Self = Self(-1);

    const INFINITY: i32 = f32::INFINITY.to_bits() as i32;

    /// From the bits of a non-negative `f32`, NaN included.
    #[inline(always)]
    pub const fn from_magnitude_bits(bits: u32) -> Self {
        Self(bits as i32)
    }

    /// Whether a NaN won.
    #[inline(always)]
    pub const fn is_nan(self) -> bool {
        self.0 > Self::INFINITY
    }

    /// The larger of two.
    #[inline(always)]
    pub fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }

    /// As a word to exchange between lanes.
    #[inline(always)]
    pub const fn to_word(self) -> u32 {
        self.0 as u32
    }

    /// The reverse of [`to_word`](Self::to_word).
    #[inline(always)]
    pub const fn from_word(word: u32) -> Self {
        Self(word as i32)
    }

    /// The magnitude; NaN when only NaN was seen, or when a NaN won.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        // `NO_NUMBER` is all ones, which is a NaN already.
        f32::from_bits(self.0 as u32)
    }
}
