//! Expert-parallel cases: what the ranks have, what they must receive and what must come back, and running
//! dispatch and combine on a device.

mod case;
mod returns;
mod round_trip;
mod traffic;
mod world;

pub use case::EpCase;
pub use returns::{DeviceReturns, Returns, expert_outputs};
pub use traffic::{RankInput, Traffic, ids, values};
pub use world::{DeviceInput, Mode, World};
