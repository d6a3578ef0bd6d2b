//! Build, run, test and inspect Tokenyard.

fn main() {}
