//! Arithmetic inside kernels: that it is the arithmetic tested elsewhere, and which devices have it.

use cuda_std::GpuFloat;
use simt::FaultKind;

use crate::harness::{Buffer, fault, machine, run, target_machine};
use crate::kernels::arithmetic::{ARITHMETIC, arithmetic};
use crate::kernels::conversions::{CONVERSIONS, conversions};
use crate::kernels::floats::{FUNCTIONS, functions_f32, functions_f64};

fn words(count: usize) -> Vec<u32> {
    let mut state = 0x1234_5678u32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state
        })
        .collect()
}

#[test]
fn kernels_compute_what_the_functions_do() {
    use cuda_std::math::*;
    let machine = machine(0);
    let input = words(3 * 64);
    let out = Buffer::new(&machine, &[0u32; 64 * ARITHMETIC]);
    let args = arithmetic::Args {
        input: Buffer::new(&machine, &input).ptr(),
        input_len: input.len(),
        out: out.ptr(),
    };
    run(&machine, 2, 32, 0, args);
    for (results, abc) in out.read().chunks(ARITHMETIC).zip(input.chunks(3)) {
        let &[a, b, c] = abc else { unreachable!() };
        let float = f32::from_bits;
        assert_eq!(results[0], rcp_rn_ftz(float(a)).to_bits());
        assert_eq!(results[1], fma(float(a), float(b), float(c)).to_bits());
        assert_eq!(results[4], fma_f16x2(a, b, c));
        assert_eq!(results[12], funnel_shift_right(a, b, c));
        assert_eq!(results[13], fma_bf16x2(a, b, c));
        assert_eq!(results[14], min_bf16x2(a, b));
        assert_eq!(results[15], a.wrapping_mul(b));
        assert_eq!(results[16], ((u64::from(a) * u64::from(b)) >> 32) as u32);
    }
}

#[test]
fn conversions_follow_the_target() {
    let converted = |capability, arch_specific| {
        let machine = target_machine(0, capability, arch_specific);
        let out = Buffer::new(&machine, &[0u32; CONVERSIONS]);
        let args = conversions::Args {
            input: Buffer::new(&machine, &[0x40a0_0000u32]).ptr(),
            input_len: 1,
            out: out.ptr(),
        };
        run(&machine, 1, 1, 0, args);
        out.read()
    };
    // 5.0, and -5.0 one unit in the last place larger.
    let common = [0x4500_c500, 0x4500_c500, 0x40a0_c0a0, 0];
    let e4m3 = [0x4aca, 0];
    let (ampere, hopper, blackwell) = (
        converted(80, false),
        converted(90, false),
        converted(100, true),
    );
    for results in [&ampere, &hopper, &blackwell] {
        assert_eq!(results[..4], common);
    }
    assert_eq!(ampere[4..], [0; 6]);
    assert_eq!(hopper[4..], [e4m3[0], e4m3[1], 0, 0, 0, 0]);
    // E2M1 has 4 and 6: the tie goes to the even code 4, beyond it 6. UE8M0: 8 up, 4 down.
    assert_eq!(blackwell[4..6], e4m3);
    assert_eq!(blackwell[6..], [0x6f, 0x8282_8181, 0, 0x0040_0040]);
    assert_eq!(converted(100, false), hopper);
}

mod misuse {
    use cuda_std::cvt;
    use cuda_std::prelude::*;

    /// Converts without asking whether the device can.
    ///
    /// # Safety
    ///
    /// None: it is wrong.
    #[kernel]
    pub unsafe fn converts_anyway() {
        cvt::cvt_rn_satfinite_e2m1x2_f32(1.0, 2.0);
    }
}

#[test]
fn an_instruction_the_target_lacks_is_a_fault() {
    let fault = fault(&machine(0), 1, 1, 0, misuse::converts_anyway::Args {});
    assert_eq!(fault.kind, FaultKind::Trap);
    assert!(
        fault.message.contains("cvt.rn.satfinite.e2m1x2.f32"),
        "{fault}"
    );
    assert!(fault.message.contains("9.0"), "{fault}");
    assert!(fault.to_string().contains("arithmetic.rs"), "{fault}");
}

#[test]
fn float_functions_are_close_to_those_of_std() {
    let inputs = [0.75, 1.25, 1.5, -2.5, 3.0, 0.5, 20.25, 7.0, 0.1, 2.0];
    let machine = machine(0);
    let threads = inputs.len() / 2;
    let out = Buffer::new(&machine, &vec![0u32; threads * 2 * FUNCTIONS]);
    let args = functions_f64::Args {
        input: Buffer::new(&machine, &inputs).ptr(),
        input_len: inputs.len(),
        out: out.ptr(),
    };
    run(&machine, 1, threads as u32, 0, args);
    let doubles: Vec<f64> = out
        .read()
        .chunks(2)
        .map(|pair| f64::from_bits(u64::from(pair[0]) | u64::from(pair[1]) << 32))
        .collect();

    let narrow: Vec<f32> = inputs.iter().map(|&x| x as f32).collect();
    let out = Buffer::new(&machine, &vec![0u32; threads * FUNCTIONS]);
    let args = functions_f32::Args {
        input: Buffer::new(&machine, &narrow).ptr(),
        input_len: narrow.len(),
        out: out.ptr(),
    };
    run(&machine, 1, threads as u32, 0, args);
    let singles: Vec<f32> = out.read().into_iter().map(f32::from_bits).collect();

    for (thread, pair) in inputs.chunks(2).enumerate() {
        for (function, expected) in of_std(pair[0], pair[1]).into_iter().enumerate() {
            let double = doubles[thread * FUNCTIONS + function];
            let same = |x: f64, tolerance: f64| {
                x.is_nan() && expected.is_nan()
                    || x == expected
                    || (x - expected).abs() <= tolerance * expected.abs()
            };
            assert!(
                same(double, 1e-14),
                "{function} of {pair:?}: {double} {expected}"
            );
        }
        let [x, y] = [pair[0] as f32, pair[1] as f32];
        for (function, expected) in of_std(f64::from(x), f64::from(y)).into_iter().enumerate() {
            let single = f64::from(singles[thread * FUNCTIONS + function]);
            let same = single.is_nan() && expected.is_nan()
                || (single - expected).abs() <= 1e-5 * expected.abs().max(1e-3);
            assert!(same, "{function} of {x} and {y}: {single} {expected}");
        }
    }
}

fn of_std(x: f64, y: f64) -> [f64; FUNCTIONS] {
    let (sine, cosine) = x.sin_cos();
    [
        x.floor(),
        x.ceil(),
        x.round(),
        x.trunc(),
        x.fract(),
        x.abs(),
        x.signum(),
        x.copysign(y),
        x.mul_add(y, x),
        x.div_euclid(y),
        x.rem_euclid(y),
        x.powi(5),
        x.powf(y),
        x.sqrt(),
        x.exp(),
        x.exp2(),
        x.ln(),
        x.log(y),
        x.log2(),
        x.log10(),
        x.cbrt(),
        x.hypot(y),
        x.sin(),
        x.cos(),
        x.tan(),
        x.asin(),
        x.acos(),
        x.atan(),
        x.atan2(y),
        sine,
        cosine,
        x.exp_m1(),
        x.ln_1p(),
        x.sinh(),
        x.cosh(),
        x.tanh(),
        x.asinh(),
        x.acosh(),
        x.atanh(),
    ]
}

#[test]
fn euclidean_division_at_its_edges() {
    for (x, y) in [
        (7.0, 4.0),
        (-7.0, 4.0),
        (7.0, -4.0),
        (-7.0, -4.0),
        (-8.0, 4.0),
        (0.0, 3.0),
    ] {
        assert_eq!(GpuFloat::div_euclid(x, y), f64::div_euclid(x, y), "{x} {y}");
        assert_eq!(GpuFloat::rem_euclid(x, y), f64::rem_euclid(x, y), "{x} {y}");
    }
    assert!(GpuFloat::div_euclid(f32::NAN, 1.0).is_nan());
    assert!(GpuFloat::rem_euclid(1.0, 0.0f32).is_nan());
    assert_eq!(GpuFloat::powi(2.0f32, -3), 0.125);
    assert_eq!(GpuFloat::powi(-1.5f64, i32::MIN), 0.0);
}
