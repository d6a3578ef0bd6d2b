//! How processes find each other: at a path, where rank 0 listens.
//!
//! 1. Every other rank connects and [introduces](Introduction) itself, with the descriptors of its memory.
//! 2. When all are there and agree, rank 0 makes a link for every two ranks, and sends each rank its links, with the
//!    introductions of those at the other ends. It removes the path: nobody else can come.
//! 3. Each rank maps the memory of the others, and tells them over the links whether it could.
//!
//! The links stay open, and nothing more is said on them. That one hangs up is how a rank learns that another has
//! died: the system closes the links of a process, however that ends.

use super::error::PeerError;
use super::listener::{Listener, connect};
use super::message::{Introduction, Message, PROTOCOL, encode_failure};
use super::socket::{Parcel, Socket, is_gone, wait_any};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long ranks wait for each other unless told.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

/// Where and as whom a process meets the others.
#[derive(Clone, Debug)]
#[must_use]
pub struct Rendezvous {
    path: PathBuf,
    rank: usize,
    ranks: usize,
    deadline: Duration,
}

impl Rendezvous {
    /// `rank` of `ranks` processes, all of which name the same `path`: a name in a folder in which they may create a
    /// socket. What is left there of processes that were killed is replaced.
    ///
    /// # Errors
    ///
    /// [`PeerError::NoSuchRank`].
    pub fn new(path: impl AsRef<Path>, rank: usize, ranks: usize) -> Result<Self, PeerError> {
        if rank >= ranks {
            return Err(PeerError::NoSuchRank { rank, ranks });
        }
        Ok(Self {
            path: path.as_ref().to_owned(),
            rank,
            ranks,
            deadline: DEFAULT_DEADLINE,
        })
    }

    /// How long the ranks wait for each other: 30 s unless told.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// This process's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ranks that meet.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Meets the other ranks. `agreed` and `memory` are this rank's [`Introduction`].
    pub(crate) fn meet(&self, mut introduction: Introduction) -> Result<Meeting, PeerError> {
        let own = [
            ("protocol", PROTOCOL.to_owned()),
            ("processes", self.ranks.to_string()),
        ];
        let own = own.map(|(item, value)| (item.to_owned(), value));
        introduction.agreed.splice(0..0, own);
        let until = Instant::now() + self.deadline;
        let peers = match self.rank {
            0 => self.host(&introduction, until)?,
            _ => self.visit(&introduction, until)?,
        };
        Ok(Meeting {
            rank: self.rank,
            peers,
            until,
        })
    }

    fn missing(&self, missing: Vec<usize>) -> PeerError {
        PeerError::Missing {
            path: self.path.clone(),
            deadline: self.deadline,
            missing,
        }
    }

    /// Rank 0's part.
    fn host(&self, own: &Introduction, until: Instant) -> Result<Vec<Peer>, PeerError> {
        let listener = Listener::bind(&self.path)?;
        let mut guests = Vec::new();
        let met = self
            .gather(&listener, own, &mut guests, until)
            .and_then(|()| self.connect_all(own, &mut guests, until));
        if let Err(error) = &met {
            let failure = encode_failure(0, error);
            for guest in &guests {
                // Who does not take it finds the line dead.
                let _ = guest.socket.send(&failure, &[], Instant::now());
            }
        }
        met
    }

    /// Lets guests in until all ranks are there.
    fn gather(
        &self,
        listener: &Listener,
        own: &Introduction,
        guests: &mut Vec<Guest>,
        until: Instant,
    ) -> Result<(), PeerError> {
        loop {
            let is_here = |rank: &usize| *rank == 0 || guests.iter().any(|g| g.is(*rank));
            let absent: Vec<_> = (0..self.ranks).filter(|rank| !is_here(rank)).collect();
            if absent.is_empty() {
                return Ok(());
            }
            let mut waited = vec![listener.as_fd()];
            waited.extend(guests.iter().map(|guest| guest.socket.as_fd()));
            let ready = wait_any(&waited, PollFlags::IN, until).map_err(|source| {
                let action = "wait at";
                let path = self.path.clone();
                PeerError::Path {
                    action,
                    path,
                    source,
                }
            })?;
            if ready.is_empty() {
                return Err(self.missing(absent));
            }
            // From the last on, as a guest may leave.
            for index in ready.into_iter().rev() {
                let Some(index) = index.checked_sub(1) else {
                    guests.extend(listener.accept()?.map(Guest::new));
                    continue;
                };
                match guests[index].listen(until) {
                    Ok(Some(introduction)) => {
                        let rank = introduction.rank;
                        if rank == 0 || guests.iter().any(|guest| guest.is(rank)) {
                            return Err(PeerError::SameRank { rank });
                        }
                        if let Some(error) = own.disagreement(&introduction) {
                            return Err(error);
                        }
                        if rank >= self.ranks {
                            return Err(PeerError::NoSuchRank {
                                rank,
                                ranks: self.ranks,
                            });
                        }
                        guests[index].introduction = Some(introduction);
                    }
                    // A rank that has introduced itself says no more.
                    Ok(None) | Err(_) => {
                        let left = guests.remove(index);
                        if let Some(Introduction { rank, .. }) = left.introduction {
                            return Err(PeerError::Gone { rank });
                        }
                    }
                }
            }
        }
    }

    /// Gives every two ranks a link, and what the one must know of the other.
    fn connect_all(
        &self,
        own: &Introduction,
        guests: &mut [Guest],
        until: Instant,
    ) -> Result<Vec<Peer>, PeerError> {
        guests.sort_by_key(|guest| guest.introduction.as_ref().map(|known| known.rank));
        // Everybody who is not a rank was dropped or has said nothing.
        let known: Vec<_> = guests
            .iter()
            .filter_map(|guest| Some((&guest.socket, guest.introduction.as_ref()?)))
            .collect();
        let socket_error = |rank| {
            move |source| PeerError::Socket {
                action: "introduce the others to",
                rank,
                source,
            }
        };
        let introduce =
            |(socket, to): (&Socket, &Introduction), of: &Introduction, link: &OwnedFd| {
                let mut descriptors = of.descriptors();
                descriptors.push(link.as_fd());
                let sent = socket.send(&of.encode(), &descriptors, until);
                sent.map_err(socket_error(to.rank))
            };
        let mut links = Vec::new();
        for (index, &guest) in known.iter().enumerate() {
            let (mine, theirs) = Socket::pair().map_err(socket_error(guest.1.rank))?;
            introduce(guest, own, &theirs)?;
            links.push(mine);
            for &other in &known[index + 1..] {
                let (one, another) = Socket::pair().map_err(socket_error(guest.1.rank))?;
                introduce(guest, other.1, &one)?;
                introduce(other, guest.1, &another)?;
            }
        }
        let introductions = guests.iter_mut().filter_map(|g| g.introduction.take());
        let peers = introductions.zip(links).map(|(introduction, link)| Peer {
            introduction,
            link: Socket::new(link),
        });
        Ok(peers.collect())
    }

    /// The part of all other ranks.
    fn visit(&self, own: &Introduction, until: Instant) -> Result<Vec<Peer>, PeerError> {
        let Some(socket) = connect(&self.path, until)? else {
            return Err(self.missing(vec![0]));
        };
        let text = own.encode();
        if let Err(source) = socket.send(&text, &own.descriptors(), until) {
            let gone = is_gone(&socket).unwrap_or(false);
            return Err(match gone {
                true => PeerError::Gone { rank: 0 },
                false => PeerError::Socket {
                    action: "introduce this rank to",
                    rank: 0,
                    source,
                },
            });
        }
        let mut peers: Vec<Peer> = Vec::new();
        while peers.len() + 1 < self.ranks {
            let parcel = receive(&socket, 0, until, || {
                // Rank 0 would know which of the others are there; it has not said.
                let here = |rank: &usize| {
                    *rank == self.rank || peers.iter().any(|p| p.introduction.rank == *rank)
                };
                self.missing((0..self.ranks).filter(|rank| !here(rank)).collect())
            })?;
            let malformed = |reason| PeerError::Malformed { rank: 0, reason };
            let mut parcel = parcel;
            let link = parcel.descriptors.pop();
            match Message::decode(parcel).map_err(malformed)? {
                Message::Failure(error) => return Err(error),
                Message::Introduction(introduction) => {
                    let link = link.ok_or(malformed("no link"))?;
                    let taken = peers
                        .iter()
                        .any(|peer| peer.introduction.rank == introduction.rank);
                    if taken || introduction.rank >= self.ranks || introduction.rank == self.rank {
                        return Err(malformed("a rank that cannot be"));
                    }
                    peers.push(Peer {
                        introduction,
                        link: Socket::new(link),
                    });
                }
            }
        }
        peers.sort_by_key(|peer| peer.introduction.rank);
        Ok(peers)
    }
}

/// Receives a message of `rank`; `late` is the error when time is up.
fn receive(
    socket: &Socket,
    rank: usize,
    until: Instant,
    late: impl FnOnce() -> PeerError,
) -> Result<Parcel, PeerError> {
    match socket.receive(until) {
        Ok(Some(parcel)) => Ok(parcel),
        Ok(None) => Err(PeerError::Gone { rank }),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(late()),
        Err(source) => Err(PeerError::Socket {
            action: "hear from",
            rank,
            source,
        }),
    }
}

/// Somebody who has connected to rank 0.
struct Guest {
    socket: Socket,
    introduction: Option<Introduction>,
}

impl Guest {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            introduction: None,
        }
    }

    fn is(&self, rank: usize) -> bool {
        self.introduction
            .as_ref()
            .is_some_and(|known| known.rank == rank)
    }

    /// What it says of itself; `None` if that is something else, or nothing any more.
    fn listen(&self, until: Instant) -> io::Result<Option<Introduction>> {
        let Some(parcel) = self.socket.receive(until)? else {
            return Ok(None);
        };
        Ok(match Message::decode(parcel) {
            Ok(Message::Introduction(introduction)) if self.introduction.is_none() => {
                Some(introduction)
            }
            _ => None,
        })
    }
}

/// Another rank, as this one has met it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) introduction: Introduction,
    link: Socket,
}

/// All ranks have met. What remains is to map each other's memory.
#[derive(Debug)]
pub(crate) struct Meeting {
    rank: usize,
    /// All but this rank, in order.
    pub(crate) peers: Vec<Peer>,
    until: Instant,
}

impl Meeting {
    /// Tells the others whether this rank could do its part, and hears of theirs. Who fails here says `error` to
    /// all, and gets it back.
    pub(crate) fn confirm<T, E>(self, outcome: Result<T, E>) -> Result<(T, Links), E>
    where
        E: From<PeerError> + std::fmt::Display,
    {
        let Self { rank, peers, until } = self;
        let links: Vec<_> = peers
            .into_iter()
            .map(|peer| (peer.introduction.rank, peer.link))
            .collect();
        let value = match outcome {
            Ok(value) => value,
            Err(error) => {
                let reason = PeerError::GaveUp {
                    rank,
                    reason: error.to_string(),
                };
                let failure = encode_failure(rank, &reason);
                for (_, link) in &links {
                    // Who does not take it finds the line dead.
                    let _ = link.send(&failure, &[], Instant::now());
                }
                return Err(error);
            }
        };
        let ready = Introduction {
            rank,
            agreed: Vec::new(),
            memory: Vec::new(),
        };
        for (peer, link) in &links {
            link.send(&ready.encode(), &[], until).map_err(|source| {
                let rank = *peer;
                match source.kind() {
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        PeerError::Gone { rank }
                    }
                    _ => PeerError::Socket {
                        action: "tell that it is ready to",
                        rank,
                        source,
                    },
                }
            })?;
        }
        for (peer, link) in &links {
            let rank = *peer;
            let reason = "it was not ready in time".to_owned();
            let parcel = receive(link, rank, until, || PeerError::GaveUp { rank, reason })?;
            let malformed = |reason| PeerError::Malformed { rank, reason };
            match Message::decode(parcel).map_err(malformed)? {
                Message::Introduction(ready) if ready.rank == rank => {}
                Message::Introduction(_) => return Err(malformed("another rank").into()),
                Message::Failure(error) => return Err(error.into()),
            }
        }
        Ok((value, Links { links }))
    }
}

/// A line to every other rank, on which nothing is said.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<(usize, Socket)>,
}

impl Links {
    /// The ranks that are gone. Does not wait.
    pub(crate) fn gone(&self) -> Result<Vec<usize>, PeerError> {
        let mut ranks = Vec::new();
        for (rank, link) in &self.links {
            let gone = is_gone(link).map_err(|source| PeerError::Socket {
                action: "watch",
                rank: *rank,
                source,
            })?;
            if gone {
                ranks.push(*rank);
            }
        }
        Ok(ranks)
    }
}
