//! What ranks tell each other: lines of a name and a value.

use super::error::PeerError;
use super::memory::Ticket;
use super::socket::Parcel;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Changes when messages do: ranks of different versions must not meet.
pub(super) const PROTOCOL: &str = "1";

/// Names of lines.
mod name {
    pub const RANK: &str = "rank";
    pub const AGREED: &str = "agreed";
    pub const MEMORY: &str = "memory";
    pub const FAILURE: &str = "failure";
    pub const DISAGREEMENT: &str = "disagreement";
}

/// What a rank says of itself: who it is, what all must agree on, and the memory that others may write.
#[derive(Debug)]
pub(crate) struct Introduction {
    pub(crate) rank: usize,
    /// Names without spaces, and values.
    pub(crate) agreed: Vec<(String, String)>,
    pub(crate) memory: Vec<Ticket>,
}

/// One message.
pub(super) enum Message {
    Introduction(Introduction),
    /// A rank's failure, which ends the meeting for all.
    Failure(PeerError),
}

fn line(text: &mut String, words: &[&str]) {
    // A line break would begin another line.
    let words = words.iter().map(|word| word.replace('\n', " "));
    text.push_str(&words.collect::<Vec<_>>().join(" "));
    text.push('\n');
}

impl Introduction {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut text = String::new();
        line(&mut text, &[name::RANK, &self.rank.to_string()]);
        for (item, value) in &self.agreed {
            line(&mut text, &[name::AGREED, item, value]);
        }
        for ticket in &self.memory {
            line(&mut text, &[name::MEMORY, &ticket.encode()]);
        }
        text.into_bytes()
    }

    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.memory
            .iter()
            .filter_map(Ticket::descriptor)
            .map(AsFd::as_fd)
            .collect()
    }

    /// The first thing that this rank and `other` do not say alike.
    pub(super) fn disagreement(&self, other: &Self) -> Option<PeerError> {
        const NOTHING: &str = "(not given)";
        let find = |of: &Self, item: &str| {
            let found = of.agreed.iter().find(|(name, _)| name == item);
            found.map_or_else(|| NOTHING.to_owned(), |(_, value)| value.clone())
        };
        let items = self.agreed.iter().chain(&other.agreed);
        items.map(|(item, _)| item).find_map(|item| {
            let (value, other_value) = (find(other, item), find(self, item));
            (value != other_value).then(|| PeerError::Disagreement {
                item: item.clone(),
                rank: other.rank,
                value,
                other: self.rank,
                other_value,
            })
        })
    }
}

/// The message of a failure. Others get a disagreement as it is, and of anything else what it says.
pub(super) fn encode_failure(rank: usize, error: &PeerError) -> Vec<u8> {
    let mut text = String::new();
    match error {
        PeerError::Disagreement {
            item,
            rank,
            value,
            other,
            other_value,
        } => {
            line(&mut text, &[name::DISAGREEMENT, &rank.to_string(), item]);
            line(&mut text, &[value]);
            line(&mut text, &[&other.to_string()]);
            line(&mut text, &[other_value]);
        }
        error => line(
            &mut text,
            &[name::FAILURE, &rank.to_string(), &error.to_string()],
        ),
    }
    text.into_bytes()
}

impl Message {
    /// Reads a message; `Err` says what is wrong with it.
    pub(super) fn decode(parcel: Parcel) -> Result<Self, &'static str> {
        let text = String::from_utf8(parcel.bytes).map_err(|_| "not text")?;
        let mut lines = text.lines();
        let first = lines.next().ok_or("empty")?;
        let (kind, rest) = first.split_once(' ').ok_or("no value")?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| "not a number");
        match kind {
            name::RANK => {
                Self::introduction(number(rest)?, lines, parcel.descriptors).map(Self::Introduction)
            }
            name::FAILURE => {
                let (rank, reason) = rest.split_once(' ').ok_or("no reason")?;
                Ok(Self::Failure(PeerError::GaveUp {
                    rank: number(rank)?,
                    reason: reason.to_owned(),
                }))
            }
            name::DISAGREEMENT => {
                let (rank, item) = rest.split_once(' ').ok_or("no item")?;
                let mut next = || lines.next().ok_or("too short");
                Ok(Self::Failure(PeerError::Disagreement {
                    item: item.to_owned(),
                    rank: number(rank)?,
                    value: next()?.to_owned(),
                    other: number(next()?)?,
                    other_value: next()?.to_owned(),
                }))
            }
            _ => Err("an unknown message"),
        }
    }

    fn introduction<'a>(
        rank: usize,
        lines: impl Iterator<Item = &'a str>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Introduction, &'static str> {
        let mut descriptors = descriptors.into_iter();
        let (mut agreed, mut memory) = (Vec::new(), Vec::new());
        for line in lines {
            match line.split_once(' ').ok_or("no value")? {
                (name::AGREED, rest) => {
                    let (item, value) = rest.split_once(' ').ok_or("no value")?;
                    agreed.push((item.to_owned(), value.to_owned()));
                }
                (name::MEMORY, rest) => memory.push(Ticket::decode(rest, &mut descriptors)?),
                _ => return Err("an unknown line"),
            }
        }
        if descriptors.next().is_some() {
            return Err("descriptors of nothing");
        }
        Ok(Introduction {
            rank,
            agreed,
            memory,
        })
    }
}
