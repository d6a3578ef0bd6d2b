//! Planted bugs, each of which has to be caught and named.

mod common;

use common::{buffer, fault_of, global_id, kernel, launch, run, seeded, shared, tid};
use simt::{Config, Dim3, Error, Fault, FaultKind, Launch, Machine, device};

fn impatient(seed: u64) -> Config {
    Config {
        seed,
        spin_limit: 2_000,
        ..Config::default()
    }
}

/// The line of the caller.
#[track_caller]
fn here() -> u32 {
    std::panic::Location::caller().line()
}

#[track_caller]
fn assert_fault(fault: &Fault, kind: FaultKind, text: &str) {
    assert_eq!(fault.kind, kind, "{fault}");
    assert!(fault.message.contains(text), "{fault}");
}

#[test]
fn out_of_bounds_names_kernel_block_thread_and_line() {
    const N: usize = 100;
    let line = here() + 5;
    let machine = Machine::new(seeded(7));
    let data = buffer(&machine, &[1.0_f32; N]);
    let scale = move || {
        let i = global_id();
        data.store(i, 2.0);
    };
    // Thread 36 of block 1 is the only one that is out of range.
    let Err(Error::Fault(fault)) = run(
        &machine,
        kernel(2, Dim3::from(64), move || {
            if global_id() <= N {
                scale();
            }
        }),
    ) else {
        panic!("expected a fault");
    };
    assert_eq!(fault.kernel, Some("test_kernel"));
    assert_eq!(
        (fault.block, fault.thread),
        (Some(Dim3::new(1, 0, 0)), Some(Dim3::new(36, 0, 0)))
    );
    let location = fault.location.as_ref().unwrap();
    assert!(
        location.file.ends_with("tests/faults.rs") && location.line == line,
        "{location}"
    );
    assert_eq!(fault.seed, 7);
    let text = fault.to_string();
    assert!(text.starts_with(
        "out-of-bounds access in kernel `test_kernel`, block (1, 0, 0), thread (36, 0, 0), at "
    ));
    assert!(
        text.ends_with("write of 4 bytes at byte 400 of allocation #1 of 400 bytes (seed 7)"),
        "{text}"
    );
}

#[test]
fn faults_are_sticky() {
    let machine = Machine::new(seeded(1));
    let stream = machine.create_stream();
    let memory = machine.alloc(8).unwrap();
    launch(&machine, stream, kernel(1, 1, || device::trap("enough"))).unwrap();
    let first = machine.synchronize(stream).unwrap_err();
    assert!(matches!(&first, Error::Fault(fault) if fault.kind == FaultKind::Trap));
    assert!(first.to_string().contains("enough"));
    assert_eq!(machine.synchronize(stream), Err(first.clone()));
    assert_eq!(machine.synchronize_all(), Err(first.clone()));
    assert_eq!(machine.alloc(1), Err(first.clone()));
    assert_eq!(machine.fill(stream, memory, 0, 8), Err(first.clone()));
    assert_eq!(
        launch(&machine, stream, kernel(1, 1, || {})),
        Err(first.clone())
    );
    assert_eq!(machine.enqueue(stream, Box::new(|| {})), Err(first.clone()));
    assert_eq!(machine.free(memory), Err(first));
    assert_eq!(machine.allocated_bytes(), 0);
}

#[test]
fn wrong_addresses() {
    let machine = Machine::new(seeded(1));
    let data = buffer(&machine, &[0_u32; 8]);
    let check = |kind, text: &str, access: fn(common::Global<u32>)| {
        let machine = Machine::new(seeded(1));
        let data = buffer(&machine, &[0_u32; 8]);
        match run(&machine, kernel(1, 32, move || access(data))) {
            Err(Error::Fault(fault)) => assert_fault(&fault, kind, text),
            other => panic!("{other:?}"),
        }
    };
    check(
        FaultKind::OutOfBounds,
        "read of 4 bytes at byte 32 of allocation #1",
        |data| {
            data.load(8);
        },
    );
    check(
        FaultKind::OutOfBounds,
        "read of 4 bytes at byte -4 of allocation #1",
        |data| {
            data.load(usize::MAX);
        },
    );
    check(
        FaultKind::OutOfBounds,
        "atomic access of 4 bytes at byte 32",
        |data| {
            data.atomic_add(8, 1);
        },
    );
    check(
        FaultKind::NullPointer,
        "read of 4 bytes at address 0x4",
        |_| {
            common::Global::<u32>(std::ptr::null_mut()).load(1);
        },
    );
    check(
        FaultKind::Misaligned,
        "needs alignment 4, the address is 2 off",
        |data| {
            common::Global(data.0.wrapping_byte_add(2)).store(0, 1);
        },
    );
    check(
        FaultKind::OutOfBounds,
        "byte 1024 of its block's shared memory",
        |_| {
            shared::<u32>().store(256, 1);
        },
    );
    check(FaultKind::OutOfBounds, "in no allocation", |_| {
        let elsewhere = Box::new(5_u32);
        common::Global((&raw const *elsewhere).cast_mut()).load(0);
    });
    // What the host owns is not the device's, and the other way round it is no fault.
    assert!(run(&machine, kernel(1, 1, move || data.store(7, 1))).is_ok());
}

#[test]
fn shared_memory_of_another_block() {
    let machine = Machine::new(seeded(1));
    let passed = buffer(&machine, &[0_usize]);
    let leak = move || {
        if device::block_idx().x == 0 {
            passed.store(0, device::dynamic_shared().expose_provenance());
            while passed.load(0) != 1 {
                device::yield_point(device::Yield::Spin);
            }
        } else {
            while passed.load(0) == 0 {
                device::yield_point(device::Yield::Spin);
            }
            let theirs = std::ptr::with_exposed_provenance_mut::<u32>(passed.load(0));
            common::Global(theirs).load(0);
        }
    };
    match run(&machine, kernel(2, 1, leak)) {
        Err(Error::Fault(fault)) => {
            assert_fault(
                &fault,
                FaultKind::OutOfBounds,
                "the shared memory of block (0, 0, 0)",
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn use_after_free() {
    let machine = Machine::new(seeded(1));
    let data = buffer(&machine, &[0_u32; 8]);
    machine.free(data.0.cast()).unwrap();
    let Err(Error::Fault(fault)) = run(&machine, kernel(1, 1, move || _ = data.load(3))) else {
        panic!("expected a fault");
    };
    let text = "read of 4 bytes at byte 12 of allocation #1 of 32 bytes, which was freed";
    assert_fault(&fault, FaultKind::UseAfterFree, text);
}

#[test]
fn barrier_that_part_of_a_block_never_reaches() {
    for seed in 0..20 {
        let fault = fault_of(
            seeded(seed),
            kernel(1, 64, || {
                if tid() < 63 {
                    device::sync_threads();
                } else {
                    // Late, so that the others wait.
                    device::nanosleep(1_000_000);
                }
            }),
        );
        assert_fault(
            &fault,
            FaultKind::DivergentBarrier,
            "63 threads of its block wait at sync_threads",
        );
        assert_eq!(fault.thread, Some(Dim3::new(63, 0, 0)));
    }
}

#[test]
fn different_operations_at_one_barrier() {
    for seed in 0..20 {
        let fault = fault_of(
            seeded(seed),
            kernel(1, 64, || {
                if tid() < 32 {
                    device::sync_threads();
                } else {
                    device::sync_threads_reduce(true);
                }
            }),
        );
        assert_fault(
            &fault,
            FaultKind::DivergentBarrier,
            "others wait there by sync_threads",
        );
    }
}

#[test]
fn invalid_named_barriers() {
    let call = |id, threads| {
        fault_of(
            seeded(1),
            kernel(1, 64, move || device::named_barrier_sync(id, threads)),
        )
    };
    assert_fault(
        &call(16, 64),
        FaultKind::InvalidBarrier,
        "barrier 16 of a block that has 16",
    );
    assert_fault(
        &call(1, 33),
        FaultKind::InvalidBarrier,
        "a barrier of 33 threads",
    );
    assert_fault(
        &call(1, 0),
        FaultKind::InvalidBarrier,
        "a barrier of 0 threads",
    );
    let fault = fault_of(
        seeded(1),
        kernel(1, 64, || {
            device::named_barrier_sync(1, if tid() < 32 { 32 } else { 64 } + 32)
        }),
    );
    assert_fault(&fault, FaultKind::DivergentBarrier, "a named barrier of");
}

#[test]
fn wrong_warp_masks() {
    let exchange = |body: fn()| fault_of(seeded(1), kernel(1, 64, body));
    let fault = exchange(|| _ = device::warp_exchange("shfl", 0xffff, 0));
    assert_fault(
        &fault,
        FaultKind::InvalidMask,
        "shfl with mask 0x0000ffff, which does not name lane",
    );

    // A lane that has exited before, or exits while it is waited for.
    for seed in 0..20 {
        let fault = fault_of(
            seeded(seed),
            kernel(1, 64, || {
                if device::lane_id() != 5 {
                    device::warp_exchange("shfl", u32::MAX, 0);
                }
            }),
        );
        assert_fault(&fault, FaultKind::WarpDivergence, "exited");
    }

    // Lanes that do not exist.
    let fault = fault_of(
        seeded(1),
        kernel(1, 48, || _ = device::warp_exchange("vote", u32::MAX, 0)),
    );
    assert_fault(&fault, FaultKind::WarpDivergence, "(0xffff0000)");

    // One instruction, two masks.
    let fault = exchange(|| {
        let mask = if device::lane_id() < 16 {
            u32::MAX
        } else {
            0xffff_0000
        };
        device::warp_exchange("shfl", mask, 0);
    });
    assert_fault(&fault, FaultKind::WarpDivergence, "waits in shfl with mask");

    // One mask, two instructions.
    let fault = exchange(|| {
        let op = if device::lane_id() < 16 {
            "shfl"
        } else {
            "vote"
        };
        device::warp_exchange(op, u32::MAX, 0);
    });
    assert_fault(&fault, FaultKind::WarpDivergence, "executes");
}

#[test]
fn deadlock_names_who_waits_for_what() {
    // Half of every warp waits for the other half, which waits for the block.
    let fault = fault_of(
        seeded(1),
        kernel(2, 64, || {
            if device::lane_id() < 16 {
                device::warp_exchange("shfl", u32::MAX, 0);
            } else {
                device::sync_threads();
            }
        }),
    );
    assert_fault(
        &fault,
        FaultKind::Deadlock,
        "nothing can run, and 128 threads wait",
    );
    assert!(
        fault
            .message
            .contains("64 of `test_kernel` wait in shfl for the lanes of mask 0xffffffff"),
        "{fault}"
    );
    assert!(
        fault
            .message
            .contains("64 of `test_kernel` wait in sync_threads (barrier 0)"),
        "{fault}"
    );
    assert!(fault.message.contains("tests/faults.rs:"), "{fault}");
}

#[test]
fn an_arrival_that_never_comes() {
    let fault = fault_of(
        seeded(1),
        kernel(1, 64, || device::named_barrier_sync(3, 96)),
    );
    assert_fault(
        &fault,
        FaultKind::Deadlock,
        "wait in a named barrier (barrier 3)",
    );
}

#[test]
fn every_way_to_wait_forever_ends() {
    type Wait = fn(common::Global<u32>);
    let machine_fault = |body: Wait| {
        let machine = Machine::new(impatient(1));
        let flag = buffer(&machine, &[0_u32]);
        match run(&machine, kernel(2, 64, move || body(flag))) {
            Err(Error::Fault(fault)) => *fault,
            other => panic!("{other:?}"),
        }
    };
    let livelocks: [(&str, Wait); 8] = [
        ("atomic loads", |flag| while flag.atomic_load(0) == 0 {}),
        ("plain loads", |flag| while flag.load(0) == 0 {}),
        ("a lock nobody releases", |flag| {
            while flag.atomic_update(0, |_| 1) == 1 {}
        }),
        ("sleep", |_| {
            loop {
                device::nanosleep(100);
            }
        }),
        ("the clock", |_| {
            loop {
                device::clock();
            }
        }),
        ("one lane looks, the warp waits", |flag| {
            loop {
                let seen = if device::lane_id() == 0 {
                    flag.atomic_load(0)
                } else {
                    0
                };
                if device::warp_exchange("shfl", u32::MAX, seen.into()).values[0] != 0 {
                    break;
                }
            }
        }),
        ("one thread looks, the block waits", |flag| {
            while device::sync_threads_reduce(tid() == 0 && flag.atomic_load(0) != 0).count == 0 {}
        }),
        ("nothing but a collective", |_| {
            loop {
                device::warp_exchange("bar.warp", u32::MAX, 0);
            }
        }),
    ];
    for (how, body) in livelocks {
        let fault = machine_fault(body);
        assert_eq!(fault.kind, FaultKind::Livelock, "{how}: {fault}");
        assert!(fault.message.contains("of `test_kernel`"), "{how}: {fault}");
    }
}

#[test]
fn a_slow_producer_is_no_livelock() {
    // One thread works for far longer than the spin limit, by loads alone, while 255 spin.
    let machine = Machine::new(Config {
        spin_limit: 1_000,
        ..seeded(1)
    });
    let data = buffer(&machine, &vec![1_u32; 10_000]);
    let flag = buffer(&machine, &[0_u32]);
    let work = move || {
        if global_id() == 100 {
            let sum = (0..10_000).map(|i| data.load(i)).sum();
            flag.atomic_store(0, sum);
        } else {
            while flag.atomic_load(0) == 0 {}
        }
    };
    run(&machine, kernel(2, 128, work)).unwrap();
}

#[test]
fn panics_are_faults() {
    let line = here() + 4;
    let fault = fault_of(
        seeded(1),
        kernel(1, 32, || {
            let table = [1_u32, 2, 3][tid() % 4];
            device::warp_exchange("shfl", 1 << device::lane_id(), table.into());
        }),
    );
    assert_fault(
        &fault,
        FaultKind::Panic,
        "index out of bounds: the len is 3 but the index is 3",
    );
    assert_eq!(fault.location.unwrap().line, line);
    assert_eq!(fault.thread.unwrap().x % 4, 3);
}

#[test]
fn overflow_and_formatted_panics_with_destructors() {
    struct Syncs;
    impl Drop for Syncs {
        fn drop(&mut self) {
            device::sync_threads();
            device::nanosleep(10);
        }
    }
    let fault = fault_of(
        seeded(1),
        kernel(4, 64, || {
            let _syncs = Syncs;
            device::sync_threads();
            assert!(tid() != 40, "thread {} gives up", tid());
        }),
    );
    assert_fault(&fault, FaultKind::Panic, "thread 40 gives up");
}

#[test]
fn a_panic_that_the_kernel_catches_is_a_fault_all_the_same() {
    let fault = fault_of(
        seeded(1),
        kernel(1, 64, || {
            let caught = std::panic::catch_unwind(|| panic!("swallowed"));
            assert!(caught.is_err());
            loop {
                device::sync_threads();
            }
        }),
    );
    assert_fault(&fault, FaultKind::Panic, "swallowed");
}

#[test]
fn too_much_shared_memory() {
    let ask = |bytes, align| {
        fault_of(
            seeded(1),
            kernel(1, 1, move || _ = device::static_shared(1, bytes, align)),
        )
    };
    assert_fault(
        &ask(232_448, 16),
        FaultKind::SharedMemoryExceeded,
        "the block needs 233472 bytes",
    );
    assert_fault(
        &ask(16, 3),
        FaultKind::SharedMemoryExceeded,
        "powers of two",
    );
}

#[test]
fn deep_recursion_is_reported() {
    fn deep(n: usize) -> usize {
        let room = std::hint::black_box([n; 64]);
        device::yield_point(device::Yield::Progress);
        if n == 0 {
            room[0]
        } else {
            deep(n - 1) + room[63]
        }
    }
    let fault = fault_of(seeded(1), kernel(1, 1, || _ = deep(1_000_000)));
    assert_fault(&fault, FaultKind::StackExhausted, "Config::stack_bytes");
}

#[test]
fn only_one_grid_is_to_blame() {
    let machine = Machine::new(seeded(1));
    let flag = buffer(&machine, &[0_u32]);
    let (waiting, wrong) = (machine.create_stream(), machine.create_stream());
    let named = |name, launch: Launch| Launch { name, ..launch };
    launch(
        &machine,
        waiting,
        named(
            "waits",
            kernel(2, 32, move || while flag.atomic_load(0) == 0 {}),
        ),
    )
    .unwrap();
    launch(
        &machine,
        wrong,
        named("traps", kernel(1, 1, || device::trap("told to"))),
    )
    .unwrap();
    let Err(Error::Fault(fault)) = machine.synchronize(waiting) else {
        panic!("expected a fault");
    };
    assert_eq!((fault.kernel, fault.kind), (Some("traps"), FaultKind::Trap));
}
