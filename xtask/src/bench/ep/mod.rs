//! `cargo xtask bench ep`: how fast tokens get to their experts, against what the path between the GPUs allows.
//!
//! A case is a number of tokens in a format, at the shape that published measurements use. Every rank is checked
//! against the reference before anything is timed. Each GPU then replays a graph of many rounds; rounds of different
//! GPUs wait for each other on the device alone. A sample is the time of the slowest GPU.

pub mod cases;
pub mod measure;
pub mod record;
