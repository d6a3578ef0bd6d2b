//! Everything about a signature that needs no types.

use cuda_std::kernel;

#[kernel]
pub fn safe(x: *mut f32) {
    let _ = x;
}

#[kernel]
pub unsafe fn returns(x: f32) -> f32 {
    x
}

#[kernel]
pub async unsafe fn asynchronous() {}

#[kernel]
pub const unsafe fn constant() {}

#[kernel]
pub unsafe extern "system" fn foreign() {}

#[kernel]
pub unsafe fn generic<T: Copy>(x: T) {
    let _ = x;
}

#[kernel]
pub unsafe fn sized_by_constant<const N: usize>(x: [u32; N]) {
    let _ = x;
}

#[kernel]
pub unsafe fn implicitly_generic(x: impl Copy) {
    let _ = x;
}

#[kernel]
pub unsafe fn exclusive_slice(x: &mut [f32]) {
    let _ = x;
}

#[kernel]
pub unsafe fn exclusive_reference(x: &mut f32) {
    let _ = x;
}

#[kernel]
pub unsafe fn unnamed(_: u32) {}

#[kernel]
pub unsafe fn destructured((a, b): (u32, u32)) {
    let _ = (a, b);
}

#[kernel]
pub unsafe fn length_taken(x: &[f32], x_len: u32) {
    let _ = (x, x_len);
}

#[kernel]
pub fn many_mistakes<T>(x: &mut T, _: u32) -> T {
    *x
}

struct Owner;

impl Owner {
    #[kernel]
    pub unsafe fn method(&self, x: u32) {
        let _ = x;
    }
}

macro_rules! from_a_macro {
    ($name:ident, $ty:ty) => {
        #[kernel]
        pub unsafe fn $name(x: $ty) {
            let _ = x;
        }
    };
}

from_a_macro!(expanded, &mut [u8]);

fn main() {}
