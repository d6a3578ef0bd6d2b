//! Routing on the device: the same tables as on the host, and straight on into the quantizer.

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tokenyard::options::{Format, InputType};
use tokenyard::routing::Routing;
use tokenyard::{
    Device, DeviceBuffer, DeviceRouting, GroupedQuantizer, RoutingTables, TensorScales, TopkRouter,
};
use tokenyard_tests::memory::Background;
use tokenyard_tests::shapes::topk_ids;
use tokenyard_tests::values::activations;
use tokenyard_tests::{Context, Problem, Rows, Suite, compare};

pub fn register(suite: &mut Suite) {
    suite.both("router::matches_the_host", matches_the_host);
    suite.both("router::many_assignments", many_assignments);
    suite.both("router::one_expert_gets_all", one_expert_gets_all);
    suite.both("router::ids_of_nobody", ids_of_nobody);
    suite.both("router::tables_are_reused", tables_are_reused);
    suite.both("router::unused_rows_stay", unused_rows_stay);
    for format in Format::ALL {
        suite.both(
            &format!("router::feeds_the_quantizer::{format}"),
            move |context| feeds_the_quantizer(context, format),
        );
    }
}

/// The host's tables, as the device should have made them. Where the host refuses an id, the device
/// takes it for -1.
fn host_tables(ids: &[i32], tokens: usize, top_k: usize, experts: usize) -> Result<RoutingTables> {
    let known: Vec<i32> = ids
        .iter()
        .map(|&id| {
            if (0..experts as i32).contains(&id) {
                id
            } else {
                -1
            }
        })
        .collect();
    let routing = Routing::from_topk(&known, tokens, top_k, experts)?;
    Ok(RoutingTables {
        row_offsets: routing.row_offsets().to_vec(),
        scales_offsets: routing.scales_offsets().to_vec(),
        expert_ids: routing.expert_ids().to_vec(),
        source_rows: routing.source_rows().map(<[i32]>::to_vec),
    })
}

fn same(expected: &RoutingTables, found: &RoutingTables) -> Result<()> {
    compare::values("row_offsets", &expected.row_offsets, &found.row_offsets)?;
    compare::values(
        "scales_offsets",
        &expected.scales_offsets,
        &found.scales_offsets,
    )?;
    compare::values("expert_ids", &expected.expert_ids, &found.expert_ids)?;
    let (Some(expected), Some(found)) = (&expected.source_rows, &found.source_rows) else {
        anyhow::bail!("tables of a router without source rows");
    };
    compare::values("source_rows", expected, found)
}

fn check(device: &Device, ids: &[i32], tokens: usize, top_k: usize, experts: usize) -> Result<()> {
    let context = || {
        format!(
            "{tokens} tokens, top {top_k} of {experts}, on {}",
            device.description()
        )
    };
    let mut router = TopkRouter::new(device, tokens, top_k, experts).with_context(context)?;
    let mut tables = router.allocate()?;
    let stream = device.create_stream()?;
    router
        .route(&stream, &device.upload(ids)?, &mut tables)
        .with_context(context)?;
    stream.synchronize().with_context(context)?;
    let expected = host_tables(ids, tokens, top_k, experts)?;
    same(&expected, &tables.download()?).with_context(context)?;
    tables.validate().with_context(context)
}

/// Tokens, top-k and experts around the kernels' 32 lanes and 256 threads.
fn matches_the_host(context: &Context) -> Result<()> {
    let random = &mut Rng::with_seed(1);
    let few: &[usize] = &[1, 2, 31, 33, 40];
    let many: &[usize] = &[
        1, 2, 31, 32, 33, 40, 60, 255, 256, 257, 512, 513, 1024, 1025,
    ];
    for (tokens, top_k) in [
        (0, 4),
        (5, 0),
        (1, 1),
        (11, 1),
        (3, 8),
        (64, 4),
        (65, 4),
        (257, 1),
    ] {
        for &experts in context.pick(many, few) {
            for absent in [false, true] {
                let ids = topk_ids(tokens, top_k, experts, absent, random);
                check(&context.device(), &ids, tokens, top_k, experts)?;
            }
        }
    }
    // The many experts alone, with as few assignments as reach the code for more than one pass.
    for experts in [255, 256, 257, 513, 1025] {
        let ids = topk_ids(20, 2, experts, true, random);
        check(&context.device(), &ids, 20, 2, experts)?;
    }
    Ok(())
}

/// Totals that take several passes of a block, none of them a multiple of its threads.
fn many_assignments(context: &Context) -> Result<()> {
    let random = &mut Rng::with_seed(2);
    for (tokens, top_k, experts) in context.pick(
        &[
            (197, 1, 256),
            (625, 4, 256),
            (5165, 4, 513),
            (25_000, 4, 1025),
        ][..],
        &[(197, 1, 256), (625, 4, 33), (5165, 4, 13)],
    ) {
        let ids = topk_ids(*tokens, *top_k, *experts, true, random);
        check(&context.device(), &ids, *tokens, *top_k, *experts)?;
    }
    Ok(())
}

fn one_expert_gets_all(context: &Context) -> Result<()> {
    for expert in [0, 7, 32] {
        for device in context.devices() {
            check(&device, &[expert; 300], 300, 1, 33)?;
        }
    }
    Ok(())
}

/// -1, and other ids that are no expert's.
fn ids_of_nobody(context: &Context) -> Result<()> {
    let random = &mut Rng::with_seed(3);
    for nobody in [-1, -2, 33, 34, i32::MAX, i32::MIN] {
        check(&context.device(), &[nobody; 66], 33, 2, 33)?;
        let mut ids = topk_ids(33, 2, 33, false, random);
        for id in ids.iter_mut().step_by(5) {
            *id = nobody;
        }
        check(&context.device(), &ids, 33, 2, 33)?;
    }
    Ok(())
}

/// Nothing of an earlier routing shows in the next one into the same tables.
fn tables_are_reused(context: &Context) -> Result<()> {
    let (tokens, top_k, experts) = (50, 3, 12);
    let random = &mut Rng::with_seed(4);
    let device = context.device();
    let stream = device.create_stream()?;
    let mut router = TopkRouter::new(&device, tokens, top_k, experts)?;
    let mut tables = router.allocate()?;
    for round in 0..6 {
        let ids = match round {
            2 => vec![-1; tokens * top_k],
            _ => topk_ids(tokens, top_k, experts, round % 2 == 1, random),
        };
        router.route(&stream, &device.upload(&ids)?, &mut tables)?;
        let expected = host_tables(&ids, tokens, top_k, experts)?;
        same(&expected, &tables.download()?).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// Source rows past the routed ones, and everything around the tables, keep their content.
fn unused_rows_stay(context: &Context) -> Result<()> {
    const GUARD: usize = 64;
    let (tokens, top_k, experts) = (40, 2, 5);
    let random = &mut Rng::with_seed(5);
    let ids = topk_ids(tokens, top_k, experts, true, random);
    let expected = host_tables(&ids, tokens, top_k, experts)?;
    let device = context.device();
    let noise: Vec<u32> =
        bytemuck::pod_collect_to_vec(&Background::Noise.bytes(4 * (tokens * top_k + 2 * GUARD), 6));
    let guarded = (0..4).map(|_| device.upload(&noise));
    let mut guarded = guarded.collect::<Result<Vec<_>, _>>()?;
    let mut part = |table: usize, len: usize| -> Result<DeviceBuffer<u32>> {
        let start = guarded[table].as_mut_ptr().wrapping_add(GUARD);
        // SAFETY: `guarded` has room for the part, and outlives the work that gets it.
        Ok(unsafe { DeviceBuffer::from_raw(&device, start, len)? })
    };
    let (rows, slots) = (tokens * top_k, experts);
    let mut tables = DeviceRouting::from_buffers(
        part(0, slots + 1)?,
        part(1, slots)?,
        signed(&device, part(2, slots)?)?,
        Some(signed(&device, part(3, rows)?)?),
        rows,
    )?;
    let mut router = TopkRouter::new(&device, tokens, top_k, experts)?;
    router.route(&device.create_stream()?, &device.upload(&ids)?, &mut tables)?;

    let source_rows = expected.source_rows.context("a router gathers")?;
    let written: [Vec<u32>; 4] = [
        expected.row_offsets,
        expected.scales_offsets,
        bytemuck::cast_slice(&expected.expert_ids).to_vec(),
        bytemuck::cast_slice(&source_rows).to_vec(),
    ];
    ensure!(
        written[3].len() < rows,
        "some ids are absent, or this shows nothing"
    );
    for (table, (buffer, written)) in guarded.into_iter().zip(written).enumerate() {
        let mut expected = noise.clone();
        expected[GUARD..GUARD + written.len()].copy_from_slice(&written);
        compare::values(
            &format!("table {table} and around"),
            &expected,
            &buffer.download()?,
        )?;
    }
    Ok(())
}

/// The same memory as signed numbers.
fn signed(device: &Device, mut buffer: DeviceBuffer<u32>) -> Result<DeviceBuffer<i32>> {
    // SAFETY: `buffer` is a view of memory that outlives it; both types are four bytes.
    Ok(unsafe { DeviceBuffer::from_raw(device, buffer.as_mut_ptr().cast(), buffer.len())? })
}

/// Routing, quantizing and dequantizing queued one after another, without the host looking between.
fn feeds_the_quantizer(context: &Context, format: Format) -> Result<()> {
    let (tokens, top_k, experts, columns) = (45, 3, 9, 264);
    let random = &mut Rng::with_seed(6);
    let ids = topk_ids(tokens, top_k, experts, true, random);
    let routing = Routing::from_topk(&ids, tokens, top_k, experts)?;
    let values = activations(tokens * columns, random);
    let input = Rows::rounded(InputType::Bf16, values);
    let problem = Problem {
        background: Background::Byte(0),
        sf: (1..=experts).map(|expert| expert as f32 * 0.37).collect(),
        ..Problem::new(format, columns, routing, input)
    };
    let expected = problem.expected()?;

    for device in context.devices() {
        let (routes, works) = (device.create_stream()?, device.create_stream()?);
        let mut router = TopkRouter::new(&device, tokens, top_k, experts)?;
        let mut tables = router.allocate()?;
        let quantizer = GroupedQuantizer::builder(&device, format)
            .columns(columns)
            .build()?;
        // As many rows as there are ids: an upper bound, as the device knows which are -1.
        let rows = tokens * top_k;
        let mut output = quantizer.adopt(tokenyard::Quantized::from_buffers(
            format,
            rows,
            columns,
            tables.tiles_needed(),
            device.alloc_filled(rows * format.bytes_per_row(columns), 0)?,
            device.alloc_filled(
                tables.tiles_needed() * format.column_tiles(columns) * 512,
                0,
            )?,
        )?)?;
        let input = problem.input.upload(&device)?;
        let ids = device.upload(&ids)?;
        let sf = TensorScales::upload(&device, &problem.sf)?;

        router.route(&routes, &ids, &mut tables)?;
        works.wait(&routes.record()?)?;
        quantizer.quantize_into(&works, input.input(), &tables, &sf, &mut output)?;
        let restored = output.dequantize(&works, &tables, &sf)?;
        works.synchronize()?;

        let context = || format!("{problem}, on {}", device.description());
        let routed = expected.data().len();
        let (data, scales) = (output.data().download()?, output.scales().download()?);
        let place = |index: usize| index.to_string();
        compare::bytes("data", expected.data(), &data[..routed], place).with_context(context)?;
        ensure!(
            data[routed..].iter().all(|&byte| byte == 0),
            "rows of nobody were written"
        );
        let tiles = expected.scales().len().min(scales.len());
        compare::bytes(
            "scales",
            &expected.scales()[..tiles],
            &scales[..tiles],
            place,
        )
        .with_context(context)?;
        let rows = crate::dequantize::expected(&problem, &expected)?;
        compare::floats("rows", &rows, &restored.download()?[..rows.len()], place)
            .with_context(context)?;
    }
    Ok(())
}
