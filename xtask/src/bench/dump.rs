//! A case's bytes as files, for other programs to quantize the same input and compare the output.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use half::slice::HalfFloatSliceExt;
use serde::Serialize;
use tokenyard::Routing;

use super::record::CaseRecord;
use crate::files::HiddenStates;

/// What `case.json` says.
#[derive(Serialize)]
struct Description<'a> {
    #[serde(flatten)]
    case: &'a CaseRecord,
    row_offsets: &'a [u32],
    source_rows: Option<&'a [i32]>,
}

/// Writes `input.bin` (`[rows, columns]`, row-major), `data.bin`, `scales.bin` and `case.json` to a
/// folder named like the case, with `_` for `/`. Bytes that the quantizer leaves alone hold
/// [`POISON`](super::check::POISON).
///
/// # Errors
/// Files that cannot be written.
pub fn write(
    folder: &Path,
    case: &CaseRecord,
    rows: &HiddenStates,
    routing: &Routing,
    (data, scales): &(Vec<u8>, Vec<u8>),
) -> Result<()> {
    let folder = folder.join(case.id.replace('/', "_"));
    let description = serde_json::to_vec_pretty(&Description {
        case,
        row_offsets: routing.row_offsets(),
        source_rows: routing.source_rows(),
    })?;
    let input: &[u8] = match rows {
        HiddenStates::Bf16(values) => bytemuck::cast_slice(values.reinterpret_cast()),
        HiddenStates::F16(values) => bytemuck::cast_slice(values.reinterpret_cast()),
        HiddenStates::F32(values) => bytemuck::cast_slice(values),
    };
    let failed = || format!("cannot write to {}", folder.display());
    fs::create_dir_all(&folder).with_context(failed)?;
    for (name, bytes) in [
        ("input.bin", input),
        ("data.bin", data),
        ("scales.bin", scales),
        ("case.json", &description),
    ] {
        fs::write(folder.join(name), bytes).with_context(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::cases::{Filter, Suite, cases};
    use super::super::input::hidden_states;
    use super::*;

    #[test]
    fn files_hold_the_bytes_and_say_how_they_are_grouped() {
        let folder = tempfile::tempdir().unwrap();
        let case = cases(Suite::Marks, &Filter::default())
            .into_iter()
            .find(|case| case.shape.rows == 1)
            .unwrap();
        let rows = hidden_states(1, case.shape.columns, case.input_type);
        let routing = case.shape.routing(false).unwrap();
        let record = CaseRecord::new(&case, &routing, 2);
        write(
            folder.path(),
            &record,
            &rows,
            &routing,
            &(vec![1, 2], vec![3]),
        )
        .unwrap();
        let folder = folder.path().join("nvfp4_uniform-1x7168-e256_bf16");
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        assert_eq!(read("input.bin").len(), 2 * 7168);
        assert_eq!(
            (read("data.bin"), read("scales.bin")),
            (vec![1, 2], vec![3])
        );
        let description: serde_json::Value = serde_json::from_slice(&read("case.json")).unwrap();
        assert_eq!(description["id"], record.id);
        assert_eq!(description["row_offsets"].as_array().unwrap().len(), 257);
    }
}
