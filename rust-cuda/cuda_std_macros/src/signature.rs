//! Checks a kernel's signature and lowers its parameters to the kernel ABI.

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, format_ident};
use syn::spanned::Spanned;
use syn::{Error, FnArg, Ident, ItemFn, Pat, PatType, ReturnType, Type};

/// One parameter of a kernel.
pub struct Param {
    pub name: Ident,
    /// The type as written, for the checks that point at it.
    pub ty: Type,
    pub passing: Passing,
}

/// How a parameter crosses the kernel ABI.
pub enum Passing {
    /// As it is.
    Value,
    /// `&T` as one `*const T`.
    Reference { target: Type },
    /// `&[T]` as `*const T` and a length.
    Slice { element: Type, len: Ident },
}

/// One argument of the launch, after slices were split.
pub struct Argument {
    pub name: Ident,
    pub ty: TokenStream,
    pub doc: String,
}

impl Param {
    /// The launch arguments this parameter turns into, in order.
    pub fn arguments(&self) -> Vec<Argument> {
        let name = self.name.clone();
        match &self.passing {
            Passing::Value => vec![Argument {
                ty: self.ty.to_token_stream(),
                doc: format!("Kernel parameter `{name}`."),
                name,
            }],
            Passing::Reference { target } => vec![Argument {
                ty: quote::quote!(*const #target),
                doc: format!(
                    "Kernel parameter `{name}`: device memory nobody writes during the launch."
                ),
                name,
            }],
            Passing::Slice { element, len } => vec![
                Argument {
                    ty: quote::quote!(*const #element),
                    doc: format!(
                        "Kernel parameter `{name}`: its first element, in device memory that \
                         nobody writes during the launch."
                    ),
                    name: name.clone(),
                },
                Argument {
                    name: len.clone(),
                    ty: quote::quote!(usize),
                    doc: format!("Kernel parameter `{name}`: its length in elements."),
                },
            ],
        }
    }
}

/// Checks everything about a kernel's signature that does not need type information.
///
/// All mistakes are reported at once.
pub fn parse(item: &ItemFn) -> syn::Result<Vec<Param>> {
    let mut errors = Errors::default();
    let sig = &item.sig;
    if sig.unsafety.is_none() {
        errors.push(
            sig.fn_token.span,
            "kernel functions must be marked `unsafe`: nothing checks what a launch passes them",
        );
    }
    if let Some(token) = &sig.asyncness {
        errors.push(token.span, "kernel functions cannot be `async`");
    }
    if let Some(token) = &sig.constness {
        errors.push(token.span, "kernel functions cannot be `const`");
    }
    if let Some(abi) = &sig.abi
        && abi.name.as_ref().is_some_and(|name| name.value() != "C")
    {
        errors.push(
            abi.span(),
            "the ABI of a kernel is chosen by the target, leave it out",
        );
    }
    if !sig.generics.params.is_empty() || sig.generics.where_clause.is_some() {
        errors.push(
            sig.generics.span(),
            "kernel functions cannot be generic: a kernel is one entry point with one name. \
             Call a generic device function from one kernel per instantiation",
        );
    }
    if let Some(variadic) = &sig.variadic {
        errors.push(variadic.span(), "kernel functions cannot be variadic");
    }
    if let ReturnType::Type(_, ty) = &sig.output
        && !matches!(&**ty, Type::Tuple(unit) if unit.elems.is_empty())
    {
        errors.push(
            ty.span(),
            "kernel functions cannot return anything: write results to device memory",
        );
    }

    let mut params = Vec::new();
    for input in &sig.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                errors.push(receiver.span(), "kernel functions cannot be methods");
            }
            FnArg::Typed(param) => match lower(param) {
                Ok(param) => params.push(param),
                Err(error) => errors.combine(error),
            },
        }
    }
    for param in &params {
        if let Passing::Slice { len, .. } = &param.passing
            && let Some(clash) = params.iter().find(|other| other.name == *len)
        {
            errors.push(
                clash.name.span(),
                &format!(
                    "`{len}` is the name of the length of the slice `{}`: choose another",
                    param.name
                ),
            );
        }
    }
    errors.finish().map(|()| params)
}

fn lower(param: &PatType) -> syn::Result<Param> {
    let name = match &*param.pat {
        Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => pat.ident.clone(),
        other => {
            return Err(Error::new_spanned(
                other,
                "a kernel parameter is a plain name: the launch refers to it",
            ));
        }
    };
    let passing = match ungroup(&param.ty) {
        Type::Reference(reference) if reference.mutability.is_some() => {
            return Err(Error::new_spanned(
                &param.ty,
                "a kernel cannot take `&mut`: every thread would hold the same exclusive \
                 reference. Take a `*mut` pointer",
            ));
        }
        Type::Reference(reference) => match ungroup(&reference.elem) {
            Type::Slice(slice) => Passing::Slice {
                element: (*slice.elem).clone(),
                len: format_ident!("{name}_len", span = name.span()),
            },
            target => Passing::Reference {
                target: target.clone(),
            },
        },
        Type::ImplTrait(ty) => {
            return Err(Error::new_spanned(
                ty,
                "kernel functions cannot be generic: `impl Trait` has no single layout",
            ));
        }
        _ => Passing::Value,
    };
    Ok(Param {
        name,
        ty: (*param.ty).clone(),
        passing,
    })
}

/// Sees through the invisible group a `$t:ty` fragment arrives in, and through parentheses.
fn ungroup(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Group(group) => &group.elem,
            Type::Paren(paren) => &paren.elem,
            other => return other,
        };
    }
}

/// Spells a type the way people write it: the tokens of `*const [f32; 4]` print as
/// `* const [f32 ; 4]`.
pub fn spelling(ty: &TokenStream) -> String {
    fn append(tokens: TokenStream, out: &mut String) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        proc_macro2::Delimiter::Parenthesis => ("(", ")"),
                        proc_macro2::Delimiter::Bracket => ("[", "]"),
                        proc_macro2::Delimiter::Brace => ("{", "}"),
                        proc_macro2::Delimiter::None => ("", ""),
                    };
                    space_before_word(out, open.is_empty());
                    out.push_str(open);
                    append(group.stream(), out);
                    out.push_str(close);
                }
                TokenTree::Punct(punct) => {
                    out.push(punct.as_char());
                    if matches!(punct.as_char(), ',' | ';') {
                        out.push(' ');
                    }
                }
                word => {
                    space_before_word(out, true);
                    out.push_str(&word.to_string());
                }
            }
        }
    }
    fn space_before_word(out: &mut String, word_follows: bool) {
        if word_follows && out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            out.push(' ');
        }
    }
    let mut out = String::new();
    append(ty.clone(), &mut out);
    // `*const [T]`, `*mut (A, B)`: a keyword before a bracket.
    for keyword in ["const", "mut"] {
        for bracket in ['[', '('] {
            out = out.replace(
                &format!("{keyword}{bracket}"),
                &format!("{keyword} {bracket}"),
            );
        }
    }
    out
}

#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn push(&mut self, span: proc_macro2::Span, message: &str) {
        self.combine(Error::new(span, message));
    }

    fn combine(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
