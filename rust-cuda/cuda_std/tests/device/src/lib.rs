#![no_std]
use cuda_std::prelude::*;
use cuda_std::view::*;
use cuda_std::{cvt, math, warp};

#[kernel(max_threads = 128, min_blocks = 8)]
pub unsafe fn first(a: &[f32], b: *mut f32, n: u32) {
    let s = shared_array![f32; 128];
    let t = thread::thread_idx_x() as usize;
    let i = thread::index_1d() as usize;
    if i < a.len() { unsafe { *s.add(t) = a[i] } ; }
    thread::sync_threads();
    let v = unsafe { GlobalViewMut::new(b, n as usize) };
    let x = unsafe { *s.add(t ^ 1) };
    let (y, _) = unsafe { warp::warp_shuffle_xor(u32::MAX, x, 1, 32) };
    let (z, _) = unsafe { warp::warp_shuffle_up(u32::MAX, y as f64, 1, 32) };
    v.store(i, math::fma(math::rcp_rn_ftz(y), x, z as f32));
}

#[kernel]
pub unsafe fn stream(a: *const u32x4, b: *mut u32x4) {
    let i = thread::index_1d() as usize;
    let v = unsafe { GlobalView::new(a, 1) }.load_streaming(i);
    let [x, y, z, w] = v.to_array();
    let f = f32::from_bits;
    let x = cvt::cvt_rn_f16x2_f32(f(x), f(y));
    let x = x ^ cvt::cvt_rz_f16x2_f32(f(z), f(w));
    let x = math::fma_f16x2(x, math::min_f16x2(x, y), z);
    let (m, _) = unsafe { warp::warp_shuffle_xor(u32::MAX, x, 1, 32) };
    let m = math::max_bf16x2(m, x);
    let e = if cuda_std::cfg::has_e4m3_cvt() { cvt::cvt_rn_satfinite_e4m3x2_f32(f(x), f(y)) as u32 } else { 0 };
    let g = if cuda_std::cfg::has_fp4_cvt() { cvt::cvt_rn_f16x2_e2m1x2(cvt::cvt_rn_satfinite_e2m1x2_f32(f(x), f(y))) } else { 0 };
    unsafe { GlobalViewMut::new(b, 1) }.store_streaming(i, u32x4::from_array([x, m, e, math::prmt(g, w, 0x1234)]));
}
