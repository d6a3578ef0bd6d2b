//! Expert-parallel cases: what the ranks have, what they must receive, and running both halves of a
//! dispatch on a device.

mod case;
mod traffic;
mod world;

pub use case::EpCase;
pub use traffic::{RankInput, Traffic, ids, values};
pub use world::{Mode, World};
