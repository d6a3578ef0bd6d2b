//! Faults that tests plant, to see that the suite would find them: what other implementations of the
//! protocol got wrong, each at the place where it would be.
//!
//! # What others got wrong
//!
//! What is known to have gone wrong in the protocol's first implementation, and what would find it here: a fault
//! that is planted and found, or a rule on the PTX of every entry where the emulator, which runs one thread at a time,
//! cannot see it.
//!
//! | | what went wrong | found by |
//! | --- | --- | --- |
//! | 1 | combine: the flags that its receivers wait for are fewer than its blocks | nothing to plant: one word, `ready`, serves all blocks, whatever the grid |
//! | 2 | combine: a counter that elects a block lies on words in use | nothing to plant: a combine's two words are in memory of their own; [`CountsBeforeRows`](Fault::CountsBeforeRows) is what a wrong election comes to |
//! | 3 | counts stored plainly, behind a relaxed counter | [`CountsBeforeMessages`](Fault::CountsBeforeMessages), [`FirstBlockPublishes`](Fault::FirstBlockPublishes); PTX: counts are `st.release.sys` and `ld.acquire.sys` |
//! | 4 | skip mode: a token of no local expert is not seen to for the shared expert | [`SharedRowsOfRoutedTokens`](Fault::SharedRowsOfRoutedTokens) |
//! | 5 | what was just written is read through the read-only path | PTX: no `ld.global.nc` in an entry that receives |
//! | 6 | FP8: padding makes more rows than outputs have | [`OutputsWithoutPadding`](Fault::OutputsWithoutPadding), [`UnpaddedGroups`](Fault::UnpaddedGroups) |
//! | 7 | offsets of 32 bits | [`NarrowOffsets`](Fault::NarrowOffsets), [`NarrowReturnOffsets`](Fault::NarrowReturnOffsets) |
//! | 8 | MXFP4: room for a payload of a byte an element | the sizes of messages, held to the reference's; nothing to plant in a kernel |
//! | 9 | MXFP4 and its slot layout exist for AMD GPUs alone | not applicable: there is no other result to differ from, so the reference decides |
//!
//! The other faults are of this implementation: words that must be as they were before the next round, the wait for
//! the layout, repeated ids, and the tails of scale tiles.
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
    /// Combine: the first sending block that is done publishes the counts, not the last.
    CountsBeforeRows = 1 << 14,
    /// Combine: tokens are added up without waiting for the rows.
    ReductionBeforeCounts = 1 << 27,
    /// Combine: receive counts keep their value, which the next round takes for its own.
    ReturnCountsNotRearmed = 1 << 28,
    /// Combine: pairs stay, as if there were rows to combine again.
    PairsNotTakenAway = 1 << 29,
    /// Combine: the first four experts of a token are added in reverse.
    LastExpertFirst = 1 << 30,
    /// Combine: what lies at the position of a nobody is added.
    NobodyCounts = 1 << 31,
    /// Combine: offsets in the combine buffer wrap, at 4 KiB in the place of 4 GiB.
    NarrowReturnOffsets = 1 << 15,
}

impl Fault {
    /// Those of dispatch.
    pub const DISPATCH: [Self; 11] = [
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

    /// Those of combine.
    pub const COMBINE: [Self; 7] = [
        Self::CountsBeforeRows,
        Self::ReductionBeforeCounts,
        Self::ReturnCountsNotRearmed,
        Self::PairsNotTakenAway,
        Self::LastExpertFirst,
        Self::NobodyCounts,
        Self::NarrowReturnOffsets,
    ];
}

impl Shape {
    /// Whether a test has planted the fault.
    #[inline(always)]
    pub(super) const fn plants(&self, fault: Fault) -> bool {
        cfg!(feature = "fault-injection") && self.has(fault as u32)
    }
}
