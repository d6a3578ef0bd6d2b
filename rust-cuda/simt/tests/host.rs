//! The host's side: streams, events, memory, threads, what is left behind.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use common::{buffer, contents, kernel, launch, run, seeded, tid};
use simt::{Dim3, Error, FaultKind, Launch, Machine, device};

#[test]
fn a_stream_keeps_its_order() {
    for seed in 0..20 {
        let machine = Machine::new(seeded(seed));
        let stream = machine.create_stream();
        let data = buffer(&machine, &[0_u32; 64]);
        let mut back = [0_u32; 64];
        let log = Arc::new(Mutex::new(Vec::new()));
        machine.fill(stream, data.0.cast(), 1, 256).unwrap();
        launch(
            &machine,
            stream,
            kernel(1, 64, move || data.store(tid(), data.load(tid()) + 1)),
        )
        .unwrap();
        let entry = Arc::clone(&log);
        machine
            .enqueue(
                stream,
                Box::new(move || entry.lock().unwrap().push("after the kernel")),
            )
            .unwrap();
        // SAFETY: `back` outlives the synchronization.
        unsafe { machine.copy(stream, back.as_mut_ptr().cast(), data.0.cast(), 256) }.unwrap();
        assert!(
            log.lock().unwrap().is_empty(),
            "nothing runs before a synchronization"
        );
        machine.synchronize(stream).unwrap();
        assert_eq!(back, [0x0101_0102; 64]);
        assert_eq!(*log.lock().unwrap(), ["after the kernel"]);
    }
}

#[test]
fn events_order_streams() {
    for seed in 0..50 {
        let machine = Machine::new(seeded(seed));
        let (a, b) = (machine.create_stream(), machine.create_stream());
        let value = buffer(&machine, &[0_u32]);
        launch(
            &machine,
            a,
            kernel(4, 32, move || _ = value.atomic_add(0, 1)),
        )
        .unwrap();
        let event = machine.record(a);
        machine.wait(b, event).unwrap();
        launch(
            &machine,
            b,
            kernel(1, 1, move || value.store(0, value.load(0) * 2)),
        )
        .unwrap();
        machine.synchronize(b).unwrap();
        assert_eq!(contents(value, 1), [256]);
    }
}

#[test]
fn another_stream_may_still_spin() {
    let machine = Machine::new(seeded(1));
    let (waiting, short) = (machine.create_stream(), machine.create_stream());
    let flag = buffer(&machine, &[0_u32]);
    launch(
        &machine,
        waiting,
        kernel(1, 32, move || while flag.atomic_load(0) == 0 {}),
    )
    .unwrap();
    launch(&machine, short, kernel(1, 32, || {})).unwrap();
    machine.synchronize(short).unwrap();
    machine.fill(short, flag.0.cast(), 1, 1).unwrap();
    machine.synchronize(waiting).unwrap();
}

#[test]
fn suspended_kernels_go_on_in_another_thread() {
    let machine = Machine::new(seeded(1));
    let (kernels, host) = (machine.create_stream(), machine.create_stream());
    let turn = buffer(&machine, &[0_u32]);
    let count = |sides: u32| {
        kernel(2, 64, move || {
            for round in 0..10 {
                while turn.atomic_load(0) < round {}
                device::sync_threads();
                device::warp_exchange("bar.warp", u32::MAX, u64::from(sides));
            }
        })
    };
    launch(&machine, kernels, count(2)).unwrap();
    for _ in 0..10 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                launch(
                    &machine,
                    host,
                    kernel(1, 1, move || _ = turn.atomic_add(0, 1)),
                )
                .unwrap();
                machine.synchronize(host).unwrap();
            });
        });
    }
    machine.synchronize(kernels).unwrap();
}

#[test]
fn threads_share_a_machine() {
    let machine = Machine::new(seeded(1));
    let total = buffer(&machine, &[0_u32]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let stream = machine.create_stream();
                for _ in 0..20 {
                    let scratch = machine.alloc(100).unwrap();
                    launch(
                        &machine,
                        stream,
                        kernel(1, 32, move || _ = total.atomic_add(0, 1)),
                    )
                    .unwrap();
                    machine.synchronize(stream).unwrap();
                    machine.free(scratch).unwrap();
                }
            });
        }
    });
    assert_eq!(contents(total, 1), [4 * 20 * 32]);
    assert_eq!(machine.allocated_bytes(), 4);
}

#[test]
fn memory_is_aligned_poisoned_and_counted() {
    let machine = Machine::new(seeded(1));
    let a = machine.alloc(1000).unwrap();
    let b = machine.alloc(0).unwrap();
    assert_eq!((a.addr() % 256, b.addr() % 256), (0, 0));
    assert_eq!(machine.allocated_bytes(), 1000);
    assert!(
        contents(common::Global(a), 1000)
            .iter()
            .all(|&byte| byte != 0)
    );
    machine.free(a).unwrap();
    machine.free(b).unwrap();
    assert_eq!(machine.allocated_bytes(), 0);
    assert_eq!(
        machine.free(a),
        Err(Error::InvalidPointer { address: a.addr() })
    );
    let huge = isize::MAX as usize - 4096;
    assert_eq!(machine.alloc(huge), Err(Error::OutOfMemory { bytes: huge }));
    assert_eq!(
        machine.alloc(usize::MAX),
        Err(Error::OutOfMemory { bytes: usize::MAX })
    );
}

#[test]
fn free_runs_what_is_pending() {
    let machine = Machine::new(seeded(1));
    let stream = machine.create_stream();
    let count = buffer(&machine, &[0_u32]);
    let scratch = machine.alloc(16).unwrap();
    launch(
        &machine,
        stream,
        kernel(3, 32, move || _ = count.atomic_add(0, 1)),
    )
    .unwrap();
    machine.free(scratch).unwrap();
    assert_eq!(contents(count, 1), [96]);
}

#[test]
fn copies_and_fills_are_checked_when_submitted() {
    let machine = Machine::new(seeded(1));
    let stream = machine.create_stream();
    let device = machine.alloc(64).unwrap();
    let freed = machine.alloc(64).unwrap();
    machine.free(freed).unwrap();
    let mut host = [0_u8; 128];
    // SAFETY: nothing is copied: every call but the last is refused, and the last copies nothing.
    let copy = |dst, src, bytes| unsafe { machine.copy(stream, dst, src, bytes) };
    let invalid = |result: Result<(), Error>| match result {
        Err(Error::InvalidRange { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        invalid(copy(host.as_mut_ptr(), device, 65)),
        "the range is 65 bytes at byte 0 of allocation #1 of 64 bytes"
    );
    assert!(invalid(copy(freed, host.as_ptr(), 8)).contains("freed"));
    assert_eq!(
        invalid(copy(std::ptr::null_mut(), host.as_ptr(), 8)),
        "it is null"
    );
    assert!(invalid(machine.fill(stream, device.wrapping_add(60), 0, 8)).contains("byte 60"));
    assert_eq!(
        invalid(machine.fill(stream, host.as_mut_ptr(), 0, 8)),
        "there is no allocation"
    );
    copy(std::ptr::null_mut(), std::ptr::null(), 0).unwrap();
    machine.synchronize(stream).unwrap();
}

#[test]
fn launches_are_validated() {
    let machine = Machine::new(seeded(1));
    let stream = machine.create_stream();
    let attempt = |what: Launch| launch(&machine, stream, what).unwrap_err().to_string();
    assert_eq!(
        attempt(kernel(0, 32, || {})),
        "empty launch: grid (0, 1, 1), block (32, 1, 1)"
    );
    assert_eq!(
        attempt(kernel(1, Dim3::new(32, 32, 2), || {})),
        "block (32, 32, 2) exceeds (1024, 1024, 64) or 1024 threads"
    );
    assert_eq!(
        attempt(Launch {
            shared_bytes: 232_449,
            ..kernel(1, 1, || {})
        }),
        "232449 bytes of dynamic shared memory exceed 232448"
    );
    assert_eq!(
        attempt(Launch {
            cooperative: true,
            ..kernel(1000, 32, || {})
        }),
        "a cooperative launch of 32000 threads exceeds the 24576 that can be resident"
    );
    machine.synchronize(stream).unwrap();
}

#[test]
fn streams_of_others_are_refused() {
    let (machine, other) = (Machine::new(seeded(1)), Machine::new(seeded(1)));
    let foreign = other.create_stream();
    assert_eq!(machine.synchronize(foreign), Err(Error::InvalidStream));
    let stream = machine.create_stream();
    assert_eq!(
        machine.wait(stream, other.record(foreign)),
        Err(Error::InvalidStream)
    );
    let count = buffer(&machine, &[0_u32]);
    launch(
        &machine,
        stream,
        kernel(1, 32, move || _ = count.atomic_add(0, 1)),
    )
    .unwrap();
    machine.destroy_stream(stream).unwrap();
    assert_eq!(machine.synchronize(stream), Err(Error::InvalidStream));
    machine.synchronize_all().unwrap();
    assert_eq!(contents(count, 1), [32]);
}

/// Counts its drops.
struct Guard(Arc<AtomicU32>);

impl Drop for Guard {
    fn drop(&mut self) {
        // As a lock guard of a kernel might: must neither hang nor panic while the kernel is torn down.
        device::yield_point(device::Yield::Progress);
        device::sync_threads();
        device::warp_exchange("bar.warp", u32::MAX, 0);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn hold_a_guard_forever(machine: &Machine) -> Arc<AtomicU32> {
    let drops = Arc::new(AtomicU32::new(0));
    let (waiting, short) = (machine.create_stream(), machine.create_stream());
    let flag = buffer(machine, &[0_u32]);
    let counter = Arc::clone(&drops);
    let forever = move || {
        let _guard = Guard(Arc::clone(&counter));
        while flag.atomic_load(0) == 0 {}
    };
    launch(machine, waiting, kernel(2, 48, forever)).unwrap();
    launch(
        machine,
        short,
        kernel(1, 1, move || while device::clock() < 100_000 {}),
    )
    .unwrap();
    machine.synchronize(short).unwrap();
    drops
}

#[test]
fn a_machine_can_be_dropped_while_kernels_are_suspended() {
    let machine = Machine::new(seeded(1));
    let drops = hold_a_guard_forever(&machine);
    drop(machine);
    // Threads that had not started by then hold no guard.
    assert!((1..=96).contains(&drops.load(Ordering::Relaxed)));
}

#[test]
fn a_panicking_host_can_drop_its_machine() {
    let result = catch_unwind(|| {
        let machine = Machine::new(seeded(1));
        let _drops = hold_a_guard_forever(&machine);
        // Without the hook, which would print.
        std::panic::resume_unwind(Box::new("the test gives up"));
    });
    assert_eq!(
        result.unwrap_err().downcast_ref::<&str>(),
        Some(&"the test gives up")
    );
}

#[test]
fn a_panicking_host_can_still_run_kernels() {
    struct Buffer<'a>(&'a Machine, *mut u8, Arc<AtomicU32>);
    impl Drop for Buffer<'_> {
        fn drop(&mut self) {
            self.0.free(self.1).unwrap();
            self.2.fetch_add(1, Ordering::Relaxed);
        }
    }
    let machine = Machine::new(seeded(1));
    let freed = Arc::new(AtomicU32::new(0));
    let count = buffer(&machine, &[0_u32]);
    let result = catch_unwind(AssertUnwindSafe(|| {
        let stream = machine.create_stream();
        let _buffer = Buffer(&machine, machine.alloc(8).unwrap(), Arc::clone(&freed));
        let add = move || {
            count.atomic_add(0, 1);
            device::sync_threads();
        };
        launch(&machine, stream, kernel(2, 64, add)).unwrap();
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(result.is_err());
    assert_eq!(
        (freed.load(Ordering::Relaxed), contents(count, 1)[0]),
        (1, 128)
    );
}

#[test]
fn host_functions_may_free_but_nothing_else() {
    let machine = Arc::new(Machine::new(seeded(1)));
    let stream = machine.create_stream();
    let scratch = machine.alloc(100).unwrap().expose_provenance();
    let inner = Arc::clone(&machine);
    machine
        .enqueue(
            stream,
            Box::new(move || {
                inner
                    .free(std::ptr::with_exposed_provenance_mut(scratch))
                    .unwrap()
            }),
        )
        .unwrap();
    machine.synchronize(stream).unwrap();
    assert_eq!(machine.allocated_bytes(), 0);

    let inner = Arc::clone(&machine);
    machine
        .enqueue(stream, Box::new(move || drop(inner.synchronize_all())))
        .unwrap();
    let Err(Error::Fault(fault)) = machine.synchronize(stream) else {
        panic!("expected a fault");
    };
    assert_eq!((fault.kind, fault.kernel), (FaultKind::Panic, None));
    assert!(
        fault
            .message
            .contains("called a method of the simt::Machine that runs it")
    );
}

#[test]
fn a_machine_can_run_in_a_kernel_of_another() {
    let outer = Machine::new(seeded(1));
    let nested = || {
        let inner = Machine::new(seeded(2));
        let count = buffer(&inner, &[0_u32]);
        run(&inner, kernel(2, 32, move || _ = count.atomic_add(0, 1))).unwrap();
        assert_eq!(contents(count, 1), [64]);
        device::sync_threads();
    };
    run(&outer, kernel(1, 2, nested)).unwrap();
}

#[test]
#[should_panic(expected = "can only be called by a kernel")]
fn device_functions_panic_on_the_host() {
    device::thread_idx();
}

/// Memory of the host's, aligned as device memory is.
#[repr(align(256))]
struct Shared([AtomicU32; 64]);

#[test]
fn machines_that_share_memory_wait_for_each_other() {
    const ROUNDS: u32 = 20;
    let shared = Arc::new(Shared([const { AtomicU32::new(0) }; 64]));
    // Each adds 1 when the other's turn is over. Without a limit on spinning, neither is a livelock.
    std::thread::scope(|scope| {
        for parity in 0..2 {
            let shared = Arc::clone(&shared);
            scope.spawn(move || {
                let config = simt::Config {
                    spin_limit: 64,
                    ..seeded(u64::from(parity))
                };
                let machine = Machine::new(config);
                let words = shared.0.as_ptr().cast_mut().cast::<u8>();
                // SAFETY: the memory outlives the machine, and is used by atomic operations alone.
                unsafe { machine.adopt(words, 256) }.unwrap();
                let table = Arc::clone(&shared);
                let play = move || {
                    for turn in (parity..ROUNDS).step_by(2) {
                        let word = &table.0[0];
                        let bytes = word.as_ptr().cast_const().cast();
                        device::check(bytes, 4, 4, device::Access::Atomic);
                        while word.load(Ordering::Acquire) != turn {
                            device::yield_point(device::Yield::Spin);
                        }
                        word.fetch_add(1, Ordering::Release);
                        device::yield_point(device::Yield::Progress);
                    }
                };
                run(&machine, kernel(1, 1, play)).unwrap();
                machine.disown(words).unwrap();
                let error = machine.disown(words).unwrap_err();
                assert!(matches!(error, Error::InvalidPointer { .. }), "{error}");
            });
        }
    });
    assert_eq!(shared.0[0].load(Ordering::Relaxed), ROUNDS);
}

#[test]
fn beside_others_the_clock_is_the_hosts() {
    let mut page = Shared([const { AtomicU32::new(0) }; 64]);
    let machine = Machine::new(seeded(3));
    // SAFETY: the page outlives the machine, and nobody else uses it.
    unsafe { machine.adopt((&raw mut page).cast(), 256) }.unwrap();
    let start = std::time::Instant::now();
    let wait = || {
        let start = device::global_timer_ns();
        while device::global_timer_ns() - start < 20_000_000 {
            device::yield_point(device::Yield::Spin);
        }
    };
    run(&machine, kernel(1, 32, wait)).unwrap();
    let elapsed = start.elapsed().as_millis();
    assert!((20..10_000).contains(&elapsed), "{elapsed} ms for 20");
}
