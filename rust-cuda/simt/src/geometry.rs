//! Grid and block extents, and the limits a launch has to keep.

use core::fmt;

use crate::error::Error;

/// Extents of a grid or block, or an index within one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim3 {
    /// Fastest-varying dimension.
    pub x: u32,
    /// Middle dimension.
    pub y: u32,
    /// Slowest-varying dimension.
    pub z: u32,
}

impl Dim3 {
    /// All three dimensions.
    pub const fn new(x: u32, y: u32, z: u32) -> Self {
        Self { x, y, z }
    }

    /// Number of elements: `x * y * z`.
    pub const fn volume(self) -> u128 {
        self.x as u128 * self.y as u128 * self.z as u128
    }

    /// The index with linear number `linear` within these extents, x fastest.
    pub(crate) const fn unravel(self, linear: u64) -> Self {
        let (x, y) = (self.x as u64, self.y as u64);
        Self::new(
            (linear % x) as u32,
            (linear / x % y) as u32,
            (linear / (x * y)) as u32,
        )
    }
}

impl From<u32> for Dim3 {
    fn from(x: u32) -> Self {
        Self::new(x, 1, 1)
    }
}

impl From<(u32, u32)> for Dim3 {
    fn from((x, y): (u32, u32)) -> Self {
        Self::new(x, y, 1)
    }
}

impl From<(u32, u32, u32)> for Dim3 {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self::new(x, y, z)
    }
}

impl fmt::Display for Dim3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}, {})", self.x, self.y, self.z)
    }
}

/// Lanes in a warp.
pub const WARP_SIZE: u32 = 32;
/// Most threads of one block.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// Largest block extents by dimension.
pub const MAX_BLOCK_DIM: Dim3 = Dim3::new(1024, 1024, 64);
/// Largest grid extents by dimension.
pub const MAX_GRID_DIM: Dim3 = Dim3::new(i32::MAX as u32, 65_535, 65_535);
/// Most shared memory of one block in bytes, dynamic and static together (227 KiB).
pub const MAX_SHARED_BYTES: usize = 227 << 10;

/// Checks what CUDA checks at launch.
pub(crate) fn validate(grid: Dim3, block: Dim3, shared_bytes: usize) -> Result<(), Error> {
    if grid.volume() == 0 || block.volume() == 0 {
        return Err(Error::EmptyLaunch { grid, block });
    }
    if exceeds(grid, MAX_GRID_DIM) {
        return Err(Error::GridTooLarge {
            grid,
            limit: MAX_GRID_DIM,
        });
    }
    if exceeds(block, MAX_BLOCK_DIM) || block.volume() > u128::from(MAX_BLOCK_THREADS) {
        return Err(Error::BlockTooLarge {
            block,
            limit: MAX_BLOCK_DIM,
            threads: MAX_BLOCK_THREADS,
        });
    }
    if shared_bytes > MAX_SHARED_BYTES {
        return Err(Error::SharedMemoryTooLarge {
            bytes: shared_bytes,
            limit: MAX_SHARED_BYTES,
        });
    }
    Ok(())
}

fn exceeds(extents: Dim3, limit: Dim3) -> bool {
    extents.x > limit.x || extents.y > limit.y || extents.z > limit.z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unravel_is_x_fastest() {
        let extents = Dim3::new(3, 4, 5);
        assert_eq!(extents.unravel(0), Dim3::new(0, 0, 0));
        assert_eq!(extents.unravel(2), Dim3::new(2, 0, 0));
        assert_eq!(extents.unravel(3), Dim3::new(0, 1, 0));
        assert_eq!(extents.unravel(59), Dim3::new(2, 3, 4));
    }

    #[test]
    fn limits_are_those_of_cuda() {
        let one = Dim3::from(1);
        assert!(validate(one, Dim3::from(1024), MAX_SHARED_BYTES).is_ok());
        assert!(validate(Dim3::new(i32::MAX as u32, 65_535, 65_535), one, 0).is_ok());
        assert!(matches!(
            validate(Dim3::from(0), one, 0),
            Err(Error::EmptyLaunch { .. })
        ));
        assert!(matches!(
            validate(one, (1, 0).into(), 0),
            Err(Error::EmptyLaunch { .. })
        ));
        assert!(matches!(
            validate(one, 1025.into(), 0),
            Err(Error::BlockTooLarge { .. })
        ));
        assert!(matches!(
            validate(one, (32, 33).into(), 0),
            Err(Error::BlockTooLarge { .. })
        ));
        assert!(matches!(
            validate(one, (1, 1, 65).into(), 0),
            Err(Error::BlockTooLarge { .. })
        ));
        assert!(matches!(
            validate((1, 65_536).into(), one, 0),
            Err(Error::GridTooLarge { .. })
        ));
        assert!(matches!(
            validate(one, one, MAX_SHARED_BYTES + 1),
            Err(Error::SharedMemoryTooLarge { .. })
        ));
    }
}
