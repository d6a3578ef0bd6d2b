//! The kernel's side of an emulated device. Provisional bodies: signatures only.
#![allow(unused_variables, missing_docs, clippy::missing_safety_doc)]

use crate::{Dim3, Target};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Atomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Yield {
    Spin,
    Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierVote {
    pub count: u32,
    pub all: bool,
    pub any: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarpValues {
    pub values: [u64; 32],
    pub mask: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct CopyPiece {
    pub dst: *mut u8,
    pub src: *const u8,
    pub bytes: usize,
}

pub fn on_device() -> bool {
    unimplemented!()
}
pub fn thread_idx() -> Dim3 {
    unimplemented!()
}
pub fn block_idx() -> Dim3 {
    unimplemented!()
}
pub fn block_dim() -> Dim3 {
    unimplemented!()
}
pub fn grid_dim() -> Dim3 {
    unimplemented!()
}
pub fn lane_id() -> u32 {
    unimplemented!()
}
pub fn linear_thread_id() -> u32 {
    unimplemented!()
}
pub fn target() -> Target {
    unimplemented!()
}
pub fn dynamic_shared() -> *mut u8 {
    unimplemented!()
}
pub fn dynamic_shared_bytes() -> usize {
    unimplemented!()
}
#[track_caller]
pub fn static_shared(site: usize, bytes: usize, align: usize) -> *mut u8 {
    unimplemented!()
}
#[track_caller]
pub fn sync_threads() {
    unimplemented!()
}
#[track_caller]
pub fn sync_threads_reduce(predicate: bool) -> BarrierVote {
    unimplemented!()
}
#[track_caller]
pub fn named_barrier_sync(id: u32, threads: u32) {
    unimplemented!()
}
#[track_caller]
pub fn named_barrier_arrive(id: u32, threads: u32) {
    unimplemented!()
}
#[track_caller]
pub fn warp_exchange(op: &'static str, mask: u32, value: u64) -> WarpValues {
    unimplemented!()
}
/// The lanes that execute this together. Threads of an emulated warp never run in lockstep, so this is
/// the calling lane alone, which is a legal answer of the instruction.
pub fn active_mask() -> u32 {
    unimplemented!()
}
#[track_caller]
pub unsafe fn read<T: Copy>(ptr: *const T) -> T {
    unimplemented!()
}
#[track_caller]
pub unsafe fn write<T: Copy>(ptr: *mut T, value: T) {
    unimplemented!()
}
#[track_caller]
pub fn check(ptr: *const u8, bytes: usize, align: usize, access: Access) {
    unimplemented!()
}
/// The next eight checked accesses after this are not preempted, so an atomic may use several.
#[track_caller]
pub fn yield_point(kind: Yield) {
    unimplemented!()
}
pub fn is_shared(ptr: *const u8) -> bool {
    unimplemented!()
}
pub fn is_global(ptr: *const u8) -> bool {
    unimplemented!()
}
#[track_caller]
pub fn fence_proxy_async() {
    unimplemented!()
}
#[track_caller]
pub fn async_copy_out(pieces: &[CopyPiece]) {
    unimplemented!()
}
pub fn bulk_commit_group() {
    unimplemented!()
}
#[track_caller]
pub fn bulk_wait_group(pending: u32, read_only: bool) {
    unimplemented!()
}
#[track_caller]
pub fn async_copy_in(pieces: &[CopyPiece], zero: &[(*mut u8, usize)], mbarrier: *mut u64) {
    unimplemented!()
}
#[track_caller]
pub fn mbarrier_init(bar: *mut u64, count: u32) {
    unimplemented!()
}
#[track_caller]
pub fn mbarrier_inval(bar: *mut u64) {
    unimplemented!()
}
#[track_caller]
pub fn mbarrier_arrive(bar: *mut u64) -> u64 {
    unimplemented!()
}
#[track_caller]
pub fn mbarrier_arrive_expect_tx(bar: *mut u64, tx_bytes: u32) -> u64 {
    unimplemented!()
}
#[track_caller]
pub fn mbarrier_try_wait(bar: *mut u64, state: u64) -> bool {
    unimplemented!()
}
#[track_caller]
pub fn mbarrier_try_wait_parity(bar: *mut u64, parity: u32) -> bool {
    unimplemented!()
}
#[track_caller]
pub fn trap(message: &str) -> ! {
    unimplemented!()
}
pub fn print(args: core::fmt::Arguments<'_>) {
    unimplemented!()
}
pub fn clock() -> u64 {
    unimplemented!()
}
pub fn global_timer_ns() -> u64 {
    unimplemented!()
}
#[track_caller]
pub fn nanosleep(ns: u32) {
    unimplemented!()
}
