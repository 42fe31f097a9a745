//! The write() system call without the C library: for the one caller that rings a doorbell per batch of work requests.
//!
//! # Safety argument
//!
//! [`write`] is write(2) and nothing more. The assembly follows the kernel's calling convention of the architecture; it
//! may read memory, so the compiler keeps every earlier store before it.
#![allow(unsafe_code)]

use super::errno::Errno;
use std::os::fd::RawFd;

/// Writes `len_bytes` bytes at `buf` to `fd`; returns how many were taken. Never retried, not even after `EINTR`.
///
/// On x86-64 and aarch64 one instruction enters the kernel, with no call and no `errno`. Elsewhere it is
/// `libc::syscall`.
///
/// # Safety
///
/// `fd` is an open file on which this write has no other effect on memory than the caller allows: a verbs device writes
/// to the response address inside the buffer.
#[inline(always)]
pub unsafe fn write(fd: RawFd, buf: *const u8, len_bytes: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise is the same.
    let returned = unsafe { syscall_write(fd, buf, len_bytes) };
    if returned < 0 { Err(Errno::from_raw(-returned as i32)) } else { Ok(returned as usize) }
}

/// The count, or the negative error number.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn syscall_write(fd: RawFd, buf: *const u8, len_bytes: usize) -> isize {
    let mut rax = libc::SYS_write as isize;
    // SAFETY: the number in rax and the arguments in rdi, rsi and rdx make it write(2); the kernel changes rax, rcx and
    // r11 only. What the call may do to memory is the caller's promise.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") rax,
            in("rdi") fd as isize,
            in("rsi") buf,
            in("rdx") len_bytes,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, preserves_flags),
        );
    }
    rax
}

/// The count, or the negative error number.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn syscall_write(fd: RawFd, buf: *const u8, len_bytes: usize) -> isize {
    let mut x0 = fd as isize;
    // SAFETY: the number in x8 and the arguments in x0, x1 and x2 make it write(2); the kernel changes x0 only. What the
    // call may do to memory is the caller's promise.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_write,
            inlateout("x0") x0,
            in("x1") buf,
            in("x2") len_bytes,
            options(nostack, preserves_flags),
        );
    }
    x0
}

/// The count, or the negative error number.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
unsafe fn syscall_write(fd: RawFd, buf: *const u8, len_bytes: usize) -> isize {
    // SAFETY: this is write(2); what it may do to memory is the caller's promise.
    let returned = unsafe { libc::syscall(libc::SYS_write, fd, buf, len_bytes) };
    if returned < 0 { -(Errno::last().raw() as isize) } else { returned as isize }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    #[test]
    fn writes_what_write_writes() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the buffer is live, and a pipe writes to no memory of ours.
        let written = unsafe { write(writer.as_raw_fd(), b"doorbell".as_ptr(), 8) };
        assert_eq!(written, Ok(8));
        let mut got = [0; 8];
        reader.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"doorbell");
    }

    #[test]
    fn returns_the_error_number() {
        // SAFETY: no file is open under -1, so nothing is written anywhere.
        assert_eq!(unsafe { write(-1, b"x".as_ptr(), 1) }, Err(Errno::EBADF));
    }
}
