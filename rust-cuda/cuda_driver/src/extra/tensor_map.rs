//! Tensor maps: the descriptors that the copy engine of compute capability 9.0 and up reads.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::{DevicePtr, DriverError, driver_fn};

/// The most dimensions a tensor map can have.
pub const MAX_TENSOR_RANK: usize = 5;

/// A tensor map, encoded by the driver for the copy engine: 128 bytes, 64-aligned, opaque.
///
/// A kernel reads it through a pointer to a copy in global memory made before the launch.
#[repr(C, align(64))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CUtensorMap {
    opaque: [u64; 16],
}

impl CUtensorMap {
    /// The encoding, for copying to the device.
    #[must_use]
    pub fn as_words(&self) -> &[u64; 16] {
        &self.opaque
    }
}

/// `CUtensorMapDataType`: the type of one element.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorMapDataType {
    /// 8-bit unsigned integer, and every other 8-bit format.
    Uint8 = 0,
    /// 16-bit unsigned integer.
    Uint16 = 1,
    /// 32-bit unsigned integer.
    Uint32 = 2,
    /// 32-bit signed integer.
    Int32 = 3,
    /// 64-bit unsigned integer.
    Uint64 = 4,
    /// 64-bit signed integer.
    Int64 = 5,
    /// IEEE binary16.
    Float16 = 6,
    /// IEEE binary32.
    Float32 = 7,
    /// IEEE binary64.
    Float64 = 8,
    /// bfloat16.
    Bfloat16 = 9,
    /// IEEE binary32 with subnormals flushed to zero.
    Float32Ftz = 10,
    /// binary32 rounded to TF32.
    Tfloat32 = 11,
    /// binary32 rounded to TF32, subnormals flushed to zero.
    Tfloat32Ftz = 12,
    /// Sixteen 4-bit elements in 8 bytes (CUDA 12.8, compute capability 10.0).
    U4x16Align8B = 13,
    /// Sixteen 4-bit elements, 8 bytes of data in 16 bytes of shared memory (CUDA 12.8, 10.0).
    U4x16Align16B = 14,
    /// Sixteen 6-bit elements, 12 bytes of data in 16 bytes of shared memory (CUDA 12.8, 10.0).
    U6x16Align16B = 15,
}

/// `CUtensorMapInterleave`: how channels are interleaved in global memory.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TensorMapInterleave {
    /// Not interleaved.
    #[default]
    None = 0,
    /// Slices of 16 bytes (NC/8HWC8 with 2-byte elements).
    Bytes16 = 1,
    /// Slices of 32 bytes (NC/16HWC16 with 2-byte elements).
    Bytes32 = 2,
}

/// `CUtensorMapSwizzle`: how 16-byte pieces are permuted in shared memory to avoid bank conflicts.
/// The box's inner dimension must not exceed the swizzle's span in bytes.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TensorMapSwizzle {
    /// In order.
    #[default]
    None = 0,
    /// Within 32 bytes.
    Bytes32 = 1,
    /// Within 64 bytes.
    Bytes64 = 2,
    /// Within 128 bytes.
    Bytes128 = 3,
    /// Within 128 bytes, in pieces of 32 (CUDA 12.8, compute capability 10.0).
    Bytes128Atom32 = 4,
    /// Within 128 bytes, in pieces of 32 with their 8-byte parts flipped (CUDA 12.8, 10.0).
    Bytes128Atom32Flip8 = 5,
    /// Within 128 bytes, in pieces of 64 (CUDA 12.8, compute capability 10.0).
    Bytes128Atom64 = 6,
}

/// `CUtensorMapL2promotion`: how much of global memory a miss brings into L2.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TensorMapL2Promotion {
    /// What was asked for.
    #[default]
    None = 0,
    /// 64 bytes.
    Bytes64 = 1,
    /// 128 bytes.
    Bytes128 = 2,
    /// 256 bytes.
    Bytes256 = 3,
}

/// `CUtensorMapFloatOOBfill`: what a load delivers for elements outside the tensor.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TensorMapOobFill {
    /// Zero.
    #[default]
    Zero = 0,
    /// A NaN that multiply-adds treat as zero; floating-point types only.
    NanRequestZeroFma = 1,
}

/// What [`encode_tensor_map_tiled`] encodes. Dimensions are innermost first.
///
/// The driver checks the numbers: the address is 16-aligned, global strides are multiples of 16
/// bytes below 2^40, box dimensions are 1 to 256, element strides 1 to 8, and the box's inner
/// dimension is a multiple of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct TensorMapTiled<'a> {
    /// Type of one element.
    pub data_type: TensorMapDataType,
    /// Device address of element (0, 0, …).
    pub global_address: DevicePtr,
    /// Size of each dimension, in elements: as many as the tensor has dimensions (1 to 5).
    pub global_dim: &'a [u64],
    /// Distance in bytes between neighbours in each dimension but the innermost.
    pub global_strides: &'a [u64],
    /// Size of the box moved by one instruction, in elements.
    pub box_dim: &'a [u32],
    /// Step between elements in each dimension; 1 to take every element.
    pub element_strides: &'a [u32],
    /// Interleaving in global memory.
    pub interleave: TensorMapInterleave,
    /// Permutation in shared memory.
    pub swizzle: TensorMapSwizzle,
    /// L2 promotion.
    pub l2_promotion: TensorMapL2Promotion,
    /// Fill for loads outside the tensor.
    pub oob_fill: TensorMapOobFill,
}

driver_fn! {
    fn tensor_map_encode_tiled = cuTensorMapEncodeTiled, since "12.0", (
        map: *mut CUtensorMap,
        data_type: TensorMapDataType,
        rank: u32,
        global_address: *mut c_void,
        global_dim: *const u64,
        global_strides: *const u64,
        box_dim: *const u32,
        element_strides: *const u32,
        interleave: TensorMapInterleave,
        swizzle: TensorMapSwizzle,
        l2_promotion: TensorMapL2Promotion,
        oob_fill: TensorMapOobFill,
    );
}

/// `cuTensorMapEncodeTiled` (CUDA 12.0): encodes a tensor map for tiled copies.
///
/// The address is recorded, not read: that the memory is there when a kernel uses the map is the
/// launch's obligation.
///
/// # Errors
///
/// Slices that disagree about the rank ([`DriverError::TensorMapRank`]), no driver, a driver older
/// than CUDA 12.0, and whatever the driver refuses.
pub fn encode_tensor_map_tiled(tiled: &TensorMapTiled<'_>) -> Result<CUtensorMap, DriverError> {
    let rank = tiled.global_dim.len();
    if !(1..=MAX_TENSOR_RANK).contains(&rank)
        || tiled.box_dim.len() != rank
        || tiled.element_strides.len() != rank
        || tiled.global_strides.len() != rank - 1
    {
        return Err(DriverError::TensorMapRank {
            rank,
            box_dim: tiled.box_dim.len(),
            element_strides: tiled.element_strides.len(),
            global_strides: tiled.global_strides.len(),
        });
    }
    let mut map = MaybeUninit::<CUtensorMap>::uninit();
    // SAFETY: each slice is as long as the driver reads for this rank, checked above; `map` is
    // 64-aligned and valid for 128 bytes; the global address is not dereferenced.
    unsafe {
        tensor_map_encode_tiled(
            map.as_mut_ptr(),
            tiled.data_type,
            rank as u32,
            tiled.global_address as *mut c_void,
            tiled.global_dim.as_ptr(),
            tiled.global_strides.as_ptr(),
            tiled.box_dim.as_ptr(),
            tiled.element_strides.as_ptr(),
            tiled.interleave,
            tiled.swizzle,
            tiled.l2_promotion,
            tiled.oob_fill,
        )
    }?;
    // SAFETY: a successful call has written all 128 bytes.
    Ok(unsafe { map.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_opaque_map_has_the_layout_that_the_driver_asks_for() {
        assert_eq!(size_of::<CUtensorMap>(), 128);
        assert_eq!(align_of::<CUtensorMap>(), 64);
    }

    #[test]
    fn slices_that_disagree_about_the_rank_never_reach_the_driver() {
        let tiled = TensorMapTiled {
            data_type: TensorMapDataType::Uint8,
            global_address: 0,
            global_dim: &[512, 4],
            global_strides: &[512],
            box_dim: &[512],
            element_strides: &[1, 1],
            interleave: TensorMapInterleave::None,
            swizzle: TensorMapSwizzle::None,
            l2_promotion: TensorMapL2Promotion::None,
            oob_fill: TensorMapOobFill::Zero,
        };
        assert_eq!(
            encode_tensor_map_tiled(&tiled),
            Err(DriverError::TensorMapRank {
                rank: 2,
                box_dim: 1,
                element_strides: 2,
                global_strides: 1
            })
        );
        let scalar = TensorMapTiled {
            global_dim: &[],
            global_strides: &[],
            box_dim: &[],
            element_strides: &[],
            ..tiled
        };
        assert!(matches!(
            encode_tensor_map_tiled(&scalar),
            Err(DriverError::TensorMapRank { rank: 0, .. })
        ));
    }
}
