//! Bit-for-bit comparison with the reference.

use std::fmt;

use crate::files::QuantizedFile;

/// The first of the bytes that differ, with its coordinates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `data` or `scales`.
    pub tensor: &'static str,
    /// How many bytes of the tensor differ.
    pub bytes: usize,
    /// Index of the first.
    pub index: usize,
    /// Where that is, in words.
    pub place: String,
    /// The byte that was produced.
    pub found: u8,
    /// The reference's byte.
    pub expected: u8,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tensor,
            bytes,
            index,
            place,
            found,
            expected,
        } = self;
        write!(
            f,
            "{bytes} bytes of `{tensor}` differ from the reference, the first at byte {index} \
             ({place}): found {found:#04x}, expected {expected:#04x}"
        )
    }
}

/// Compares `data` and `scales`; `None` if every byte is the same.
pub fn first_difference(found: &QuantizedFile, expected: &QuantizedFile) -> Option<Difference> {
    let bytes_per_row = found.format.bytes_per_row(found.columns).max(1);
    let data = between("data", &found.data, &expected.data, |index| {
        format!(
            "row {}, byte {} of the row",
            index / bytes_per_row,
            index % bytes_per_row
        )
    });
    data.or_else(|| {
        let column_tiles = found.format.column_tiles(found.columns).max(1);
        between("scales", &found.scales, &expected.scales, |index| {
            // One tile: 32 x 4 x 4 bytes, which are row mod 32, row / 32, block.
            let (tile, byte) = (index / 512, index % 512);
            let row = byte / 16 + byte % 16 / 4 * 32;
            format!(
                "tile [{}, {}], row {row} of 128, block {} of 4",
                tile / column_tiles,
                tile % column_tiles,
                byte % 4
            )
        })
    })
}

/// The first decoded value with other bits than the reference's, in words; any NaN is as good as
/// another. `None` if there is no such value.
pub fn first_wrong_value(found: &[f32], expected: &[f32], columns: usize) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!(
            "{} decoded values, expected {}",
            found.len(),
            expected.len()
        ));
    }
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let index = found.iter().zip(expected).position(|pair| !same(pair))?;
    let (row, column) = (index / columns.max(1), index % columns.max(1));
    let (found, expected) = (found[index], expected[index]);
    Some(format!(
        "decoded row {row}, column {column}: found {found:e} ({:#010x}), expected {expected:e} ({:#010x})",
        found.to_bits(),
        expected.to_bits(),
    ))
}

/// Compares two tensors of bytes; `place` puts an index into words.
pub fn between(
    tensor: &'static str,
    found: &[u8],
    expected: &[u8],
    place: impl Fn(usize) -> String,
) -> Option<Difference> {
    if found.len() != expected.len() {
        let index = found.len().min(expected.len());
        return Some(Difference {
            tensor,
            bytes: found.len().abs_diff(expected.len()),
            index,
            place: format!("{} bytes long, expected {}", found.len(), expected.len()),
            found: found.get(index).copied().unwrap_or_default(),
            expected: expected.get(index).copied().unwrap_or_default(),
        });
    }
    let pairs = || found.iter().zip(expected);
    let index = pairs().position(|(found, expected)| found != expected)?;
    Some(Difference {
        tensor,
        bytes: pairs()
            .filter(|(found, expected)| found != expected)
            .count(),
        index,
        place: place(index),
        found: found[index],
        expected: expected[index],
    })
}

#[cfg(test)]
mod tests {
    use tokenyard::options::{Format, QuantizeOptions};
    use tokenyard::routing::Routing;

    use super::*;

    fn file() -> QuantizedFile {
        QuantizedFile {
            format: Format::Nvfp4,
            columns: 128,
            options: QuantizeOptions::default(),
            routing: Routing::from_row_offsets(&[0, 2], None, 2).unwrap(),
            source_rows: vec![0, 1],
            data: vec![0; 128],
            scales: vec![0; 1024],
            tensor_scales: vec![1.0],
        }
    }

    #[test]
    fn names_the_first_bad_coordinate() {
        let expected = file();
        assert_eq!(first_difference(&expected, &expected), None);

        let mut found = file();
        found.data[70] = 0x21;
        found.data[71] = 0x01;
        let difference = first_difference(&found, &expected).unwrap();
        assert_eq!(
            (difference.tensor, difference.bytes, difference.index),
            ("data", 2, 70)
        );
        assert_eq!(difference.place, "row 1, byte 6 of the row");
        assert!(
            difference
                .to_string()
                .ends_with("found 0x21, expected 0x00")
        );

        let mut found = file();
        // Second tile, row 33 = 1 + 32 -> byte 1 * 16 + 1 * 4, block 2.
        found.scales[512 + 22] = 0x38;
        let difference = first_difference(&found, &expected).unwrap();
        assert_eq!(difference.place, "tile [0, 1], row 33 of 128, block 2 of 4");
    }

    #[test]
    fn a_wrong_length_is_a_difference() {
        let mut found = file();
        found.scales.truncate(512);
        let difference = first_difference(&found, &file()).unwrap();
        assert_eq!((difference.tensor, difference.bytes), ("scales", 512));
    }

    #[test]
    fn decoded_values_are_compared_by_their_bits() {
        let expected = [1.0, -0.0, f32::NAN, 2.0];
        assert_eq!(first_wrong_value(&expected, &expected, 2), None);
        let mut found = expected;
        found[2] = -f32::NAN;
        assert_eq!(first_wrong_value(&found, &expected, 2), None);
        found[1] = 0.0;
        assert_eq!(
            first_wrong_value(&found, &expected, 2).unwrap(),
            "decoded row 0, column 1: found 0e0 (0x00000000), expected -0e0 (0x80000000)"
        );
        assert!(first_wrong_value(&found[1..], &expected, 2).is_some());
    }
}
