//! How fast the emulator is on the access pattern of a block quantizer.

mod common;

use std::time::{Duration, Instant};

use common::{buffer, contents, global_id, kernel, run, seeded};
use simt::{Machine, device};

/// 16 bytes, aligned to 16: what a wide load moves.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(16))]
struct Wide([u32; 4]);

const ROWS: usize = 4096;
const COLUMNS: usize = 7168;
const PER_THREAD: usize = 8;
const THREADS: usize = 128;
const ITERATIONS: usize = 8;

/// 3.7 million thread iterations, each with a wide load, two warp exchanges, a narrow store of the result
/// and, for one thread in four, a byte store of the scale.
#[test]
fn a_large_quantization_takes_seconds() {
    let machine = Machine::new(seeded(1));
    let wide = ROWS * COLUMNS / PER_THREAD;
    let input = buffer(&machine, &vec![Wide([1, 2, 3, 4]); wide]);
    let output = buffer(&machine, &vec![0_u32; wide]);
    let scales = buffer(&machine, &vec![0_u8; wide / 4]);
    let blocks = wide / (THREADS * ITERATIONS);
    let start = Instant::now();
    run(
        &machine,
        kernel(blocks as u32, THREADS as u32, move || {
            for iteration in 0..ITERATIONS {
                let at = (global_id() / THREADS * ITERATIONS + iteration) * THREADS
                    + device::linear_thread_id() as usize;
                let mut amax = u64::from(input.load(at).0.into_iter().max().unwrap_or(0));
                for distance in [1, 2] {
                    let met = device::warp_exchange("shfl.bfly", u32::MAX, amax);
                    amax = amax.max(met.values[(device::lane_id() ^ distance) as usize]);
                }
                output.store(at, amax as u32);
                if at.is_multiple_of(4) {
                    scales.store(at / 4, amax as u8);
                }
            }
            device::sync_threads();
        }),
    )
    .unwrap();
    let elapsed = start.elapsed();
    println!(
        "{wide} thread iterations in {elapsed:?}, {} steps",
        machine.steps()
    );
    assert!(contents(output, wide).iter().all(|&value| value == 4));
    assert!(contents(scales, wide / 4).iter().all(|&value| value == 4));
    assert!(elapsed < Duration::from_secs(30), "{elapsed:?}");
}
