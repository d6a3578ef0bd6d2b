//! LLVM's NVPTX intrinsics, each of which becomes the PTX instruction named in its comment.
//!
//! They exist on every target the compiler supports (compute capability 7.0) except `redux.sync`,
//! which needs 8.0: below that, instruction selection aborts the compiler.

/// A 32-bit result with a predicate: `{ i32, i1 }` in LLVM.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValueAndPredicate {
    pub value: u32,
    pub predicate: bool,
}

// LLVM declares the intrinsics with these very types; "unadjusted" passes them as they are.
unsafe extern "unadjusted" {
    // mov.u32 d, %tid.x; and so on
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.x"]
    pub fn read_tid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.y"]
    pub fn read_tid_y() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.tid.z"]
    pub fn read_tid_z() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.x"]
    pub fn read_ctaid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.y"]
    pub fn read_ctaid_y() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ctaid.z"]
    pub fn read_ctaid_z() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ntid.x"]
    pub fn read_ntid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ntid.y"]
    pub fn read_ntid_y() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.ntid.z"]
    pub fn read_ntid_z() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.nctaid.x"]
    pub fn read_nctaid_x() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.nctaid.y"]
    pub fn read_nctaid_y() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.nctaid.z"]
    pub fn read_nctaid_z() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.laneid"]
    pub fn read_laneid() -> u32;
    #[link_name = "llvm.nvvm.read.ptx.sreg.warpsize"]
    pub fn read_warpsize() -> u32;

    // bar.sync id
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.all"]
    pub fn barrier_sync_all(id: u32);
    // bar.sync id, threads
    #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
    pub fn barrier_sync_count(id: u32, threads: u32);
    // bar.arrive id, threads
    #[link_name = "llvm.nvvm.barrier.cta.arrive.aligned.count"]
    pub fn barrier_arrive_count(id: u32, threads: u32);
    // bar.red.popc.u32
    #[link_name = "llvm.nvvm.barrier.cta.red.popc.aligned.all"]
    pub fn barrier_red_popc_all(id: u32, predicate: bool) -> u32;
    // bar.red.and.pred
    #[link_name = "llvm.nvvm.barrier.cta.red.and.aligned.all"]
    pub fn barrier_red_and_all(id: u32, predicate: bool) -> bool;
    // bar.red.or.pred
    #[link_name = "llvm.nvvm.barrier.cta.red.or.aligned.all"]
    pub fn barrier_red_or_all(id: u32, predicate: bool) -> bool;

    // bar.warp.sync mask
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    pub fn bar_warp_sync(mask: u32);
    // activemask.b32
    #[link_name = "llvm.nvvm.activemask"]
    pub fn activemask() -> u32;

    // shfl.sync.{bfly,down,idx,up}.b32 d|p, value, b, c, mask
    #[link_name = "llvm.nvvm.shfl.sync.bfly.i32p"]
    pub fn shfl_sync_bfly(mask: u32, value: u32, b: u32, c: u32) -> ValueAndPredicate;
    #[link_name = "llvm.nvvm.shfl.sync.down.i32p"]
    pub fn shfl_sync_down(mask: u32, value: u32, b: u32, c: u32) -> ValueAndPredicate;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32p"]
    pub fn shfl_sync_idx(mask: u32, value: u32, b: u32, c: u32) -> ValueAndPredicate;
    #[link_name = "llvm.nvvm.shfl.sync.up.i32p"]
    pub fn shfl_sync_up(mask: u32, value: u32, b: u32, c: u32) -> ValueAndPredicate;

    // vote.sync.{all,any}.pred, vote.sync.ballot.b32
    #[link_name = "llvm.nvvm.vote.all.sync"]
    pub fn vote_all_sync(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.any.sync"]
    pub fn vote_any_sync(mask: u32, predicate: bool) -> bool;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    pub fn vote_ballot_sync(mask: u32, predicate: bool) -> u32;

    // match.{any,all}.sync.{b32,b64}
    #[link_name = "llvm.nvvm.match.any.sync.i32"]
    pub fn match_any_sync_b32(mask: u32, value: u32) -> u32;
    #[link_name = "llvm.nvvm.match.any.sync.i64"]
    pub fn match_any_sync_b64(mask: u32, value: u64) -> u32;
    #[link_name = "llvm.nvvm.match.all.sync.i32p"]
    pub fn match_all_sync_b32(mask: u32, value: u32) -> ValueAndPredicate;
    #[link_name = "llvm.nvvm.match.all.sync.i64p"]
    pub fn match_all_sync_b64(mask: u32, value: u64) -> ValueAndPredicate;

    // redux.sync.{add,min,max}.{u32,s32}, redux.sync.{and,or,xor}.b32: compute capability 8.0
    #[link_name = "llvm.nvvm.redux.sync.add"]
    pub fn redux_sync_add(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umin"]
    pub fn redux_sync_umin(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.umax"]
    pub fn redux_sync_umax(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.min"]
    pub fn redux_sync_min(value: i32, mask: u32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.max"]
    pub fn redux_sync_max(value: i32, mask: u32) -> i32;
    #[link_name = "llvm.nvvm.redux.sync.and"]
    pub fn redux_sync_and(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.or"]
    pub fn redux_sync_or(value: u32, mask: u32) -> u32;
    #[link_name = "llvm.nvvm.redux.sync.xor"]
    pub fn redux_sync_xor(value: u32, mask: u32) -> u32;

    // membar.{gl,sys}
    #[link_name = "llvm.nvvm.membar.gl"]
    pub fn membar_gl();
    #[link_name = "llvm.nvvm.membar.sys"]
    pub fn membar_sys();
}
