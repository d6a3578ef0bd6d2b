//! Views, shared memory, address spaces, the device heap.

use cuda_std::prelude::*;
use simt::FaultKind;

use crate::harness::{Buffer, SEEDS, fault, machine, reports, run};
use crate::kernels::memory::{INDIRECT, LEN, SPACES, indirect, spaces, streams, views};

#[test]
fn views_exchange_vectors_through_both_kinds_of_shared_memory() {
    let n = 150usize;
    let words: Vec<[u32; 4]> = (0..n as u32).map(|i| [i, i << 8, !i, i * i]).collect();
    let expected: Vec<[u32; 4]> = (0..n)
        .map(|i| {
            let padded = |i: usize| {
                words
                    .get(i)
                    .map_or([0; 4], |&[x, y, z, w]| [x, y, z, w ^ x ^ y])
            };
            let other = padded(i ^ 1);
            [other[0], other[1] ^ other[0], other[2], other[3]]
        })
        .collect();
    for seed in SEEDS {
        let machine = machine(seed);
        let vectors: Vec<u32x4> = words.iter().map(|&words| words.into()).collect();
        let input = Buffer::new(&machine, &vectors);
        let output = Buffer::new(&machine, &vec![u32x4::from([0; 4]); n]);
        let args = views::Args {
            input: input.ptr(),
            output: output.ptr(),
            n: n as u32,
        };
        run(&machine, 3, 64, 4 * LEN, args);
        let output: Vec<[u32; 4]> = output.read().into_iter().map(Into::into).collect();
        assert_eq!(output, expected, "seed {seed}");
    }
}

#[test]
fn words_and_pairs_stream() {
    let machine = machine(0);
    let words: Vec<u32> = (0..2 * 77).collect();
    let input = Buffer::new(&machine, &words);
    let output = Buffer::new(&machine, &vec![0; words.len()]);
    let args = streams::Args {
        input: input.ptr(),
        output: output.ptr(),
        n: 77,
    };
    run(&machine, 3, 32, 0, args);
    assert_eq!(output.read(), words);
}

#[test]
fn words_of_every_size_move_through_loaded_pointers() {
    let machine = machine(0);
    let bytes: Vec<u128> = (0..2 * 32 * INDIRECT as u128 / 16)
        .map(|i| i * 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F11)
        .collect();
    let from = Buffer::new(&machine, &bytes);
    let to = Buffer::new(&machine, &vec![0u128; bytes.len()]);
    let count = Buffer::new(&machine, &[0u32]);
    let tables: [*mut u8; 3] = [from.ptr().cast(), to.ptr().cast(), count.ptr().cast()];
    let tables = Buffer::new(&machine, &tables);
    run(
        &machine,
        2,
        32,
        0,
        indirect::Args {
            tables: tables.ptr(),
        },
    );
    assert_eq!(to.read(), bytes);
    assert_eq!(count.read(), [64]);
}

#[test]
fn pointers_know_their_memory_and_the_heap_works() {
    for (number, words) in reports(&machine(0), 2, 32, SPACES, |out| spaces::Args { out })
        .into_iter()
        .enumerate()
    {
        let expected = [
            1,
            0,
            0,
            1, // global
            0,
            1,
            0,
            1, // shared
            0,
            0,
            1,
            1, // local
            0,
            number as u32,
            256,
        ];
        assert_eq!(words, expected, "thread {number}");
    }
}

mod misuse {
    use cuda_std::prelude::*;
    use cuda_std::view::{GlobalView, GlobalViewMut};

    /// Loads one element from where it is told to.
    ///
    /// # Safety
    ///
    /// `index` is below `len`, and `data` holds `len` elements.
    #[kernel]
    pub unsafe fn loads(data: *const u32, len: usize, index: usize) {
        // SAFETY: the kernel's contract.
        let view = unsafe { GlobalView::new(data, len) };
        let _ = view.load(index);
    }

    /// Stores a vector where it is told to.
    ///
    /// # Safety
    ///
    /// `data` is aligned and valid.
    #[kernel]
    pub unsafe fn stores(data: *mut u32x4) {
        // SAFETY: the kernel's contract.
        let view = unsafe { GlobalViewMut::new(data, 1) };
        view.store_streaming(0, u32x4::from([1; 4]));
    }
}

#[test]
fn views_are_checked_against_their_length_and_the_allocation() {
    let on = |len, index| {
        let machine = machine(0);
        let data = Buffer::new(&machine, &[1u32; 8]);
        let args = misuse::loads::Args {
            data: data.ptr(),
            len,
            index,
        };
        fault(&machine, 1, 1, 0, args)
    };
    let beyond_view = on(4, 4);
    assert_eq!(beyond_view.kind, FaultKind::Trap);
    assert!(
        beyond_view
            .message
            .contains("index 4 is out of range for a GlobalView of 4 elements"),
        "{beyond_view}"
    );
    assert!(
        beyond_view.to_string().contains("memory.rs"),
        "{beyond_view}"
    );
    assert_eq!(on(1000, 999).kind, FaultKind::OutOfBounds);
}

#[test]
fn misaligned_vectors_fault() {
    let machine = machine(0);
    let data = Buffer::new(&machine, &[1u32; 8]);
    let args = misuse::stores::Args {
        data: data.ptr().wrapping_add(1).cast(),
    };
    assert_eq!(fault(&machine, 1, 1, 0, args).kind, FaultKind::Misaligned);
}
