//! The same seed replays the same interleaving, and different seeds find what is wrong.

mod common;

use std::collections::HashSet;

use common::{Global, buffer, contents, fault_of, kernel, run, seeded, shared, tid};
use simt::{Config, Error, FaultKind, Launch, Machine, Schedule, device};

const THREADS: usize = 64;

/// The order in which the threads of three blocks draw tickets between collectives of every kind, and the
/// number of steps that took.
fn tickets(config: Config) -> (Vec<u32>, u64) {
    const COUNT: usize = 3 * THREADS * 4;
    let machine = Machine::new(config);
    let next = buffer(&machine, &[0_u32]);
    let order = buffer(&machine, &[0_u32; COUNT]);
    let draw = move || {
        let thread = device::block_idx().x as usize * THREADS + tid();
        for round in 0..4 {
            order.store(next.atomic_add(0, 1) as usize, (thread * 4 + round) as u32);
            match round {
                0 => device::sync_threads(),
                1 => device::nanosleep(500),
                2 => _ = device::warp_exchange("vote", u32::MAX, 0),
                _ => device::yield_point(device::Yield::Spin),
            }
        }
    };
    run(&machine, kernel(3, THREADS as u32, draw)).unwrap();
    (contents(order, COUNT), machine.steps())
}

#[test]
fn a_hundred_seeds_replay() {
    let mut orders = HashSet::new();
    for seed in 0..100 {
        let schedule = match seed % 3 {
            0 => Schedule::Stall { stretch: 100 },
            _ => Schedule::Random,
        };
        let config = Config {
            schedule,
            preempt_every: 3,
            ..seeded(seed)
        };
        let first = tickets(config);
        assert_eq!(first, tickets(config), "seed {seed}");
        orders.insert(first.0);
    }
    assert_eq!(orders.len(), 100, "every seed has an order of its own");
}

#[test]
fn faults_replay() {
    for seed in 0..20 {
        let racy = || {
            kernel(4, 64, || {
                device::yield_point(device::Yield::Progress);
                if device::lane_id() % 8 == 7 {
                    device::trap("whoever comes first");
                }
            })
        };
        let fault = fault_of(seeded(seed), racy());
        assert_eq!(fault, fault_of(seeded(seed), racy()));
        assert_eq!(fault.seed, seed);
    }
}

/// How many of `seeds` seeds show a wrong result.
fn seeds_that_show(seeds: u64, config: Config, attempt: impl Fn(&Machine) -> bool) -> u64 {
    (0..seeds)
        .filter(|&seed| !attempt(&Machine::new(Config { seed, ..config })))
        .count() as u64
}

/// Reverses an array through shared memory.
fn reverse(machine: &Machine, barrier: bool) -> bool {
    let data = buffer(machine, &(0..THREADS as u32).collect::<Vec<_>>());
    let kernel = kernel(1, THREADS as u32, move || {
        let tile = shared::<u32>();
        tile.store(tid(), data.load(tid()));
        if barrier {
            device::sync_threads();
        }
        data.store(tid(), tile.load(THREADS - 1 - tid()));
    });
    run(machine, kernel).unwrap();
    contents(data, THREADS)
        .iter()
        .rev()
        .copied()
        .eq(0..THREADS as u32)
}

#[test]
fn a_missing_barrier_shows() {
    assert_eq!(
        seeds_that_show(10, Config::default(), |machine| reverse(machine, false)),
        10
    );
    assert_eq!(
        seeds_that_show(10, Config::default(), |machine| reverse(machine, true)),
        0
    );
}

#[test]
fn a_barrier_missing_before_the_tile_is_reused_shows() {
    let rotate = |machine: &Machine, both: bool| {
        let out = buffer(machine, &[0_u32; THREADS]);
        let kernel = kernel(1, THREADS as u32, move || {
            let tile = shared::<u32>();
            let mut sum = 0;
            for round in 0..2 {
                tile.store(tid(), round);
                device::sync_threads();
                sum += tile.load((tid() + 1) % THREADS);
                if both {
                    device::sync_threads();
                }
            }
            out.store(tid(), sum);
        });
        run(machine, kernel).unwrap();
        contents(out, THREADS).iter().all(|&sum| sum == 1)
    };
    assert!(seeds_that_show(10, Config::default(), |machine| rotate(machine, false)) > 0);
    assert_eq!(
        seeds_that_show(10, Config::default(), |machine| rotate(machine, true)),
        0
    );
}

#[test]
fn a_lost_update_shows_by_preemption() {
    let count = |machine: &Machine, atomic: bool| {
        let counter = buffer(machine, &[0_u32]);
        let kernel = kernel(2, THREADS as u32, move || {
            if atomic {
                counter.atomic_add(0, 1);
            } else {
                counter.store(0, counter.load(0) + 1);
            }
        });
        run(machine, kernel).unwrap();
        contents(counter, 1) == [2 * THREADS as u32]
    };
    let config = Config {
        preempt_every: 16,
        ..Config::default()
    };
    assert!(seeds_that_show(10, config, |machine| count(machine, false)) > 5);
    assert_eq!(
        seeds_that_show(10, config, |machine| count(machine, true)),
        0
    );
}

#[test]
fn reading_what_was_never_written_shows() {
    // Values that depend on the seed, and never zero.
    let mut seen = HashSet::new();
    for seed in 0..10 {
        let machine = Machine::new(seeded(seed));
        let out = Global::<u32>(machine.alloc(12).unwrap().cast());
        let read = move || {
            let array = Global::<u32>(device::static_shared(1, 4, 4).cast());
            out.store(0, shared::<u32>().load(5));
            out.store(1, array.load(0));
        };
        run(&machine, kernel(1, 1, read)).unwrap();
        let values = contents(out, 3);
        assert!(
            values
                .iter()
                .all(|&value| value.to_ne_bytes().iter().all(|&byte| byte != 0))
        );
        seen.insert(values);
    }
    assert_eq!(seen.len(), 10);
}

#[test]
fn shared_memory_does_not_pass_from_block_to_block() {
    let machine = Machine::new(Config {
        max_resident_blocks: 1,
        ..seeded(1)
    });
    let out = buffer(&machine, &[0_u32; 8]);
    let inherit = move || {
        let tile = shared::<u32>();
        out.store(device::block_idx().x as usize, tile.load(0));
        tile.store(0, 0);
    };
    run(&machine, kernel(8, 1, inherit)).unwrap();
    let distinct: HashSet<_> = contents(out, 8).into_iter().collect();
    assert!(distinct.len() == 8 && !distinct.contains(&0));
}

#[test]
fn a_stalled_side_shows_a_missing_handshake() {
    // The writer overwrites a message that it assumes read after 40 polls of its own; only a reader that is
    // held back for long misses it.
    let relay = |machine: &Machine| {
        let message = buffer(machine, &[0_u32; 2]);
        let got = buffer(machine, &[0_u32]);
        let kernel = kernel(2, 1, move || {
            if device::block_idx().x == 0 {
                message.atomic_store(0, 1);
                for _ in 0..40 {
                    message.atomic_load(1);
                }
                message.atomic_store(0, 2);
            } else {
                loop {
                    let value = message.atomic_load(0);
                    if value != 0 {
                        got.store(0, value);
                        break;
                    }
                }
            }
        });
        run(machine, kernel).unwrap();
        contents(got, 1) == [1]
    };
    let stall = Config {
        schedule: Schedule::Stall { stretch: 100 },
        ..Config::default()
    };
    assert_eq!(seeds_that_show(50, Config::default(), relay), 0);
    assert!(seeds_that_show(50, stall, relay) > 5);
}

#[test]
fn an_order_of_blocks_that_nobody_promises() {
    // Deadlocks only where block 1 is resident without block 0 making progress: never. The other way round,
    // waiting for a block that cannot become resident is reported.
    let wait_for = |successor: bool| {
        let machine = Machine::new(Config {
            max_resident_blocks: 2,
            spin_limit: 1_000,
            ..seeded(1)
        });
        let done = buffer(&machine, &[0_u32; 8]);
        let chain = Launch {
            cooperative: false,
            ..kernel(8, 1, move || {
                let block = device::block_idx().x as usize;
                let other = if successor {
                    block + 1
                } else {
                    block.wrapping_sub(1)
                };
                if other < 8 {
                    while done.atomic_load(other) == 0 {}
                }
                done.atomic_store(block, 1);
            })
        };
        run(&machine, chain)
    };
    assert!(wait_for(false).is_ok());
    assert!(
        matches!(wait_for(true), Err(Error::Fault(fault)) if fault.kind == FaultKind::Livelock)
    );
}
