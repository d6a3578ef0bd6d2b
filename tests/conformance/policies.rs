//! Every choice that a caller has, crossed with every input type and every path through the kernel.

use anyhow::Result;
use fastrand::Rng;
use kernels_gpu::quantize::RUN_COLUMNS;
use tokenyard::options::{
    DeadBlocks, Format, InputType, NanPolicy, QuantizeOptions, ScaleRounding,
};
use tokenyard_tests::shapes::{slots, tensor_scales};
use tokenyard_tests::values::hazards;
use tokenyard_tests::{Context, Problem, Rows, Suite};

pub fn register(suite: &mut Suite) {
    for format in Format::ALL {
        for input_type in InputType::ALL {
            suite.both(
                &format!("policies::{format}::{input_type}"),
                move |context| all_options(context, format, input_type),
            );
        }
        suite.both(
            &format!("policies::tensor_scales::{format}"),
            move |context| all_tensor_scales(context, format),
        );
    }
}

/// The options that a format has.
pub fn options(format: Format) -> Vec<QuantizeOptions> {
    let mut all = Vec::new();
    for scale_rounding in ScaleRounding::ALL {
        for dead_blocks in DeadBlocks::ALL {
            for nan_policy in NanPolicy::ALL {
                let options = QuantizeOptions {
                    scale_rounding,
                    dead_blocks,
                    nan_policy,
                };
                if options.check(format).is_ok() {
                    all.push(options);
                }
            }
        }
    }
    all
}

fn all_options(context: &Context, format: Format, input_type: InputType) -> Result<()> {
    let random = &mut Rng::with_seed(input_type as u64);
    // What a block covers, and a part of it, whose last scale block lacks elements.
    let (rows, columns) = (context.pick(300, 40), RUN_COLUMNS as usize + 72);
    let values = hazards(format, rows, columns, random);
    let input = Rows::rounded(input_type, values);
    let routing = slots(&[rows as u32 - 4, 4]);
    for options in options(format) {
        Problem {
            options,
            sf: vec![1.0, 0.43],
            ..Problem::new(format, columns, routing.clone(), input.clone())
        }
        .check(&context.devices())?;
    }
    Ok(())
}

/// Tensor-wise factors, each for its own slot: also those whose product with amax overflows or
/// whose reciprocal is flushed.
fn all_tensor_scales(context: &Context, format: Format) -> Result<()> {
    let random = &mut Rng::with_seed(9);
    let extremes = [
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::from_bits(1),
        f32::from_bits(0x7E80_0001),
    ];
    let sf: Vec<f32> = tensor_scales().into_iter().chain(extremes).collect();
    let rows = vec![context.pick(40, 10); sf.len()];
    let routing = slots(&rows);
    for input_type in InputType::ALL {
        let values = hazards(format, routing.rows(), 104, random);
        let input = Rows::rounded(input_type, values);
        for dead_blocks in DeadBlocks::ALL {
            Problem {
                options: QuantizeOptions {
                    dead_blocks,
                    ..QuantizeOptions::default()
                },
                sf: sf.clone(),
                ..Problem::new(format, 104, routing.clone(), input.clone())
            }
            .check(&context.devices())?;
        }
    }
    Ok(())
}
