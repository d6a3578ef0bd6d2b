//! Bulk and tensor copies.

use cuda_std::tma::{Swizzle, TensorMap, TensorMapDesc, TensorMapError};
use simt::{FaultKind, Machine};

use crate::harness::{Buffer, SEEDS, fault, machine, run, target_machine};
use crate::kernels::copies::{BLOCK, bulk, meetings, tensor_2d, tensor_3d, tensor_4d};

#[test]
fn blocks_load_and_store_in_bulk() {
    for seed in SEEDS {
        let machine = machine(seed);
        let words: Vec<u32> = (0..3 * BLOCK as u32).map(|i| i * i).collect();
        let input = Buffer::new(&machine, &words);
        let output = Buffer::new(&machine, &vec![0u32; words.len()]);
        let args = bulk::Args {
            input: input.ptr(),
            output: output.ptr(),
        };
        run(&machine, 3, BLOCK as u32, 8 * BLOCK, args);
        let expected: Vec<u32> = words.iter().map(|word| word + 1).collect();
        assert_eq!(output.read(), expected, "seed {seed}");
    }
}

#[test]
fn without_bulk_copies_the_kernel_takes_its_other_path() {
    let machine = target_machine(0, 80, false);
    let (input, output) = (
        Buffer::new(&machine, &[1u32; BLOCK]),
        Buffer::new(&machine, &[7u32; BLOCK]),
    );
    let args = bulk::Args {
        input: input.ptr(),
        output: output.ptr(),
    };
    run(&machine, 1, BLOCK as u32, 8 * BLOCK, args);
    assert_eq!(output.read(), [7; BLOCK]);
}

#[test]
fn threads_meet_at_a_barrier_by_state() {
    for seed in SEEDS {
        let machine = machine(seed);
        let out = Buffer::new(&machine, &[0u32; 2 * BLOCK]);
        run(
            &machine,
            2,
            BLOCK as u32,
            0,
            meetings::Args { out: out.ptr() },
        );
        let expected: Vec<u32> = (0..2 * BLOCK as u32)
            .map(|i| (i + 1) % BLOCK as u32)
            .collect();
        assert_eq!(out.read(), expected, "seed {seed}");
    }
}

/// A dense tensor of bytes whose rows are padded to a multiple of 16, and its map.
struct Tensor<const R: usize> {
    extents: [usize; R],
    strides: [usize; R],
    bytes: Buffer<u8>,
    map: Buffer<TensorMap>,
}

#[derive(Clone, Copy)]
struct Shape<const R: usize> {
    element: usize,
    extents: [usize; R],
    boxed: [u32; R],
    steps: [u32; R],
    swizzle: Swizzle,
}

impl<const R: usize> Tensor<R> {
    fn new(machine: &Machine, shape: Shape<R>, fill: impl Fn(usize) -> u8) -> Self {
        let Shape {
            element, extents, ..
        } = shape;
        let mut strides = [element; R];
        let mut pitch = (extents[0] * element).next_multiple_of(16);
        for dimension in 1..R {
            strides[dimension] = pitch;
            pitch *= extents[dimension];
        }
        let contents: Vec<u8> = (0..pitch).map(fill).collect();
        let bytes = Buffer::new(machine, &contents);
        let mut desc = TensorMapDesc {
            address: bytes.ptr(),
            element_bytes: element as u32,
            rank: R,
            extents: [1; 4],
            strides: [16; 3],
            box_extents: [1; 4],
            element_strides: [1; 4],
            swizzle: shape.swizzle,
        };
        for dimension in 0..R {
            desc.extents[dimension] = extents[dimension] as u64;
            desc.box_extents[dimension] = shape.boxed[dimension];
            desc.element_strides[dimension] = shape.steps[dimension];
            if dimension > 0 {
                desc.strides[dimension - 1] = strides[dimension] as u64;
            }
        }
        let map = Buffer::new(machine, &[TensorMap::emulated(&desc).unwrap()]);
        Self {
            extents,
            strides,
            bytes,
            map,
        }
    }

    /// The offset of an element, if the tensor has it.
    fn offset(&self, at: [i64; R]) -> Option<usize> {
        self.offset_in_rows_of(self.extents[0], at)
    }

    /// The offset of an element that a store may reach: chunks of 16 bytes are written whole.
    fn offset_in_chunks(&self, at: [i64; R]) -> Option<usize> {
        let element = self.strides[0];
        let row = (self.extents[0] * element).next_multiple_of(16) / element;
        self.offset_in_rows_of(row, at)
    }

    fn offset_in_rows_of(&self, row: usize, at: [i64; R]) -> Option<usize> {
        (0..R).try_fold(0, |offset, dimension| {
            let extent = if dimension == 0 {
                row
            } else {
                self.extents[dimension]
            };
            let index = usize::try_from(at[dimension]).ok()?;
            (index < extent).then(|| offset + index * self.strides[dimension])
        })
    }
}

/// What copying a box from `from` to `to` must leave in `to`, element by element.
fn copied<const R: usize>(
    shape: Shape<R>,
    from: &Tensor<R>,
    load_at: [i32; R],
    to: &Tensor<R>,
    store_at: [i32; R],
) -> Vec<u8> {
    let mut expected = to.bytes.read();
    let source = from.bytes.read();
    let counts: Vec<u32> = (0..R)
        .map(|i| shape.boxed[i].div_ceil(shape.steps[i]))
        .collect();
    for number in 0..counts.iter().product::<u32>() {
        let (mut rest, mut read, mut write) = (number, [0i64; R], [0i64; R]);
        for i in 0..R {
            let step = i64::from(rest % counts[i] * shape.steps[i]);
            rest /= counts[i];
            read[i] = i64::from(load_at[i]) + step;
            write[i] = i64::from(store_at[i]) + step;
        }
        if let Some(write) = to.offset_in_chunks(write) {
            for byte in 0..shape.element {
                expected[write + byte] = from.offset(read).map_or(0, |read| source[read + byte]);
            }
        }
    }
    expected
}

macro_rules! check_tensor {
    ($kernel:ident, $shape:expr, $load_at:expr, $store_at:expr) => {{
        let shape = $shape;
        for seed in SEEDS {
            let machine = machine(seed);
            let from = Tensor::new(&machine, shape, |i| (i * 7 + i / 251) as u8);
            let to = Tensor::new(&machine, shape, |_| 0xee);
            let elements: u32 = (0..shape.boxed.len())
                .map(|i| shape.boxed[i].div_ceil(shape.steps[i]))
                .product();
            let bytes = elements as usize * shape.element;
            let expected = copied(shape, &from, $load_at, &to, $store_at);
            let args = $kernel::Args {
                from: from.map.ptr(),
                to: to.map.ptr(),
                load_at: Buffer::new(&machine, &$load_at).ptr(),
                store_at: Buffer::new(&machine, &$store_at).ptr(),
                bytes: bytes as u32,
            };
            run(&machine, 1, 32, bytes, args);
            assert!(to.bytes.read() == expected, "seed {seed}");
        }
    }};
}

#[test]
fn boxes_of_two_dimensions_are_clipped() {
    let shape = Shape {
        element: 2,
        extents: [40, 19],
        boxed: [16, 8],
        steps: [1, 1],
        swizzle: Swizzle::None,
    };
    check_tensor!(tensor_2d, shape, [0, 0], [16, 8]);
    check_tensor!(tensor_2d, shape, [-8, -2], [8, 5]);
    check_tensor!(tensor_2d, shape, [32, 15], [24, 0]);
    check_tensor!(tensor_2d, shape, [8, 8], [32, 16]);
    check_tensor!(tensor_2d, shape, [1000, 0], [0, 0]);
}

#[test]
fn every_swizzle_is_undone_by_the_way_back() {
    for (swizzle, inner) in [
        (Swizzle::Bytes32, 32),
        (Swizzle::Bytes64, 64),
        (Swizzle::Bytes128, 128),
    ] {
        let shape = Shape {
            element: 1,
            extents: [130, 40],
            boxed: [inner, 32],
            steps: [1, 1],
            swizzle,
        };
        check_tensor!(tensor_2d, shape, [0, 0], [0, 0]);
        check_tensor!(tensor_2d, shape, [64, 20], [16, 30]);
    }
}

#[test]
fn boxes_of_three_and_four_dimensions() {
    let shape = Shape {
        element: 4,
        extents: [9, 7, 5],
        boxed: [4, 3, 2],
        steps: [1, 1, 1],
        swizzle: Swizzle::None,
    };
    check_tensor!(tensor_3d, shape, [4, 1, 1], [8, 5, 4]);
    let shape = Shape {
        element: 8,
        extents: [5, 4, 3, 3],
        boxed: [4, 2, 2, 3],
        steps: [1, 1, 1, 1],
        swizzle: Swizzle::None,
    };
    check_tensor!(tensor_4d, shape, [-2, 1, 1, -1], [2, 0, 2, 1]);
    check_tensor!(tensor_4d, shape, [2, 1, 1, 0], [2, 0, 2, 1]);
}

#[test]
fn element_strides_thin_the_box_out() {
    let shape = Shape {
        element: 1,
        extents: [64, 20],
        boxed: [32, 9],
        steps: [1, 3],
        swizzle: Swizzle::None,
    };
    check_tensor!(tensor_2d, shape, [16, 2], [48, 6]);
}

#[test]
fn a_swizzle_permutes_chunks_by_the_line() {
    assert_eq!(Swizzle::None.apply(0x3f5), 0x3f5);
    // Line 7, chunk 0 of 8: chunk 7.
    assert_eq!(Swizzle::Bytes128.apply(0x380), 0x3f0);
    assert_eq!(Swizzle::Bytes128.apply(0x3f1), 0x381);
    // Lines count modulo 4 and 2.
    assert_eq!(Swizzle::Bytes64.apply(0x380), 0x3b0);
    assert_eq!(Swizzle::Bytes32.apply(0x380), 0x390);
    for swizzle in [Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128] {
        for address in 0..4096 {
            assert_eq!(swizzle.apply(swizzle.apply(address)), address);
        }
    }
}

fn desc() -> TensorMapDesc {
    TensorMapDesc {
        address: std::ptr::without_provenance_mut(4096),
        element_bytes: 2,
        rank: 3,
        extents: [100, 50, 20, 0],
        strides: [208, 0xab_cdef_0120, 0],
        box_extents: [64, 8, 1, 0],
        element_strides: [1, 2, 1, 0],
        swizzle: Swizzle::Bytes128,
    }
}

#[test]
fn maps_the_driver_would_refuse_are_refused() {
    assert!(TensorMap::emulated(&desc()).is_ok());
    let refused = |change: fn(&mut TensorMapDesc)| {
        let mut desc = desc();
        change(&mut desc);
        TensorMap::emulated(&desc).unwrap_err()
    };
    assert_eq!(refused(|d| d.rank = 5), TensorMapError::Rank(5));
    assert_eq!(
        refused(|d| d.element_bytes = 3),
        TensorMapError::ElementBytes(3)
    );
    assert_eq!(
        refused(|d| d.address = std::ptr::without_provenance_mut(4104)),
        TensorMapError::Address(4104)
    );
    assert_eq!(
        refused(|d| d.extents[1] = 0),
        TensorMapError::Extent {
            dimension: 1,
            extent: 0
        }
    );
    assert_eq!(
        refused(|d| d.strides[1] = 200),
        TensorMapError::Stride {
            dimension: 2,
            stride: 200
        }
    );
    assert_eq!(
        refused(|d| d.box_extents[2] = 257),
        TensorMapError::BoxExtent {
            dimension: 2,
            extent: 257
        }
    );
    assert_eq!(
        refused(|d| d.element_strides[0] = 9),
        TensorMapError::ElementStride {
            dimension: 0,
            stride: 9
        }
    );
    assert_eq!(
        refused(|d| d.element_strides[0] = 2),
        TensorMapError::InnerStride(2)
    );
    assert_eq!(
        refused(|d| d.box_extents[0] = 32),
        TensorMapError::SwizzledRow {
            bytes: 64,
            span: 128
        }
    );
    assert_eq!(
        refused(|d| {
            d.swizzle = Swizzle::None;
            d.box_extents[0] = 12;
        }),
        TensorMapError::BoxRow { bytes: 24 }
    );
}

mod misuse {
    use cuda_std::prelude::*;
    use cuda_std::tma::{self, TensorMap};
    use cuda_std::{shared, view::SharedView};

    /// Stores what it wrote, but forgets the fence.
    ///
    /// # Safety
    ///
    /// None: it is wrong.
    #[kernel]
    pub unsafe fn forgets_the_fence(out: *mut u8) {
        // SAFETY: the launch provides 16 words.
        let words = unsafe { SharedView::new(shared::dynamic_shared_mem::<u32>(), 16) };
        words.store(0, 1);
        // SAFETY: breaches the contract on purpose.
        unsafe { tma::bulk_store(out, words.as_ptr().cast(), 64) };
        tma::commit_group();
        tma::wait_group::<0>();
    }

    /// A bulk store of an odd size.
    ///
    /// # Safety
    ///
    /// None: it is wrong.
    #[kernel]
    pub unsafe fn stores_eight_bytes(out: *mut u8) {
        // SAFETY: breaches the contract on purpose.
        unsafe { tma::bulk_store(out, shared::dynamic_shared_mem(), 8) };
    }

    /// A tensor store through something that is no map.
    ///
    /// # Safety
    ///
    /// None: it is wrong.
    #[kernel]
    pub unsafe fn stores_through_garbage(map: *const TensorMap) {
        // SAFETY: breaches the contract on purpose.
        unsafe { tma::tensor_store_2d(map, [0, 0], shared::dynamic_shared_mem()) };
    }
}

#[test]
fn illegal_coordinates_are_reported() {
    let shape = Shape {
        element: 2,
        extents: [40, 19],
        boxed: [16, 8],
        steps: [1, 1],
        swizzle: Swizzle::None,
    };
    let message = |load_at: [i32; 2], store_at: [i32; 2]| {
        let machine = machine(0);
        let tensor = Tensor::new(&machine, shape, |_| 0);
        let args = tensor_2d::Args {
            from: tensor.map.ptr(),
            to: tensor.map.ptr(),
            load_at: Buffer::new(&machine, &load_at).ptr(),
            store_at: Buffer::new(&machine, &store_at).ptr(),
            bytes: 256,
        };
        let fault = fault(&machine, 1, 32, 256, args);
        assert_eq!(fault.kind, FaultKind::Trap);
        fault.message.clone()
    };
    assert!(message([3, 0], [0, 0]).contains("6 bytes into a row"));
    assert!(message([0, 0], [5, 0]).contains("10 bytes into a row"));
    assert!(message([0, 0], [-8, 0]).contains("before the tensor"));
    assert!(message([0, 0], [0, -1]).contains("before the tensor"));
}

#[test]
fn misuse_is_reported_at_its_line() {
    let faults = |kernel: fn(&Machine) -> simt::Fault, kind, text: &str| {
        let fault = kernel(&machine(0));
        assert_eq!(fault.kind, kind, "{fault}");
        assert!(fault.to_string().contains(text), "{fault}");
        assert!(fault.to_string().contains("copies.rs"), "{fault}");
    };
    faults(
        |machine| {
            let out = Buffer::new(machine, &[0u8; 64]).ptr();
            fault(machine, 1, 1, 64, misuse::forgets_the_fence::Args { out })
        },
        FaultKind::MissingProxyFence,
        "",
    );
    faults(
        |machine| {
            let out = Buffer::new(machine, &[0u8; 64]).ptr();
            fault(machine, 1, 1, 64, misuse::stores_eight_bytes::Args { out })
        },
        FaultKind::Trap,
        "multiples of 16",
    );
    faults(
        |machine| {
            let map = Buffer::new(machine, &[TensorMap::from_words([5; 16])]).ptr();
            fault(
                machine,
                1,
                1,
                64,
                misuse::stores_through_garbage::Args { map },
            )
        },
        FaultKind::Trap,
        "no tensor map of rank 2",
    );
}
