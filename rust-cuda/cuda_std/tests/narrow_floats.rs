//! Conversions, against stored vectors and against searches through all values of a format.

use cuda_std::cvt::*;
use half::{bf16, f16};
use serde_json::Value;

/// A format's codes without sign; `value[code]` ascends.
struct Format {
    values: Vec<f64>,
    /// The code of the largest finite value.
    max: u32,
    saturates: bool,
}

impl Format {
    fn new(codes: u32, max: u32, saturates: bool, decode: impl Fn(u32) -> f64) -> Self {
        Self {
            values: (0..codes).map(decode).collect(),
            max,
            saturates,
        }
    }

    /// The code nearest to a magnitude, the even one of two.
    fn nearest(&self, magnitude: f64) -> u32 {
        let above = self.values.partition_point(|&value| value <= magnitude);
        if above == self.values.len() {
            return above as u32 - 1;
        }
        let (lo, hi) = (self.values[above - 1], self.values[above]);
        let code = above as u32 - 1;
        let code = match magnitude.partial_cmp(&((lo + hi) / 2.0)).unwrap() {
            std::cmp::Ordering::Less => code,
            std::cmp::Ordering::Greater => code + 1,
            std::cmp::Ordering::Equal => code + (code & 1),
        };
        if self.saturates {
            code.min(self.max)
        } else {
            code
        }
    }

    fn toward_zero(&self, magnitude: f64) -> u32 {
        let above = self.values.partition_point(|&value| value <= magnitude) as u32;
        if magnitude.is_infinite() {
            above - 1
        } else {
            (above - 1).min(self.max)
        }
    }

    /// All values, all midpoints, their neighbours, and a spread over everything else; both signs.
    fn inputs(&self) -> Vec<f32> {
        let mut inputs = vec![0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, 1e-45];
        for pair in self.values.windows(2) {
            for x in [pair[0] as f32, ((pair[0] + pair[1]) / 2.0) as f32] {
                inputs.extend([x.next_down(), x, x.next_up()]);
            }
        }
        inputs.extend((0..0x7f80_0000u32).step_by(104_729).map(f32::from_bits));
        let negative: Vec<f32> = inputs.iter().map(|x| -x).collect();
        inputs.extend(negative);
        inputs.retain(|x| !x.is_nan());
        inputs
    }
}

fn e4m3() -> Format {
    Format::new(0x7f, 0x7e, true, |code| match code {
        0..8 => f64::from(code) / 512.0,
        _ => f64::from(8 + (code & 7)) * 2f64.powi((code >> 3) as i32 - 10),
    })
}

fn e2m1() -> Format {
    Format::new(8, 7, true, |code| {
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code as usize]
    })
}

/// With the next power of two where infinity is, which is how rounding to infinity is defined.
fn fp16() -> Format {
    Format::new(0x7c01, 0x7bff, false, |code| match code {
        0x7c00 => 65536.0,
        _ => f16::from_bits(code as u16).to_f64(),
    })
}

fn bfloat16() -> Format {
    Format::new(0x7f81, 0x7f7f, false, |code| match code {
        0x7f80 => 2f64.powi(128),
        _ => bf16::from_bits(code as u16).to_f64(),
    })
}

/// Compares both halves of a packed conversion with an oracle for magnitudes.
fn check(
    format: &Format,
    sign_bit: u32,
    convert: impl Fn(f32, f32) -> [u32; 2],
    oracle: impl Fn(f64) -> u32,
) {
    for x in format.inputs() {
        let sign = u32::from(x.is_sign_negative());
        let code = oracle(f64::from(x).abs());
        let expected = [sign << sign_bit | code, (1 - sign) << sign_bit | code];
        assert_eq!(convert(x, -x), expected, "{x:e} ({:#010x})", x.to_bits());
    }
}

#[test]
fn e4m3_is_the_nearest() {
    let format = e4m3();
    let halves = |hi, lo| {
        let pair = u32::from(cvt_rn_satfinite_e4m3x2_f32(hi, lo));
        [pair >> 8, pair & 0xff]
    };
    check(&format, 7, halves, |x| format.nearest(x));
    assert_eq!(cvt_rn_satfinite_e4m3x2_f32(f32::NAN, -f32::NAN), 0x7f7f);
    for code in 0..=0xffu16 {
        let decoded = cvt_rn_f16x2_e4m3x2(code << 8 | 0x38);
        assert_eq!(decoded & 0xffff, 0x3c00);
        let decoded = f16::from_bits((decoded >> 16) as u16);
        match format.values.get(usize::from(code & 0x7f)) {
            Some(&value) => {
                assert_eq!(decoded.to_f64().abs(), value);
                assert_eq!(decoded.is_sign_negative(), code >= 0x80);
            }
            None => assert_eq!(decoded.to_bits(), 0x7fff),
        }
    }
}

#[test]
fn e2m1_is_the_nearest() {
    let format = e2m1();
    let halves = |hi, lo| {
        let pair = u32::from(cvt_rn_satfinite_e2m1x2_f32(hi, lo));
        [pair >> 4, pair & 0xf]
    };
    check(&format, 3, halves, |x| format.nearest(x));
    assert_eq!(cvt_rn_satfinite_e2m1x2_f32(f32::NAN, -f32::NAN), 0x77);
    for code in 0..16u8 {
        let decoded = f16::from_bits((cvt_rn_f16x2_e2m1x2(code << 4 | 3) >> 16) as u16);
        assert_eq!(decoded.to_f64().abs(), format.values[usize::from(code & 7)]);
        assert_eq!(decoded.is_sign_negative(), code >= 8);
        assert_eq!(cvt_rn_f16x2_e2m1x2(code << 4 | 3) & 0xffff, 0x3e00);
    }
}

#[test]
fn fp16_is_the_nearest_or_the_next_toward_zero() {
    let format = fp16();
    let halves = |pair: u32| [pair >> 16, pair & 0xffff];
    check(
        &format,
        15,
        |hi, lo| halves(cvt_rn_f16x2_f32(hi, lo)),
        |x| format.nearest(x),
    );
    check(
        &format,
        15,
        |hi, lo| halves(cvt_rz_f16x2_f32(hi, lo)),
        |x| format.toward_zero(x),
    );
    assert_eq!(cvt_rn_f16x2_f32(f32::NAN, -f32::NAN), 0x7fff_7fff);
    assert_eq!(cvt_rz_f16x2_f32(f32::NAN, -f32::NAN), 0x7fff_7fff);
    for code in 0..=0xffffu16 {
        let expected = f16::from_bits(code);
        let expected = if expected.is_nan() {
            0x7fff_ffff
        } else {
            expected.to_f32().to_bits()
        };
        assert_eq!(cvt_f32_f16(code).to_bits(), expected);
    }
}

#[test]
fn bf16_is_the_nearest() {
    let format = bfloat16();
    let halves = |hi, lo| {
        let pair = cvt_rn_bf16x2_f32(hi, lo);
        [pair >> 16, pair & 0xffff]
    };
    check(&format, 15, halves, |x| format.nearest(x));
    assert_eq!(cvt_rn_bf16x2_f32(f32::NAN, -f32::NAN), 0x7fff_7fff);
}

fn stored(text: &str, table: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(text).unwrap();
    file[table].as_array().unwrap().clone()
}

fn hex(row: &Value, field: &str) -> u32 {
    let text = row[field].as_str().unwrap();
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn stored_vectors() {
    let rows = stored(include_str!("vectors/e4m3_rne.json"), "rows");
    assert_eq!(rows.len(), 374);
    for row in &rows {
        let x = f32::from_bits(hex(row, "f32"));
        let pair = cvt_rn_satfinite_e4m3x2_f32(x, 1.0);
        assert_eq!(u32::from(pair), hex(row, "satfinite") << 8 | 0x38, "{row}");
    }
    let rows = stored(include_str!("vectors/e2m1_rne.json"), "rows");
    assert_eq!(rows.len(), 106);
    for row in &rows {
        let x = f32::from_bits(hex(row, "f32"));
        let pair = cvt_rn_satfinite_e2m1x2_f32(x, 1.0);
        assert_eq!(u32::from(pair), hex(row, "code") << 4 | 0x2, "{row}");
    }
    let text = include_str!("vectors/e8m0.json");
    let rows = stored(text, "rows");
    assert_eq!(rows.len(), 30);
    for row in &rows {
        // The sign is ignored.
        let x = f32::from_bits(hex(row, "f32"));
        for x in [x, -x] {
            let up = cvt_rp_satfinite_ue8m0x2_f32(x, 1.0);
            assert_eq!(u32::from(up), hex(row, "rp_satfinite") << 8 | 0x7f, "{row}");
            let down = cvt_rz_satfinite_ue8m0x2_f32(1.0, x);
            assert_eq!(u32::from(down), 0x7f00 | hex(row, "rz_satfinite"), "{row}");
        }
    }
    for row in &stored(text, "decode") {
        let decoded = cvt_rn_bf16x2_ue8m0x2((hex(row, "code") << 8 | 0x7f) as u16);
        let value = f32::from_bits(decoded & 0xffff_0000);
        let expected = f32::from_bits(hex(row, "value_f32"));
        assert!(
            value == expected || value.is_nan() && expected.is_nan(),
            "{row}"
        );
        assert_eq!(decoded & 0xffff, 0x3f80);
    }
}

#[test]
fn ue8m0_brackets_the_value() {
    for bits in (1..0x7f00_0000u32).step_by(7919) {
        let x = f32::from_bits(bits);
        let up = cvt_rp_satfinite_ue8m0x2_f32(x, x) & 0xff;
        let down = cvt_rz_satfinite_ue8m0x2_f32(x, x) & 0xff;
        let value = |byte: u16| 2f64.powi(i32::from(byte) - 127);
        let x = f64::from(x);
        assert!(
            value(up) >= x && (up == 0 || value(up - 1) < x),
            "{x:e} up to {up}"
        );
        assert!(
            down == 0 || value(down) <= x && x < value(down + 1),
            "{x:e} down to {down}"
        );
    }
}
