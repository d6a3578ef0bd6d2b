//! The kernels of `tests/published_api`, written for the published crate, in the emulator.

#[path = "emulated/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of every device function")]
mod harness;
#[path = "published_api/src/kernels.rs"]
mod kernels;

use harness::{Buffer, SEEDS, machine, run};
use kernels::{add, block_sums, reverse_blocks, total, transposed_roots};

#[test]
fn vectors_add() {
    let machine = machine(0);
    let a: Vec<f32> = (0..100).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..100).map(|i| (i * i) as f32).collect();
    let (a_device, b_device) = (Buffer::new(&machine, &a), Buffer::new(&machine, &b));
    let c = Buffer::new(&machine, &[0f32; 100]);
    let args = add::Args {
        a: a_device.ptr(),
        a_len: 100,
        b: b_device.ptr(),
        b_len: 100,
        c: c.ptr(),
    };
    run(&machine, 4, 32, 0, args);
    let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(c.read(), expected);
}

#[test]
fn blocks_reduce_in_static_shared_memory() {
    for seed in SEEDS {
        let machine = machine(seed);
        let values: Vec<f32> = (0..300).map(|i| i as f32).collect();
        let sums = Buffer::new(&machine, &[0f32; 3]);
        let args = block_sums::Args {
            values: Buffer::new(&machine, &values).ptr(),
            values_len: 300,
            sums: sums.ptr(),
        };
        run(&machine, 3, 128, 0, args);
        let expected: Vec<f32> = values.chunks(128).map(|block| block.iter().sum()).collect();
        assert_eq!(sums.read(), expected, "seed {seed}");
    }
}

#[test]
fn blocks_reverse_in_dynamic_shared_memory() {
    for seed in SEEDS {
        let machine = machine(seed);
        let values: Vec<i32> = (0..128).map(|i| if i % 5 == 0 { -i } else { i }).collect();
        let device = Buffer::new(&machine, &values);
        let negative = Buffer::new(&machine, &[0u32; 2]);
        let args = reverse_blocks::Args {
            values: device.ptr(),
            negative: negative.ptr(),
        };
        run(&machine, 2, 64, 4 * 64, args);
        let expected: Vec<i32> = values
            .chunks(64)
            .flat_map(|block| block.iter().rev().copied())
            .collect();
        assert_eq!(device.read(), expected, "seed {seed}");
        // 0 is not negative.
        assert_eq!(negative.read(), [12, 13], "seed {seed}");
    }
}

#[test]
fn two_dimensional_indices_transpose() {
    let machine = machine(0);
    let (rows, columns) = (5usize, 9usize);
    let input: Vec<f32> = (0..rows * columns).map(|i| (i * i) as f32).collect();
    let output = Buffer::new(&machine, &vec![-1f32; input.len()]);
    let args = transposed_roots::Args {
        input: Buffer::new(&machine, &input).ptr(),
        input_len: input.len(),
        output: output.ptr(),
        rows: rows as u32,
        columns: columns as u32,
    };
    run(&machine, (2, 2), (8, 4), 0, args);
    let expected: Vec<f32> = (0..columns)
        .flat_map(|column| (0..rows).map(move |row| (row * columns + column) as f32))
        .collect();
    assert_eq!(output.read(), expected);
}

#[test]
fn float_atomics_add_up() {
    for seed in SEEDS {
        let machine = machine(seed);
        let values: Vec<f32> = (0..70).map(|i| i as f32).collect();
        let (sum, mark) = (
            Buffer::new(&machine, &[0f32]),
            Buffer::new(&machine, &[0u32]),
        );
        let args = total::Args {
            values: Buffer::new(&machine, &values).ptr(),
            values_len: 70,
            total: sum.ptr(),
            mark: mark.ptr(),
        };
        run(&machine, 3, 32, 0, args);
        assert_eq!(
            (sum.read(), mark.read()),
            (vec![2415.0], vec![96]),
            "seed {seed}"
        );
    }
}
