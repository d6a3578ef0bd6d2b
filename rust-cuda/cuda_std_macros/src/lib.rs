//! The attribute macros of `cuda_std`, which re-exports them: use them from there.
//!
//! * [`macro@kernel`] makes a function a kernel: an entry point in PTX, a plain function with a typed
//!   argument list on the CPU;
//! * [`macro@gpu_only`] gives a device function a CPU twin that panics;
//! * [`macro@externally_visible`] and [`macro@address_space`] say where a symbol lives.

mod device_items;
mod expand;
mod hints;
mod signature;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Registers a function as a kernel.
///
/// The documentation of `cuda_std` begins with one.
///
/// # Signature
///
/// The function must be `unsafe`, must not be a method, `async`, `const` or generic, and returns
/// nothing. Each parameter is a plain name and its type is `Copy`, not zero-sized and aligned to
/// at most 16 bytes (the PTX backend cannot pass more: hand over a pointer instead).
///
/// * `&[T]` becomes two arguments, `*const T` and the length as `usize`, and is a slice again in the
///   body.
/// * `&T` is passed as one pointer. It promises that nobody writes the value while the kernel runs.
/// * `&mut [T]` and `&mut T` are rejected: every thread would hold the same exclusive reference.
///
/// # Options
///
/// * `max_threads = N`: the block never has more than `N` threads (a constant expression, 1 to 1024).
/// * `min_blocks = N`: registers are allotted such that `N` blocks fit on a multiprocessor; needs
///   `max_threads`.
/// * `grid_dim = 1d`, `block_dim = 2d` and so on are accepted for the sake of older kernels and change
///   nothing.
///
/// # Expansion
///
/// For `nvptx64` the function becomes an `extern "ptx-kernel"` entry of the same name. The language
/// cannot express launch bounds, so they are left in the module as a comment,
/// `// cuda_std.launch_bounds NAME max_threads=N min_blocks=N`, for `cuda_builder` to act on.
///
/// For other targets the function stays what it is, and a module of the same name appears beside it
/// with `struct Args`, one public field per kernel argument (a slice `x` is `x` and `x_len`), which
/// implements `cuda_std::launch::KernelArgs`. The names in the signature are resolved in the
/// enclosing module, so a kernel stands at module level, not inside a function.
#[proc_macro_attribute]
pub fn kernel(attr: TokenStream, item: TokenStream) -> TokenStream {
    let hints = parse_macro_input!(attr as hints::KernelHints);
    let item = parse_macro_input!(item as syn::ItemFn);
    expand::kernel(&hints, item)
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Compiles a function for `nvptx64` only, with a CPU version that panics when called.
///
/// For device functions that have no meaning on a CPU. Functions that have one branch on
/// `cfg(target_arch = "nvptx64")` instead.
#[proc_macro_attribute]
pub fn gpu_only(_attr: TokenStream, item: TokenStream) -> TokenStream {
    device_items::gpu_only(parse_macro_input!(item as syn::ItemFn)).into()
}

/// Marks a `#[no_mangle]` function that other PTX modules may call.
///
/// rustc keeps every `no_mangle` function of a PTX module, so this only checks that it is one.
#[proc_macro_attribute]
pub fn externally_visible(_attr: TokenStream, item: TokenStream) -> TokenStream {
    device_items::externally_visible(parse_macro_input!(item as syn::ItemFn))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}

/// Asks for the memory space of a `static`: `global`, `constant`, `shared` or `local`.
///
/// rustc's PTX backend puts every static into global memory. So `global` says what happens anyway;
/// `constant` is accepted for an immutable static, which is then read through the read-only data
/// cache; `shared` and `local` would change what the program means (one copy per grid instead of one
/// per block or thread) and are rejected for `nvptx64`: use `shared_array!` or a local variable.
/// Nothing is checked or changed on the CPU beyond the spelling.
#[proc_macro_attribute]
pub fn address_space(attr: TokenStream, item: TokenStream) -> TokenStream {
    let space = parse_macro_input!(attr as syn::Ident);
    device_items::address_space(&space, &parse_macro_input!(item as syn::ItemStatic))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
