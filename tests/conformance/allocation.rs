//! The hot calls do not allocate.
//!
//! Only on a GPU: there a launch hands pointers to the driver. In the emulator a launch keeps its
//! arguments on the heap until the fibers that it is made of have run, which nobody times.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use anyhow::{Result, ensure};
use half::bf16;
use tokenyard::options::Format;
use tokenyard::{GroupedQuantizer, TensorScales, TopkRouter};
use tokenyard_tests::{Context, Launch, Suite};

pub fn register(suite: &mut Suite) {
    suite.host("allocation::counter_counts", || {
        counter_counts().map(|()| None)
    });
    suite.cuda("allocation::hot_calls", hot_calls);
}

thread_local! {
    /// Allocations of this thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that this thread has allocated, less those that it has freed.
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, with a count for each thread, so that cases do not disturb one another.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts an allocation, which adds so many bytes.
fn count(bytes: i64) {
    // A thread that is ending has no counter any more, and nobody who would ask for it.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    live(bytes);
}

/// Counts bytes that are allocated, or with a minus freed.
fn live(bytes: i64) {
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

/// Bytes that this thread has allocated, less those that it has freed.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}

// SAFETY: all calls are passed on to `System` as they are; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's obligation.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's obligation.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the caller's obligation.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        live(-(layout.size() as i64));
        // SAFETY: the caller's obligation.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// How often `work` allocates on this thread.
fn allocations(work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = ALLOCATIONS.get();
    work()?;
    Ok(ALLOCATIONS.get() - before)
}

fn counter_counts() -> Result<()> {
    let mut kept = Vec::new();
    let counted = allocations(|| {
        kept.push(Box::new(1));
        kept.reserve(1000);
        Ok(())
    })?;
    ensure!(
        counted == 3,
        "a vector, a box and a growing vector are {counted} allocations"
    );
    ensure!(allocations(|| Ok(()))? == 0);
    Ok(())
}

fn hot_calls(context: &Context) -> Result<()> {
    const CALLS: usize = 20;
    let (tokens, top_k, experts, columns) = (64, 4, 8, 256);
    let device = context.device();
    let stream = device.create_stream()?;
    let ids: Vec<i32> = (0..tokens * top_k)
        .map(|id| (id % experts) as i32)
        .collect();
    let ids = device.upload(&ids)?;
    let input = device.alloc_filled::<bf16>(tokens * columns, 0)?;
    let sf = TensorScales::ones(&device, experts)?;
    let mut router = TopkRouter::new(&device, tokens, top_k, experts)?;
    let mut tables = router.allocate()?;
    for format in Format::ALL {
        for store in Launch::stores(&device) {
            let quantizer = GroupedQuantizer::builder(&device, format)
                .columns(columns)
                .scale_store(store)
                .build()?;
            let mut output = quantizer.allocate(tables.rows(), tables.tiles_needed())?;
            let mut call = || -> Result<()> {
                router.route(&stream, &ids, &mut tables)?;
                quantizer.quantize_into(&stream, &input, &tables, &sf, &mut output)?;
                Ok(())
            };
            call()?;
            let counted = allocations(|| (0..CALLS).try_for_each(|_| call()))?;
            ensure!(
                counted == 0,
                "{format}, {store:?}: {counted} allocations in {CALLS} calls"
            );
            stream.synchronize()?;
        }
    }
    Ok(())
}
