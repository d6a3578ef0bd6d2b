//! Shapes: the column counts, rows per slot and numbers of slots that cases go through.
//!
//! A full grid of columns by rows by slots would be thousands of problems that differ in nothing a
//! kernel can notice. Columns, rows and slots act on different parts of it (the masking at the end
//! of a row, the masking at the end of a tile, the search), so each list is crossed with the formats
//! and with one ordinary choice of the other two; the property tests mix all three.

use fastrand::Rng;
use tokenyard::routing::Routing;

/// Column counts (K): around a chunk of 8, a block of 16 or 32, a scale tile of 64 or 128, the 256 or
/// 512 that a warp reads at once, and the hidden sizes of models whose last tile is partial.
pub const COLUMNS: [usize; 21] = [
    8, 16, 24, 32, 40, 56, 64, 72, 120, 128, 136, 248, 256, 264, 352, 504, 512, 520, 704, 2880,
    2944,
];

/// Column counts that only repeat, at length, what the [`COLUMNS`] do.
pub const WIDE_COLUMNS: [usize; 2] = [4096, 7168];

/// Rows per slot around what a warp takes at once, a quarter of a tile, and one and two tiles.
pub const ROWS: [u32; 15] = [1, 2, 3, 4, 5, 15, 31, 32, 33, 127, 128, 129, 255, 256, 257];

/// Numbers of slots (E): around powers of two, and none of them a multiple of a vector's width.
pub const SLOTS: [usize; 12] = [1, 2, 3, 31, 32, 33, 40, 60, 128, 255, 256, 257];

/// Numbers of slots that take the search to its depth.
pub const MANY_SLOTS: [usize; 4] = [512, 513, 1024, 1025];

/// Rows per slot with empty slots at every place: first, last, between, several in a row, all.
pub const EMPTY_SLOTS: [&[u32]; 10] = [
    &[0, 5, 130],
    &[5, 0, 130],
    &[5, 130, 0],
    &[0, 0, 0, 7],
    &[7, 0, 0, 0],
    &[128, 0, 0, 128],
    &[0, 128, 0, 256, 0, 1, 0],
    &[127, 0, 1, 0, 128, 0],
    &[0],
    &[0, 0, 0],
];

/// Problems of the specification's first tests: columns, rows per slot, tensor-wise factors.
pub const PUBLISHED: [(usize, &[u32], &[f32]); 5] = [
    (704, &[256, 128, 256], &[1.0, 1.0, 1.0]),
    (704, &[100, 200, 50], &[1.0, 1.0, 1.0]),
    (704, &[13, 999], &[1.0, 1.0]),
    (2944, &[256, 128, 256], &[0.43, 1.0, 0.5]),
    (352, &[100, 60], &[1.0, 0.5]),
];

/// Tensor-wise factors: one, a plain fraction, powers of two, what a calibration gives, and values
/// whose product with amax or whose reciprocal leaves the range of FP32.
pub fn tensor_scales() -> [f32; 9] {
    [
        1.0,
        0.43,
        0.5,
        1.0 / 3.0,
        368.2191,
        0.0073,
        448.0 * 6.0 / 10.5,
        2f32.powi(100),
        2f32.powi(-100),
    ]
}

/// A routing of slots with these numbers of rows, slot i being expert i, and nothing after them.
pub fn slots(rows_per_slot: &[u32]) -> Routing {
    let offsets = row_offsets(rows_per_slot);
    let rows = offsets[rows_per_slot.len()] as usize;
    Routing::from_row_offsets(&offsets, None, rows)
        .unwrap_or_else(|error| unreachable!("these offsets ascend from 0: {error}"))
}

/// Where slots with these numbers of rows begin, and where the last one ends.
pub fn row_offsets(rows_per_slot: &[u32]) -> Vec<u32> {
    let mut offsets = vec![0];
    for (slot, rows) in rows_per_slot.iter().enumerate() {
        offsets.push(offsets[slot] + rows);
    }
    offsets
}

/// `total` rows thrown at `slots` slots, most of them at a few, as routers do. Some get none.
pub fn skewed(total: u32, slots: usize, random: &mut Rng) -> Vec<u32> {
    let mut rows = vec![0; slots];
    for _ in 0..total {
        let skew = random.f64() * random.f64() * random.f64();
        rows[(skew * slots as f64) as usize] += 1;
    }
    random.shuffle(&mut rows);
    rows
}

/// `[tokens, top_k]` expert ids of a skewed router; with `absent`, some of them -1.
pub fn topk_ids(
    tokens: usize,
    top_k: usize,
    experts: usize,
    absent: bool,
    random: &mut Rng,
) -> Vec<i32> {
    (0..tokens * top_k)
        .map(|_| {
            if absent && random.u8(..8) == 0 {
                -1
            } else {
                (random.f64() * random.f64() * experts as f64) as i32
            }
        })
        .collect()
}
