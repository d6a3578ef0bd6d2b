//! The copy engine on a CPU: works out the pieces of a copy and hands them to the emulator.

use std::vec::Vec;

use simt::device::{self, Access, CopyPiece};

use super::{Swizzle, TensorMap};

/// Distinguishes an emulated map from one the driver encoded, and from garbage.
const MAGIC: u64 = u32::from_le_bytes(*b"simt") as u64;

/// The highest rank that there is a copy for.
const MAX_RANK: usize = 4;

/// The bytes that the copy engine treats as one along the innermost dimension.
const CHUNK: usize = 16;

/// A tensor in global memory and the box that one copy moves, as for `cuTensorMapEncodeTiled` with
/// tiled mode, no interleaving and zero fill.
///
/// Everything counts from the innermost dimension outwards. Only the first `rank` entries of an array
/// (`rank - 1` of `strides`) are looked at.
#[derive(Debug, Clone, Copy)]
pub struct TensorMapDesc {
    /// The first element, a multiple of 16.
    pub address: *mut u8,
    /// The size of an element in bytes: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// The number of dimensions, 2 to 4.
    pub rank: usize,
    /// The tensor's extents in elements, 1 to 2^32.
    pub extents: [u64; 4],
    /// Bytes from one index of dimension 1, 2, 3 to the next: multiples of 16 below 2^40.
    pub strides: [u64; 3],
    /// The box's extents in elements, 1 to 256, before element strides are taken into account.
    pub box_extents: [u32; 4],
    /// Every how many-th element of the box is moved along each dimension, 1 to 8; 1 along the
    /// innermost, which has no strides.
    pub element_strides: [u32; 4],
    /// How the box is permuted in shared memory.
    pub swizzle: Swizzle,
}

/// Why a tensor map cannot be made: the driver refuses it too, unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapError {
    /// The rank has no copy.
    #[error("a tensor of rank {0}, expected 2 to 4")]
    Rank(usize),
    /// The element size is none the copy engine knows.
    #[error("elements of {0} bytes, expected 1, 2, 4 or 8")]
    ElementBytes(u32),
    /// The tensor's address is not aligned.
    #[error("a tensor at address {0:#x}, expected a multiple of 16")]
    Address(usize),
    /// An extent of the tensor is out of range.
    #[error("an extent of {extent} elements in dimension {dimension}, expected 1 to 2^32")]
    Extent {
        /// Counted from the innermost one.
        dimension: usize,
        /// In elements.
        extent: u64,
    },
    /// A stride is out of range or not aligned.
    #[error(
        "a stride of {stride} bytes in dimension {dimension}, expected a multiple of 16 below 2^40"
    )]
    Stride {
        /// Counted from the innermost one.
        dimension: usize,
        /// In bytes.
        stride: u64,
    },
    /// An extent of the box is out of range.
    #[error("a box of {extent} elements in dimension {dimension}, expected 1 to 256")]
    BoxExtent {
        /// Counted from the innermost one.
        dimension: usize,
        /// In elements.
        extent: u32,
    },
    /// An element stride is out of range.
    #[error("an element stride of {stride} in dimension {dimension}, expected 1 to 8")]
    ElementStride {
        /// Counted from the innermost one.
        dimension: usize,
        /// In elements.
        stride: u32,
    },
    /// The innermost dimension has an element stride. The driver ignores it.
    #[error("an element stride of {0} in the innermost dimension, which has none")]
    InnerStride(u32),
    /// The rows of the box are no whole chunks.
    #[error("box rows of {bytes} bytes, expected a multiple of 16")]
    BoxRow {
        /// The bytes of the box along the innermost dimension.
        bytes: usize,
    },
    /// The rows of the box do not fill the swizzle's span. The driver accepts shorter ones; how they
    /// lie in shared memory is not modelled.
    #[error("box rows of {bytes} bytes, expected the {span} of the swizzle's span")]
    SwizzledRow {
        /// The bytes of the box along the innermost dimension.
        bytes: usize,
        /// The span of the swizzle.
        span: usize,
    },
}

impl TensorMap {
    /// A map for the emulator.
    ///
    /// # Errors
    ///
    /// If the driver would refuse the description, or the emulator does not model it.
    pub fn emulated(desc: &TensorMapDesc) -> Result<Self, TensorMapError> {
        let rank = desc.rank;
        if !(2..=MAX_RANK).contains(&rank) {
            return Err(TensorMapError::Rank(rank));
        }
        if ![1, 2, 4, 8].contains(&desc.element_bytes) {
            return Err(TensorMapError::ElementBytes(desc.element_bytes));
        }
        if !desc.address.addr().is_multiple_of(16) {
            return Err(TensorMapError::Address(desc.address.addr()));
        }
        for dimension in 0..rank {
            let extent = desc.extents[dimension];
            if !(1..=1 << 32).contains(&extent) {
                return Err(TensorMapError::Extent { dimension, extent });
            }
            let extent = desc.box_extents[dimension];
            if !(1..=256).contains(&extent) {
                return Err(TensorMapError::BoxExtent { dimension, extent });
            }
            let stride = desc.element_strides[dimension];
            if !(1..=8).contains(&stride) {
                return Err(TensorMapError::ElementStride { dimension, stride });
            }
        }
        for dimension in 1..rank {
            let stride = desc.strides[dimension - 1];
            if !stride.is_multiple_of(16) || stride >= 1 << 40 {
                return Err(TensorMapError::Stride { dimension, stride });
            }
        }
        if desc.element_strides[0] != 1 {
            return Err(TensorMapError::InnerStride(desc.element_strides[0]));
        }
        let bytes = desc.box_extents[0] as usize * desc.element_bytes as usize;
        match desc.swizzle.span_bytes() {
            Some(span) if bytes != span => {
                return Err(TensorMapError::SwizzledRow { bytes, span });
            }
            _ if !bytes.is_multiple_of(CHUNK) => return Err(TensorMapError::BoxRow { bytes }),
            _ => {}
        }
        Ok(encode(desc))
    }
}

/// Words: address; header; four extents; four box extents; four element strides; three strides of 40
/// bits each.
fn encode(desc: &TensorMapDesc) -> TensorMap {
    let mut words = [0; 16];
    words[0] = desc.address.expose_provenance() as u64;
    let swizzle = match desc.swizzle {
        Swizzle::None => 0,
        Swizzle::Bytes32 => 1,
        Swizzle::Bytes64 => 2,
        Swizzle::Bytes128 => 3,
    };
    words[1] =
        MAGIC | (desc.rank as u64) << 32 | u64::from(desc.element_bytes) << 40 | swizzle << 48;
    for dimension in 0..desc.rank {
        words[2 + dimension] = desc.extents[dimension];
        words[6 + dimension] = u64::from(desc.box_extents[dimension]);
        words[10 + dimension] = u64::from(desc.element_strides[dimension]);
    }
    words[14] = desc.strides[0] | (desc.strides[1] & 0xff_ffff) << 40;
    words[15] = desc.strides[1] >> 24 | desc.strides[2] << 16;
    TensorMap(words)
}

fn decode(map: &TensorMap) -> Option<TensorMapDesc> {
    let words = map.words();
    let header = words[1];
    if header & 0xffff_ffff != MAGIC {
        return None;
    }
    let swizzle = match header >> 48 & 0xff {
        0 => Swizzle::None,
        1 => Swizzle::Bytes32,
        2 => Swizzle::Bytes64,
        _ => Swizzle::Bytes128,
    };
    Some(TensorMapDesc {
        address: core::ptr::with_exposed_provenance_mut(words[0] as usize),
        element_bytes: (header >> 40 & 0xff) as u32,
        rank: (header >> 32 & 0xff) as usize,
        extents: core::array::from_fn(|dimension| words[2 + dimension]),
        strides: [
            words[14] & 0xff_ffff_ffff,
            words[14] >> 40 | (words[15] & 0xffff) << 24,
            words[15] >> 16,
        ],
        box_extents: core::array::from_fn(|dimension| words[6 + dimension] as u32),
        element_strides: core::array::from_fn(|dimension| words[10 + dimension] as u32),
        swizzle,
    })
}

#[track_caller]
fn expect(condition: bool, message: core::fmt::Arguments<'_>) {
    if !condition {
        device::trap(&std::format!("{message}"));
    }
}

/// Shared memory on one side, global memory on the other, multiples of 16 everywhere.
#[track_caller]
fn check_bulk(shared: *const u8, global: *const u8, bytes: u32) {
    expect(
        device::is_shared(shared),
        format_args!("a bulk copy with {shared:p} in place of shared memory"),
    );
    expect(
        device::is_global(global),
        format_args!("a bulk copy with {global:p} in place of global memory"),
    );
    expect(
        shared.addr().is_multiple_of(CHUNK)
            && global.addr().is_multiple_of(CHUNK)
            && bytes.is_multiple_of(16),
        format_args!(
            "a bulk copy of {bytes} bytes between {shared:p} and {global:p}: all three must be \
             multiples of 16"
        ),
    );
}

#[track_caller]
pub fn bulk_store(dst: *mut u8, src: *const u8, bytes: u32) {
    check_bulk(src, dst, bytes);
    let bytes = bytes as usize;
    device::async_copy_out(&[CopyPiece { dst, src, bytes }]);
}

#[track_caller]
pub fn bulk_load(dst: *mut u8, src: *const u8, bytes: u32, mbarrier: *mut u64) {
    check_bulk(dst, src, bytes);
    let bytes = bytes as usize;
    device::async_copy_in(&[CopyPiece { dst, src, bytes }], &[], mbarrier);
}

/// A range of the box that is contiguous on both sides.
struct Run {
    /// The address in shared memory, or the distance from null while it is being computed.
    shared: usize,
    /// The address in global memory; none where the box leaves the tensor.
    global: Option<usize>,
    bytes: usize,
}

/// # Safety
///
/// `map` points at a readable tensor map.
#[track_caller]
pub unsafe fn tensor_store(map: *const TensorMap, coordinates: &[i32], src: *const u8) {
    // SAFETY: forwarded to the caller.
    let desc = unsafe { checked_map(map, coordinates, src) };
    expect(
        coordinates.iter().all(|coordinate| *coordinate >= 0),
        format_args!(
            "a tensor store at {coordinates:?}: only loads may begin before the tensor (an illegal \
             instruction on a GPU)"
        ),
    );
    // Chunks that begin inside the tensor are written whole.
    let row = desc.extents[0] * u64::from(desc.element_bytes);
    let writable = row.next_multiple_of(CHUNK as u64) / u64::from(desc.element_bytes);
    let pieces: Vec<CopyPiece> = runs(&desc, writable, coordinates, src.addr())
        .into_iter()
        .filter_map(|run| {
            Some(CopyPiece {
                dst: desc.address.with_addr(run.global?),
                src: src.with_addr(run.shared),
                bytes: run.bytes,
            })
        })
        .collect();
    device::async_copy_out(&pieces);
}

/// # Safety
///
/// `map` points at a readable tensor map.
#[track_caller]
pub unsafe fn tensor_load(
    dst: *mut u8,
    map: *const TensorMap,
    coordinates: &[i32],
    mbarrier: *mut u64,
) {
    // SAFETY: forwarded to the caller.
    let desc = unsafe { checked_map(map, coordinates, dst) };
    let (mut pieces, mut zero) = (Vec::new(), Vec::new());
    for run in runs(&desc, desc.extents[0], coordinates, dst.addr()) {
        let shared = dst.with_addr(run.shared);
        match run.global {
            Some(global) => pieces.push(CopyPiece {
                dst: shared,
                src: desc.address.with_addr(global),
                bytes: run.bytes,
            }),
            None => zero.push((shared, run.bytes)),
        }
    }
    device::async_copy_in(&pieces, &zero, mbarrier);
}

/// Reads the map and checks it against the instruction and the buffer in shared memory.
///
/// # Safety
///
/// `map` points at a readable tensor map.
#[track_caller]
unsafe fn checked_map(
    map: *const TensorMap,
    coordinates: &[i32],
    shared: *const u8,
) -> TensorMapDesc {
    let rank = coordinates.len();
    device::check(
        map.cast(),
        size_of::<TensorMap>(),
        align_of::<TensorMap>(),
        Access::Read,
    );
    // SAFETY: forwarded to the caller, and just checked.
    let desc = decode(unsafe { &*map });
    let Some(desc) = desc.filter(|desc| desc.rank == rank) else {
        device::trap(&std::format!("{map:p} holds no tensor map of rank {rank}"));
    };
    expect(
        device::is_shared(shared),
        format_args!("a tensor copy with {shared:p} in place of shared memory"),
    );
    let offset = i64::from(coordinates[0]) * i64::from(desc.element_bytes);
    expect(
        offset % CHUNK as i64 == 0,
        format_args!(
            "a tensor copy at {coordinates:?}, {offset} bytes into a row, which must be a multiple of \
             {CHUNK} (an illegal instruction on a GPU)"
        ),
    );
    // A swizzle acts on addresses, so a box may begin anywhere in its pattern.
    expect(
        shared.addr().is_multiple_of(128),
        format_args!(
            "a tensor copy with shared memory at {shared:p}, which must be a multiple of 128"
        ),
    );
    desc
}

/// The runs of a box at `coordinates`, whose image in shared memory starts at `shared`, in a tensor
/// whose rows have `row` elements that count as being there.
fn runs(desc: &TensorMapDesc, row: u64, coordinates: &[i32], shared: usize) -> Vec<Run> {
    let element = desc.element_bytes as usize;
    let counts: Vec<u32> = (0..desc.rank)
        .map(|dimension| desc.box_extents[dimension].div_ceil(desc.element_strides[dimension]))
        .collect();
    let mut runs: Vec<Run> = Vec::new();
    let total: u32 = counts.iter().product();
    for number in 0..total {
        let mut rest = number;
        let mut global = Some(desc.address.addr());
        for dimension in 0..desc.rank {
            let step = rest % counts[dimension] * desc.element_strides[dimension];
            rest /= counts[dimension];
            let index = i64::from(coordinates[dimension]) + i64::from(step);
            let (pitch, extent) = match dimension {
                0 => (element as u64, row),
                outer => (desc.strides[outer - 1], desc.extents[outer]),
            };
            global = global
                .filter(|_| (0..extent as i64).contains(&index))
                .map(|address| address + index as usize * pitch as usize);
        }
        let address = desc.swizzle.apply(shared + number as usize * element);
        match runs.last_mut() {
            Some(last)
                if last.shared + last.bytes == address
                    && last.global.map(|start| start + last.bytes) == global =>
            {
                last.bytes += element;
            }
            _ => runs.push(Run {
                shared: address,
                global,
                bytes: element,
            }),
        }
    }
    runs
}
