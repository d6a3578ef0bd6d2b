//! Comparing bit for bit, and saying where and how two things differ.

use std::fmt;

use anyhow::{Result, bail};

/// The first difference between two runs of bytes, and how many there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What was compared.
    pub what: String,
    /// Index of the first difference.
    pub index: usize,
    /// Where that is, in coordinates.
    pub place: String,
    /// Expected and found values with their bit patterns.
    pub values: String,
    /// How many differ.
    pub differing: usize,
    /// How many were compared.
    pub total: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            index,
            place,
            values,
            differing,
            total,
        } = self;
        write!(
            f,
            "{what}: {differing} of {total} differ, first at index {index} ({place}): {values}"
        )
    }
}

impl std::error::Error for Mismatch {}

/// Compares bytes. `place` turns an index into coordinates.
///
/// # Errors
/// The first difference.
pub fn bytes(
    what: &str,
    expected: &[u8],
    found: &[u8],
    place: impl Fn(usize) -> String,
) -> Result<()> {
    each(
        what,
        expected,
        found,
        |a, b| a == b,
        place,
        |a, b| format!("expected {a:#04x} ({a:#010b}), found {b:#04x} ({b:#010b})"),
    )
}

/// Compares words, bit patterns of elements for example. `place` turns an index into coordinates.
///
/// # Errors
/// The first difference.
pub fn words(
    what: &str,
    expected: &[u32],
    found: &[u32],
    place: impl Fn(usize) -> String,
) -> Result<()> {
    each(what, expected, found, u32::eq, place, |a, b| {
        format!("expected {a:#010x}, found {b:#010x}")
    })
}

/// Compares FP32 values by their bits, except that any NaN equals any other.
///
/// # Errors
/// The first difference.
pub fn floats(
    what: &str,
    expected: &[f32],
    found: &[f32],
    place: impl Fn(usize) -> String,
) -> Result<()> {
    let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    each(what, expected, found, same, place, |a, b| {
        let (a_bits, b_bits) = (a.to_bits(), b.to_bits());
        format!("expected {a:e} ({a_bits:#010x}), found {b:e} ({b_bits:#010x})")
    })
}

/// Compares anything that can be printed.
///
/// # Errors
/// The first difference.
pub fn values<T: PartialEq + fmt::Debug>(what: &str, expected: &[T], found: &[T]) -> Result<()> {
    each(
        what,
        expected,
        found,
        T::eq,
        |index| index.to_string(),
        |a, b| format!("expected {a:?}, found {b:?}"),
    )
}

fn each<T>(
    what: &str,
    expected: &[T],
    found: &[T],
    same: impl Fn(&T, &T) -> bool,
    place: impl Fn(usize) -> String,
    values: impl Fn(&T, &T) -> String,
) -> Result<()> {
    if expected.len() != found.len() {
        bail!(
            "{what}: {} values expected, {} found",
            expected.len(),
            found.len()
        );
    }
    let mut differing = (0..expected.len()).filter(|&index| !same(&expected[index], &found[index]));
    let Some(index) = differing.next() else {
        return Ok(());
    };
    Err(Mismatch {
        what: what.to_owned(),
        index,
        place: place(index),
        values: values(&expected[index], &found[index]),
        differing: 1 + differing.count(),
        total: expected.len(),
    }
    .into())
}
