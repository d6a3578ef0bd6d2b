//! `cargo xtask dispatch` as a user starts it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

const TOKENS: usize = 21;
const HIDDEN: usize = 256;
const TOP_K: usize = 2;

/// 21 tokens of 256 BF16 elements, each for two of eight experts; every fifth has one only.
fn folder_with_input() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.safetensors");
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let values: Vec<u8> = (0..TOKENS * HIDDEN)
        .flat_map(|_| ((random() % 0x200 + 0x3F00 + ((random() & 1) << 15)) as u16).to_le_bytes())
        .collect();
    let ids: Vec<u8> = (0..TOKENS as u32)
        .flat_map(|token| {
            let first = random() % 8;
            [
                first as i32,
                if token % 5 == 0 {
                    -1
                } else {
                    (first as i32 + 3) % 8
                },
            ]
        })
        .flat_map(i32::to_le_bytes)
        .collect();
    let tensors = [
        (
            "hidden_states",
            TensorView::new(Dtype::BF16, vec![TOKENS, HIDDEN], &values).unwrap(),
        ),
        (
            "topk_ids",
            TensorView::new(Dtype::I32, vec![TOKENS, TOP_K], &ids).unwrap(),
        ),
    ];
    fs::write(&input, safetensors::serialize(tensors, None).unwrap()).unwrap();
    (folder, input)
}

fn dispatch(input: &Path, output: &Path, backend: &str, arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("dispatch").arg(input).arg("-o").arg(output);
    command
        .args(arguments.split_whitespace())
        .args(["--backend", backend]);
    command.output().unwrap()
}

fn succeed(output: Output) {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
}

fn i32s(file: &SafeTensors<'_>, name: &str) -> Vec<i32> {
    let tensor = file.tensor(name).unwrap();
    let words = tensor.data().as_chunks::<4>().0.iter();
    words.map(|&bytes| i32::from_le_bytes(bytes)).collect()
}

#[test]
fn the_emulator_and_the_reference_write_the_same_file() {
    let (folder, input) = folder_with_input();
    for arguments in [
        "--format bf16 --ranks 3 --experts 9 --tokens-per-rank 20,0,1",
        "--format fp8 --ranks 2 --experts 8 --fused --shared-expert",
        "--format nvfp4 --ranks 4 --experts 8 --fused",
        "--format mxfp4 --ranks 4 --experts 8",
        "--format mxfp4 --ranks 1 --experts 8 --scale-rounding floor",
        "--format mxfp4 --ranks 2 --experts 8 --preshuffle 32 --fused --shared-expert",
        "--format mxfp8 --ranks 2 --experts 8 --skip-a2a --fused --shared-expert --scale-rounding rceil",
    ] {
        let [expected, found] = ["reference", "emulator"].map(|backend| {
            let output = folder.path().join(backend);
            let arguments = format!("{arguments} --deterministic");
            succeed(dispatch(&input, &output, backend, &arguments));
            fs::read(output).unwrap()
        });
        assert_eq!(expected, found, "{arguments}");
    }
}

#[test]
fn the_file_says_where_rows_came_from() {
    let (folder, input) = folder_with_input();
    let output = folder.path().join("out.safetensors");
    let arguments = "--format mxfp4 --ranks 4 --experts 8 --tokens-per-rank 10,0,6,5 --seed 5";
    succeed(dispatch(&input, &output, "emulator", arguments));
    let input = fs::read(&input).unwrap();
    let ids = i32s(&SafeTensors::deserialize(&input).unwrap(), "topk_ids");
    let content = fs::read(&output).unwrap();
    let file = SafeTensors::deserialize(&content).unwrap();
    let mut rows = 0;
    for rank in 0..4 {
        let tensor = |name: &str| format!("rank{rank}.{name}");
        let offsets = i32s_of_u32(&file, &tensor("row_offsets"));
        assert_eq!(i32s(&file, &tensor("expert_ids")), [0, 1]);
        let sources = i32s(&file, &tensor("src_rank"));
        let info = i32s(&file, &tensor("src_info"));
        let shape = |name: &str| file.tensor(&tensor(name)).unwrap().shape().to_vec();
        assert_eq!(shape("tokens"), [sources.len(), HIDDEN / 2]);
        assert_eq!(shape("scales"), [sources.len(), HIDDEN / 32]);
        for (row, (&source, pair)) in sources.iter().zip(info.chunks(2)).enumerate() {
            let expert = 2 * rank + i32::from(row as i32 >= offsets[1]);
            let token = [0, 10, 10, 16][source as usize] + pair[0] as usize;
            assert_eq!(
                ids[token * TOP_K + pair[1] as usize],
                expert,
                "rank {rank}, row {row}"
            );
        }
        rows += sources.len();
    }
    assert_eq!(rows, ids.iter().filter(|&&id| id >= 0).count());
}

/// The rows that all ranks got, those of the shared expert left out.
fn routed_rows(file: &SafeTensors<'_>, ranks: usize) -> usize {
    let sources = |rank| i32s(file, &format!("rank{rank}.src_rank"));
    let rows = (0..ranks).flat_map(sources);
    rows.filter(|&source| source >= 0).count()
}

/// `--experts` counts the experts of all ranks, with and without an exchange: every valid id is a row somewhere.
#[test]
fn every_valid_id_is_a_row_in_skip_mode_too() {
    let (folder, input) = folder_with_input();
    let content = fs::read(&input).unwrap();
    let ids = i32s(&SafeTensors::deserialize(&content).unwrap(), "topk_ids");
    let valid = ids.iter().filter(|&&id| id >= 0).count();
    let output = folder.path().join("out.safetensors");
    for backend in ["reference", "emulator"] {
        for mode in ["", "--skip-a2a", "--skip-a2a --fused --shared-expert"] {
            let arguments = format!("--format mxfp4 --ranks 2 --experts 8 {mode}");
            succeed(dispatch(&input, &output, backend, &arguments));
            let content = fs::read(&output).unwrap();
            let file = SafeTensors::deserialize(&content).unwrap();
            assert_eq!(routed_rows(&file, 2), valid, "{backend} {mode}");
            for rank in 0..2 {
                let groups = 4 + usize::from(mode.contains("shared"));
                let ids = i32s(&file, &format!("rank{rank}.expert_ids"));
                assert_eq!(ids.len(), groups, "{backend} {mode}");
            }
        }
    }
}

#[test]
fn each_format_has_its_own_scale_rounding() {
    let (folder, input) = folder_with_input();
    let output = folder.path().join("out.safetensors");
    for backend in ["reference", "emulator"] {
        let bytes = |format: &str, rounding: &str| {
            let arguments =
                format!("--format {format} --ranks 2 --experts 8 --deterministic {rounding}");
            succeed(dispatch(&input, &output, backend, &arguments));
            fs::read(&output).unwrap()
        };
        let [even, rceil] = ["--scale-rounding even", "--scale-rounding rceil"];
        assert_eq!(bytes("mxfp4", ""), bytes("mxfp4", even), "{backend}");
        assert_eq!(bytes("mxfp8", ""), bytes("mxfp8", rceil), "{backend}");
        assert_ne!(bytes("mxfp8", ""), bytes("mxfp8", even), "{backend}");
    }
}

fn i32s_of_u32(file: &SafeTensors<'_>, name: &str) -> Vec<i32> {
    assert_eq!(file.tensor(name).unwrap().dtype(), Dtype::U32);
    i32s(file, name)
}

/// `run` takes tokens that can be dispatched through a whole layer.
#[test]
fn the_demonstration_ends_with_a_layer() {
    let (folder, input) = folder_with_input();
    let out = folder.path().join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("run").arg("--input").arg(&input);
    command.arg("--out").arg(&out);
    succeed(command.args(["--backend", "emulator"]).output().unwrap());
    let results = fs::read(out.join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_slice(&results).unwrap();
    let layers = results["layers"].as_array().unwrap();
    let error = |format: &str| {
        let layer = layers.iter().find(|layer| layer["format"] == format);
        let layer = layer.unwrap();
        assert!(layer["difference"].is_null(), "{layer}");
        assert_eq!(layer["tokens"], TOKENS, "{layer}");
        layer["error"].as_f64().unwrap()
    };
    assert!(10.0 * error("bf16") < error("mxfp4"));
    assert!(error("mxfp8") < error("nvfp4"));
}

#[test]
fn what_cannot_be_dispatched_is_refused() {
    let (folder, input) = folder_with_input();
    let output = folder.path().join("out.safetensors");
    fs::write(&output, "precious").unwrap();
    for (arguments, code, says) in [
        (
            "--format mxfp4 --ranks 3 --experts 8",
            1,
            "8 experts cannot be divided evenly among 3",
        ),
        ("--format mxfp4 --ranks 0 --experts 8", 2, "invalid value"),
        (
            "--format fp4 --ranks 2 --experts 8",
            2,
            "possible values: bf16, fp8, nvfp4, mxfp4, mxfp8",
        ),
        (
            "--format mxfp4 --ranks 2 --experts 8 --shared-expert",
            2,
            "--fused",
        ),
        (
            "--format mxfp4 --ranks 2 --experts 8 --tokens-per-rank 20,2",
            1,
            "adds up to 22",
        ),
        (
            "--format mxfp4 --ranks 2 --experts 8 --tokens-per-rank 21",
            1,
            "names 1 ranks",
        ),
        (
            "--format nvfp4 --ranks 2 --experts 8 --preshuffle 32",
            1,
            "MX formats",
        ),
        (
            "--format fp8 --ranks 2 --experts 8 --scale-rounding even",
            1,
            "fp8 has none",
        ),
        (
            "--format mxfp4 --ranks 2 --experts 8 --preshuffle 33",
            1,
            "33",
        ),
    ] {
        for backend in ["reference", "emulator"] {
            let result = dispatch(&input, &output, backend, arguments);
            let complaint = String::from_utf8(result.stderr).unwrap();
            assert_eq!(result.status.code(), Some(code), "{arguments}: {complaint}");
            assert!(complaint.contains(says), "{arguments}: {complaint}");
        }
    }
    assert_eq!(fs::read(&output).unwrap(), b"precious");
}
