//! What the conformance suite is made of: problems and their expected bytes, the values and shapes
//! that go into them, the devices they run on, and the list of cases.
//!
//! The cases are in `conformance/`, one module a concern, and end up in one binary, named
//! `conformance`, that needs neither the source tree nor a GPU:
//!
//! ```text
//! cargo test -p tokenyard-tests                                    everything this machine can run
//! cargo test -p tokenyard-tests --test conformance -- emulator::router
//! TOKENYARD_REQUIRE_CUDA=1 ./conformance cuda::                    on a machine that must have a GPU
//! TOKENYARD_SEED=17 TOKENYARD_SEEDS=1 ./conformance schedules      replay what seed 17 did
//! ```
//!
//! | Variable | Meaning | Unless set |
//! |---|---|---|
//! | `TOKENYARD_SEEDS` | how many emulator seeds the schedule and property cases go through | 4 |
//! | `TOKENYARD_SEED` | the first of them | 0 |
//! | `TOKENYARD_REQUIRE_CUDA` | `1`: a missing GPU fails the `cuda::` cases in place of skipping them | 0 |
//! | `TOKENYARD_EXHAUSTIVE` | `1`: the emulator goes through everything that the GPU goes through, for some ten minutes | 0 |
//!
//! A failure names the problem, the device with its seed, and the first byte that differs, in coordinates
//! and with both bit patterns. The last line of the output is `N passed, N failed, N skipped`.
//!
//! Every comparison is bit for bit against `tokenyard::reference`, over memory that is full of
//! noise beforehand and fenced on both sides, so that a byte that was not written, or was written
//! and should not have been, is as visible as a wrong one. The few tolerances that there are say
//! where they come from.

pub mod backend;
pub mod compare;
pub mod data;
pub mod ep;
pub mod memory;
pub mod problem;
pub mod shapes;
pub mod suite;
pub mod values;

pub use backend::{Backend, Context, Settings};
pub use memory::Memory;
pub use problem::{Grouping, Launch, Problem};
pub use suite::Suite;
pub use values::Rows;
