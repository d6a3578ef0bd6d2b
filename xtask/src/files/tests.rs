//! Files that are right, wrong in one way, and wrong in arbitrary ways.

use std::path::Path;

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tokenyard::options::{DeadBlocks, Format, NanPolicy, QuantizeOptions, ScaleRounding};
use tokenyard::routing::Routing;

use super::input::InputError;
use super::*;

/// Tensors of a file under construction: name, type, shape, content.
type Tensors = Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)>;

fn bytes(tensors: &Tensors) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (*name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

fn words<T: Copy, const N: usize>(values: &[T], encode: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| encode(value)).collect()
}

fn i32s(values: &[i32]) -> Vec<u8> {
    words(values, i32::to_le_bytes)
}

fn f32s(values: &[f32]) -> Vec<u8> {
    words(values, f32::to_le_bytes)
}

fn read_input(tensors: &Tensors, experts: Option<u32>) -> Result<GroupedInput, InputError> {
    let file = TensorFile::from_bytes(Path::new("input"), bytes(tensors))?;
    GroupedInput::from_file(&file, experts)
}

/// Three tokens of 16 columns, two experts each.
fn topk_input() -> Tensors {
    vec![
        ("hidden_states", Dtype::BF16, vec![3, 16], vec![0x3F; 96]),
        (
            "topk_ids",
            Dtype::I32,
            vec![3, 2],
            i32s(&[0, 2, 2, 3, -1, 0]),
        ),
    ]
}

/// Five rows of 8 columns in three slots, the middle one empty.
fn grouped_input() -> Tensors {
    vec![
        ("hidden_states", Dtype::F32, vec![5, 8], f32s(&[1.5; 40])),
        ("row_offsets", Dtype::I32, vec![4], i32s(&[0, 2, 2, 5])),
        ("expert_ids", Dtype::I32, vec![3], i32s(&[1, -1, 0])),
        ("sf", Dtype::F32, vec![2], f32s(&[2.0, 0.5])),
    ]
}

/// A file as `quantize` writes it: 200 rows of 72 columns in three slots.
fn quantized(format: Format) -> QuantizedFile {
    let routing = Routing::from_row_offsets(&[0, 130, 130, 200], Some(&[2, 0, 1]), 200).unwrap();
    let columns = 72;
    let scales = routing.occupied_tiles() * format.column_tiles(columns) * 512;
    QuantizedFile {
        format,
        columns,
        options: QuantizeOptions {
            scale_rounding: match format {
                Format::Nvfp4 => ScaleRounding::Rceil,
                _ => ScaleRounding::Even,
            },
            dead_blocks: DeadBlocks::Strict,
            nan_policy: NanPolicy::Propagate,
        },
        source_rows: (0..200).rev().collect(),
        data: (0..200 * format.bytes_per_row(columns))
            .map(|i| i as u8)
            .collect(),
        scales: (0..scales).map(|i| (i * 7) as u8).collect(),
        tensor_scales: vec![1.0, 0.25, 3.0],
        routing,
    }
}

fn read_quantized(bytes: Vec<u8>) -> Result<QuantizedFile, FileError> {
    QuantizedFile::from_file(&TensorFile::from_bytes(Path::new("quantized"), bytes)?)
}

#[test]
fn inputs_are_read_with_their_routing() {
    let input = read_input(&topk_input(), None).unwrap();
    assert_eq!((input.tokens, input.columns), (3, 16));
    assert_eq!(input.routing.row_offsets(), [0, 2, 2, 4, 5]);
    assert_eq!(input.routing.source_rows(), Some(&[0, 2, 0, 1, 1][..]));
    assert_eq!(input.tensor_scales, None);
    let input = read_input(&topk_input(), Some(40)).unwrap();
    assert_eq!(input.routing.experts(), 40);

    let input = read_input(&grouped_input(), None).unwrap();
    assert_eq!(input.routing.row_offsets(), [0, 2, 2, 5]);
    assert_eq!(input.routing.expert_ids(), [1, -1, 0]);
    assert_eq!(input.tensor_scales, Some(vec![2.0, 0.5]));
    assert_eq!(input.hidden_states.to_f32(), [1.5; 40]);
}

#[test]
fn inputs_without_rows_or_columns_are_fine() {
    for (tokens, columns) in [(0, 16), (3, 0), (0, 0)] {
        let tensors: Tensors = vec![
            (
                "hidden_states",
                Dtype::F16,
                vec![tokens, columns],
                vec![0; tokens * columns * 2],
            ),
            (
                "topk_ids",
                Dtype::I32,
                vec![tokens, 1],
                i32s(&vec![0; tokens]),
            ),
        ];
        let input = read_input(&tensors, None).unwrap();
        assert_eq!((input.routing.rows(), input.routing.experts()), (tokens, 1));
    }
}

#[test]
fn wrong_inputs_are_named() {
    type Make = fn() -> Tensors;
    type Change = fn(&mut Tensors);
    let cases: [(Make, Change, Option<u32>, &str); 16] = [
        (
            topk_input,
            |t| drop(t.remove(0)),
            None,
            "no tensor `hidden_states`; it has `topk_ids`",
        ),
        (
            topk_input,
            |t| drop(t.remove(1)),
            None,
            "no tensor `topk_ids` or `row_offsets`",
        ),
        (
            topk_input,
            |t| t[0].1 = Dtype::I16,
            None,
            "must be BF16, F16 or F32, found I16",
        ),
        (
            topk_input,
            |t| t[0].2 = vec![48],
            None,
            "must have shape [T, K], found [48]",
        ),
        (
            topk_input,
            |t| t[0].2 = vec![4, 12],
            None,
            "[T, K] with K a multiple of 8, found [4, 12]",
        ),
        (
            topk_input,
            |t| t[0].2 = vec![6, 8],
            None,
            "[T, k] with T = 6, found [3, 2]",
        ),
        (
            topk_input,
            |t| t[1].1 = Dtype::U32,
            None,
            "`topk_ids` must be I32, found U32",
        ),
        (
            topk_input,
            |t| t[1].3 = i32s(&[0, 1, 2, -2, 0, 0]),
            None,
            "token 1 names expert -2",
        ),
        (topk_input, |_| {}, Some(3), "token 1 names expert 3"),
        (topk_input, |_| {}, Some(0), "at least one expert"),
        (
            topk_input,
            |t| t[1].3 = i32s(&[i32::MAX; 6]),
            None,
            "2147483648 experts",
        ),
        (
            topk_input,
            |t| t.push(grouped_input().remove(1)),
            None,
            "both `topk_ids` and",
        ),
        (
            grouped_input,
            |t| t[1].3 = i32s(&[0, 2, -2, 5]),
            None,
            "found -2 at index 2",
        ),
        (
            grouped_input,
            |t| t[1].3 = i32s(&[0, 2, 1, 5]),
            None,
            "row offsets decrease",
        ),
        (
            grouped_input,
            |t| t[1].3 = i32s(&[0, 2, 2, 6]),
            None,
            "there are 5 rows",
        ),
        (
            grouped_input,
            |_| {},
            Some(3),
            "--experts 3 is for inputs with `topk_ids`",
        ),
    ];
    for (make, change, experts, expected) in cases {
        let mut tensors = make();
        change(&mut tensors);
        let error = read_input(&tensors, experts).unwrap_err().to_string();
        assert!(
            error.contains(expected),
            "expected {expected:?} in {error:?}"
        );
    }
}

#[test]
fn wrong_experts_and_factors_are_named() {
    type Change = fn(&mut Tensors);
    let cases: [(Change, &str); 7] = [
        (
            |t| t[1].2 = vec![2, 2],
            "`row_offsets` must have shape [E+1], found [2, 2]",
        ),
        (
            |t| t[2] = ("expert_ids", Dtype::I32, vec![2], i32s(&[0, 1])),
            "[E] = [3], found [2]",
        ),
        (
            |t| t[3].3 = f32s(&[2.0, 0.0]),
            "finite factors above zero, found 0 at index 1",
        ),
        (|t| t[3].3 = f32s(&[f32::NAN, 1.0]), "found NaN at index 0"),
        (
            |t| t[3].3 = f32s(&[f32::INFINITY, 1.0]),
            "found inf at index 0",
        ),
        (
            |t| t[3] = ("sf", Dtype::F32, vec![1], f32s(&[1.0])),
            "X above 1, an expert that has rows",
        ),
        (|t| t[3].1 = Dtype::I32, "`sf` must be F32, found I32"),
    ];
    for (change, expected) in cases {
        let mut tensors = grouped_input();
        change(&mut tensors);
        let error = read_input(&tensors, None).unwrap_err().to_string();
        assert!(
            error.contains(expected),
            "expected {expected:?} in {error:?}"
        );
    }
}

#[test]
fn quantized_files_survive_the_round_trip() {
    for format in Format::ALL {
        let file = quantized(format);
        let bytes = file.to_bytes();
        let read = read_quantized(bytes.clone()).unwrap();
        assert_eq!(read, file);
        assert_eq!(
            read.to_bytes(),
            bytes,
            "the same content gives the same bytes"
        );

        let tensors = TensorFile::from_bytes(Path::new("quantized"), bytes).unwrap();
        let data = tensors.require("data").unwrap();
        let (dtype, width) = match format {
            Format::Mxfp8 => (Dtype::F8_E4M3, 72),
            _ => (Dtype::U8, 36),
        };
        assert_eq!((data.dtype(), data.shape()), (dtype, &[200, width][..]));
        let scales = tensors.require("scales").unwrap();
        // Two tiles for 130 rows, none for the empty slot, one for 70 rows.
        let column_tiles = format.column_tiles(72);
        assert_eq!(scales.shape(), [3, column_tiles, 32, 4, 4]);
        assert_eq!(
            tensors.require("scales_offsets").unwrap().to_u32().unwrap(),
            [0, 1, 1]
        );
    }
}

#[test]
fn empty_quantized_files_survive_too() {
    let routing = Routing::from_topk(&[], 0, 2, 4).unwrap();
    let file = QuantizedFile {
        source_rows: Vec::new(),
        data: Vec::new(),
        scales: Vec::new(),
        tensor_scales: vec![1.0; 4],
        ..quantized(Format::Nvfp4)
    };
    let file = QuantizedFile {
        routing: Routing::from_row_offsets(routing.row_offsets(), None, 0).unwrap(),
        ..file
    };
    assert_eq!(read_quantized(file.to_bytes()).unwrap(), file);
}

/// `bytes` with another header; the tensors stay as they are.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut serde_json::Value)) -> Vec<u8> {
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes(), &header[..], data].concat()
}

#[test]
fn contradictions_in_quantized_files_are_named() {
    use serde_json::{Value, json};
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 13] = [
        (
            |h| h["__metadata__"] = json!({}),
            "`__metadata__` has no `format`",
        ),
        (
            |h| h["__metadata__"]["format"] = json!("fp4"),
            "format = \"fp4\", expected nvfp4, mxfp4",
        ),
        (
            |h| h["__metadata__"]["columns"] = json!("-8"),
            "columns = \"-8\"",
        ),
        (
            |h| h["__metadata__"]["columns"] = json!("73"),
            "expected a multiple of 8",
        ),
        (
            |h| h["__metadata__"]["columns"] = json!("80"),
            "[R, 40] for 80 columns of nvfp4",
        ),
        (
            |h| h["__metadata__"]["columns"] = json!("18446744073709551608"),
            "found [200, 36]",
        ),
        (
            |h| h["__metadata__"]["version"] = json!("2"),
            "version = \"2\", expected 1",
        ),
        (
            |h| h["__metadata__"]["format"] = json!("mxfp8"),
            "`data` must be F8_E4M3, found U8",
        ),
        (
            |h| h["__metadata__"]["format"] = json!("mxfp4"),
            "[Mt, Kt, 32, 4, 4] = [3, 1, 32, 4, 4]",
        ),
        (|h| h["data"]["shape"] = json!([100, 72]), "found [100, 72]"),
        (
            |h| h["scales"]["shape"] = json!([3, 2, 4, 32, 4]),
            "found [3, 2, 4, 32, 4]",
        ),
        (
            |h| h["expert_ids"]["dtype"] = json!("F32"),
            "`expert_ids` must be I32, found F32",
        ),
        (
            |h| h["source_rows"]["shape"] = json!([1, 200]),
            "[R] = [200], found [1, 200]",
        ),
    ];
    let bytes = quantized(Format::Nvfp4).to_bytes();
    for (change, expected) in cases {
        let error = read_quantized(with_header(&bytes, change))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(expected),
            "expected {expected:?} in {error:?}"
        );
    }

    let mut file = quantized(Format::Nvfp4);
    file.tensor_scales = vec![1.0; 2];
    let error = read_quantized(file.to_bytes()).unwrap_err().to_string();
    assert!(
        error.contains("X above 2, an expert that has rows"),
        "{error}"
    );

    // Row offsets that name other tiles than `scales_offsets` does.
    let offsets = words(&[0, 130, 130, 200], u32::to_le_bytes);
    let place = bytes
        .windows(offsets.len())
        .position(|window| window == offsets)
        .unwrap();
    let mut moved = bytes;
    moved[place + 4] = 128;
    let error = read_quantized(moved).unwrap_err().to_string();
    assert!(
        error.contains("`scales_offsets`") && error.contains("index"),
        "{error}"
    );
}

/// What can happen to a file on its way.
#[derive(Clone, Debug)]
enum Damage {
    /// It ends early.
    Truncate(prop::sample::Index),
    /// A byte, anywhere or near the start, where the header is, is another one.
    Set(prop::sample::Index, u8),
    /// A piece of the header is written over with text that means something in JSON.
    Splice(prop::sample::Index, &'static str),
    /// Bytes are inserted.
    Insert(prop::sample::Index, Vec<u8>),
    /// The header claims another length.
    HeaderLength(u64),
}

impl Damage {
    fn inflict(&self, bytes: &mut Vec<u8>) {
        match self {
            _ if bytes.is_empty() => {}
            Damage::Truncate(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Set(at, byte) => {
                let at = at.index(bytes.len().min(1500));
                bytes[at] = *byte;
            }
            Damage::Splice(at, text) => {
                let at = at.index(bytes.len().min(1500));
                let end = (at + text.len()).min(bytes.len());
                bytes[at..end].copy_from_slice(&text.as_bytes()[..end - at]);
            }
            Damage::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Damage::HeaderLength(length) => {
                let end = bytes.len().min(8);
                bytes[..end].copy_from_slice(&length.to_le_bytes()[..end]);
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let texts = prop::sample::select(vec![
        "18446744073709551615",
        "-1",
        "[",
        "]",
        "{}",
        "null",
        "\"I32\"",
        "\"F64\"",
        "1e99",
        ",",
        "0",
    ]);
    prop_oneof![
        index().prop_map(Damage::Truncate),
        (index(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (index(), texts).prop_map(|(at, text)| Damage::Splice(at, text)),
        (index(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, more)| Damage::Insert(at, more)),
        prop_oneof![any::<u64>(), 0..2000_u64].prop_map(Damage::HeaderLength),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    /// Whatever happens to a file, reading it gives a value or an error with a message.
    #[test]
    fn damaged_files_never_panic(
        which in 0..5_usize,
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let mut content = match which {
            0 => bytes(&topk_input()),
            1 => bytes(&grouped_input()),
            format => quantized(Format::ALL[format - 2]).to_bytes(),
        };
        for damage in &damages {
            damage.inflict(&mut content);
        }
        match TensorFile::from_bytes(Path::new("damaged"), content.clone()) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(file) => {
                if let Err(error) = GroupedInput::from_file(&file, None) {
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
        if let Ok(file) = read_quantized(content) {
            prop_assert_eq!(read_quantized(file.to_bytes()).unwrap(), file);
        }
    }
}
