//! Views, shared memory, address spaces, the device heap.

use cuda_std::launch::KernelArgs;
use cuda_std::prelude::*;
use simt::{Error, Fault, FaultKind};

use crate::harness::{Buffer, SEEDS, fault, machine, reports, run, try_run};
use crate::kernels::memory::{
    INDIRECT, LEN, ROW, SPACES, indirect, spaces, streams, strided, views,
};

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
fn rows_at_a_pitch_are_reversed_through_parts_of_views() {
    // An odd number of rows, over several blocks: the last has no neighbour.
    let (rows, skipped) = (75usize, 3usize);
    let words: Vec<u32> = (0..((skipped + rows) * ROW) as u32).collect();
    let taken: Vec<&[u32]> = words.chunks(ROW).skip(skipped).collect();
    let expected: Vec<u32> = (0..rows)
        .flat_map(|row| {
            let last = taken.get(row ^ 1).unwrap_or(&taken[row]);
            let own = taken[row];
            [last[5], last[4], own[3], own[2], own[1], own[0]]
        })
        .collect();
    for seed in SEEDS {
        let machine = machine(seed);
        let input = Buffer::new(&machine, &words);
        let output = Buffer::new(&machine, &vec![0; rows * ROW]);
        let args = strided::Args {
            input: input.ptr(),
            output: output.ptr(),
            rows: rows as u32,
            skipped: skipped as u32,
        };
        run(&machine, 3, 32, 0, args);
        assert_eq!(output.read(), expected, "seed {seed}");
    }
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
    use cuda_std::shared;
    use cuda_std::view::{GlobalView, GlobalViewMut, SharedView};

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

    /// Loads one word from a byte offset, after skipping elements.
    ///
    /// # Safety
    ///
    /// `data` holds `len` elements, and `offset` is that of one of those after `skipped`.
    #[kernel]
    pub unsafe fn loads_at(data: *const u32, len: usize, skipped: usize, offset: usize) {
        // SAFETY: the kernel's contract.
        let view = unsafe { GlobalView::new(data, len) };
        let _ = view.skip(skipped).load_at(offset);
    }

    /// Loads a pair of words from a byte offset.
    ///
    /// # Safety
    ///
    /// `data` holds `len` words, 8-byte aligned, and `offset` is that of a pair.
    #[kernel]
    pub unsafe fn loads_pair_at(data: *const u32, len: usize, offset: usize) {
        // SAFETY: the kernel's contract.
        let pairs = unsafe { GlobalView::new(data, len).cast::<u32x2>() };
        let _ = pairs.load_at(offset);
    }

    /// Stores one word at a byte offset.
    ///
    /// # Safety
    ///
    /// `data` holds `len` elements, and `offset` is that of one of them.
    #[kernel]
    pub unsafe fn stores_at(data: *mut u32, len: usize, offset: usize) {
        // SAFETY: the kernel's contract.
        let view = unsafe { GlobalViewMut::new(data, len) };
        view.store_at(offset, 1);
    }

    /// Stores one word at a byte offset of dynamic shared memory.
    ///
    /// # Safety
    ///
    /// The launch provides `len` words, and `offset` is that of one of them.
    #[kernel]
    pub unsafe fn stores_shared_at(len: usize, offset: usize) {
        // SAFETY: the kernel's contract.
        let view = unsafe { SharedView::new(shared::dynamic_shared_mem::<u32>(), len) };
        view.store_at(offset, 1);
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

/// What happens when a kernel is run: nothing, or a fault.
#[track_caller]
fn outcome<A: KernelArgs>(args: impl FnOnce(*mut u32) -> A) -> Option<Fault> {
    let machine = machine(0);
    let data = Buffer::new(&machine, &[1u32; 8]);
    match try_run(&machine, 1, 1, 64, args(data.ptr())) {
        Ok(()) => None,
        Err(Error::Fault(fault)) => Some(*fault),
        Err(other) => panic!("not a fault: {other}"),
    }
}

/// The fault of an access outside a view of `bytes` bytes.
#[track_caller]
fn assert_outside(fault: Option<Fault>, view: &str, offset: usize, bytes: usize) {
    let fault = fault.unwrap_or_else(|| panic!("offset {offset} of {bytes} bytes was accepted"));
    assert_eq!(fault.kind, FaultKind::Trap, "{fault}");
    let message = format!("offset {offset} is out of range for a {view} of {bytes} bytes");
    assert!(fault.message.contains(&message), "{fault}");
    // The kernel's line, and not one of the library's.
    assert!(fault.to_string().contains("memory.rs"), "{fault}");
}

#[test]
fn offsets_are_checked_against_the_view_and_the_allocation() {
    let loads = |len, skipped, offset| {
        outcome(|data| misuse::loads_at::Args {
            data,
            len,
            skipped,
            offset,
        })
    };
    for offset in [0, 4, 12] {
        assert_eq!(loads(4, 0, offset).map(|it| it.kind), None, "{offset}");
    }
    // Partly or wholly outside, and where a sum with the address would wrap around.
    for offset in [13, 15, 16, 17, 1 << 40, usize::MAX - 3, usize::MAX] {
        assert_outside(loads(4, 0, offset), "GlobalView", offset, 16);
    }
    let kind = |fault: Option<Fault>| fault.map(|fault| fault.kind);
    assert_eq!(kind(loads(4, 0, 2)), Some(FaultKind::Misaligned));
    assert_eq!(kind(loads(1000, 0, 3996)), Some(FaultKind::OutOfBounds));

    // What is skipped is no longer part of the view.
    assert_eq!(kind(loads(4, 3, 0)), None);
    assert_outside(loads(4, 3, 4), "GlobalView", 4, 4);
    for skipped in [4, 5, 1 << 40, usize::MAX] {
        assert_outside(loads(4, skipped, 0), "GlobalView", 0, 0);
    }
}

#[test]
fn a_cast_view_ends_with_its_last_whole_element() {
    let loads = |len, offset| outcome(|data| misuse::loads_pair_at::Args { data, len, offset });
    for (len, offset) in [(2, 0), (3, 0), (4, 8), (8, 24)] {
        assert!(loads(len, offset).is_none(), "{offset} of {len} words");
    }
    for (len, offset, bytes) in [(1, 0, 0), (2, 8, 8), (3, 8, 8), (3, 4, 8), (4, 16, 16)] {
        assert_outside(loads(len, offset), "GlobalView", offset, bytes);
    }
    let misaligned = loads(4, 4).map(|fault| fault.kind);
    assert_eq!(misaligned, Some(FaultKind::Misaligned));
}

#[test]
fn stores_at_offsets_are_checked_as_loads_are() {
    let global = |len, offset| outcome(|data| misuse::stores_at::Args { data, len, offset });
    let shared = |len, offset| outcome(|_| misuse::stores_shared_at::Args { len, offset });
    assert!(global(4, 12).is_none() && shared(4, 12).is_none());
    for offset in [13, 16, usize::MAX] {
        assert_outside(global(4, offset), "GlobalViewMut", offset, 16);
        assert_outside(shared(4, offset), "SharedView", offset, 16);
    }
    // The launch has 64 bytes of shared memory.
    let beyond = shared(1000, 64).map(|fault| fault.kind);
    assert_eq!(beyond, Some(FaultKind::OutOfBounds));
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
