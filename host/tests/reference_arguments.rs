//! Arguments that contradict one another, and those that leave nothing to do.

mod reference_support;

use reference_support::DEFAULT;
use tokenyard::options::{Format, QuantizeOptions, ScaleRounding};
use tokenyard::reference::{
    Encoded, Groups, Input, Output, Problem, ReferenceError, dequantize, dequantize_to_vec,
    quantize, quantize_to_vec,
};
use tokenyard::routing::Routing;

const SENTINEL: u8 = 0xEE;

fn length(what: &'static str, expected: usize, given: usize) -> ReferenceError {
    ReferenceError::Length {
        what,
        expected,
        given,
    }
}

#[test]
fn nothing_to_do_succeeds() {
    let none = Routing::from_row_offsets(&[0, 0, 0], None, 0).unwrap();
    let some = Routing::from_row_offsets(&[0, 2, 3], None, 3).unwrap();
    for format in Format::ALL {
        for (routing, input_rows, columns) in [(&none, 0, 64), (&some, 3, 0), (&none, 0, 0)] {
            let quantized = quantize_to_vec(&Problem {
                format,
                input: Input::Bf16(&[]),
                input_rows,
                columns,
                groups: routing.into(),
                sf: &[1.0, 1.0],
                source_rows: None,
                options: DEFAULT,
            })
            .unwrap();
            assert!(quantized.data.is_empty() && quantized.scales.is_empty());
        }
    }
}

/// Every refusal comes before anything is written.
#[test]
fn what_quantize_refuses() {
    let values = vec![1.0; 4 * 64];
    let routing = Routing::from_row_offsets(&[0, 1, 4], None, 4).unwrap();
    let good = Problem {
        format: Format::Nvfp4,
        input: Input::F32(&values),
        input_rows: 4,
        columns: 64,
        groups: (&routing).into(),
        sf: &[1.0, 1.0],
        source_rows: None,
        options: DEFAULT,
    };
    let refused = |problem: Problem<'_>, data_bytes: usize, scale_bytes: usize| {
        let mut data = vec![SENTINEL; data_bytes];
        let mut scales = vec![SENTINEL; scale_bytes];
        let output = Output {
            data: &mut data,
            scales: &mut scales,
        };
        let error = quantize(&problem, output).unwrap_err();
        assert!(data.iter().chain(&scales).all(|&byte| byte == SENTINEL));
        error
    };
    let length = |what, expected, given| ReferenceError::Length {
        what,
        expected,
        given,
    };

    assert_eq!(refused(good, 127, 1024), length("data", 128, 127));
    assert_eq!(
        refused(good, 128, 1000),
        ReferenceError::Scales {
            given: 1000,
            tile_row_bytes: 512
        }
    );
    assert_eq!(
        refused(
            Problem {
                columns: 60,
                ..good
            },
            120,
            1024
        ),
        ReferenceError::Columns { columns: 60 }
    );
    assert_eq!(
        refused(
            Problem {
                input_rows: 5,
                ..good
            },
            160,
            1024
        ),
        length("input", 320, 256)
    );
    assert_eq!(
        refused(
            Problem {
                input_rows: usize::MAX,
                ..good
            },
            0,
            0
        ),
        length("input", usize::MAX, 256)
    );
    let decreasing = Groups {
        row_offsets: &[0, 3, 2],
        ..good.groups
    };
    assert_eq!(
        refused(
            Problem {
                groups: decreasing,
                ..good
            },
            128,
            1024
        ),
        ReferenceError::DecreasingOffsets {
            slot: 1,
            start: 3,
            end: 2
        }
    );
    let short = Groups {
        row_offsets: &[0, 4],
        ..good.groups
    };
    assert_eq!(
        refused(
            Problem {
                groups: short,
                ..good
            },
            128,
            1024
        ),
        length("row_offsets", 3, 2)
    );
    let even = QuantizeOptions {
        scale_rounding: ScaleRounding::Even,
        ..DEFAULT
    };
    assert_eq!(
        refused(
            Problem {
                options: even,
                ..good
            },
            128,
            1024
        )
        .to_string(),
        "scale rounding even is for power-of-two scales; nvfp4 always rounds its E4M3 scale to nearest even"
    );
}

#[test]
fn what_dequantize_refuses() {
    let routing = Routing::from_row_offsets(&[0, 1, 4], None, 4).unwrap();
    let good = Encoded {
        format: Format::Mxfp8,
        data: &[0; 4 * 64],
        scales: &[0; 2 * 512],
        rows: 4,
        columns: 64,
        groups: (&routing).into(),
        sf: &[1.0, 1.0],
    };
    let refused = |encoded: Encoded<'_>, values: usize| {
        let mut out = vec![-77.0; values];
        let error = dequantize(&encoded, &mut out).unwrap_err();
        assert!(out.iter().all(|&value| value == -77.0));
        error
    };
    assert_eq!(dequantize_to_vec(&good).unwrap(), [0.0; 4 * 64]);
    assert_eq!(refused(good, 255), length("dequantized rows", 256, 255));
    assert_eq!(
        refused(
            Encoded {
                data: &[0; 255],
                ..good
            },
            256
        ),
        length("data", 256, 255)
    );
    let huge = Encoded {
        rows: usize::MAX,
        ..good
    };
    assert_eq!(refused(huge, 256), length("data", usize::MAX, 256));
    assert_eq!(
        dequantize_to_vec(&huge).unwrap_err(),
        length("data", usize::MAX, 256)
    );
    assert_eq!(
        refused(
            Encoded {
                scales: &[0; 700],
                ..good
            },
            256
        ),
        ReferenceError::Scales {
            given: 700,
            tile_row_bytes: 512
        }
    );
    assert_eq!(
        refused(
            Encoded {
                columns: 63,
                ..good
            },
            256
        ),
        ReferenceError::Columns { columns: 63 }
    );
    let endless = Encoded {
        rows: usize::MAX,
        columns: 1,
        data: &[],
        format: Format::Mxfp4,
        ..good
    };
    assert_eq!(
        dequantize_to_vec(&endless),
        Err(ReferenceError::Columns { columns: 1 })
    );
    let decreasing = Groups {
        row_offsets: &[0, 4, 3],
        ..good.groups
    };
    assert_eq!(
        refused(
            Encoded {
                groups: decreasing,
                ..good
            },
            256
        ),
        ReferenceError::DecreasingOffsets {
            slot: 1,
            start: 4,
            end: 3
        }
    );
}
