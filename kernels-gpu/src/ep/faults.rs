//! Faults that tests plant, to see that the suite would find them: what other implementations of the
//! protocol got wrong, each at the place where it would be.
//!
//! They are there with the feature `fault-injection` alone. Without it, as in every build for a GPU,
//! [`Shape::plants`] is a constant, and what depends on it is not compiled.

use super::arguments::Shape;

/// A fault, as a bit of [`Shape::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// Senders do not wait for their copies: counts arrive before what they count.
    CountsBeforeMessages = 1 << 16,
    /// The first sender block that is done publishes the counts, not the last.
    FirstBlockPublishes = 1 << 17,
    /// Receive counts keep their value, which the next round takes for its own.
    CountsNotRearmed = 1 << 18,
    /// Slots stay reserved, and the next round begins behind them.
    SlotsNotReset = 1 << 19,
    /// Copy blocks do not wait for the layout of the rows.
    RowsBeforeLayout = 1 << 20,
    /// A token that no expert gets is not kept for the shared expert either.
    SharedRowsOfRoutedTokens = 1 << 21,
    /// Offsets in the receive buffer wrap, at 4 KiB in the place of 4 GiB.
    NarrowOffsets = 1 << 22,
    /// An expert that a token names again is sent it again.
    RepeatedIdsCount = 1 << 23,
    /// The layout begins groups at any row, where the format rounds them up.
    UnpaddedGroups = 1 << 24,
    /// Outputs have no room for what rounding up adds.
    OutputsWithoutPadding = 1 << 26,
    /// Scales of rows that a tile has beyond its group stay as they were.
    TileEndsNotCleared = 1 << 25,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 11] = [
        Self::CountsBeforeMessages,
        Self::FirstBlockPublishes,
        Self::CountsNotRearmed,
        Self::SlotsNotReset,
        Self::RowsBeforeLayout,
        Self::SharedRowsOfRoutedTokens,
        Self::NarrowOffsets,
        Self::RepeatedIdsCount,
        Self::UnpaddedGroups,
        Self::OutputsWithoutPadding,
        Self::TileEndsNotCleared,
    ];
}

impl Shape {
    /// Whether a test has planted the fault.
    #[inline(always)]
    pub(super) const fn plants(&self, fault: Fault) -> bool {
        cfg!(feature = "fault-injection") && self.has(fault as u32)
    }
}
