//! A small model of the kernel's verbs core, for unit tests: enough to answer every command that this library sends.
//!
//! It reads commands by literal offsets from the kernel's documentation, not by the structures of `abi`, so that a wrong
//! offset there does not agree with itself here; and it panics at what the kernel would let pass but should not be sent:
//! dirty reserved fields, unknown flags, repeated attributes.
//!
//! # Safety argument
//!
//! Memory is touched only at addresses that commands give for the length that they give, during the call: the caller's
//! part of [`Cdev`]. File descriptors handed out are fresh.
#![allow(unsafe_code)]

use super::errno::Errno;
use super::sys::Cdev;
use crate::mem::map::Mapping;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub const DRIVER_ID: u32 = 14;

/// Which forms of commands it knows.
#[derive(Clone, Copy, Debug)]
pub struct Knows {
    pub ioctl: bool,
    pub invoke_write: bool,
    pub natives: bool,
}

impl Knows {
    pub const ALL: Self = Self { ioctl: true, invoke_write: true, natives: true };
    pub const INVOKE_WRITE: Self = Self { ioctl: true, invoke_write: true, natives: false };
    pub const WRITE: Self = Self { ioctl: false, invoke_write: false, natives: false };
}

pub struct FakeKernel {
    knows: Knows,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    log: Vec<String>,
    objects: BTreeMap<u32, Object>,
    next_handle: u32,
    has_context: bool,
    refuse_destroy: Option<Errno>,
    kicks: Vec<u32>,
    qp_state: u8,
    /// Our ends of the event files, kept open.
    peers: Vec<UnixStream>,
    /// What the next event files are, if not one end of a socket pair.
    event_files: VecDeque<OwnedFd>,
}

struct Object {
    kind: u16,
    uses: Vec<u32>,
}

/// What a command answers with: the core's part and the driver's.
type Answer = Result<Vec<u8>, Errno>;

impl FakeKernel {
    pub fn new(knows: Knows) -> Arc<Self> {
        Arc::new(Self { knows, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The commands so far, failed ones included: `object.method`, `invoke N`, `write N`. Takes them out.
    pub fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.state().log)
    }

    /// Makes every destroy fail, or none.
    pub fn refuse_destroy(&self, errno: Option<Errno>) {
        self.state().refuse_destroy = errno;
    }

    /// The next event file that is opened, of whichever kind, is `fd`.
    #[cfg(not(loom))]
    pub fn give_event_file(&self, fd: OwnedFd) {
        self.state().event_files.push_back(fd);
    }

    /// Handles of all objects that exist.
    pub fn live(&self) -> Vec<u32> {
        self.state().objects.keys().copied().collect()
    }

    /// Queue pairs whose doorbell rang.
    pub fn kicks(&self) -> Vec<u32> {
        self.state().kicks.clone()
    }
}

impl State {
    fn make(&mut self, kind: u16, uses: &[u32]) -> Result<u32, Errno> {
        for (handle, object) in uses.iter().zip(uses.iter().map(|h| self.objects.get(h))) {
            assert!(object.is_some(), "handle {handle} names nothing");
        }
        let handle = self.next_handle;
        self.next_handle += 1;
        self.objects.insert(handle, Object { kind, uses: uses.to_vec() });
        Ok(handle)
    }

    fn destroy(&mut self, kind: u16, handle: u32) -> Result<(), Errno> {
        if let Some(errno) = self.refuse_destroy {
            return Err(errno);
        }
        match self.objects.get(&handle) {
            None => Err(Errno::ENOENT),
            Some(object) if object.kind != kind => Err(Errno::EINVAL),
            Some(_) if self.objects.values().any(|o| o.uses.contains(&handle)) => Err(Errno::EBUSY),
            Some(_) => {
                self.objects.remove(&handle);
                Ok(())
            }
        }
    }

    fn open_event_file(&mut self) -> RawFd {
        if let Some(fd) = self.event_files.pop_front() {
            return fd.into_raw_fd();
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.peers.push(ours);
        OwnedFd::from(theirs).into_raw_fd()
    }

    /// A command of the write() interface: request in, response out.
    fn write_command(&mut self, number: u32, request: &[u8]) -> Answer {
        let handle = |at| u32_at(request, at);
        let mut response = vec![];
        if number != 0 && !self.has_context {
            return Err(Errno::EINVAL);
        }
        match number {
            0 => {
                assert_eq!(request.len(), 8);
                if std::mem::replace(&mut self.has_context, true) {
                    return Err(Errno::EINVAL);
                }
                put(&mut response, &(self.open_event_file() as u32));
                put(&mut response, &2_u32);
            }
            1 => response = device_limits(176),
            0x8000_0001 => {
                assert_eq!(request, [0; 8]);
                response = device_limits(304);
            }
            2 => {
                assert_eq!(request[9..16], [0; 7]);
                response = port(request[8].into())?[..40].to_vec();
            }
            3 => put(&mut response, &self.make(1, &[])?),
            4 => self.destroy(1, handle(0))?,
            9 => {
                let mr = self.make(7, &[handle(32)])?;
                put(&mut response, &[mr, 0x0123_4567, 0x89ab_cdef]);
            }
            11 => {
                assert_eq!((request.len(), &request[16..40]), (48, [0; 24].as_slice()), "no memory is changed");
                assert_eq!(self.objects[&handle(8)].kind, 7);
                put(&mut response, &[0x1111_1111_u32, 0x2222_2222]);
            }
            13 => self.destroy(7, handle(0))?,
            14 => {
                assert_eq!(request[13..16], [0; 3]);
                let mw = self.make(8, &[handle(8)])?;
                put(&mut response, &[mw, 0x4455_6600 | u32::from(request[12])]);
            }
            16 => self.destroy(8, handle(0))?,
            17 => put(&mut response, &(self.open_event_file() as u32)),
            18 => {
                assert_eq!(u32_at(request, 28), 0);
                let cq = self.make(3, &[])?;
                put(&mut response, &[cq, (u32_at(request, 16) + 1).next_power_of_two() - 1]);
            }
            19 => {
                assert_eq!(self.objects[&handle(8)].kind, 3);
                put(&mut response, &[(handle(12) + 1).next_power_of_two() - 1, 0]);
            }
            20 => {
                assert_eq!(u32_at(request, 12), 0);
                self.destroy(3, handle(8))?;
                put(&mut response, &[5_u32, 6]);
            }
            23 => assert_eq!(self.objects[&handle(0)].kind, 3),
            24 => {
                let mut uses = match request[53] {
                    9 => vec![handle(16), handle(20)],
                    10 => vec![handle(16)],
                    _ => vec![handle(16), handle(20), handle(24)],
                };
                assert_eq!(self.objects[&handle(16)].kind, if request[53] == 10 { 10 } else { 1 });
                match request[54] {
                    0 => assert_eq!(handle(28), 0),
                    flag => {
                        assert_eq!((flag, self.objects[&handle(28)].kind), (1, 5));
                        uses.push(handle(28));
                    }
                }
                assert_eq!(request[55], 0);
                let qp = self.make(4, &uses)?;
                put(&mut response, &[qp, 0x11]);
                response.extend_from_slice(&request[32..52]);
                put(&mut response, &0_u32);
            }
            25 => {
                assert_eq!(u32_at(request, 12), 0x1f_ffff);
                response = vec![0; 128];
                response[108] = self.qp_state;
                response[116] = 1;
            }
            26 => {
                assert_eq!((request.len(), &request[110..112]), (112, [0; 2].as_slice()));
                if u32_at(request, 68) & 1 != 0 {
                    self.qp_state = request[96];
                }
            }
            27 => {
                assert_eq!(u32_at(request, 12), 0);
                self.destroy(4, handle(8))?;
                put(&mut response, &7_u32);
            }
            28 => {
                assert_eq!((u32_at(request, 12), u32_at(request, 16), u32_at(request, 20)), (0, 0, 56));
                self.kicks.push(handle(8));
                put(&mut response, &0_u32);
            }
            32 => {
                let srq = self.make(5, &[handle(16)])?;
                put(&mut response, &[srq, handle(20), handle(24), 0]);
            }
            33 => {
                // Given to write(), the driver's part follows.
                assert!(matches!(request.len(), 16 | 24) && self.objects[&handle(0)].kind == 5);
                match handle(4) {
                    1 => assert_eq!(handle(12), 0),
                    mask => assert_eq!((mask, handle(8)), (2, 0)),
                }
            }
            34 => {
                assert_eq!((u32_at(request, 12), self.objects[&handle(8)].kind), (0, 5));
                put(&mut response, &[127_u32, 3, 5, 0]);
            }
            35 => {
                assert_eq!(u32_at(request, 12), 0);
                self.destroy(5, handle(8))?;
                put(&mut response, &9_u32);
            }
            37 => {
                let (fd, flags) = (u32_at(request, 8) as i32, u32_at(request, 12));
                assert!(request.len() == 16 && (fd == -1 && flags == 0o100 || fd >= 0 && flags & !0o300 == 0));
                let xrcd = self.make(10, &[])?;
                put(&mut response, &xrcd);
            }
            38 => self.destroy(10, handle(0))?,
            39 => {
                assert_eq!((request.len(), u32_at(request, 16), u32_at(request, 36)), (48, 1, 0));
                let srq = self.make(5, &[handle(20), handle(40), handle(44)])?;
                put(&mut response, &[srq, handle(24), handle(28), 0x33]);
            }
            40 => {
                assert_eq!((request.len(), &request[24..32]), (32, [10, 0, 0, 0, 0, 0, 0, 0].as_slice()));
                assert_eq!((self.objects[&handle(16)].kind, u32_at(request, 20)), (10, 0x11));
                let qp = self.make(4, &[handle(16)])?;
                put(&mut response, &[qp, 0x11, 0, 0, 0, 0, 0, 0]);
            }
            0x8000_0039 => {
                assert_eq!((request.len(), self.objects[&handle(0)].kind), (16, 3));
                assert_eq!((u32_at(request, 4), u32_at(request, 12)), (1, 0));
            }
            5 => {
                assert_eq!((u32_at(request, 20), request[47], request[55]), (0, 0, 0));
                let ah = self.make(6, &[handle(16)])?;
                put(&mut response, &ah);
            }
            8 => self.destroy(6, handle(0))?,
            30 | 31 => {
                assert_eq!((request.len(), &request[22..24]), (24, [0; 2].as_slice()));
                assert_eq!(self.objects[&handle(16)].kind, 4);
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        Ok(response)
    }

    fn native(&mut self, method: (u16, u16), attrs: &mut Attrs<'_>) -> Result<(), Errno> {
        if !self.has_context && method != (0, 3) {
            return Err(Errno::EINVAL);
        }
        match method {
            (0, 3) => {
                if std::mem::replace(&mut self.has_context, true) {
                    return Err(Errno::EINVAL);
                }
                attrs.output(0, 2_u32.as_bytes());
                attrs.output(1, 1_u64.as_bytes());
                attrs.driver_output();
            }
            (0, 1) => {
                let kind = attrs.constant(0) as u16;
                let handles: Vec<u32> = self.objects.iter().filter(|(_, o)| o.kind == kind).map(|(h, _)| *h).collect();
                attrs.output(2, handles.as_bytes());
                attrs.output(1, (handles.len() as u32).as_bytes());
            }
            (0, 2) => attrs.output(1, &port(attrs.constant(0))?),
            (0, 5) => {
                assert_eq!((attrs.constant(0), attrs.input(1)), (32, vec![0; 4]));
                attrs.output(2, &[gid(0), gid(3)].concat());
                attrs.output(3, 2_u64.as_bytes());
            }
            (0, 6) => {
                assert_eq!(attrs.input(2), vec![0; 4]);
                let (port, index) = (attrs.constant(0), attrs.constant(1) as u32);
                match (port, index) {
                    (1, 0 | 3) => attrs.output(3, &gid(index)),
                    (1, 0..16) => return Err(Errno::ENODATA),
                    _ => return Err(Errno::EINVAL),
                }
            }
            (16, 0) => {
                let fd = self.open_event_file();
                attrs.set(0, fd as u64);
            }
            (1, 0) => self.destroy(1, attrs.object(0))?,
            (6, 0) => self.destroy(6, attrs.object(0))?,
            (7, 1) => self.destroy(7, attrs.object(0))?,
            (7, 2) => {
                assert_eq!((attrs.constant(1) <= 2, attrs.input(2).len()), (true, 4));
                assert_eq!(attrs.input(3).len() % 16, 0);
                assert_eq!(self.objects[&attrs.object(0)].kind, 1);
            }
            (7, 4) => {
                assert_eq!([2, 3, 4].map(|id| attrs.input(id).len()), [8; 3]);
                assert_eq!([5, 6].map(|id| attrs.input(id).len()), [4; 2]);
                let mr = self.make(7, &[attrs.object(1)])?;
                attrs.set(0, mr.into());
                attrs.output(7, 0x0123_4567_u32.as_bytes());
                attrs.output(8, 0x89ab_cdef_u32.as_bytes());
            }
            (8, 0) => self.destroy(8, attrs.object(0))?,
            (10, 0) => self.destroy(10, attrs.object(0))?,
            (14, 0) => {
                assert_eq!((attrs.input(1).len(), attrs.input(2).len()), (8, 4));
                let dm = self.make(14, &[])?;
                attrs.set(0, dm.into());
            }
            (14, 1) => self.destroy(14, attrs.object(0))?,
            (3, 1) => {
                self.destroy(3, attrs.object(0))?;
                attrs.output(1, [5_u32, 6].as_bytes());
            }
            (4, 1) => {
                self.destroy(4, attrs.object(0))?;
                attrs.output(1, 7_u32.as_bytes());
            }
            (3, 0) => {
                let cqe = u32_at(&attrs.input(1), 0);
                assert_eq!((attrs.input(2).len(), attrs.input(4).len()), (8, 4));
                let cq = self.make(3, &[])?;
                attrs.set(0, cq.into());
                attrs.output(6, ((cqe + 1).next_power_of_two() - 1).as_bytes());
                attrs.driver_output();
            }
            (4, 0) => {
                assert_eq!(attrs.input(7).len(), 8);
                // Flags may be left out.
                assert!(attrs.find(10).is_none_or(|(_, len)| len == 4));
                let qp_type = attrs.constant(9);
                let mut uses: Vec<u32> = match qp_type {
                    2 => [2, 4, 5].map(|id| attrs.object(id)).into(),
                    9 => [2, 4].map(|id| attrs.object(id)).into(),
                    10 => vec![attrs.object(1)],
                    other => panic!("queue pair type {other}"),
                };
                let given: Vec<u16> = [1, 2, 4, 5].into_iter().filter(|id| attrs.find(*id).is_some()).collect();
                assert_eq!(given.len(), uses.len(), "the kernel refuses what the type has not");
                if attrs.find(3).is_some() {
                    assert_eq!(self.objects[&attrs.object(3)].kind, 5);
                    uses.push(attrs.object(3));
                }
                let qp = self.make(4, &uses)?;
                let cap = attrs.input(8);
                assert_eq!(cap.len(), 20);
                attrs.set(0, qp.into());
                attrs.output(13, &cap);
                attrs.output(14, 0x11_u32.as_bytes());
                attrs.driver_output();
            }
            (5, 0) => {
                assert_eq!(attrs.input(4).len(), 8);
                assert_eq!([5, 6, 7].map(|id| attrs.input(id).len()), [4; 3]);
                let srq = match attrs.constant(9) {
                    0 => self.make(5, &[attrs.object(1)])?,
                    1 => {
                        attrs.output(13, 0x33_u32.as_bytes());
                        self.make(5, &[1, 2, 3].map(|id| attrs.object(id)))?
                    }
                    other => panic!("shared receive queue type {other}"),
                };
                attrs.set(0, srq.into());
                attrs.output(11, &attrs.input(5));
                attrs.output(12, &attrs.input(6));
                attrs.driver_output();
            }
            (5, 1) => {
                self.destroy(5, attrs.object(0))?;
                attrs.output(1, 9_u32.as_bytes());
            }
            _ => return Err(Errno::EPROTONOSUPPORT),
        }
        Ok(())
    }
}

// SAFETY: it maps nothing, hands out fresh descriptors, and keeps no address beyond the call.
unsafe impl Cdev for FakeKernel {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        if !self.knows.ioctl {
            self.state().log.push("ENOTTY".into());
            return Err(Errno::ENOTTY);
        }
        let header = command.as_bytes()[..24].to_vec();
        let (object, method) = (u16_at(&header, 2), u16_at(&header, 4));
        assert_eq!(usize::from(u16_at(&header, 0)), size_of_val(command), "length");
        assert_eq!(usize::from(u16_at(&header, 6)) * 16 + 24, size_of_val(command), "number of attributes");
        assert_eq!((&header[8..16], &header[20..24]), ([0; 8].as_slice(), [0; 4].as_slice()), "reserved");
        if u32_at(&header, 16) != DRIVER_ID {
            return Err(Errno::EINVAL);
        }
        let mut attrs = Attrs(&mut command[3..]);
        attrs.check();
        let mut state = self.state();
        if (object, method) != (0, 0) {
            state.log.push(format!("{object}.{method}"));
            return if self.knows.natives {
                state.native((object, method), &mut attrs)
            } else {
                Err(Errno::EPROTONOSUPPORT)
            };
        }
        if !self.knows.invoke_write {
            state.log.push("0.0".into());
            return Err(Errno::EPROTONOSUPPORT);
        }
        let number = attrs.constant(2) as u32;
        state.log.push(format!("invoke {number:#x}"));
        let response = state.write_command(number, &attrs.input(0))?;
        if !response.is_empty() {
            attrs.output(1, &response);
        }
        attrs.driver_output();
        Ok(())
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        let bytes = command.as_bytes();
        let number = u32_at(bytes, 0);
        let (in_words, out_words) = (usize::from(u16_at(bytes, 4)), usize::from(u16_at(bytes, 6)));
        let mut state = self.state();
        state.log.push(format!("write {number:#x}"));
        let (request, response_at, core_out, driver_out) = if number & 0x8000_0000 != 0 {
            assert_eq!(in_words * 8 + usize::from(u16_at(bytes, 16)) * 8 + 24, bytes.len());
            assert_eq!(u32_at(bytes, 20), 0);
            (&bytes[24..24 + in_words * 8], u64_at(bytes, 8), out_words * 8, usize::from(u16_at(bytes, 18)) * 8)
        } else {
            assert_eq!(in_words * 4, bytes.len());
            let request = &bytes[8..];
            (request, u64_at(request, 0), out_words * 4, 0)
        };
        let response = state.write_command(number, request)?;
        assert!(core_out + driver_out >= response.len());
        let driver: Vec<u8> = pattern(core_out + driver_out - response.len());
        if !response.is_empty() {
            // SAFETY: the response address and length are the command's own.
            unsafe { write_memory(response_at, &[response, driver].concat()) };
        }
        Ok(())
    }

    fn map(&self, _offset: u64, _len_bytes: usize) -> Result<Mapping, Errno> {
        Err(Errno::EINVAL)
    }

    fn driver_id(&self) -> u32 {
        DRIVER_ID
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

/// The attributes of an ioctl, two words each.
struct Attrs<'a>(&'a mut [u64]);

impl Attrs<'_> {
    fn check(&self) {
        let mut seen = vec![];
        for attr in self.0.chunks_exact(2) {
            let head = attr[0].as_bytes();
            let id = u16_at(head, 0);
            assert!(!seen.contains(&id), "attribute {id} twice");
            seen.push(id);
            assert!(u16_at(head, 4) <= 1, "flags of attribute {id}");
            assert_eq!(u16_at(head, 6), 0, "reserved of attribute {id}");
        }
    }

    fn find(&self, id: u16) -> Option<(usize, usize)> {
        let i = self.0.chunks_exact(2).position(|attr| u16_at(attr[0].as_bytes(), 0) == id)?;
        Some((i * 2 + 1, u16_at(self.0[i * 2].as_bytes(), 2).into()))
    }

    fn get(&self, id: u16) -> (usize, usize) {
        self.find(id).unwrap_or_else(|| panic!("attribute {id} is missing"))
    }

    fn constant(&self, id: u16) -> u64 {
        let (at, len) = self.get(id);
        assert_eq!(len, 8, "length of constant {id}");
        self.0[at]
    }

    fn object(&self, id: u16) -> u32 {
        let (at, len) = self.get(id);
        assert_eq!(len, 0, "length of object {id}");
        self.0[at].try_into().unwrap()
    }

    fn input(&self, id: u16) -> Vec<u8> {
        let (at, len) = self.get(id);
        if len <= 8 {
            assert!(self.0[at].as_bytes()[len..].iter().all(|b| *b == 0), "dirty tail of input {id}");
            return self.0[at].as_bytes()[..len].to_vec();
        }
        // SAFETY: an input of more than 8 bytes is by address, for its length.
        unsafe { read_memory(self.0[at], len) }
    }

    fn output(&self, id: u16, bytes: &[u8]) {
        let (at, len) = self.get(id);
        // SAFETY: an output is by address, for its length.
        unsafe { write_memory(self.0[at], &bytes[..len.min(bytes.len())]) };
    }

    fn driver_output(&self) {
        if let Some((at, len)) = self.find(0x1001) {
            // SAFETY: an output is by address, for its length.
            unsafe { write_memory(self.0[at], &pattern(len)) };
        }
    }

    fn set(&mut self, id: u16, value: u64) {
        let (at, len) = self.get(id);
        assert_eq!(len, 0, "length of new object {id}");
        self.0[at] = value;
    }
}

/// What the driver's part of an answer is filled with.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| 0xd0 + i as u8).collect()
}

fn gid(index: u32) -> Vec<u8> {
    let mut entry = vec![0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0xff, 0xfe, 0, 0, index as u8];
    put(&mut entry, &[index, 1, 2, 9]);
    entry
}

fn port(number: u64) -> Result<Vec<u8>, Errno> {
    if number != 1 {
        return Err(Errno::EINVAL);
    }
    let mut port: Vec<u8> = (0..48).collect();
    port[16..20].copy_from_slice(&16_u32.to_ne_bytes());
    port[26..29].copy_from_slice(&[4, 5, 3]);
    port[37] = 2;
    Ok(port)
}

fn device_limits(len: usize) -> Vec<u8> {
    let mut limits: Vec<u8> = (0..len).map(|i| i as u8).collect();
    limits[171] = 1;
    limits
}

fn put<T: IntoBytes + Immutable>(to: &mut Vec<u8>, value: &T) {
    to.extend_from_slice(value.as_bytes());
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::read_from_bytes(&bytes[at..at + 2]).unwrap()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::read_from_bytes(&bytes[at..at + 4]).unwrap()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::read_from_bytes(&bytes[at..at + 8]).unwrap()
}

/// # Safety
///
/// `address` is valid for reads of `len` bytes.
unsafe fn read_memory(address: u64, len: usize) -> Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address as usize), len) }.to_vec()
}

/// # Safety
///
/// `address` is valid for writes of `bytes.len()` bytes.
unsafe fn write_memory(address: u64, bytes: &[u8]) {
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller's promise; a slice of ours overlaps nothing of the caller's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
