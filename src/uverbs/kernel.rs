//! How to reach a command on the running kernel: which form it knows, found out by asking once.
//!
//! A command has up to three forms:
//!
//! 1. its own ioctl method ([`Native`]);
//! 2. the request of the write() interface inside an ioctl (`INVOKE_WRITE`), since Linux 4.20;
//! 3. the same request given to write(), for kernels without the ioctl.
//!
//! The kernel tells an unknown object or method by `EPROTONOSUPPORT` and the missing ioctl by `ENOTTY`; nothing else
//! ever leads to another form. `EPROTONOSUPPORT` also means an unknown mandatory attribute, so a native command marks as
//! mandatory only attributes that are as old as its method. A form that has worked once is never doubted again: from
//! then on its errors are the command's own.
//!
//! # Safety argument
//!
//! [`Kernel::invoke_raw`] passes on bytes that may name memory; it is unsafe, and its caller answers for them.
//! [`Kernel::invoke`] takes a [`WriteCommand`], which promises that there is none. The write() form adds one address,
//! that of a response buffer which lives until the call returns.
#![allow(unsafe_code)]

use super::abi::ioctl::{attr, method};
use super::abi::write::{CmdHdr, EXTENDED, ExCmdHdr, WriteCommand};
use super::cmd::CmdBuf;
use super::errno::Errno;
use super::sys::Cdev;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use zerocopy::IntoBytes;

/// Commands that have an ioctl method of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    GetContext,
    QueryPort,
    PdDestroy,
    MrDestroy,
    MwDestroy,
    DmFree,
    CqCreate,
    CqDestroy,
    QpCreate,
    SrqCreate,
    SrqDestroy,
    QpDestroy,
    AhDestroy,
    XrcdDestroy,
}

impl Native {
    const COUNT: usize = Self::XrcdDestroy as usize + 1;
}

/// The form to send a command in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Its own ioctl method.
    Native,
    /// The request of the write() interface: [`Kernel::invoke`].
    Legacy,
}

/// Whether the kernel has something. Races between threads are harmless: each finds the same answer.
#[derive(Default)]
struct Known(AtomicU8);

const UNKNOWN: u8 = 0;
const PRESENT: u8 = 1;
const ABSENT: u8 = 2;

impl Known {
    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u8) {
        self.0.store(value, Ordering::Relaxed);
    }
}

/// One open file, and what is known of the kernel behind it.
pub struct Kernel {
    cdev: Arc<dyn Cdev>,
    ioctl: Known,
    invoke_write: Known,
    natives: [Known; Native::COUNT],
}

impl Kernel {
    /// Nothing is known yet.
    pub fn new(cdev: Arc<dyn Cdev>) -> Self {
        Self { cdev, ioctl: Known::default(), invoke_write: Known::default(), natives: Default::default() }
    }

    pub fn cdev(&self) -> &Arc<dyn Cdev> {
        &self.cdev
    }

    /// A command of the ioctl interface, to be filled and issued.
    pub fn command<'a>(&self, method: super::abi::ioctl::Method) -> CmdBuf<'a> {
        CmdBuf::new(method, self.cdev.driver_id())
    }

    /// Runs a command in its native form where the kernel has that, else in the legacy form.
    pub fn attempt<T>(&self, native: Native, mut run: impl FnMut(Form) -> Result<T, Errno>) -> Result<T, Errno> {
        let known = &self.natives[native as usize];
        if known.get() == ABSENT || self.ioctl.get() == ABSENT {
            return run(Form::Legacy);
        }
        let answer = run(Form::Native);
        self.without_form(known, answer, || run(Form::Legacy))
    }

    /// Sends a request of the write() interface and takes its response.
    pub fn invoke<C: WriteCommand>(
        &self,
        request: &C,
        response: &mut C::Response,
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<(), Errno> {
        // SAFETY: a `WriteCommand` names no memory, and the response is of the command's own type.
        unsafe { self.invoke_raw(C::COMMAND, request.as_bytes(), response.as_mut_bytes(), uhw_in, uhw_out) }
    }

    /// Sends the bytes of a request of the write() interface.
    ///
    /// # Safety
    ///
    /// Memory that the request or the driver's part names obeys the caller's part of [`Cdev`].
    pub unsafe fn invoke_raw(
        &self,
        command: u32,
        core_in: &[u8],
        core_out: &mut [u8],
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<(), Errno> {
        if self.ioctl.get() == ABSENT || self.invoke_write.get() == ABSENT {
            // SAFETY: the caller answers for the bytes.
            return unsafe { self.write(command, core_in, core_out, uhw_in, uhw_out) };
        }
        let answer = self.invoke_write(command, core_in, core_out, uhw_in, uhw_out);
        self.without_form(&self.invoke_write, answer, || {
            // SAFETY: the caller answers for the bytes.
            unsafe { self.write(command, core_in, core_out, uhw_in, uhw_out) }
        })
    }

    /// Judges the `answer` to an ioctl: if it says that the kernel has no such thing, remembers that and runs `other`.
    fn without_form<T>(
        &self,
        known: &Known,
        answer: Result<T, Errno>,
        other: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match answer {
            Ok(_) => {
                self.ioctl.set(PRESENT);
                known.set(PRESENT);
                answer
            }
            Err(Errno::ENOTTY) if self.ioctl.get() == UNKNOWN => {
                let answer = other();
                if answer.is_ok() {
                    self.ioctl.set(ABSENT);
                }
                answer
            }
            Err(Errno::EPROTONOSUPPORT) if known.get() == UNKNOWN => {
                let answer = other();
                if answer.is_ok() {
                    known.set(ABSENT);
                }
                answer
            }
            refused => refused,
        }
    }

    fn invoke_write(
        &self,
        command: u32,
        core_in: &[u8],
        core_out: &mut [u8],
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<(), Errno> {
        let mut cmd = self.command(method::INVOKE_WRITE);
        cmd.ptr_in(attr::invoke_write::CORE_IN, core_in);
        if !core_out.is_empty() {
            cmd.ptr_out(attr::invoke_write::CORE_OUT, core_out);
        }
        cmd.const_in(attr::invoke_write::WRITE_CMD, u64::from(command));
        cmd.uhw(uhw_in, uhw_out);
        cmd.issue(&*self.cdev).map(|_| ())
    }

    /// The write() form. Request and response each are one piece of memory there, the driver's part after the core's.
    ///
    /// # Safety
    ///
    /// As [`Kernel::invoke_raw`].
    unsafe fn write(
        &self,
        command: u32,
        core_in: &[u8],
        core_out: &mut [u8],
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<(), Errno> {
        let mut response = vec![0_u64; (core_out.len() + uhw_out.len()).div_ceil(8)];
        let (core, driver) = response.as_mut_bytes().split_at_mut(core_out.len());
        core.copy_from_slice(core_out);
        driver[..uhw_out.len()].copy_from_slice(uhw_out);
        let address = match core_out.len() + uhw_out.len() {
            0 => 0,
            _ => response.as_mut_ptr().expose_provenance() as u64,
        };
        let lengths = Lengths { core_out: core_out.len(), uhw_out: uhw_out.len() };
        let request = match command & EXTENDED {
            0 => plain(command, core_in, uhw_in, address, lengths),
            _ => extended(command, core_in, uhw_in, address, lengths),
        };
        // SAFETY: the response buffer is as long as the request says and lives until the end of this function; the
        // caller answers for the rest.
        unsafe { self.cdev.write(&request) }?;
        let (core, driver) = response.as_bytes().split_at(core_out.len());
        core_out.copy_from_slice(core);
        uhw_out.copy_from_slice(&driver[..uhw_out.len()]);
        Ok(())
    }
}

/// Bytes of the two parts of a response.
#[derive(Clone, Copy)]
struct Lengths {
    core_out: usize,
    uhw_out: usize,
}

/// Header, request, driver's request. Words are of 4 bytes and count the header too. Rounded up to 8 bytes, which the
/// kernel takes as longer driver data that the commands concerned (DEALLOC_PD, DEREG_MR, DEALLOC_MW) have no use for.
fn plain(command: u32, core_in: &[u8], uhw_in: &[u8], response: u64, out: Lengths) -> Vec<u64> {
    let n_words = (size_of::<CmdHdr>() + core_in.len() + uhw_in.len()).div_ceil(8);
    let header =
        CmdHdr { command, in_words: (n_words * 2) as u16, out_words: (out.core_out + out.uhw_out).div_ceil(4) as u16 };
    let mut request = assemble(n_words, &[header.as_bytes(), core_in, uhw_in]);
    if out.core_out != 0 {
        // A plain request with a response begins with the response's address.
        request[1] = response;
    }
    request
}

/// Two headers, request, driver's request. Words are of 8 bytes, the headers do not count.
fn extended(command: u32, core_in: &[u8], uhw_in: &[u8], response: u64, out: Lengths) -> Vec<u64> {
    let words = |bytes: usize| bytes.div_ceil(8) as u16;
    let header = CmdHdr { command, in_words: words(core_in.len()), out_words: words(out.core_out) };
    let ex_header = ExCmdHdr {
        response,
        provider_in_words: words(uhw_in.len()),
        provider_out_words: words(out.uhw_out),
        cmd_hdr_reserved: 0,
    };
    let n_words = 3 + usize::from(header.in_words) + usize::from(ex_header.provider_in_words);
    assemble(n_words, &[header.as_bytes(), ex_header.as_bytes(), core_in, uhw_in])
}

/// `parts` one after the other in `n_words` words, the rest zero.
fn assemble(n_words: usize, parts: &[&[u8]]) -> Vec<u64> {
    let mut words = vec![0_u64; n_words];
    let mut rest = words.as_mut_bytes();
    for part in parts {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::context::Ucontext;
    use crate::uverbs::error::{Error, Lacking, Verb};
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::observe::{CommandForm, Fault};
    use crate::uverbs::scenario;

    #[test]
    fn native_methods_are_used_where_there_are_some() {
        let kernel = FakeKernel::new(Knows::ALL);
        scenario::walk(kernel.clone());
        let log = kernel.take_log();
        assert!(!log.iter().any(|c| c.starts_with("write ") && c != "write 0x1c"), "{log:?}");
        let once = ["0.3", "16.0", "0.2", "3.0", "3.1", "5.0", "5.1", "7.1", "1.0"].map(|native| (native, 1));
        for (native, times) in once.into_iter().chain([("4.0", 2), ("4.1", 2)]) {
            assert_eq!(log.iter().filter(|c| *c == native).count(), times, "{native} in {log:?}");
        }
    }

    #[test]
    fn an_unknown_method_is_asked_for_once() {
        let kernel = FakeKernel::new(Knows::INVOKE_WRITE);
        let ctx = scenario::walk(kernel.clone());
        let first = kernel.take_log();
        for native in ["0.3", "0.2", "3.0", "4.0", "4.1", "3.1", "5.0", "5.1", "7.1", "1.0"] {
            assert_eq!(first.iter().filter(|c| *c == native).count(), 1, "{native} in {first:?}");
        }
        assert!(!first.contains(&"16.0".to_owned()), "GET_CONTEXT gave the event file already");
        drop(ctx.alloc_pd(&mut []).unwrap());
        assert_eq!(kernel.take_log(), ["invoke 0x3", "invoke 0x4"]);
        assert!(kernel.live().is_empty());
    }

    #[test]
    fn without_the_ioctl_everything_is_written_and_the_ioctl_tried_once() {
        let kernel = FakeKernel::new(Knows::WRITE);
        let ctx = scenario::walk(kernel.clone());
        let log = kernel.take_log();
        // GET_CONTEXT tries its method and INVOKE_WRITE before the first write() succeeds.
        assert_eq!(log.iter().filter(|c| *c == "ENOTTY").count(), 2, "{log:?}");
        drop(ctx.alloc_pd(&mut []).unwrap());
        assert_eq!(kernel.take_log(), ["write 0x3", "write 0x4"]);
    }

    #[test]
    fn a_kernel_without_invoke_write_gets_both_ioctl_and_write() {
        let kernel = FakeKernel::new(Knows { ioctl: true, invoke_write: false, natives: true });
        scenario::walk(kernel.clone());
        let log = kernel.take_log();
        assert_eq!(log.iter().filter(|c| *c == "0.0").count(), 1, "{log:?}");
        assert!(log.contains(&"write 0x3".to_owned()) && log.contains(&"4.0".to_owned()), "{log:?}");
    }

    /// Every other error is the command's own and must not lead to another form.
    #[test]
    fn genuine_errors_lead_nowhere_else() {
        for errno in [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::EFAULT, Errno::ENOENT, Errno::EPERM, Errno::EINTR] {
            let kernel = FakeKernel::new(Knows::ALL);
            let fault = Fault::new();
            fault.fail_matching(|c| c.method() == Some((0, 3)), errno);
            let error = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap_err();
            assert_eq!(error.errno(), Some(errno));
            assert_eq!(fault.count(), 1, "{errno:?} was followed by another form");
            assert!(kernel.take_log().is_empty());
        }
    }

    /// Once a form has worked, even the two telling errors are the command's own.
    #[test]
    fn a_form_that_worked_is_not_doubted() {
        let kernel = FakeKernel::new(Knows::ALL);
        let fault = Fault::new();
        let ctx = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap();
        drop(ctx.alloc_pd(&mut []).unwrap());
        for errno in [Errno::EPROTONOSUPPORT, Errno::ENOTTY] {
            kernel.take_log();
            fault.fail_matching(|c| c.form() == CommandForm::Ioctl, errno);
            let error = ctx.alloc_pd(&mut []).unwrap_err();
            assert_eq!(error.errno(), Some(errno));
            assert!(kernel.take_log().is_empty(), "{errno:?}");
            fault.clear();
        }
    }

    /// When no form works the last answer is reported, and nothing is concluded from it.
    #[test]
    fn a_failing_last_form_is_not_remembered() {
        let kernel = FakeKernel::new(Knows::ALL);
        let fault = Fault::new();
        fault.fail_matching(|c| c.form() == CommandForm::Ioctl || c.form() == CommandForm::Write, Errno::ENOTTY);
        let error = Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOTTY));
        fault.clear();
        assert!(Ucontext::open(fault.wrap(kernel.clone()), &[], &mut []).is_ok());
        assert_eq!(kernel.take_log(), ["0.3", "16.0"]);
    }

    #[test]
    fn the_drivers_part_travels_in_every_form() {
        for knows in [Knows::ALL, Knows::INVOKE_WRITE, Knows::WRITE] {
            let ctx = Ucontext::open(FakeKernel::new(knows), &[], &mut []).unwrap();
            let mut uhw_out = [0; 16];
            ctx.create_cq(10, 1, None, 0, &[], &mut uhw_out).unwrap();
            assert_eq!(uhw_out, *crate::uverbs::fake::pattern(16), "{knows:?}");
        }
    }

    #[test]
    fn without_the_method_gids_are_unsupported_not_an_error_of_the_device() {
        let ctx = Ucontext::open(FakeKernel::new(Knows::WRITE), &[], &mut []).unwrap();
        let error = ctx.gid_table().unwrap_err();
        assert!(matches!(error, Error::Unsupported { verb: Verb::QueryGid, by: Lacking::Kernel, .. }), "{error}");
    }
}
