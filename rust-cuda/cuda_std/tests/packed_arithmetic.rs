//! Packed halves and their relatives, against exact integer arithmetic.

use cuda_std::math::*;
use half::{bf16, f16};

/// FP16 values that between them have every kind of exponent, mantissa and sign, specials included.
fn halves() -> Vec<u16> {
    let magnitudes = (0..=0x7c00u16).step_by(331).chain([
        0, 1, 2, 0x03ff, 0x0400, 0x0401, 0x3bff, 0x3c00, 0x3c01, 0x7bff, 0x7c00, 0x7c01, 0x7e00,
        0x7fff,
    ]);
    magnitudes.flat_map(|code| [code, code | 0x8000]).collect()
}

/// The value in units of 2^-24, the least FP16; exact.
fn fixed(code: u16) -> Option<i128> {
    let x = f16::from_bits(code);
    x.is_finite().then(|| (x.to_f64() * 2f64.powi(24)) as i128)
}

/// The FP16 nearest to a sum in units of 2^-48; `zero` decides the sign of an exact zero.
fn nearest(exact: i128, zero: u16) -> u16 {
    if exact == 0 {
        return zero;
    }
    let value = |code: u16| match code {
        0x7c00 => 65536 << 48,
        _ => fixed(code).unwrap() << 24,
    };
    let magnitude = exact.abs();
    let (mut lo, mut hi) = (0u16, 0x7c00u16);
    while hi - lo > 1 {
        let middle = lo.midpoint(hi);
        if value(middle) <= magnitude {
            lo = middle
        } else {
            hi = middle
        }
    }
    let sign = if exact < 0 { 0x8000 } else { 0 };
    if magnitude >= value(0x7c00) {
        return sign | 0x7c00;
    }
    let twice = 2 * magnitude - value(lo) - value(hi);
    let up = twice > 0 || twice == 0 && lo & 1 == 1;
    sign | if up { hi } else { lo }
}

/// Where an operand is not finite, FP32 gives the result: NaN, infinity, or a finite operand's sign.
fn special(x: f32) -> u16 {
    if x.is_nan() {
        0x7fff
    } else {
        f16::from_f32(x).to_bits()
    }
}

#[test]
fn fp16_sums_and_products_are_correctly_rounded() {
    let halves = halves();
    for &a in &halves {
        for &b in &halves {
            let (x, y) = (f16::from_bits(a).to_f32(), f16::from_bits(b).to_f32());
            let (sum, product) = match (fixed(a), fixed(b)) {
                (Some(p), Some(q)) => {
                    let zero = f16::from_f32(x + y).to_bits();
                    let sign = (a ^ b) & 0x8000;
                    (nearest((p + q) << 24, zero), nearest(p * q, sign))
                }
                _ => (special(x + y), special(x * y)),
            };
            let packed = |lo: u16| u32::from(lo) << 16 | 0x3c00;
            assert_eq!(
                add_f16x2(packed(a), packed(b)),
                u32::from(sum) << 16 | 0x4000,
                "{x} + {y}"
            );
            assert_eq!(
                mul_f16x2(packed(a), packed(b)),
                u32::from(product) << 16 | 0x3c00,
                "{x} * {y}"
            );
        }
    }
}

#[test]
fn fp16_fused_multiply_add_rounds_once() {
    let halves: Vec<u16> = halves().into_iter().step_by(3).collect();
    for &a in &halves {
        for &b in &halves {
            for &c in &halves {
                let [x, y, z] = [a, b, c].map(|code| f16::from_bits(code).to_f32());
                let expected = match (fixed(a), fixed(b), fixed(c)) {
                    (Some(p), Some(q), Some(r)) => {
                        // Minus zero only if product and addend both are.
                        let zero = (a ^ b) & c & 0x8000;
                        nearest(p * q + (r << 24), zero)
                    }
                    _ => special(x.mul_add(y, z)),
                };
                let result = fma_f16x2(u32::from(a), u32::from(b), u32::from(c)) as u16;
                assert_eq!(result, expected, "{x} * {y} + {z}");
            }
        }
    }
}

/// The BF16 nearest to a number that is neither zero nor beyond the range of normal BF16.
fn nearest_bf16(exact: f64) -> u16 {
    let value = |code| f64::from(bf16::from_bits(code).to_f32());
    let magnitude = exact.abs();
    // The FP32 below it has the BF16 below it in its upper half.
    let below = match magnitude as f32 {
        near if f64::from(near) > magnitude => near.next_down(),
        near => near,
    };
    let lo = (below.to_bits() >> 16) as u16;
    let twice = 2.0 * magnitude - value(lo) - value(lo + 1);
    let up = twice > 0.0 || twice == 0.0 && lo & 1 == 1;
    let sign = if exact < 0.0 { 0x8000 } else { 0 };
    sign | if up { lo + 1 } else { lo }
}

#[test]
fn bf16_fused_multiply_add_rounds_once() {
    // Exponents close enough for the exact sum to fit FP64.
    let codes: Vec<u16> = (0x3c00..=0x4580u16)
        .step_by(61)
        .chain([0, 0x3f80, 0x3f81, 0x4300, 0x4301, 0x4302])
        .flat_map(|code| [code, code | 0x8000])
        .collect();
    let value = |code| f64::from(bf16::from_bits(code).to_f32());
    for &a in &codes {
        for &b in &codes {
            for &c in &codes {
                let exact = value(a) * value(b) + value(c);
                let expected = if exact == 0.0 {
                    bf16::from_f64(exact).to_bits()
                } else {
                    nearest_bf16(exact)
                };
                let result = fma_bf16x2(u32::from(a), u32::from(b), u32::from(c)) as u16;
                assert_eq!(result, expected, "{a:#x} * {b:#x} + {c:#x}");
            }
        }
    }
}

#[test]
fn bf16_fused_multiply_add_at_the_ends_of_the_range() {
    let fma = |a: u16, b: u16, c: u16| fma_bf16x2(a.into(), b.into(), c.into()) as u16;
    // A tie to an even mantissa above; one that 2^-15 tips upward; the same tie downward.
    assert_eq!(fma(0x3f81, 0x3f80, 0x3b80), 0x3f82);
    assert_eq!(fma(0x3b80, 0x3f81, 0x3f80), 0x3f81);
    assert_eq!(fma(0x3b80, 0x3f80, 0x3f80), 0x3f80);
    // Subnormals: 2^-126 * 2^-1, and half of the least one.
    assert_eq!(fma(0x0080, 0x3f00, 0), 0x0040);
    assert_eq!(fma(0x0001, 0x3f00, 0), 0x0000);
    assert_eq!(fma(0x0003, 0x3f00, 0), 0x0002);
    // A product far below one unit in the last place, and one that overflows.
    assert_eq!(fma(0x0001, 0x0001, 0x3f80), 0x3f80);
    assert_eq!(fma(0x7f7f, 0x7f7f, 0), 0x7f80);
    assert_eq!(fma(0x7f80, 0x0000, 0x3f80), 0x7fff);
    assert_eq!(fma(0x7f80, 0x3f80, 0xff80), 0x7fff);
}

#[test]
fn minima_and_maxima_prefer_numbers_and_order_zeros() {
    let rank = |x: f32| if x == 0.0 { x.signum() * 1e-40 } else { x };
    let expect = |a: u16, b: u16, widen: fn(u16) -> f32, less: bool| {
        let (x, y) = (widen(a), widen(b));
        match (x.is_nan(), y.is_nan()) {
            (true, true) => 0x7fff,
            (true, false) => b,
            (false, true) => a,
            _ if (rank(x) < rank(y)) == less => a,
            _ => b,
        }
    };
    let fp16 = |code| f16::from_bits(code).to_f32();
    let bfloat = |code| bf16::from_bits(code).to_f32();
    for a in halves() {
        for b in halves() {
            let [p, q] = [a, b].map(|code| u32::from(code) << 16 | 0x3f80);
            let with = |code: u16| u32::from(code) << 16 | 0x3f80;
            assert_eq!(
                min_f16x2(p, q),
                with(expect(a, b, fp16, true)),
                "{a:#x} {b:#x}"
            );
            assert_eq!(
                max_f16x2(p, q),
                with(expect(a, b, fp16, false)),
                "{a:#x} {b:#x}"
            );
            // The same bits as BF16, with its own NaNs.
            let (a, b) = (a.rotate_left(3), b.rotate_left(3));
            let [p, q] = [a, b].map(|code| u32::from(code) << 16 | 0x3f80);
            assert_eq!(
                min_bf16x2(p, q),
                with(expect(a, b, bfloat, true)),
                "{a:#x} {b:#x}"
            );
            let greater = expect(a, b, bfloat, false);
            assert_eq!(max_bf16x2(p, q), with(greater), "{a:#x} {b:#x}");
            let any_nan = bfloat(a).is_nan() || bfloat(b).is_nan();
            let greater = if any_nan { 0x7fff } else { greater };
            assert_eq!(max_nan_bf16x2(p, q), with(greater), "{a:#x} {b:#x}");
        }
    }
}

#[test]
fn reciprocals_are_correctly_rounded_and_flush() {
    let flush = |x: f32| {
        if x.is_subnormal() {
            0f32.copysign(x)
        } else {
            x
        }
    };
    for bits in (0..=u32::MAX)
        .step_by(65_521)
        .chain([0, 1, 0x0080_0000, 0x7f00_0000, 0x7e80_0000])
    {
        let x = f32::from_bits(bits);
        let result = rcp_rn_ftz(x);
        if x.is_nan() {
            assert_eq!(result.to_bits(), 0x7fff_ffff);
            continue;
        }
        // FP64 has more than twice the precision plus two bits: rounding twice is rounding once.
        let expected = flush((1.0 / f64::from(flush(x))) as f32);
        assert_eq!(result.to_bits(), expected.to_bits(), "{x:e}");
    }
}

#[test]
fn fused_multiply_add_has_canonical_nans() {
    assert_eq!(fma(3.0, 4.0, 5.0), 17.0);
    let tiny = 2f32.powi(-24);
    assert_eq!(
        fma(1.0 + tiny * 2.0, 1.0 - tiny, -1.0),
        tiny - 2.0 * tiny * tiny
    );
    assert_eq!(fma(f32::INFINITY, 0.0, 1.0).to_bits(), 0x7fff_ffff);
    assert_eq!(fma(-f32::NAN, 0.0, 1.0).to_bits(), 0x7fff_ffff);
}

#[test]
fn bytes_permute_and_words_shift() {
    let (a, b) = (0x8302_8100, 0x0786_0584);
    assert_eq!(prmt(a, b, 0x3210), a);
    assert_eq!(prmt(a, b, 0x7654), b);
    assert_eq!(prmt(a, b, 0x0040), 0x0000_8400);
    assert_eq!(prmt(a, b, 0x5410), 0x0584_8100);
    // Bit 3 of a nibble spreads the byte's sign; higher bits of the selector are ignored.
    assert_eq!(prmt(a, b, 0xffff_89cb), 0x00ff_ffff);
    assert_eq!(abs_bf16x2(0xbf80_8001), 0x3f80_0001);
    for shift in 0..64 {
        let (lo, hi) = (0x89ab_cdef, 0x0123_4567);
        let wide = u64::from(hi) << 32 | u64::from(lo);
        assert_eq!(
            funnel_shift_left(lo, hi, shift),
            (wide << (shift % 32) >> 32) as u32
        );
        assert_eq!(
            funnel_shift_right(lo, hi, shift),
            (wide >> (shift % 32)) as u32
        );
        assert_eq!(funnel_shift_left(lo, lo, shift), lo.rotate_left(shift));
    }
}
