//! What the attributes reject, and how they say so.
//!
//! `TRYBUILD=overwrite cargo test -p cuda_std --test ui` writes the expected messages anew.

#[test]
fn rejections() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
