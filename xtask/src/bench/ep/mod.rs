//! `cargo xtask bench ep`: how fast tokens get to their experts and back, against what the path between the GPUs, and
//! their memory, allow.
//!
//! A case is a number of tokens in a format, at the shape that published measurements use, and a format for the way
//! home. Every rank is checked against the reference before anything is timed. Then each GPU replays graphs; rounds of
//! different GPUs wait for each other on the device alone. A sample is the time of the slowest GPU.
//!
//! | file | has |
//! | --- | --- |
//! | `cases.rs` | shapes and inputs |
//! | `experts.rs` | what experts make of rows, and what must come home of it |
//! | `traffic.rs` | how many bytes that moves |
//! | `member.rs` | the ranks of a device: queueing and recording rounds |
//! | `check.rs` | holding them to the reference |
//! | `measure.rs` | timing them |
//! | `outcome.rs`, `processes.rs` | the same in one process or in several |
//! | `record.rs`, `marks.rs`, `table.rs` | what came of it |

pub mod cases;
pub mod check;
pub mod experts;
pub mod marks;
pub mod measure;
pub mod member;
pub mod outcome;
pub mod processes;
pub mod record;
pub mod table;
pub mod traffic;
