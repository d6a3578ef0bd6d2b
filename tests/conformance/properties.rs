//! Shapes, routings, values, options, launches and schedules drawn together, and cut down to the
//! smallest example when one fails.

use anyhow::{Result, bail};
use fastrand::Rng;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tokenyard::options::{Format, InputType, QuantizeOptions};
use tokenyard::routing::{Routing, scales_offsets};
use tokenyard::{RoutingTables, TopkRouter};
use tokenyard_tests::backend::{Backend, SCHEDULES, TARGETS, emulator};
use tokenyard_tests::shapes::{row_offsets, tensor_scales};
use tokenyard_tests::values::{activations, hazards};
use tokenyard_tests::{Context, Grouping, Launch, Problem, Rows, Suite};

use crate::policies;

pub fn register(suite: &mut Suite) {
    suite.both("properties::quantizer_equals_reference", |context| {
        let cases = context.pick(400, 80);
        holds(context, cases, quantizations(), |plan| {
            quantizer_equals_reference(context, plan)
        })
    });
    suite.both("properties::router_equals_host", |context| {
        let cases = context.pick(400, 30);
        holds(context, cases, routings(), |plan| {
            router_equals_host(context, plan)
        })
    });
}

/// Draws `cases` plans from each seed and tries the property on them.
fn holds<S: Strategy>(
    context: &Context,
    cases: u32,
    strategy: S,
    property: impl Fn(&S::Value) -> Result<()>,
) -> Result<()> {
    for seed in context.seeds() {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        };
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let result = TestRunner::new_with_rng(config, random).run(&strategy, |plan| {
            property(&plan).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        });
        match result {
            Ok(()) => {}
            Err(TestError::Fail(reason, plan)) => bail!(
                "{reason}\nsmallest example: {plan:?}\nreplay with TOKENYARD_SEED={seed} TOKENYARD_SEEDS=1"
            ),
            Err(TestError::Abort(reason)) => bail!("seed {seed}: gave up: {reason}"),
        }
    }
    Ok(())
}

/// A quantization, by the numbers that decide it.
#[derive(Clone, Debug)]
struct Quantization {
    format: Format,
    input_type: InputType,
    options: prop::sample::Index,
    columns: usize,
    /// Rows of each slot, its expert, and free tiles before it.
    slots: Vec<(u32, i32, u32)>,
    rows_after: usize,
    /// Where rows come from: `None`, or an input of this many rows.
    gather: Option<usize>,
    hazardous: bool,
    values: u64,
    launch: prop::sample::Index,
    schedule: Schedule,
}

/// Which emulated device; a GPU has its own mind.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    target: usize,
    schedule: usize,
    seed: u64,
}

fn schedules() -> impl Strategy<Value = Schedule> {
    (0..TARGETS.len(), 0..SCHEDULES.len(), any::<u64>()).prop_map(|(target, schedule, seed)| {
        Schedule {
            target,
            schedule,
            seed,
        }
    })
}

fn device(context: &Context, schedule: Schedule) -> tokenyard::Device {
    match context.backend {
        Backend::Cuda => context.device(),
        Backend::Emulator => emulator(
            TARGETS[schedule.target],
            SCHEDULES[schedule.schedule],
            schedule.seed,
        ),
    }
}

fn quantizations() -> impl Strategy<Value = Quantization> {
    let rows = prop_oneof![
        3 => Just(0u32),
        5 => 1u32..10,
        1 => 30u32..34,
        1 => 126u32..131,
        1 => 254u32..259,
    ];
    // Most experts have a factor; -1 and 9 have none.
    let slot = (
        rows,
        prop_oneof![9 => 0i32..9, 1 => Just(-1)],
        prop_oneof![4 => Just(0u32), 1 => 0u32..3],
    );
    let what = (
        prop::sample::select(Format::ALL.to_vec()),
        prop::sample::select(InputType::ALL.to_vec()),
        any::<prop::sample::Index>(),
        (1usize..45).prop_map(|chunks| 8 * chunks),
    );
    let shape = (
        prop::collection::vec(slot, 1..9),
        prop_oneof![3 => Just(0usize), 1 => 1usize..200],
        prop::option::of(1usize..60),
    );
    let how = (
        any::<bool>(),
        any::<u64>(),
        any::<prop::sample::Index>(),
        schedules(),
    );
    (what, shape, how).prop_map(|(what, shape, how)| {
        let (format, input_type, options, columns) = what;
        let (slots, rows_after, gather) = shape;
        let (hazardous, values, launch, schedule) = how;
        Quantization {
            format,
            input_type,
            options,
            columns,
            slots,
            rows_after,
            gather,
            hazardous,
            values,
            launch,
            schedule,
        }
    })
}

impl Quantization {
    fn problem(&self) -> Problem {
        let random = &mut Rng::with_seed(self.values);
        let rows_per_slot: Vec<u32> = self.slots.iter().map(|slot| slot.0).collect();
        let row_offsets = row_offsets(&rows_per_slot);
        let rows = row_offsets[self.slots.len()] as usize + self.rows_after;
        let mut gap = 0;
        let scales_offsets = scales_offsets(&row_offsets)
            .into_iter()
            .zip(&self.slots)
            .map(|(offset, slot)| {
                gap += slot.2;
                offset + gap
            })
            .collect();
        let source_rows = self.gather.map(|input_rows| {
            // Now and then a row that does not exist.
            (0..rows)
                .map(|_| random.i32(-1..=input_rows as i32))
                .collect()
        });
        let tables = RoutingTables {
            row_offsets,
            scales_offsets,
            expert_ids: self.slots.iter().map(|slot| slot.1).collect(),
            source_rows,
        };
        let input_rows = self.gather.unwrap_or(rows);
        let values = match self.hazardous {
            true => hazards(self.format, input_rows, self.columns, random),
            false => activations(input_rows * self.columns, random),
        };
        let all_options: Vec<QuantizeOptions> = policies::options(self.format);
        let problem = Problem::new(
            self.format,
            self.columns,
            Grouping::Tables(tables, rows),
            Rows::rounded(self.input_type, values),
        );
        Problem {
            options: *self.options.get(&all_options),
            sf: tensor_scales().to_vec(),
            ..problem
        }
    }
}

fn quantizer_equals_reference(context: &Context, plan: &Quantization) -> Result<()> {
    let device = device(context, plan.schedule);
    let launches = Launch::all(&device);
    plan.problem()
        .check_all(&[device], &[*plan.launch.get(&launches)])
}

/// A routing: tokens, top-k, experts, and the ids.
#[derive(Clone, Debug)]
struct Routed {
    tokens: usize,
    top_k: usize,
    experts: usize,
    ids: Vec<i32>,
    schedule: Schedule,
}

fn routings() -> impl Strategy<Value = Routed> {
    (0usize..80, 0usize..5, 1usize..40, schedules()).prop_flat_map(
        |(tokens, top_k, experts, schedule)| {
            prop::collection::vec(-1..experts as i32, tokens * top_k).prop_map(move |ids| Routed {
                tokens,
                top_k,
                experts,
                ids,
                schedule,
            })
        },
    )
}

fn router_equals_host(context: &Context, plan: &Routed) -> Result<()> {
    let device = device(context, plan.schedule);
    let mut router = TopkRouter::new(&device, plan.tokens, plan.top_k, plan.experts)?;
    let mut tables = router.allocate()?;
    router.route(
        &device.create_stream()?,
        &device.upload(&plan.ids)?,
        &mut tables,
    )?;
    let found = tables.download()?;
    let routing = Routing::from_topk(&plan.ids, plan.tokens, plan.top_k, plan.experts)?;
    let expected = RoutingTables {
        row_offsets: routing.row_offsets().to_vec(),
        scales_offsets: routing.scales_offsets().to_vec(),
        expert_ids: routing.expert_ids().to_vec(),
        source_rows: routing.source_rows().map(<[i32]>::to_vec),
    };
    if found != expected {
        bail!(
            "expected {expected:?}, found {found:?}, on {}",
            device.description()
        );
    }
    Ok(())
}
