//! The exported `cu*` functions.
//!
//! Each is four or five instructions: load the remembered address and jump to it, or, the first time,
//! go through [`resolve_and_jump`]. They are naked functions because they have no signature of
//! their own: whatever the caller put into registers and onto the stack must reach the driver.

use std::arch::naked_asm;
use std::ffi::c_void;
use std::ptr::NonNull;

use crate::loader::{Symbol, Unresolved, symbol};

const CUDA_ERROR_NO_DEVICE: u32 = 100;
const CUDA_ERROR_NOT_FOUND: u32 = 500;

/// Stands in for every function where there is no driver.
extern "C" fn no_device() -> u32 {
    CUDA_ERROR_NO_DEVICE
}

/// Stands in for a function that the installed driver does not have.
extern "C" fn not_found() -> u32 {
    CUDA_ERROR_NOT_FOUND
}

/// What a trampoline jumps to. A stand-in ignores its arguments, which both calling conventions
/// allow: the caller owns the argument registers and the argument part of the stack.
extern "C" fn resolve(symbol: &'static Symbol) -> NonNull<c_void> {
    let stand_in = match symbol.address() {
        Ok(address) => return address,
        Err(Unresolved::NoDriver(_)) => no_device as extern "C" fn() -> u32,
        Err(Unresolved::Missing) => not_found,
    };
    let address = NonNull::new(stand_in as *mut c_void).expect("functions have addresses");
    symbol.remember(address);
    address
}

/// Resolves the symbol whose address is in `r11` and jumps to the result.
///
/// Every register that may carry an argument is kept: the six integer ones and `xmm0` to `xmm7`.
/// `r11` itself is free between a caller and a callee.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn resolve_and_jump() {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        // Room for xmm0-7, and eight bytes more to align the stack for the call.
        "sub rsp, 136",
        "movaps [rsp], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "mov rdi, r11",
        "call {resolve}",
        "mov r11, rax",
        "movaps xmm0, [rsp]",
        "movaps xmm1, [rsp + 16]",
        "movaps xmm2, [rsp + 32]",
        "movaps xmm3, [rsp + 48]",
        "movaps xmm4, [rsp + 64]",
        "movaps xmm5, [rsp + 80]",
        "movaps xmm6, [rsp + 96]",
        "movaps xmm7, [rsp + 112]",
        "add rsp, 136",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp r11",
        resolve = sym resolve,
    )
}

/// Resolves the symbol whose address is in `x15` and jumps to the result.
///
/// Every register that may carry an argument is kept: `x0` to `x7`, `x8` (where a result in memory
/// goes) and `q0` to `q7`. `x15` and `x17` are free between a caller and a callee; `x16` and `x17`
/// may also be overwritten by code that the linker inserts on the way, so the symbol travels in `x15`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn resolve_and_jump() {
    naked_asm!(
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov x0, x15",
        "bl {resolve}",
        "mov x17, x0",
        "ldp q6, q7, [sp, #192]",
        "ldp q4, q5, [sp, #160]",
        "ldp q2, q3, [sp, #128]",
        "ldp q0, q1, [sp, #96]",
        "ldr x8, [sp, #80]",
        "ldp x6, x7, [sp, #64]",
        "ldp x4, x5, [sp, #48]",
        "ldp x2, x3, [sp, #32]",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #224",
        "br x17",
        resolve = sym resolve,
    )
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump_to_target {
    ($symbol:ident) => {
        naked_asm!(
            "lea r11, [rip + {symbol}]",
            // Two loads need no register besides r11; the target never goes back to null.
            "cmp qword ptr [r11], 0",
            "je {resolve_and_jump}",
            "jmp qword ptr [r11]",
            symbol = sym $symbol,
            resolve_and_jump = sym resolve_and_jump,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_to_target {
    ($symbol:ident) => {
        naked_asm!(
            // A landing pad where branch targets are enforced, a no-op elsewhere ("bti c").
            "hint #34",
            "adrp x15, {symbol}",
            "add x15, x15, :lo12:{symbol}",
            "ldar x17, [x15]",
            "cbz x17, 2f",
            "br x17",
            "2:",
            "b {resolve_and_jump}",
            symbol = sym $symbol,
            resolve_and_jump = sym resolve_and_jump,
        )
    };
}

macro_rules! trampolines {
    ($($name:ident)*) => {
        $(
            const _: () = {
                static SYMBOL: Symbol = symbol!($name);

                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $name() {
                    jump_to_target!(SYMBOL)
                }
            };
        )*
    };
}

for_each_trampoline!(trampolines);
