//! Several processes of one host: device memory that all of them use, and how they meet.
//!
//! [`PeerMemory`] is memory that a process shares; a [`Ticket`] is what another one needs to open it. Tickets and
//! descriptors travel over Unix sockets, so no privileges are needed, and nothing is left behind in `/dev/shm`: what
//! is not passed on ends with its last owner.
//!
//! A [`Rendezvous`] is how ranks find each other and compare what they must agree on. It is what
//! [`EpGroup::join`](crate::ep::EpGroup::join) takes.

mod error;
mod listener;
mod memory;
mod message;
mod rendezvous;
mod socket;

pub use error::PeerError;
pub(crate) use memory::{Key, LEGACY_BYTES};
pub use memory::{PeerMemory, Sharing, Ticket};
pub(crate) use message::Introduction;
pub(crate) use rendezvous::Links;
pub use rendezvous::Rendezvous;
