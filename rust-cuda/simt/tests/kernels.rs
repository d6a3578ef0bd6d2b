//! Kernels that are right: what they compute must be right under every seed.

mod common;

use common::{Global, buffer, contents, global_id, kernel, launch, run, seeded, shared, tid};
use simt::{Config, Dim3, Launch, Machine, Schedule, device};

/// Every schedule, with a few seeds.
fn configs() -> impl Iterator<Item = Config> {
    let schedules = [
        Schedule::Random,
        Schedule::RoundRobin,
        Schedule::Stall { stretch: 50 },
    ];
    schedules.into_iter().flat_map(|schedule| {
        (0..8).map(move |seed| Config {
            seed,
            schedule,
            preempt_every: 4,
            ..Config::default()
        })
    })
}

#[test]
fn vector_add_with_a_ragged_end() {
    const N: usize = 1000;
    for config in configs() {
        let machine = Machine::new(config);
        let a = buffer(&machine, &(0..N as u32).collect::<Vec<_>>());
        let b = buffer(&machine, &vec![7_u32; N]);
        let sum = buffer(&machine, &vec![0_u32; N]);
        let add = move || {
            let i = global_id();
            if i < N {
                sum.store(i, a.load(i) + b.load(i));
            }
        };
        run(&machine, kernel(8, 128, add)).unwrap();
        assert!(
            contents(sum, N)
                .iter()
                .enumerate()
                .all(|(i, &value)| value == i as u32 + 7)
        );
    }
}

#[test]
fn every_thread_has_its_own_indices() {
    let machine = Machine::new(seeded(1));
    let (grid, block) = (Dim3::new(2, 3, 4), Dim3::new(5, 3, 2));
    let count = (grid.volume() * block.volume()) as usize;
    let seen = buffer(&machine, &vec![0_u32; count]);
    let visit = move || {
        assert!(device::on_device());
        assert_eq!((device::grid_dim(), device::block_dim()), (grid, block));
        let (b, t) = (device::block_idx(), device::thread_idx());
        let linear = t.x + 5 * (t.y + 3 * t.z);
        assert_eq!(device::linear_thread_id(), linear);
        assert_eq!(device::lane_id(), linear % 32);
        assert_eq!(device::target().capability, 90);
        seen.atomic_add(
            (b.x + 2 * (b.y + 3 * b.z)) as usize * 30 + linear as usize,
            1,
        );
    };
    run(&machine, kernel(grid, block, visit)).unwrap();
    assert!(contents(seen, count).iter().all(|&visits| visits == 1));
    assert!(!device::on_device());
}

#[test]
fn block_reduction_with_barriers() {
    const N: usize = 256;
    for config in configs() {
        let machine = Machine::new(config);
        let input = buffer(&machine, &(0..2 * N as u32).collect::<Vec<_>>());
        let sums = buffer(&machine, &[0_u32; 2]);
        let reduce = move || {
            let partial = shared::<u32>();
            partial.store(tid(), input.load(global_id()));
            let mut half = N / 2;
            while half > 0 {
                device::sync_threads();
                if tid() < half {
                    partial.store(tid(), partial.load(tid()) + partial.load(tid() + half));
                }
                half /= 2;
            }
            if tid() == 0 {
                sums.store(device::block_idx().x as usize, partial.load(0));
            }
        };
        run(&machine, kernel(2, N as u32, reduce)).unwrap();
        let expected = |from: usize| (from as u32..(from + N) as u32).sum::<u32>();
        assert_eq!(contents(sums, 2), [expected(0), expected(N)]);
    }
}

#[test]
fn warp_reductions_also_of_parts_of_a_warp() {
    for config in configs() {
        let machine = Machine::new(config);
        let out = buffer(&machine, &[0_u32; 80]);
        let reduce = move || {
            let lane = device::lane_id();
            // Quarters of a warp go their own ways; the last warp has 16 lanes only.
            let mask = 0xff_u32 << (lane / 8 * 8);
            let mut sum = u64::from(lane);
            for round in 0..=lane / 8 {
                let met = device::warp_exchange("redux", mask, sum + u64::from(round));
                assert_eq!(met.mask, mask);
                assert!((0..32).all(|lane| mask >> lane & 1 == 1 || met.values[lane] == 0));
                sum = met.values.iter().sum();
            }
            out.store(tid(), sum as u32);
        };
        run(&machine, kernel(1, 80, reduce)).unwrap();
        for (thread, &sum) in contents(out, 80).iter().enumerate() {
            let quarter = thread as u32 % 32 / 8;
            let mut expected: u32 = (quarter * 8..quarter * 8 + 8).sum();
            for round in 1..=quarter {
                expected = (expected + round) * 8;
            }
            assert_eq!(sum, expected, "thread {thread}");
        }
    }
}

#[test]
fn barriers_vote() {
    for config in configs() {
        let machine = Machine::new(config);
        let vote = move || {
            for round in 0..5 {
                let vote = device::sync_threads_reduce(tid() < 10 * round);
                assert_eq!(vote.count as usize, 10 * round);
                assert_eq!((vote.any, vote.all), (round > 0, false));
            }
            assert!(device::sync_threads_reduce(true).all);
        };
        run(&machine, kernel(2, 96, vote)).unwrap();
    }
}

#[test]
fn named_barriers_join_warps_of_different_roles() {
    for config in configs() {
        let machine = Machine::new(config);
        let out = buffer(&machine, &[0_u32; 32]);
        let roles = move || {
            let tile = shared::<u32>();
            for round in 0..4 {
                if tid() < 32 {
                    // Producer: fills, and waits until the tile has been read.
                    tile.store(tid(), round * 100 + tid() as u32);
                    device::named_barrier_arrive(1, 64);
                    device::named_barrier_sync(2, 64);
                } else {
                    device::named_barrier_sync(1, 64);
                    let value = tile.load(63 - tid());
                    device::named_barrier_arrive(2, 64);
                    out.store(tid() - 32, out.load(tid() - 32) + value);
                }
            }
        };
        run(&machine, kernel(1, 64, roles)).unwrap();
        let sums = contents(out, 32);
        assert!(
            sums.iter()
                .enumerate()
                .all(|(i, &sum)| sum == 600 + 4 * (31 - i as u32))
        );
    }
}

#[test]
fn static_arrays_belong_to_the_block() {
    for config in configs() {
        let machine = Machine::new(config);
        let out = buffer(&machine, &[0_u32; 4]);
        let exchange = move || {
            let block = device::block_idx().x;
            let a = Global::<u32>(device::static_shared(1, 64 * 4, 128).cast());
            let b = Global::<u32>(device::static_shared(2, 4, 4).cast());
            assert!(device::is_shared(a.0.cast()) && !device::is_global(a.0.cast()));
            assert!(device::is_global(out.0.cast()) && !device::is_shared(out.0.cast()));
            a.store(tid(), block);
            if tid() == 0 {
                b.store(0, 1000);
            }
            device::sync_threads();
            out.atomic_add(block as usize, a.load(63 - tid()) + b.load(0));
        };
        run(&machine, kernel(4, 64, exchange)).unwrap();
        assert_eq!(contents(out, 4), [64_000, 64_064, 64_128, 64_192]);
    }
}

#[test]
fn two_grids_play_ping_pong() {
    for config in configs() {
        let machine = Machine::new(config);
        let ball = buffer(&machine, &[0_u32]);
        let player = |side: u32| {
            kernel(1, 1, move || {
                for round in 0..100 {
                    while ball.atomic_load(0) != 2 * round + side {}
                    ball.atomic_store(0, 2 * round + side + 1);
                }
            })
        };
        let (ping, pong) = (machine.create_stream(), machine.create_stream());
        launch(&machine, ping, player(0)).unwrap();
        launch(&machine, pong, player(1)).unwrap();
        machine.synchronize(ping).unwrap();
        machine.synchronize(pong).unwrap();
        assert_eq!(contents(ball, 1), [200]);
    }
}

#[test]
fn blocks_of_a_cooperative_launch_wait_for_each_other() {
    const BLOCKS: u32 = 40;
    for config in configs() {
        let machine = Machine::new(config);
        let arrived = buffer(&machine, &[0_u32]);
        let barrier = move || {
            for round in 1..=3 {
                device::sync_threads();
                if tid() == 0 {
                    arrived.atomic_add(0, 1);
                    while arrived.atomic_load(0) < round * BLOCKS {}
                }
                device::sync_threads();
            }
        };
        let cooperative = Launch {
            cooperative: true,
            ..kernel(BLOCKS, 32, barrier)
        };
        run(&machine, cooperative).unwrap();
        assert_eq!(contents(arrived, 1), [3 * BLOCKS]);
    }
}

#[test]
fn wide_accesses_and_the_own_stack() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C, align(16))]
    struct Wide([u32; 4]);

    let machine = Machine::new(seeded(1));
    let data = buffer(&machine, &[Wide([1, 2, 3, 4]), Wide([0; 4])]);
    let copy = move || {
        let mut local = Wide([0; 4]);
        let on_stack = Global(&raw mut local);
        on_stack.store(0, data.load(0));
        data.store(1, on_stack.load(0));
    };
    run(&machine, kernel(1, 1, copy)).unwrap();
    assert_eq!(contents(data, 2)[1], Wide([1, 2, 3, 4]));
}

#[test]
fn kernels_print() {
    let machine = Machine::new(seeded(1));
    run(
        &machine,
        kernel(1, 1, || {
            device::print(format_args!("x = {}\n", device::target().capability))
        }),
    )
    .unwrap();
    assert_eq!(machine.take_output(), "x = 90\n");
    assert_eq!(machine.take_output(), "");
}

#[test]
fn deadlines_expire_in_virtual_time() {
    const SECOND: u64 = 1_000_000_000;
    for config in configs() {
        let machine = Machine::new(Config {
            spin_limit: 1 << 16,
            ..config
        });
        let flag = buffer(&machine, &[0_u32]);
        let out = buffer(&machine, &[0_u32; 3]);
        // One sleeps, one looks at the clock in nanoseconds, one in cycles; all give up after 10 s.
        let patient = move || {
            let start = device::global_timer_ns();
            let mut gave_up = 0;
            while flag.atomic_load(0) == 0 {
                let now = match tid() {
                    0 => {
                        device::nanosleep(100);
                        device::global_timer_ns()
                    }
                    1 => device::global_timer_ns(),
                    _ => device::clock(),
                };
                if now - start > 10 * SECOND {
                    gave_up = 1;
                    break;
                }
            }
            out.store(tid(), gave_up);
        };
        run(&machine, kernel(1, 3, patient)).unwrap();
        assert_eq!(contents(out, 3), [1; 3]);
    }
}

#[test]
fn time_jumps_to_the_next_wake_up() {
    let machine = Machine::new(seeded(3));
    let sleeper = || {
        let start = device::global_timer_ns();
        let mut slept = 0;
        while slept < 100 {
            device::nanosleep(1_000_000);
            slept += 1;
        }
        // Each sleep takes between nothing and twice what was asked for.
        let elapsed = device::global_timer_ns() - start;
        assert!((50_000_000..150_000_000).contains(&elapsed), "{elapsed}");
    };
    run(&machine, kernel(1, 1, sleeper)).unwrap();
    assert!(machine.steps() < 1_000);
}

#[test]
fn a_lone_lane_is_an_active_mask() {
    let machine = Machine::new(seeded(1));
    let check = || {
        let mask = device::active_mask();
        assert_eq!(mask, 1 << device::lane_id());
        assert_eq!(
            device::warp_exchange("vote", mask, 5).values[device::lane_id() as usize],
            5
        );
    };
    run(&machine, kernel(1, 40, check)).unwrap();
}

#[test]
fn many_small_blocks() {
    let machine = Machine::new(seeded(1));
    let count = buffer(&machine, &[0_u32]);
    run(
        &machine,
        kernel((100, 50, 2), 2, move || _ = count.atomic_add(0, 1)),
    )
    .unwrap();
    assert_eq!(contents(count, 1), [20_000]);
}
