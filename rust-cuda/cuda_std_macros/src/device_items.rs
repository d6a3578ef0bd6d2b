//! The small attributes: `gpu_only`, `externally_visible`, `address_space`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Attribute, Error, Ident, ItemFn, ItemStatic, Signature, StaticMutability};

pub fn gpu_only(item: ItemFn) -> TokenStream {
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = item;
    let message = format!("`{}` runs on a GPU only", sig.ident);
    let cpu_sig = Signature {
        abi: None,
        ..sig.clone()
    };
    quote! {
        #[cfg(target_arch = "nvptx64")]
        #(#attrs)*
        #vis #sig #block

        #[cfg(not(target_arch = "nvptx64"))]
        #[allow(unused_variables)]
        #(#attrs)*
        #vis #cpu_sig {
            ::core::unimplemented!(#message)
        }
    }
}

pub fn externally_visible(item: ItemFn) -> syn::Result<TokenStream> {
    if item.attrs.iter().any(is_no_mangle) {
        Ok(item.into_token_stream())
    } else {
        Err(Error::new(
            item.sig.ident.span(),
            "an `#[externally_visible]` function must also be `#[no_mangle]`",
        ))
    }
}

/// `#[no_mangle]` or `#[unsafe(no_mangle)]`.
fn is_no_mangle(attr: &Attribute) -> bool {
    attr.path().is_ident("no_mangle")
        || attr.path().is_ident("unsafe")
            && attr
                .parse_args::<Ident>()
                .is_ok_and(|inner| inner == "no_mangle")
}

pub fn address_space(space: &Ident, item: &ItemStatic) -> syn::Result<TokenStream> {
    let mutable = !matches!(item.mutability, StaticMutability::None);
    let refusal = match space.to_string().as_str() {
        "global" => None,
        "constant" if !mutable => None,
        "constant" => {
            return Err(Error::new(
                space.span(),
                "a `static mut` cannot be in constant memory",
            ));
        }
        "shared" => Some(
            "the PTX backend has no shared statics: use `cuda_std::shared_array!` or \
             `cuda_std::shared::dynamic_shared_mem`",
        ),
        "local" => Some("the PTX backend has no thread-local statics: use a local variable"),
        _ => {
            return Err(Error::new(
                space.span(),
                "unknown address space, expected `global`, `constant`, `shared` or `local`",
            ));
        }
    };
    let refusal = refusal.map(|message| {
        quote! {
            #[cfg(target_arch = "nvptx64")]
            ::core::compile_error!(#message);
        }
    });
    Ok(quote! {
        #refusal
        #item
    })
}
