//! The suite itself: that its comparisons see a single wrong bit, wherever it is, and that a missing GPU
//! is never a pass.

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use tokenyard::options::{Format, InputType};
use tokenyard_tests::compare::{self, Mismatch};
use tokenyard_tests::memory::GUARD;
use tokenyard_tests::shapes::slots;
use tokenyard_tests::suite::Verdict;
use tokenyard_tests::values::{HAZARDS, activations, hazards};
use tokenyard_tests::{Context, Launch, Memory, Problem, Rows, Suite, data};

pub fn register(suite: &mut Suite) {
    suite.host("harness::comparisons_see_one_bit", || {
        comparisons_see_one_bit().map(|()| None)
    });
    suite.host("harness::missing_gpu_is_no_pass", || {
        missing_gpu_is_no_pass().map(|()| None)
    });
    suite.host("harness::hazards_are_hazardous", || {
        hazards_are_hazardous().map(|()| None)
    });
    suite.host("harness::sample_is_whole", || {
        sample_is_whole().map(|()| None)
    });
    for format in Format::ALL {
        suite.both(
            &format!("harness::planted_bits_are_found::{format}"),
            move |context| planted_bits_are_found(context, format),
        );
        suite.both(
            &format!("harness::planted_input_is_found::{format}"),
            move |context| planted_input_is_found(context, format),
        );
    }
}

/// The mismatch that a comparison must have found.
fn found(result: Result<()>) -> Result<Mismatch> {
    match result {
        Ok(()) => bail!("a planted difference was not seen"),
        Err(error) => error.downcast().context("not a mismatch"),
    }
}

fn comparisons_see_one_bit() -> Result<()> {
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let place = |index: usize| format!("place {index}");
    compare::bytes("bytes", &bytes, &bytes, place)?;
    for index in [0, 1, 500, 999] {
        for bit in 0..8 {
            let mut other = bytes.clone();
            other[index] ^= 1 << bit;
            let mismatch = found(compare::bytes("bytes", &bytes, &other, place))?;
            ensure!((mismatch.index, mismatch.differing, mismatch.total) == (index, 1, 1000));
            let text = mismatch.to_string();
            for part in [
                format!("place {index}"),
                format!("{:#04x} ({:#010b})", bytes[index], bytes[index]),
                format!("{:#04x} ({:#010b})", other[index], other[index]),
            ] {
                ensure!(text.contains(&part), "{text:?} lacks {part:?}");
            }
        }
    }
    ensure!(
        compare::bytes("bytes", &bytes, &bytes[1..], place).is_err(),
        "lengths differ"
    );

    let numbers = [1.0, 0.0, f32::NAN];
    compare::floats("floats", &numbers, &[1.0, 0.0, -f32::NAN], place)?;
    for (index, wrong) in [
        (0, [f32::from_bits(1f32.to_bits() + 1), 0.0, f32::NAN]),
        (1, [1.0, -0.0, f32::NAN]),
        (2, [1.0, 0.0, 0.0]),
        (0, [f32::NAN, 0.0, f32::NAN]),
    ] {
        let mismatch = found(compare::floats("floats", &numbers, &wrong, place))?;
        ensure!(mismatch.index == index, "{mismatch}");
    }
    let mismatch = found(compare::values("values", &[1, 2, 3], &[1, 2, 4]))?;
    ensure!(
        mismatch.to_string().contains("expected 3, found 4"),
        "{mismatch}"
    );
    Ok(())
}

fn missing_gpu_is_no_pass() -> Result<()> {
    let (there, missing): (_, Result<(), &str>) = (Ok(()), Err("there is none"));
    ensure!(Verdict::on_gpu(there, false) == Verdict::Run);
    ensure!(Verdict::on_gpu(there, true) == Verdict::Run);
    ensure!(
        Verdict::on_gpu(missing, false) == Verdict::Skip("skipped: there is none".into()),
        "{:?}",
        Verdict::on_gpu(missing, false)
    );
    ensure!(matches!(
        Verdict::on_gpu(missing, true),
        Verdict::Fail(reason) if reason.contains("there is none")
    ));
    Ok(())
}

/// Each hazard fills whole blocks and partial ones, and makes what its name says.
fn hazards_are_hazardous() -> Result<()> {
    let random = &mut Rng::with_seed(1);
    for format in Format::ALL {
        for &(name, fill) in HAZARDS {
            for len in [8, format.block_size()] {
                let mut block = vec![7.0; len];
                fill(format, &mut block, random);
                let nans = block.iter().filter(|value| value.is_nan()).count();
                let infinities = block.iter().filter(|value| value.is_infinite()).count();
                let as_named = match name {
                    "nothing but NaN" => nans == len,
                    "eight NaN, then numbers" => nans == 8,
                    "an infinity and a NaN" => nans + infinities > 0,
                    name if name.contains("NaN") => nans == 1,
                    "an infinity" => infinities == 1,
                    "any bits" => true,
                    _ => nans + infinities == 0,
                };
                ensure!(as_named, "{format}, {name}: {block:?}");
            }
        }
    }
    Ok(())
}

fn sample_is_whole() -> Result<()> {
    let sample = data::Sample::load()?;
    ensure!((sample.tokens, sample.columns, sample.top_k, sample.experts) == (2048, 384, 4, 32));
    ensure!(sample.hidden_states.len() == 2048 * 384 && sample.topk_ids.len() == 2048 * 4);
    let few = sample.first(256);
    let mut ids = few.topk_ids.clone();
    ids.sort_unstable();
    ids.dedup();
    ensure!(
        few.tokens == 256 && ids.len() > 16,
        "{} experts in the first tokens",
        ids.len()
    );
    Ok(())
}

fn problem(format: Format) -> Problem {
    let random = &mut Rng::with_seed(2);
    let routing = slots(&[40, 0, 3]);
    let mut values = hazards(format, routing.rows(), 72, random);
    values[..72].copy_from_slice(&activations(72, random));
    let input = Rows::rounded(InputType::Bf16, values);
    Problem::new(format, 72, routing, input)
}

/// A bit flipped anywhere in what a device returned: in elements, scales, padding, slack or guards.
fn planted_bits_are_found(context: &Context, format: Format) -> Result<()> {
    let problem = problem(format);
    let expected = problem.expected()?;
    let memory = problem.run(&context.device(), Launch::default())?;
    problem.compare(&expected, &memory)?;
    let flipped = |flip: &dyn Fn(&mut Memory)| {
        let mut memory = memory.clone();
        flip(&mut memory);
        found(problem.compare(&expected, &memory))
    };
    let (data_end, scales_end) = (memory.data.len(), memory.scales.len());
    for index in [
        0,
        GUARD - 1,
        GUARD,
        GUARD + 37,
        data_end - GUARD - 1,
        data_end - GUARD,
        data_end - 1,
    ] {
        for bit in 0..8 {
            let mismatch = flipped(&|memory| memory.data[index] ^= 1 << bit)?;
            ensure!(
                mismatch.what == "data" && mismatch.index == index,
                "{mismatch}"
            );
            let outside = index < GUARD || index >= data_end - GUARD;
            ensure!(mismatch.place.contains("outside") == outside, "{mismatch}");
        }
    }
    // A scale, padding of the first tile (rows 41 and 127 of 40), and a tile that nobody has.
    let row_41 = GUARD + 41 % 32 * 16 + 4;
    for index in [
        0,
        GUARD,
        row_41,
        GUARD + 511,
        scales_end - GUARD - 1,
        scales_end - 1,
    ] {
        let mismatch = flipped(&|memory| memory.scales[index] ^= 0x10)?;
        ensure!(
            mismatch.what == "scales" && mismatch.index == index,
            "{mismatch}"
        );
    }
    let slack = flipped(&|memory| memory.scales[scales_end - GUARD - 1] ^= 1)?;
    ensure!(slack.place.contains("of no slot"), "{slack}");
    Ok(())
}

/// A problem whose device side is given something else than its reference: one bit of one input
/// element, another factor, another row.
fn planted_input_is_found(context: &Context, format: Format) -> Result<()> {
    let device = context.device();
    let problem = problem(format);
    let expected = problem.expected()?;
    let differs = |other: Problem| -> Result<Mismatch> {
        let memory = other.run(&device, Launch::default())?;
        found(problem.compare(&expected, &memory))
    };
    // The largest element of the first block, doubled: one exponent bit or a carry out of it.
    let mut input = problem.input.widened();
    let block = &mut input[..format.block_size()];
    let largest = (0..block.len()).max_by(|&a, &b| block[a].abs().total_cmp(&block[b].abs()));
    block[largest.context("a block has elements")?] *= 2.0;
    let doubled = Rows::rounded(InputType::Bf16, input);
    let mismatch = differs(Problem {
        input: doubled,
        ..problem.clone()
    })?;
    ensure!(mismatch.index >= GUARD, "{mismatch}");

    if format.uses_tensor_scale() {
        differs(Problem {
            sf: vec![2.0; 3],
            ..problem.clone()
        })?;
    }
    differs(Problem {
        grouping: slots(&[39, 1, 3]).into(),
        ..problem.clone()
    })?;
    differs(Problem {
        sf: Vec::from([1.0]),
        ..problem.clone()
    })?;
    Ok(())
}
