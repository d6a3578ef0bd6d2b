//! The way of the scale tiles from shared to global memory.

use crate::scale_tile::{self, TILE_BYTES};
use core::simd::u32x4;
use cuda_std::view::{GlobalViewMut, SharedView};
use cuda_std::{cfg, fence, tma};

/// How the scale tiles leave.
///
/// A kernel argument: the mode, and for a tensor map the swizzle mask of
/// [`scale_tile::Swizzle`] above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleStore(u32);

impl ScaleStore {
    /// Each thread copies 16 bytes. The only way below compute capability 9.0.
    pub const PLAIN: Self = Self(0);
    /// One bulk copy of all tiles of the block.
    pub const BULK: Self = Self(1);

    const TENSOR_MAP: u32 = 2;

    /// One tensor-map copy a tile, staged with this swizzle.
    pub const fn tensor_map(swizzle: scale_tile::Swizzle) -> Self {
        Self(Self::TENSOR_MAP | swizzle.mask() << 8)
    }

    /// The reverse of [`bits`](Self::bits).
    #[inline(always)]
    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The word, as a kernel argument.
    pub const fn bits(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(super) const fn swizzle_mask(self) -> u32 {
        self.0 >> 8
    }

    #[inline(always)]
    const fn is_tensor_map(self) -> bool {
        self.0 & Self::TENSOR_MAP != 0
    }
}

/// Scale tiles of one thread block: side by side in shared memory, and in the scales tensor.
#[derive(Clone, Copy)]
pub(super) struct StagedTiles {
    pub staging: *mut u8,
    /// Number of tiles, at least 1.
    pub tiles: u32,
    /// The scales tensor, and how many tiles it has.
    pub scales: *mut u8,
    pub scales_tiles: usize,
    pub scale_map: *const tma::TensorMap,
    /// Index of the first tile. No memory holds 2^32 tiles of 512 bytes.
    pub first: u32,
}

impl StagedTiles {
    /// The staging area, in words.
    #[inline(always)]
    fn words(self) -> SharedView<u32x4> {
        // SAFETY: the area holds `tiles` tiles, as the kernel made sure.
        unsafe { SharedView::new(self.staging.cast(), self.tiles as usize * TILE_BYTES / 16) }
    }

    /// Makes all scales 0x00, which is what rows and columns that do not exist have.
    #[inline(always)]
    pub fn clear(self, thread: u32, threads: u32) {
        let words = self.words();
        let mut word = thread;
        while word < self.tiles * (TILE_BYTES / 16) as u32 {
            words.store(word as usize, u32x4::splat(0));
            word += threads;
        }
    }

    /// Sends the tiles off. Called by every thread of the block, after a barrier behind which all
    /// scales are staged and, where there is a copy engine, fenced for it.
    ///
    /// # Safety
    ///
    /// The fields are what they say, and for a tensor map, `scale_map` describes `scales` as
    /// `[tiles, 512 / row, row]` bytes.
    #[inline(always)]
    pub unsafe fn leave(self, how: ScaleStore, thread: u32, threads: u32) {
        if !cfg::has_bulk_copy() || how == ScaleStore::PLAIN {
            // SAFETY: the caller's obligation.
            let scales = unsafe {
                GlobalViewMut::<u32x4>::new(self.scales.cast(), self.scales_tiles * TILE_BYTES / 16)
            };
            let words = self.words();
            let mut word = thread;
            while word < self.tiles * (TILE_BYTES / 16) as u32 {
                let value = words.load(word as usize);
                scales.store(
                    self.first as usize * (TILE_BYTES / 16) + word as usize,
                    value,
                );
                word += threads;
            }
        } else if thread == 0 {
            if how.is_tensor_map() {
                // SAFETY: the map is valid, as the caller promises; it is 64-byte aligned by its type
                // and 128-byte aligned as the host allocates it.
                unsafe { fence::proxy_tensor_map_acquire(self.scale_map) };
                let mut next = 0;
                while next < self.tiles {
                    // SAFETY: the map describes `scales` as `[tiles, ...]`; the tile is staged and
                    // fenced, and stays until the wait below.
                    unsafe {
                        tma::tensor_store_3d(
                            self.scale_map,
                            [0, 0, (self.first + next) as i32],
                            self.staging.add(next as usize * TILE_BYTES),
                        );
                    }
                    next += 1;
                }
            } else {
                // SAFETY: as above; the tiles lie side by side in `scales`.
                unsafe {
                    tma::bulk_store(
                        self.scales.add(self.first as usize * TILE_BYTES),
                        self.staging,
                        self.tiles * TILE_BYTES as u32,
                    );
                }
            }
            tma::commit_group();
            // Shared memory must outlive the read; the writes complete with the grid.
            tma::wait_group_read::<0>();
        }
    }
}
