//! The two expansions of `#[kernel]`: a PTX entry, and a function with typed arguments for the CPU.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ItemFn};

use crate::hints::{KernelHints, MAX_BLOCKS, MAX_THREADS};
use crate::signature::{self, Argument, Param, Passing};

pub fn kernel(hints: &KernelHints, item: ItemFn) -> syn::Result<TokenStream> {
    let params = signature::parse(&item)?;
    let bounds = launch_bounds(hints, &item.sig.ident.to_string());
    let gpu = entry(&item, &params);
    let cpu = function(&item, &params);
    let args = args_module(hints, &item, &params);
    Ok(quote! {
        #bounds
        #gpu
        #cpu
        #args
    })
}

/// Checks that need the types: each parameter is `Copy` and has a layout the ABI can carry.
fn parameter_checks(params: &[Param]) -> TokenStream {
    let checks = params.iter().map(|param| {
        let ty = &param.ty;
        match &param.passing {
            Passing::Reference { target } => quote_spanned! { ty.span() =>
                const _: () = ::cuda_std::rt::check_reference::<#target>();
            },
            Passing::Value | Passing::Slice { .. } => quote_spanned! { ty.span() =>
                const _: () = ::cuda_std::rt::check_parameter::<#ty>();
            },
        }
    });
    quote!(#(#checks)*)
}

/// The `extern "ptx-kernel"` entry.
fn entry(item: &ItemFn, params: &[Param]) -> TokenStream {
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = item;
    let name = &sig.ident;
    let checks = parameter_checks(params);
    let mut abi = Vec::new();
    let mut rebuilt = Vec::new();
    for (param, input) in params.iter().zip(&sig.inputs) {
        let Param { name, ty, passing } = param;
        match passing {
            Passing::Value | Passing::Reference { .. } => abi.push(quote!(#input)),
            Passing::Slice { element, len } => {
                abi.push(quote!(#name: *const #element, #len: usize));
                rebuilt.push(quote! {
                    // SAFETY: the launch passed a slice in these two arguments.
                    let #name: #ty = unsafe { ::cuda_std::rt::slice(#name, #len) };
                });
            }
        }
    }
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #[unsafe(no_mangle)]
        #vis unsafe extern "ptx-kernel" fn #name(#(#abi),*) {
            #checks
            #(#rebuilt)*
            #block
        }
    }
}

/// Checks the launch bounds and leaves them in the PTX module as a comment.
fn launch_bounds(hints: &KernelHints, name: &str) -> Option<TokenStream> {
    let max_threads = hints.max_threads.as_ref()?;
    let mut comment = format!("// cuda_std.launch_bounds {name} max_threads={{}}");
    let mut checks = check_bound(max_threads, MAX_THREADS);
    let min_blocks = hints.min_blocks.as_ref().map(|min_blocks| {
        comment.push_str(" min_blocks={}");
        checks.extend(check_bound(min_blocks, MAX_BLOCKS));
        quote!(, const #min_blocks)
    });
    Some(quote! {
        #checks
        #[cfg(target_arch = "nvptx64")]
        ::core::arch::global_asm!(#comment, const #max_threads #min_blocks);
    })
}

/// For bounds that are not literals, whose value the macro cannot see.
fn check_bound(bound: &Expr, max: u32) -> TokenStream {
    quote_spanned! { bound.span() =>
        const _: () = ::cuda_std::rt::check_bound(#bound, #max);
    }
}

/// The kernel as a plain function.
fn function(item: &ItemFn, params: &[Param]) -> TokenStream {
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = item;
    let checks = parameter_checks(params);
    let mut sig = sig.clone();
    sig.abi = None;
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #(#attrs)*
        #vis #sig {
            #checks
            #block
        }
    }
}

/// `mod NAME { struct Args }` and its `KernelArgs` implementation.
fn args_module(hints: &KernelHints, item: &ItemFn, params: &[Param]) -> TokenStream {
    let ItemFn { vis, sig, .. } = item;
    let name = &sig.ident;
    let name_text = name.to_string();
    let arguments: Vec<Argument> = params.iter().flat_map(Param::arguments).collect();
    let fields: Vec<_> = arguments.iter().map(|argument| &argument.name).collect();
    let types: Vec<_> = arguments.iter().map(|argument| &argument.ty).collect();
    let docs = arguments.iter().map(|argument| &argument.doc);
    let field_names = fields.iter().map(|field| field.to_string());
    let type_names = types.iter().map(|ty| signature::spelling(ty));
    let count = arguments.len();
    let max_threads = optional(hints.max_threads.as_ref());
    let min_blocks = optional(hints.min_blocks.as_ref());
    let passed = params
        .iter()
        .map(|Param { name, passing, .. }| match passing {
            Passing::Value => quote!(self.#name),
            Passing::Reference { .. } => quote!(&*self.#name),
            Passing::Slice { len, .. } => quote!(::cuda_std::rt::slice(self.#name, self.#len)),
        });
    let module_doc = format!("The launch arguments of the kernel [`{name}`](fn@{name}).");
    let struct_doc = format!(
        "Arguments of one launch of [`{name}`](fn@super::{name}), in the order of the kernel's parameters."
    );
    quote! {
        #[cfg(not(target_arch = "nvptx64"))]
        #[doc = #module_doc]
        #vis mod #name {
            #[allow(unused_imports)]
            use super::*;

            #[doc = #struct_doc]
            pub struct Args {
                #(#[doc = #docs] pub #fields: #types,)*
            }

            // Not derived: for a parameter that is not `Copy`, deriving reports more than that.
            impl ::core::clone::Clone for Args {
                fn clone(&self) -> Self {
                    *self
                }
            }

            impl ::core::marker::Copy for Args {}

            // SAFETY: plain values for a launch. Device pointers mean the same in every host
            // thread, and the emulator orders the kernel's accesses to them.
            unsafe impl ::core::marker::Send for Args {}
            // SAFETY: as above.
            unsafe impl ::core::marker::Sync for Args {}

            // SAFETY: the list below is the parameter list of the PTX entry, which the same macro
            // call made, and every pointer of `with_params` points at a field of that type.
            unsafe impl ::cuda_std::launch::KernelArgs for Args {
                const KERNEL: ::cuda_std::launch::KernelInfo = ::cuda_std::launch::KernelInfo {
                    name: #name_text,
                    max_threads: #max_threads,
                    min_blocks: #min_blocks,
                    params: &[#(::cuda_std::launch::Param {
                        name: #field_names,
                        ty: #type_names,
                        size: ::core::mem::size_of::<#types>(),
                        align: ::core::mem::align_of::<#types>(),
                    },)*],
                };

                fn with_params<R>(
                    &self,
                    f: impl ::core::ops::FnOnce(&mut [*mut ::core::ffi::c_void]) -> R,
                ) -> R {
                    let mut params: [*mut ::core::ffi::c_void; #count] =
                        [#((&raw const self.#fields).cast_mut().cast(),)*];
                    f(&mut params)
                }

                unsafe fn call(self) {
                    // SAFETY: the caller vouches for the arguments and for being an emulated thread.
                    unsafe { super::#name(#(#passed),*) }
                }
            }
        }
    }
}

fn optional(bound: Option<&Expr>) -> TokenStream {
    match bound {
        Some(bound) => quote!(::core::option::Option::Some(#bound)),
        None => quote!(::core::option::Option::None),
    }
}
