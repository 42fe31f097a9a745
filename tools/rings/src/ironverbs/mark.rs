//! Marks for the counter: breakpoint instructions. See `counter.rs`.
//!
//! On other architectures than x86-64 there are none, and the program just runs: `tests/hotpath.rs` disassembles it there.
//!
//! # Safety argument
//!
//! A breakpoint stops the process for its tracer and changes nothing in it; without a tracer it ends the process. The
//! calibration runs `nop` and `getpid`, and names every register that they change.
#![allow(unsafe_code)]

use std::ffi::CStr;

/// Runs `operation` between the two marks.
#[inline(always)]
pub fn counted<T>(name: &CStr, operation: impl FnOnce() -> T) -> T {
    begin(name);
    let result = operation();
    end();
    result
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn begin(name: &CStr) {
    // SAFETY: see the module. The tracer reads the name, which is valid and ends with a zero.
    unsafe { std::arch::asm!("int3", in("rdi") name.as_ptr()) };
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn end() {
    // SAFETY: see the module.
    unsafe { std::arch::asm!("int3") };
}

/// Ten instructions, one of them a system call: the counter must say so.
#[cfg(target_arch = "x86_64")]
pub fn calibrate() {
    const GETPID: u64 = 39;
    // SAFETY: see the module. `syscall` changes rax, rcx and r11, and getpid takes no arguments.
    unsafe {
        std::arch::asm!(
            "int3", "nop", "nop", "nop", "nop", "syscall", "nop", "nop", "nop", "nop", "nop", "int3",
            inout("rax") GETPID => _, in("rdi") c"calibration".as_ptr(), out("rcx") _, out("r11") _,
        )
    };
}

#[cfg(not(target_arch = "x86_64"))]
fn begin(_: &CStr) {}

#[cfg(not(target_arch = "x86_64"))]
fn end() {}

#[cfg(not(target_arch = "x86_64"))]
pub fn calibrate() {}
