//! The experts: a SwiGLU MLP, `(silu(x Wg) * (x Wu)) Wd`, each row with the matrices of its expert.

use super::exp::exp;
use super::{OUTPUTS, thread_number};
use crate::expert_search::group_of_row;
use cuda_std::prelude::*;
use cuda_std::view::{GlobalView, GlobalViewMut};
use cuda_std::{cvt, math};

/// Rows by group, as dispatch lays them out.
#[derive(Clone, Copy)]
struct Rows {
    /// `[groups + 1]`.
    row_offsets: GlobalView<u32>,
    groups: u32,
    /// Rows that buffers have room for.
    capacity: u32,
}

/// What one thread makes: [`OUTPUTS`] neighbouring columns of a row.
#[derive(Clone, Copy)]
struct Tile {
    row: usize,
    expert: usize,
    /// Number of the vector among those of the row.
    vector: usize,
}

impl Rows {
    /// This thread's tile of a result with `vectors` vectors a row; `None` behind the last row.
    #[inline(always)]
    fn tile(self, vectors: usize) -> Option<Tile> {
        let index = thread_number();
        let end = self.row_offsets.load(self.groups as usize);
        let row = index.checked_div(vectors)?;
        if row >= end.min(self.capacity) as usize {
            return None;
        }
        let expert = group_of_row(self.row_offsets, self.groups, row as u32) as usize;
        Some(Tile {
            row,
            expert,
            vector: index - row * vectors,
        })
    }
}

/// `sum + factor * vector`, fused.
#[inline(always)]
fn multiply_add(factor: f32, vector: u32x4, sum: [f32; 4]) -> [f32; 4] {
    let [a, b, c, d] = vector.to_array().map(f32::from_bits);
    [
        math::fma(factor, a, sum[0]),
        math::fma(factor, b, sum[1]),
        math::fma(factor, c, sum[2]),
        math::fma(factor, d, sum[3]),
    ]
}

/// The products of a row of `inputs` with the tile's columns of the expert's matrix: `depth` terms each, added in
/// f32 in rising order. `depth` is a multiple of 4, `vectors` the matrix's columns in units of [`OUTPUTS`].
#[inline(always)]
fn project(
    inputs: GlobalView<u32x4>,
    weights: GlobalView<u32x4>,
    tile: Tile,
    depth: usize,
    vectors: usize,
) -> [f32; 4] {
    let input_vectors = depth / 4;
    let mut sum = [0.0; 4];
    let mut input_vector = 0;
    while input_vector < input_vectors {
        let values = inputs.load(tile.row * input_vectors + input_vector);
        let [a, b, c, d] = values.to_array().map(f32::from_bits);
        let first = tile.expert * depth + input_vector * 4;
        let weight = |term: usize| weights.load((first + term) * vectors + tile.vector);
        sum = multiply_add(a, weight(0), sum);
        sum = multiply_add(b, weight(1), sum);
        sum = multiply_add(c, weight(2), sum);
        sum = multiply_add(d, weight(3), sum);
        input_vector += 1;
    }
    sum
}

/// `x * sigmoid(x)`.
#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `activated[row, i] = silu(sum over h of rows[row, h] * gate[e, h, i]) * (sum over h of rows[row, h] * up[e, h, i])`,
/// where `e` is the group of the row.
///
/// Launch with [`grid_size`](super::grid_size) of `capacity * intermediate / 4` blocks of
/// [`THREADS`](super::THREADS) threads.
///
/// # Safety
///
/// All pointers to vectors are 16-byte aligned and of f32. `rows` holds `[capacity, hidden]` values, of which the first
/// `row_offsets[groups]` rows are written; `gate` and `up` `[groups, hidden, intermediate]`; `row_offsets` `groups + 1`
/// values; `activated` has room for `[capacity, intermediate]`. `hidden` and `intermediate` are multiples of 4 and at
/// least 4, and there is at least one group. Offsets that are not in order lead to the matrices of another group, never
/// outside.
#[kernel(max_threads = 128)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn moe_gate_up(
    rows: *const u32x4,
    row_offsets: *const u32,
    groups: u32,
    capacity: u32,
    hidden: u32,
    intermediate: u32,
    gate: *const u32x4,
    up: *const u32x4,
    activated: *mut u32x4,
) {
    let hidden = hidden as usize;
    let vectors = (intermediate / OUTPUTS) as usize;
    let matrices = groups as usize * hidden * vectors;
    // SAFETY: the caller's obligation.
    let (offsets, rows, gate, up, activated) = unsafe {
        (
            Rows {
                row_offsets: GlobalView::new(row_offsets, groups as usize + 1),
                groups,
                capacity,
            },
            GlobalView::new(rows, capacity as usize * hidden / 4),
            GlobalView::new(gate, matrices),
            GlobalView::new(up, matrices),
            GlobalViewMut::new(activated, capacity as usize * vectors),
        )
    };
    let Some(tile) = offsets.tile(vectors) else {
        return;
    };
    let [a, b, c, d] = project(rows, gate, tile, hidden, vectors);
    let [e, f, g, h] = project(rows, up, tile, hidden, vectors);
    let product = |gate: f32, up: f32| (silu(gate) * up).to_bits();
    activated.store(
        tile.row * vectors + tile.vector,
        u32x4::from_array([product(a, e), product(b, f), product(c, g), product(d, h)]),
    );
}

/// `outputs[row, h]`: the sum over i of `activated[row, i] * down[e, i, h]`, rounded to BF16, where `e` is the group of
/// the row.
///
/// Launch with [`grid_size`](super::grid_size) of `capacity * hidden / 4` blocks of [`THREADS`](super::THREADS)
/// threads.
///
/// # Safety
///
/// As for [`moe_gate_up()`], with `[capacity, intermediate]` values at `activated`, `[groups, intermediate, hidden]` at
/// `down`, and room for `[capacity, hidden]` values of BF16 at `outputs`.
#[kernel(max_threads = 128)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn moe_down(
    activated: *const u32x4,
    row_offsets: *const u32,
    groups: u32,
    capacity: u32,
    hidden: u32,
    intermediate: u32,
    down: *const u32x4,
    outputs: *mut u32x2,
) {
    let intermediate = intermediate as usize;
    let vectors = (hidden / OUTPUTS) as usize;
    // SAFETY: the caller's obligation.
    let (offsets, activated, down, outputs) = unsafe {
        (
            Rows {
                row_offsets: GlobalView::new(row_offsets, groups as usize + 1),
                groups,
                capacity,
            },
            GlobalView::new(activated, capacity as usize * intermediate / 4),
            GlobalView::new(down, groups as usize * intermediate * vectors),
            GlobalViewMut::new(outputs, capacity as usize * vectors),
        )
    };
    let Some(tile) = offsets.tile(vectors) else {
        return;
    };
    let [a, b, c, d] = project(activated, down, tile, intermediate, vectors);
    outputs.store(
        tile.row * vectors + tile.vector,
        u32x2::from_array([cvt::cvt_rn_bf16x2_f32(b, a), cvt::cvt_rn_bf16x2_f32(d, c)]),
    );
}
