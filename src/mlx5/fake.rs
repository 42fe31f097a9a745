//! The kernel's mlx5 driver as far as making objects goes, for unit tests: the core's fake kernel, and around it the driver's
//! part of each command, read and written by literal offsets.
//!
//! # Safety argument
//!
//! Memory is touched only at addresses that commands give, for the lengths that they give, during the call.
#![allow(unsafe_code)]

use super::memory::pages;
use crate::mem::map::{Mapping, page_bytes};
use crate::uverbs::errno::Errno;
use crate::uverbs::fake::{DRIVER_ID as CORE_ID, FakeKernel, Knows};
use crate::uverbs::sys::Cdev;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// `RDMA_DRIVER_MLX5`.
const DRIVER_ID: u32 = 1;
/// Where doorbell pages can be mapped from, with the page's index above.
const OFFSET: u64 = 9 << 20;

pub struct FakeMlx5 {
    pub core: Arc<FakeKernel>,
    state: Mutex<State>,
}

struct State {
    /// What opening a context answers, 72 bytes.
    caps: Vec<u8>,
    /// The driver's part of each request, by object and method.
    requests: Vec<((u16, u16), Vec<u8>)>,
    /// Doorbell pages that exist, and how many were ever made.
    uars: Vec<u32>,
    uars_made: u32,
    /// What making a doorbell page of each type fails with.
    refuse_uar: [Option<Errno>; 2],
}

impl FakeMlx5 {
    pub fn new() -> Arc<Self> {
        let mut caps = vec![0; 72];
        let mut put = |at: usize, bytes: &[u8]| caps[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &512_u32.to_ne_bytes());
        put(16, &1024_u16.to_ne_bytes());
        put(18, &512_u16.to_ne_bytes());
        put(20, &32768_u32.to_ne_bytes());
        put(24, &32768_u32.to_ne_bytes());
        put(28, &32767_u32.to_ne_bytes());
        put(32, &1_u16.to_ne_bytes());
        put(36, &0b1_0001_u32.to_ne_bytes());
        put(40, &72_u32.to_ne_bytes());
        put(44, &[1, 3, 0, 1]);
        put(48, &0x1000_u64.to_ne_bytes());
        put(56, &12_u32.to_ne_bytes());
        put(60, &1_u32.to_ne_bytes());
        let state = State { caps, requests: vec![], uars: vec![], uars_made: 0, refuse_uar: [None; 2] };
        Arc::new(Self { core: FakeKernel::new(Knows::ALL), state: Mutex::new(state) })
    }

    /// Changes what opening a context answers.
    pub fn set_caps(&self, at: usize, bytes: &[u8]) {
        self.state.lock().unwrap().caps[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Lets making doorbell pages fail: of type BF (0) or NC (1).
    pub fn refuse_uar(&self, kind: usize, errno: Option<Errno>) {
        self.state.lock().unwrap().refuse_uar[kind] = errno;
    }

    /// The driver's part of the last request of an object's method.
    pub fn request(&self, object: u16, method: u16) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let last = state.requests.iter().rfind(|(of, _)| *of == (object, method));
        last.unwrap_or_else(|| panic!("no driver's part of {object}.{method}")).1.clone()
    }

    /// Doorbell pages that exist, and how many were ever made.
    pub fn uars(&self) -> (usize, u32) {
        let state = self.state.lock().unwrap();
        (state.uars.len(), state.uars_made)
    }
}

/// An attribute's length and the index of its data word.
fn find(command: &[u64], id: u16) -> Option<(usize, usize)> {
    let at = (3..command.len()).step_by(2).find(|at| command[*at] as u16 == id)?;
    Some(((command[at] >> 16) as u16 as usize, at + 1))
}

/// Writes an output.
fn output(command: &[u64], id: u16, bytes: &[u8]) {
    let (len, at) = find(command, id).unwrap_or_else(|| panic!("attribute {id:#x} is missing"));
    let to: *mut u8 = std::ptr::with_exposed_provenance_mut(command[at] as usize);
    // SAFETY: an output is by address, for its length.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(len)) };
}

/// Reads an input.
fn input(command: &[u64], id: u16) -> Option<Vec<u8>> {
    let (len, at) = find(command, id)?;
    if len <= 8 {
        return Some(command[at].to_ne_bytes()[..len].to_vec());
    }
    let from: *const u8 = std::ptr::with_exposed_provenance(command[at] as usize);
    // SAFETY: an input of more than 8 bytes is by address, for its length.
    Some(unsafe { std::slice::from_raw_parts(from, len) }.to_vec())
}

// SAFETY: it maps fresh pages, keeps no address beyond a call, and hands out what the core's fake does.
unsafe impl Cdev for FakeMlx5 {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        let (object, method) = ((command[0] >> 16) as u16, (command[0] >> 32) as u16);
        assert_eq!(command[2], u64::from(DRIVER_ID), "driver and reserved");
        if object == 0x1008 {
            return self.uar(method, command);
        }
        let request = input(command, 0x1000);
        command[2] = CORE_ID.into();
        // The core's fake knows nothing of the driver's answer: it gets no room for one.
        let answer_head = find(command, 0x1001).map(|(_, data)| (data - 1, command[data - 1]));
        if let Some((at, head)) = answer_head {
            command[at] = head & !0xffff_0000;
        }
        // SAFETY: passed on to the caller; the driver's answer was only made shorter.
        let answer = unsafe { self.core.ioctl(command) };
        if let Some((at, head)) = answer_head {
            command[at] = head;
        }
        command[2] = DRIVER_ID.into();
        answer?;
        // PD allocation comes as the write command 3 inside method 0.0.
        let number = (object, method) == (0, 0);
        let mut state = self.state.lock().unwrap();
        if let Some(request) = request {
            state.requests.push(((object, method), request));
        }
        match (object, method) {
            (0, 3) => output(command, 0x1001, &state.caps),
            (3, 0) => output(command, 0x1001, &[0x0000_0123_u32, 0].map(u32::to_ne_bytes).concat()),
            (4, 0) => output(command, 0x1001, &[&u32::MAX.to_ne_bytes()[..], &[0; 36]].concat()),
            _ if number && find(command, 0x1001).is_some() => output(command, 0x1001, &7_u32.to_ne_bytes()),
            _ => {}
        }
        Ok(())
    }

    unsafe fn write(&self, _command: &[u64]) -> Result<(), Errno> {
        panic!("mlx5 paths go through the ioctl");
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        let page_id = (offset / OFFSET) as u32;
        let exists = self.state.lock().unwrap().uars.contains(&page_id);
        if !offset.is_multiple_of(OFFSET) || len_bytes != page_bytes() || !exists {
            return Err(Errno::EINVAL);
        }
        pages(len_bytes)
    }

    fn driver_id(&self) -> u32 {
        DRIVER_ID
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

impl FakeMlx5 {
    fn uar(&self, method: u16, command: &mut [u64]) -> Result<(), Errno> {
        assert_eq!(command[0] as u16 as usize, size_of_val(command), "length");
        let mut state = self.state.lock().unwrap();
        let (len, handle_at) = find(command, 0x1000).unwrap();
        assert_eq!(len, 0);
        match method {
            0x1000 => {
                let kind = u64::from_ne_bytes(input(command, 0x1001).unwrap().try_into().unwrap());
                if let Some(errno) = state.refuse_uar[kind as usize] {
                    return Err(errno);
                }
                state.uars_made += 1;
                let page_id = state.uars_made;
                state.uars.push(page_id);
                command[handle_at] = 0x500 + u64::from(page_id);
                output(command, 0x1002, &(OFFSET * u64::from(page_id)).to_ne_bytes());
                output(command, 0x1003, &(page_bytes() as u32).to_ne_bytes());
                output(command, 0x1004, &page_id.to_ne_bytes());
            }
            0x1001 => {
                let page_id = (command[handle_at] - 0x500) as u32;
                let at = state.uars.iter().position(|uar| *uar == page_id).ok_or(Errno::ENOENT)?;
                state.uars.remove(at);
            }
            _ => return Err(Errno::EPROTONOSUPPORT),
        }
        Ok(())
    }
}
