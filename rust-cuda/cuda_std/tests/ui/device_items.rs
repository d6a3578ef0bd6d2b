//! The other attributes.

use cuda_std::{address_space, externally_visible};

#[externally_visible]
pub fn mangled() {}

#[address_space(texture)]
static TEXTURE: u32 = 0;

#[address_space(constant)]
static mut MUTABLE: u32 = 0;

fn main() {}
