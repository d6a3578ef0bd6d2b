//! The shared expert, which every token goes to: group 0 of what a rank gets are its own tokens.
//!
//! They never travel. The block that has a token's message in shared memory, to send it, also writes the
//! token's row of the output from there. So there is no send buffer to read them back from, nobody who must
//! wait until it is complete, and nothing that could be read too early.

use super::format::{StagedMessage, TokenFormat};
use super::output::{Place, write_row};
use super::send::Sender;
use super::workers::Workers;

/// Writes `token`, one of `tokens`, to its row of group 0, if it has one: all do, but for skip mode, where the
/// ranks share them out. All threads of the block call it, with a finished message.
///
/// # Safety
///
/// As for [`Sender::send_tokens`].
#[inline(always)]
pub(super) unsafe fn keep_own<F: TokenFormat>(
    sender: Sender<'_>,
    token: u32,
    tokens: u32,
    message: StagedMessage,
) {
    let (first, rows) = sender.shape.shared_rows(sender.rank.rank, tokens);
    let row = token.wrapping_sub(first);
    if row >= rows {
        return;
    }
    let place = Place {
        row,
        group: 0,
        row_in_group: row,
    };
    // SAFETY: the caller's obligation; group 0 begins at row 0 and has room for all tokens.
    unsafe {
        write_row::<F, _>(
            sender.shape,
            &sender.layout,
            &sender.rank.output,
            message,
            place,
            Workers::block(),
        );
    }
}
