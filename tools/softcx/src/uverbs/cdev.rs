//! Takes commands apart, as the kernel's verbs core does, and answers them.
//!
//! # Safety argument
//!
//! [`SimCdev`] keeps the implementer's part of [`Cdev`]: a mapping owns what it maps; event files are new sockets; and the
//! device forgets rings, records and regions in the commands that destroy them, which take the lock that the device works
//! under. It touches memory of the caller only where commands name it, for the time that the caller promises.
#![allow(unsafe_code)]

use super::attributes::{Attributes, DRIVER_IN, DRIVER_OUT, write_caller};
use super::caps::COMP_VECTORS;
use super::file::{Context, File};
use super::page::Page;
use super::query::check_context_request;
use super::uapi::{Answer, Call, Request, Response};
use super::{native, write_commands};
use crate::device::CLOCK_KHZ;
use crate::host_memory::HostMemory;
use crate::memory::Memory;
use ironverbs::sys::{Cdev, Mapping};
use ironverbs::{DriverId, Errno};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open file of a simulated device.
pub(super) struct SimCdev {
    file: Arc<File>,
    /// The file was given up.
    closed: AtomicBool,
}

/// The memory of this process, for a device whose addresses come in commands of a [`SimCdev`] only.
pub(super) fn process_memory() -> Arc<dyn Memory> {
    // SAFETY: the device has no address but those that commands named to a `SimCdev`; see the module's safety argument.
    Arc::new(unsafe { HostMemory::new() })
}

/// `INVOKE_WRITE`: a command of the write() interface inside an ioctl.
const INVOKE_WRITE: (u16, u16) = (0, 0);
/// Bit of a command's number: the extended form.
const EXTENDED: u32 = 1 << 31;

impl SimCdev {
    pub fn new(file: File) -> Self {
        Self { file: Arc::new(file), closed: AtomicBool::new(false) }
    }

    /// What is asked of every command: the device lives, and this is not the one to be refused.
    fn admit(&self, destroys: bool) -> Result<(), Errno> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Errno::ENOTTY);
        }
        self.file.shared.count_command(self.file.id)?;
        if !destroys && self.file.with(|d| d.is_dead()) { Err(Errno::EIO) } else { Ok(()) }
    }
}

// SAFETY: see the module's safety argument.
unsafe impl Cdev for SimCdev {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        const HEADER_WORDS: usize = 3;
        let header: Vec<u8> = command.iter().take(HEADER_WORDS).flat_map(|w| w.to_ne_bytes()).collect();
        let header = Request(&header);
        let (length, object, method) = (usize::from(header.u16(0)), header.u16(2), header.u16(4));
        let words = HEADER_WORDS + 2 * usize::from(header.u16(6));
        if length != words * 8 || command.len() < words {
            return Err(Errno::EINVAL);
        }
        if header.u64(8) != 0 || header.u32(20) != 0 {
            return Err(Errno::EPROTONOSUPPORT);
        }
        if header.u32(16) != self.driver_id() {
            return Err(Errno::EINVAL);
        }
        let attributes = &mut command[HEADER_WORDS..words];
        if (object, method) == INVOKE_WRITE {
            // SAFETY: the caller's part of `ioctl`.
            let mut attributes = unsafe { Attributes::new(attributes, native::INVOKE_WRITE_TAKES)? };
            let number = u32::try_from(attributes.number(2)).map_err(|_| Errno::EINVAL)?;
            self.admit(write_commands::destroys(number))?;
            let core = attributes.input(0).unwrap_or_default();
            let driver = attributes.input(DRIVER_IN).unwrap_or_default();
            let (request_bytes, answer_bytes) = write_commands::sizes(number).ok_or(Errno::EOPNOTSUPP)?;
            if number & EXTENDED == 0 {
                let room = attributes.room(1).unwrap_or(0);
                if core.len() < request_bytes || room < answer_bytes {
                    return Err(Errno::ENOSPC);
                }
            } else if core.iter().skip(request_bytes).any(|b| *b != 0) {
                return Err(Errno::EOPNOTSUPP);
            }
            let driver_room = attributes.room(DRIVER_OUT);
            let call = Call { request: Request(&core), driver: Request(&driver), driver_room };
            let Answer { core, driver } = self.write_command(number, &call)?;
            attributes.output(1, &core);
            attributes.output(DRIVER_OUT, &driver);
            return Ok(());
        }
        let takes = native::takes(object, method).ok_or(Errno::EPROTONOSUPPORT)?;
        // SAFETY: the caller's part of `ioctl`.
        let mut attributes = unsafe { Attributes::new(attributes, takes)? };
        self.admit(native::destroys(object, method))?;
        if !native::needs_no_context(object, method) {
            self.file.state().context()?;
        }
        native::run(&self.file, object, method, &mut attributes)
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        let bytes: Vec<u8> = command.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let whole = Request(&bytes);
        let (number, in_words, out_words) = (whole.u32(0), usize::from(whole.u16(4)), usize::from(whole.u16(6)));
        if number & !(EXTENDED | 0xff) != 0 {
            return Err(Errno::EINVAL);
        }
        self.admit(write_commands::destroys(number))?;
        let (request_bytes, answer_bytes) = write_commands::sizes(number).ok_or(Errno::EOPNOTSUPP)?;
        let (request, driver, answer_at, core_room, driver_room) = if number & EXTENDED == 0 {
            if in_words * 4 != bytes.len() {
                return Err(Errno::EINVAL);
            }
            let request = &bytes[8..];
            let (in_bytes, out_bytes) = (request.len(), out_words * 4);
            if in_bytes < request_bytes || out_bytes < answer_bytes {
                return Err(Errno::ENOSPC);
            }
            let (core, driver) = request.split_at(request_bytes);
            (core, driver, Request(core).u64(0), answer_bytes, out_bytes - answer_bytes)
        } else {
            let (driver_words, driver_out_words) = (usize::from(whole.u16(16)), usize::from(whole.u16(18)));
            if 24 + (in_words + driver_words) * 8 != bytes.len() || whole.u32(20) != 0 {
                return Err(Errno::EINVAL);
            }
            let (core, driver) = bytes[24..].split_at(in_words * 8);
            if core.iter().skip(request_bytes).any(|b| *b != 0) {
                return Err(Errno::EOPNOTSUPP);
            }
            (core, driver, whole.u64(8), out_words * 8, driver_out_words * 8)
        };
        let call = Call {
            request: Request(request),
            driver: Request(driver),
            driver_room: (driver_room > 0).then_some(driver_room),
        };
        let answer = self.write_command(number, &call)?;
        if core_room > 0 && answer_at != 0 {
            let core = &answer.core[..answer.core.len().min(core_room)];
            let driver = &answer.driver[..answer.driver.len().min(driver_room)];
            // SAFETY: the answer's address and length are the command's own, valid by the caller's part.
            unsafe {
                write_caller(answer_at, core);
                write_caller(answer_at + core_room as u64, driver);
            }
        }
        Ok(())
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        const PAGE_BYTES: usize = 4096;
        const CORE_CLOCK: u64 = 5 << 8 << 12;
        const CLOCK_INFO: u64 = 7 << 8 << 12;
        if len_bytes != PAGE_BYTES {
            return Err(Errno::EINVAL);
        }
        let page = match offset {
            CORE_CLOCK | CLOCK_INFO => {
                self.file.state().context()?;
                self.clock_page(offset == CORE_CLOCK)?
            }
            _ => {
                let state = self.file.state();
                state.context()?;
                Arc::clone(state.pages.get(&offset).ok_or(Errno::EINVAL)?)
            }
        };
        // The mapping keeps the file, and with it every object, as the kernel's does.
        page.map(Arc::clone(&self.file))
    }

    fn close(&self) -> Result<(), Errno> {
        self.closed.store(true, Ordering::Release);
        self.file.tear_down();
        Ok(())
    }

    fn driver_id(&self) -> u32 {
        DriverId::MLX5.0
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

impl SimCdev {
    /// A page that the fabric keeps at its time: the clock itself, or what turns its ticks into nanoseconds.
    fn clock_page(&self, core: bool) -> Result<Arc<Page>, Errno> {
        let page = Arc::new(Page::new(&self.file.shared.pages)?);
        let weak = Arc::downgrade(&page);
        self.file.shared.fabric.watch_time(move |now| {
            let Some(page) = weak.upgrade() else { return false };
            let ticks = (now.as_nanos() * u128::from(CLOCK_KHZ) / 1_000_000) as u64;
            if core {
                page.cell(0).store(ticks.to_be(), Ordering::Release);
            } else {
                write_clock_info(&page, now.as_nanos() as u64, ticks);
            }
            true
        });
        Ok(page)
    }

    fn write_command(&self, number: u32, call: &Call<'_>) -> Result<Answer, Errno> {
        const GET_CONTEXT: u32 = 0;
        if number == GET_CONTEXT {
            let (version, driver) = get_context(&self.file, call.driver, call.driver_room)?;
            self.file.state().context = Some(Context { cqe_version: version });
            let number = self.file.open_async_file()?;
            let core = Response::new(8).u32(0, number as u32).u32(4, COMP_VECTORS).done();
            return Ok(Answer { core, driver });
        }
        self.file.state().context()?;
        write_commands::run(&self.file, number, call)
    }
}

/// The driver's part of making a context: its CQE version, and the answer.
pub(super) fn get_context(file: &File, request: Request<'_>, room: Option<usize>) -> Result<(u8, Vec<u8>), Errno> {
    if file.state().context.is_some() {
        return Err(Errno::EINVAL);
    }
    let version = check_context_request(request)?;
    Ok((version, file.describe(version, room.unwrap_or(0))))
}

/// `struct mlx5_ib_clock_info`: sign @0, nanoseconds @8, cycles @16, fraction @24, mult @32, shift @36, mask @40, overflow
/// period @48. The sign is odd while the rest changes.
fn write_clock_info(page: &Page, now_ns: u64, ticks: u64) {
    const SHIFT: u32 = 24;
    /// Nanoseconds per tick, times 2^SHIFT.
    const MULT: u64 = (1_000_000 << SHIFT) / CLOCK_KHZ;
    const OVERFLOW_NS: u64 = 1 << 34;
    let pair = |low: u32, high: u32| {
        u64::from_ne_bytes(crate::bits::array(&[low.to_ne_bytes(), high.to_ne_bytes()].concat(), 0))
    };
    let sign = u32::from_ne_bytes(crate::bits::array(&page.cell(0).load(Ordering::Relaxed).to_ne_bytes(), 0));
    page.cell(0).store(pair(sign | 1, 0), Ordering::Release);
    for (at, value) in
        [(8, now_ns), (16, ticks), (24, 0), (32, pair(MULT as u32, SHIFT)), (40, i64::MAX as u64), (48, OVERFLOW_NS)]
    {
        page.cell(at).store(value, Ordering::Release);
    }
    page.cell(0).store(pair((sign | 1).wrapping_add(1), 0), Ordering::Release);
}
