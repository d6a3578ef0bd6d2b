//! The options of `#[kernel(...)]`.

use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Expr, Ident, LitInt, Token};

/// The largest block of any device.
pub const MAX_THREADS: u32 = 1024;

/// The most blocks that share a multiprocessor on any device.
pub const MAX_BLOCKS: u32 = 32;

/// What was written between the parentheses of `#[kernel(...)]`.
#[derive(Default)]
pub struct KernelHints {
    /// Upper bound of the threads in a block, a constant expression.
    pub max_threads: Option<Expr>,
    /// Blocks that should fit on one multiprocessor, a constant expression.
    pub min_blocks: Option<Expr>,
}

impl Parse for KernelHints {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut hints = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for hint in Punctuated::<Hint, Token![,]>::parse_terminated(input)? {
            let key = hint.name.to_string();
            if seen.contains(&key) {
                return Err(Error::new(
                    hint.name.span(),
                    format!("`{key}` is given twice"),
                ));
            }
            seen.push(key);
            match hint.value {
                HintValue::MaxThreads(bound) => hints.max_threads = Some(bound),
                HintValue::MinBlocks(bound) => hints.min_blocks = Some(bound),
                HintValue::Dimension => {}
            }
        }
        if let (Some(bound), None) = (&hints.min_blocks, &hints.max_threads) {
            return Err(Error::new_spanned(
                bound,
                "`min_blocks` needs `max_threads`: registers are divided among the threads of a block",
            ));
        }
        Ok(hints)
    }
}

struct Hint {
    name: Ident,
    value: HintValue,
}

enum HintValue {
    MaxThreads(Expr),
    MinBlocks(Expr),
    Dimension,
}

impl Parse for Hint {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name: Ident = input.parse()?;
        input.parse::<Token![=]>()?;
        let value = match name.to_string().as_str() {
            "max_threads" => HintValue::MaxThreads(bound(input, MAX_THREADS)?),
            "min_blocks" => HintValue::MinBlocks(bound(input, MAX_BLOCKS)?),
            "grid_dim" | "block_dim" => {
                dimension(input)?;
                HintValue::Dimension
            }
            _ => {
                return Err(Error::new(
                    name.span(),
                    "unknown kernel option, expected one of `max_threads`, `min_blocks`, `grid_dim`, `block_dim`",
                ));
            }
        };
        Ok(Self { name, value })
    }
}

/// A constant expression. A literal is checked here, where the message can point at it; anything
/// else is checked when the constant is evaluated.
fn bound(input: ParseStream<'_>, max: u32) -> syn::Result<Expr> {
    let expr: Expr = input.parse()?;
    if let Expr::Lit(literal) = &expr
        && !matches!(&literal.lit, syn::Lit::Int(n)
            if n.base10_parse::<u32>().is_ok_and(|n| (1..=max).contains(&n)))
    {
        return Err(Error::new_spanned(
            literal,
            format!("expected an integer from 1 to {max}"),
        ));
    }
    Ok(expr)
}

/// `1d`, `2D`, ...: to the lexer an integer literal with a suffix.
fn dimension(input: ParseStream<'_>) -> syn::Result<()> {
    let literal: LitInt = input.parse()?;
    let known =
        matches!(literal.base10_digits(), "1" | "2" | "3") && matches!(literal.suffix(), "d" | "D");
    if known {
        Ok(())
    } else {
        Err(Error::new(
            literal.span(),
            "invalid dimension, expected `1d`, `2d` or `3d`",
        ))
    }
}
