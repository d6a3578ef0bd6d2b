//! Bulk copies and mbarriers: right pipelines work under every seed, and each missing step shows.

mod common;

use common::{Global, buffer, contents, kernel, run, seeded, shared, tid};
use simt::device::{self, CopyPiece};
use simt::{Error, Fault, FaultKind, Launch, Machine};

const THREADS: usize = 64;
const BYTES: usize = THREADS * 4;
const SEEDS: u64 = 40;

fn copy_out(dst: Global<u32>, at: usize, src: Global<u32>) {
    let dst = dst.at(at).0.cast();
    device::async_copy_out(&[CopyPiece {
        dst,
        src: src.0.cast(),
        bytes: BYTES,
    }]);
}

/// Which steps of a bulk store are left out.
#[derive(Clone, Copy, Default, PartialEq)]
struct Missing {
    fence: bool,
    commit: bool,
    wait: bool,
    /// Waits for the source only, but then has other blocks read the destination.
    write: bool,
}

/// Every block stores `rounds` tiles through shared memory, reusing it.
fn store_tiles(seed: u64, missing: Missing) -> Result<bool, Error> {
    const ROUNDS: usize = 4;
    const BLOCKS: usize = 4;
    let machine = Machine::new(seeded(seed));
    let out = buffer(&machine, &[0_u32; BLOCKS * ROUNDS * THREADS]);
    let store = move || {
        let tile = shared::<u32>();
        for round in 0..ROUNDS {
            let at = (device::block_idx().x as usize * ROUNDS + round) * THREADS;
            tile.store(tid(), (at + tid()) as u32);
            if !missing.fence || tid() != 3 {
                device::fence_proxy_async();
            }
            device::sync_threads();
            if tid() == 0 {
                copy_out(out, at, tile);
                if !missing.commit {
                    device::bulk_commit_group();
                }
                if !missing.wait {
                    device::bulk_wait_group(0, true);
                }
            }
            device::sync_threads();
        }
    };
    run(&machine, kernel(BLOCKS as u32, THREADS as u32, store))?;
    let out = contents(out, BLOCKS * ROUNDS * THREADS);
    Ok(out.iter().enumerate().all(|(i, &value)| value == i as u32))
}

#[test]
fn bulk_stores_of_a_reused_tile() {
    assert!((0..SEEDS).all(|seed| store_tiles(seed, Missing::default()) == Ok(true)));
}

#[test]
fn a_missing_wait_shows() {
    let wrong = |missing| {
        (0..SEEDS)
            .filter(|&seed| store_tiles(seed, missing) == Ok(false))
            .count()
    };
    assert!(
        wrong(Missing {
            wait: true,
            ..Missing::default()
        }) as u64
            > SEEDS / 2
    );
    // A wait without a commit before it waits for nothing.
    assert!(
        wrong(Missing {
            commit: true,
            ..Missing::default()
        }) as u64
            > SEEDS / 2
    );
}

#[test]
fn a_missing_proxy_fence_is_reported() {
    for seed in 0..SEEDS {
        let result = store_tiles(
            seed,
            Missing {
                fence: true,
                ..Missing::default()
            },
        );
        let Err(Error::Fault(fault)) = result else {
            panic!("{result:?}");
        };
        assert_eq!(fault.kind, FaultKind::MissingProxyFence);
        assert!(
            fault
                .message
                .starts_with("byte 12 of the 256 that are copied was stored by thread (3, 0, 0)"),
            "{fault}"
        );
    }
}

/// One block stores a tile and raises a flag, another one waits for the flag and reads.
fn hand_over(seed: u64, read_only: bool) -> bool {
    let machine = Machine::new(seeded(seed));
    let data = buffer(&machine, &[0_u32; THREADS]);
    let flag = buffer(&machine, &[0_u32]);
    let seen = buffer(&machine, &[0_u32; THREADS]);
    let body = move || {
        if device::block_idx().x == 0 {
            shared::<u32>().store(tid(), 5);
            device::fence_proxy_async();
            device::sync_threads();
            if tid() == 0 {
                copy_out(data, 0, shared());
                device::bulk_commit_group();
                device::bulk_wait_group(0, read_only);
                flag.atomic_store(0, 1);
            }
        } else {
            while flag.atomic_load(0) == 0 {}
            seen.store(tid(), data.load(tid()));
        }
    };
    run(&machine, kernel(2, THREADS as u32, body)).unwrap();
    assert_eq!(
        contents(data, THREADS),
        [5; THREADS],
        "the kernel's end is the last moment"
    );
    contents(seen, THREADS) == [5; THREADS]
}

#[test]
fn a_source_that_was_read_is_not_a_destination_that_was_written() {
    assert!((0..SEEDS).all(|seed| hand_over(seed, false)));
    assert!((0..SEEDS).filter(|&seed| !hand_over(seed, true)).count() as u64 > SEEDS / 4);
}

#[test]
fn a_wait_may_leave_the_latest_groups_pending() {
    // Two buffers; before one is refilled, all but the latest group must have been read.
    let double_buffer = |seed, pending| {
        const ROUNDS: usize = 6;
        let machine = Machine::new(seeded(seed));
        let out = buffer(&machine, &[0_u32; ROUNDS * THREADS]);
        let body = move || {
            for round in 0..ROUNDS {
                let tile = shared::<u32>().at(round % 2 * THREADS);
                if tid() == 0 {
                    device::bulk_wait_group(pending, true);
                }
                device::sync_threads();
                tile.store(tid(), round as u32);
                device::fence_proxy_async();
                device::sync_threads();
                if tid() == 0 {
                    copy_out(out, round * THREADS, tile);
                    device::bulk_commit_group();
                }
            }
            if tid() == 0 {
                device::bulk_wait_group(0, true);
            }
        };
        run(&machine, kernel(1, THREADS as u32, body)).unwrap();
        let out = contents(out, ROUNDS * THREADS);
        out.iter()
            .enumerate()
            .all(|(i, &value)| value as usize == i / THREADS)
    };
    assert!((0..SEEDS).all(|seed| double_buffer(seed, 1)));
    assert!((0..SEEDS).any(|seed| !double_buffer(seed, 2)));
}

/// A producer warp loads tiles through a ring of two buffers with full and empty mbarriers; the others add
/// them up.
fn pipeline(seed: u64, wait_for_empty: bool) -> Result<bool, Error> {
    const TILES: usize = 8;
    const STAGES: usize = 2;
    let machine = Machine::new(seeded(seed));
    let input = buffer(&machine, &(0..(TILES * THREADS) as u32).collect::<Vec<_>>());
    let sums = buffer(&machine, &[0_u32; THREADS]);
    let body = move || {
        let full = |stage: usize| {
            device::static_shared(1, 32, 8)
                .cast::<u64>()
                .wrapping_add(stage)
        };
        let empty = |stage: usize| full(STAGES + stage);
        if tid() == 0 {
            for stage in 0..STAGES {
                device::mbarrier_init(full(stage), 1);
                device::mbarrier_init(empty(stage), THREADS as u32);
            }
        }
        device::sync_threads();
        if tid() >= THREADS {
            if device::lane_id() == 0 {
                for tile in 0..TILES {
                    let (stage, round) = (tile % STAGES, (tile / STAGES) as u32);
                    if wait_for_empty {
                        while !device::mbarrier_try_wait_parity(empty(stage), (round & 1) ^ 1) {}
                    }
                    device::mbarrier_arrive_expect_tx(full(stage), BYTES as u32);
                    let dst = shared::<u8>().0.wrapping_add(stage * BYTES);
                    let src = input.at(tile * THREADS).0.cast_const().cast();
                    // In two pieces, the rest as zeros.
                    let half = BYTES / 2;
                    let pieces = [
                        CopyPiece {
                            dst,
                            src,
                            bytes: half,
                        },
                        CopyPiece {
                            dst: dst.wrapping_add(half),
                            src: src.wrapping_add(half),
                            bytes: half - 4,
                        },
                    ];
                    device::async_copy_in(
                        &pieces,
                        &[(dst.wrapping_add(BYTES - 4), 4)],
                        full(stage),
                    );
                }
            }
        } else {
            let mut sum = 0;
            for tile in 0..TILES {
                let (stage, round) = (tile % STAGES, (tile / STAGES) as u32);
                while !device::mbarrier_try_wait_parity(full(stage), round & 1) {}
                sum += shared::<u32>().load(stage * THREADS + tid());
                device::mbarrier_arrive(empty(stage));
            }
            sums.store(tid(), sum);
        }
    };
    run(&machine, kernel(2, THREADS as u32 + 32, body))?;
    Ok(contents(sums, THREADS).iter().enumerate().all(|(i, &sum)| {
        let expected: usize = (0..TILES).map(|tile| tile * THREADS + i).sum();
        sum as usize == if i == THREADS - 1 { 0 } else { expected }
    }))
}

#[test]
fn an_mbarrier_pipeline() {
    for seed in 0..SEEDS {
        assert_eq!(pipeline(seed, true), Ok(true), "seed {seed}");
    }
}

#[test]
fn a_pipeline_that_does_not_wait_for_its_consumers_shows() {
    // Either a tile is overwritten while it is read, or the full barrier is armed twice in a phase.
    let caught = |seed| match pipeline(seed, false) {
        Ok(right) => !right,
        Err(Error::Fault(fault)) => {
            fault.kind == FaultKind::Mbarrier || fault.kind == FaultKind::Livelock
        }
        Err(error) => panic!("{error}"),
    };
    assert!((0..SEEDS).filter(|&seed| caught(seed)).count() as u64 > SEEDS / 2);
}

#[test]
fn mbarrier_states_name_phases() {
    let machine = Machine::new(seeded(1));
    let body = || {
        let bar = device::static_shared(1, 8, 8).cast();
        if tid() == 0 {
            device::mbarrier_init(bar, 32);
        }
        device::sync_threads();
        for phase in 0..5 {
            let state = device::mbarrier_arrive(bar);
            while !device::mbarrier_try_wait(bar, state) {}
            assert!(device::mbarrier_try_wait_parity(bar, phase & 1));
            device::sync_threads();
        }
        if tid() == 0 {
            device::mbarrier_inval(bar);
            device::mbarrier_init(bar, 1);
        }
    };
    run(&machine, kernel(1, 32, body)).unwrap();
}

/// The fault of one thread with a fresh mbarrier of two arrivals.
fn misuse(body: fn(*mut u64, Global<u32>)) -> Fault {
    let machine = Machine::new(simt::Config {
        spin_limit: 1_000,
        ..seeded(1)
    });
    let data = buffer(&machine, &[0_u32; THREADS]);
    let launch = kernel(1, 1, move || {
        let bar = device::static_shared(1, 8, 8).cast();
        device::mbarrier_init(bar, 2);
        body(bar, data);
    });
    match run(
        &machine,
        Launch {
            shared_bytes: 4096,
            ..launch
        },
    ) {
        Err(Error::Fault(fault)) => *fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn misused_mbarriers_are_reported() {
    let check = |text: &str, body| {
        let fault = misuse(body);
        assert_eq!(fault.kind, FaultKind::Mbarrier, "{fault}");
        assert!(fault.message.contains(text), "{fault}");
    };
    check("no initialised mbarrier", |_, _| {
        _ = device::mbarrier_arrive(shared().0)
    });
    check("initialised twice", |bar, _| device::mbarrier_init(bar, 1));
    check("must be in the block's shared memory", |_, data| {
        device::mbarrier_init(data.0.cast(), 1)
    });
    check("of 0 arrivals", |_, _| device::mbarrier_init(shared().0, 0));
    check("overwritten", |bar, _| {
        Global(bar).store(0, 0);
        device::mbarrier_arrive(bar);
    });
    check("more arrivals than the 2", |bar, _| {
        device::mbarrier_arrive_expect_tx(bar, 64);
        device::mbarrier_arrive(bar);
        device::mbarrier_arrive(bar);
    });
    check("neither 0 nor 1", |bar, _| {
        _ = device::mbarrier_try_wait_parity(bar, 2)
    });
    check("only the current phase and the one before", |bar, _| {
        let state = device::mbarrier_arrive(bar);
        for _ in 0..3 {
            device::mbarrier_arrive(bar);
        }
        device::mbarrier_try_wait(bar, state);
    });
    check("no initialised mbarrier", |bar, data| {
        let piece = CopyPiece {
            dst: shared().0,
            src: data.0.cast(),
            bytes: 16,
        };
        device::async_copy_in(&[piece], &[], bar.wrapping_add(1));
    });
    let fault = misuse(|bar, _| {
        let state = device::mbarrier_arrive(bar);
        while !device::mbarrier_try_wait(bar, state) {}
    });
    assert_eq!(fault.kind, FaultKind::Livelock);
}

#[test]
fn copies_are_checked() {
    let fault = misuse(|_, data| {
        let piece = CopyPiece {
            dst: data.0.cast(),
            src: shared().0,
            bytes: 260,
        };
        device::async_copy_out(&[piece]);
    });
    assert_eq!(fault.kind, FaultKind::OutOfBounds);
    assert!(
        fault
            .message
            .contains("260 bytes at byte 0 of allocation #1 of 256 bytes"),
        "{fault}"
    );

    let fault = misuse(|bar, data| {
        let dst = shared::<u8>().0.wrapping_add(4090);
        device::async_copy_in(
            &[CopyPiece {
                dst,
                src: data.0.cast(),
                bytes: 16,
            }],
            &[],
            bar,
        );
    });
    assert_eq!(fault.kind, FaultKind::OutOfBounds);

    let fault = misuse(|bar, data| {
        device::mbarrier_arrive_expect_tx(bar, 16);
        let piece = CopyPiece {
            dst: shared().0,
            src: data.0.cast(),
            bytes: 16,
        };
        device::async_copy_in(&[piece], &[], bar);
    });
    assert_eq!(fault.kind, FaultKind::AsyncCopy);
    assert!(
        fault
            .message
            .contains("1 copies into its shared memory in flight"),
        "{fault}"
    );
}
