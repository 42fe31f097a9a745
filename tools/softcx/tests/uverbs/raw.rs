//! Commands and rings by literal offsets. Knows nothing of the library's own structures.
//!
//! # Safety argument
//!
//! Commands point at vectors and rings that are live for the call, and rings are freed after the file is closed ([`Rig`]
//! drops its file first).
#![allow(unsafe_code)]

use ironverbs::Errno;
use ironverbs::sys::{Cdev, Mapping, Sys};
use softcx::{SimDevice, SimHost};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An attribute of a command.
pub enum Attr {
    In(u16, Vec<u8>),
    Out(u16, usize),
    Number(u16, u64),
    New(u16),
    Object(u16, u64),
}
use Attr::*;

/// What came back, in the order of the attributes.
pub type Answers = Vec<Vec<u8>>;

pub fn ioctl(cdev: &dyn Cdev, object: u16, method: u16, attrs: &[Attr]) -> Result<Answers, Errno> {
    let mut buffers: Vec<Vec<u8>> =
        attrs.iter().map(|a| if let Out(_, n) = a { vec![0; *n] } else { vec![] }).collect();
    let len = 24 + 16 * attrs.len();
    let mut words = vec![0_u64; len / 8];
    words[0] = len as u64 | u64::from(object) << 16 | u64::from(method) << 32 | (attrs.len() as u64) << 48;
    words[2] = 1;
    for (i, (attr, buffer)) in attrs.iter().zip(&mut buffers).enumerate() {
        let (id, n, value) = match attr {
            In(id, bytes) if bytes.len() <= 8 => {
                let mut inline = [0; 8];
                inline[..bytes.len()].copy_from_slice(bytes);
                (*id, bytes.len(), u64::from_ne_bytes(inline))
            }
            In(id, bytes) => (*id, bytes.len(), bytes.as_ptr().expose_provenance() as u64),
            Out(id, n) => (*id, *n, buffer.as_mut_ptr().expose_provenance() as u64),
            Number(id, value) => (*id, 8, *value),
            New(id) => (*id, 0, u64::MAX),
            Object(id, value) => (*id, 0, *value),
        };
        words[3 + 2 * i] = u64::from(id) | (n as u64) << 16 | 1 << 32;
        words[4 + 2 * i] = value;
    }
    // SAFETY: the command is as long as it says, and its addresses are those of live vectors.
    unsafe { cdev.ioctl(&mut words)? };
    for (i, attr) in attrs.iter().enumerate() {
        if let New(_) = attr {
            buffers[i] = words[4 + 2 * i].to_ne_bytes().to_vec();
        }
    }
    Ok(buffers)
}

/// A command of the write() interface inside an ioctl: its answer and the driver's.
pub fn invoke(
    cdev: &dyn Cdev,
    number: u32,
    request: &[u8],
    answer: usize,
    driver_in: &[u8],
    driver_out: usize,
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    let mut attrs = vec![Number(2, number.into()), In(0, request.to_vec())];
    for (id, n) in [(1, answer), (0x1001, driver_out)] {
        if n > 0 {
            attrs.push(Out(id, n));
        }
    }
    if !driver_in.is_empty() {
        attrs.push(In(0x1000, driver_in.to_vec()));
    }
    let answers = ioctl(cdev, 0, 0, &attrs)?;
    let mut out = answers.into_iter().skip(2);
    let core = if answer > 0 { out.next() } else { None };
    let driver = if driver_out > 0 { out.next() } else { None };
    Ok((core.unwrap_or_default(), driver.unwrap_or_default()))
}

/// A command by write(): `body` behind the header, `room` bytes of answer. The body's first 8 bytes are the address of the
/// answer, filled in here; those of an extended command are in its second header.
pub fn write(cdev: &dyn Cdev, number: u32, mut body: Vec<u8>, room: usize) -> Result<Vec<u8>, Errno> {
    let mut answer = vec![0; room];
    let address = (answer.as_mut_ptr().expose_provenance() as u64).to_ne_bytes();
    let mut bytes = number.to_ne_bytes().to_vec();
    if number >> 31 == 0 {
        bytes.extend(((body.len() + 8) as u16 / 4).to_ne_bytes());
        bytes.extend((room as u16 / 4).to_ne_bytes());
        body[..8].copy_from_slice(&address);
    } else {
        bytes.extend((body.len() as u16 / 8).to_ne_bytes());
        bytes.extend((room as u16 / 8).to_ne_bytes());
        bytes.extend(address);
        bytes.extend([0; 8]);
    }
    bytes.extend(body);
    let words: Vec<u64> = bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())).collect();
    // SAFETY: the command is as long as it says, and the answer's address is that of a live vector.
    unsafe { cdev.write(&words)? };
    Ok(answer)
}

/// A structure of `len` bytes with 32-bit fields, in the host's order.
pub fn words(len: usize, fields: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (at, value) in fields {
        bytes[*at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

pub fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Pages of the process that a device may write.
pub struct Memory {
    pages: *mut [Page],
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl Memory {
    pub fn new(pages: usize) -> Self {
        Self { pages: Box::into_raw(vec![Page([0; 4096]); pages].into_boxed_slice()) }
    }

    pub fn address(&self) -> u64 {
        self.pages.cast::<u8>().expose_provenance() as u64
    }

    fn at(&self, at: u64, len: usize) -> *mut u8 {
        assert!(at as usize + len <= self.pages.len() * 4096);
        // SAFETY: within the allocation.
        unsafe { self.pages.cast::<u8>().add(at as usize) }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        let to = self.at(at, bytes.len());
        // SAFETY: `at` checked the range; bytes, so always aligned.
        bytes.iter().enumerate().for_each(|(i, b)| unsafe { to.add(i).write_volatile(*b) });
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let from = self.at(at, len);
        // SAFETY: as for `put`.
        (0..len).map(|i| unsafe { from.add(i).read_volatile() }).collect()
    }

    pub fn store_be32(&self, at: u64, value: u32) {
        // SAFETY: as for `put`; callers give multiples of 4.
        unsafe { AtomicU32::from_ptr(self.at(at, 4).cast()) }.store(value.to_be(), Ordering::Release);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw` and freed once.
        drop(unsafe { Box::from_raw(self.pages) });
    }
}

// SAFETY: the pointer is used by volatile and atomic access only.
unsafe impl Send for Memory {}

/// Offsets in a rig's memory.
pub const CQ: u64 = 0;
pub const RQ: u64 = 0x1000;
pub const SQ: u64 = 0x2000;
const CQ_RECORD: u64 = 0x3000;
const QP_RECORD: u64 = 0x3040;
pub const DATA: u64 = 0x4000;
pub const PAGES: usize = 8;

/// An open device with a CQ, a QP and a region over its data.
pub struct Rig {
    pub cdev: Arc<dyn Cdev>,
    register: Option<Mapping>,
    pub async_fd: OwnedFd,
    pub channel: OwnedFd,
    pub memory: Memory,
    pub pd: u32,
    pub mr: u32,
    pub key: u32,
    pub uar: u32,
    pub uar_page: u32,
    pub cq: u32,
    pub cqn: u32,
    pub qp: u32,
    pub qpn: u32,
    pub gid: [u8; 16],
    pub lid: u16,
    ci: u32,
    sq: u16,
    rq: u16,
}

pub const USER_INDEX: u32 = 0x12;
pub const CQ_HANDLE: u64 = 0xc0c0;
pub const QP_HANDLE: u64 = 0x9b9b;

pub fn open(host: &SimHost, name: &str) -> Arc<dyn Cdev> {
    let info = host.devices().unwrap().into_iter().find(|d| d.name == name).unwrap();
    host.open(&info).unwrap()
}

/// GET_CONTEXT: 16 registers, 4 of them of low latency, CQE version 1, 4K and dynamic UARs.
pub fn get_context(cdev: &dyn Cdev) -> Result<Vec<u8>, Errno> {
    let mut request = words(32, &[(0, 16), (4, 4)]);
    request[16] = 1;
    put64(&mut request, 24, 3);
    Ok(ioctl(cdev, 0, 3, &[In(0x1000, request), Out(0x1001, 72)])?.remove(1))
}

/// A new file for asynchronous events.
pub fn new_async_file(cdev: &dyn Cdev) -> OwnedFd {
    let number = long(&ioctl(cdev, 16, 0, &[New(0)]).unwrap()[0], 0) as i32;
    // SAFETY: the descriptor is new and nobody else's.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// A new completion channel.
pub fn new_channel(cdev: &dyn Cdev) -> OwnedFd {
    let number = word(&invoke(cdev, 17, &[0; 8], 4, &[], 0).unwrap().0, 0) as i32;
    // SAFETY: as above.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// A completion queue of 64 entries in the memory's place for it.
fn create_cq(cdev: &dyn Cdev, memory: &Memory, uar_page: u32, channel: i32) -> Result<Answers, Errno> {
    let base = memory.address();
    let mut driver = words(32, &[(16, 64), (24, uar_page)]);
    put64(&mut driver, 0, base + CQ);
    put64(&mut driver, 8, base + CQ_RECORD);
    driver[22] = 2;
    ioctl(
        cdev,
        3,
        0,
        &[
            New(0),
            In(1, words(4, &[(0, 63)])),
            In(2, CQ_HANDLE.to_ne_bytes().to_vec()),
            Object(3, channel as u64),
            In(4, vec![0; 4]),
            Out(6, 4),
            In(0x1000, driver),
            Out(0x1001, 8),
        ],
    )
}

impl Rig {
    pub fn new(host: &SimHost, name: &str) -> Self {
        let cdev = open(host, name);
        get_context(&*cdev).unwrap();
        let c = &*cdev;
        let async_fd = new_async_file(c);
        let port = &ioctl(c, 0, 2, &[Number(0, 1), Out(1, 48)]).unwrap()[1];
        let lid = u16::from_ne_bytes(port[22..24].try_into().unwrap());
        let gids = &ioctl(c, 0, 5, &[Number(0, 32), Out(2, 32 * 16), Out(3, 8)]).unwrap()[1];
        // RoCE: the link-local address for version 2 is the second entry.
        let at = if lid == 0 { 32 } else { 0 };
        let gid = gids[at..at + 16].try_into().unwrap();

        let uar =
            ioctl(c, 0x1008, 0x1000, &[New(0x1000), Number(0x1001, 0), Out(0x1002, 8), Out(0x1003, 4), Out(0x1004, 4)]);
        let uar = uar.unwrap();
        let (uar_handle, offset, uar_page) = (word(&uar[0], 0), long(&uar[2], 0), word(&uar[4], 0));
        let register = cdev.map(offset, 4096).unwrap();

        let pd = word(&invoke(c, 3, &[0; 8], 4, &[], 4).unwrap().0, 0);
        let memory = Memory::new(PAGES);
        let base = memory.address();
        let mut request = words(40, &[(32, pd), (36, 0xf)]);
        put64(&mut request, 8, base + DATA);
        put64(&mut request, 16, 0x4000);
        put64(&mut request, 24, base + DATA);
        let mr = invoke(c, 9, &request, 12, &[], 0).unwrap().0;
        assert_eq!(word(&mr, 4), word(&mr, 8));

        let channel = new_channel(c);
        for i in 0..64 {
            memory.put(CQ + i * 64 + 63, &[0xf0]);
        }
        let cq = create_cq(c, &memory, uar_page, channel.as_raw_fd()).unwrap();
        assert_eq!(word(&cq[5], 0), 63);
        let mut rig = Self {
            register: Some(register),
            async_fd,
            channel,
            pd,
            mr: word(&mr, 0),
            key: word(&mr, 4),
            uar: uar_handle,
            uar_page,
            cq: word(&cq[0], 0),
            cqn: word(&cq[7], 0),
            qp: 0,
            qpn: 0,
            gid,
            lid,
            ci: 0,
            sq: 0,
            rq: 0,
            memory,
            cdev,
        };
        (rig.qp, rig.qpn) = rig.create_qp(|_| {}).unwrap();
        rig
    }

    /// The driver's part of creating an RC queue pair of 32 BBs and 16 receives of 64 bytes.
    pub fn create_qp(&self, change: impl FnOnce(&mut Vec<u8>)) -> Result<(u32, u32), Errno> {
        let mut driver = words(56, &[(16, 32), (20, 16), (24, 6), (28, 0x400), (32, USER_INDEX), (36, self.uar_page)]);
        put64(&mut driver, 0, self.memory.address() + RQ);
        put64(&mut driver, 8, self.memory.address() + QP_RECORD);
        change(&mut driver);
        let answer = ioctl(
            &*self.cdev,
            4,
            0,
            &[
                New(0),
                Object(2, self.pd.into()),
                Object(4, self.cq.into()),
                Object(5, self.cq.into()),
                In(7, QP_HANDLE.to_ne_bytes().to_vec()),
                In(8, words(20, &[(0, 32), (4, 16), (8, 2), (12, 4), (16, 64)])),
                Number(9, 2),
                In(10, vec![0; 4]),
                Out(13, 20),
                Out(14, 4),
                In(0x1000, driver),
                Out(0x1001, 40),
            ],
        )?;
        Ok((word(&answer[0], 0), word(&answer[9], 0)))
    }

    /// A datagram queue pair by CREATE_QP, with rings where the first one has its own: not to be used beside it.
    pub fn create_ud(&self) -> u32 {
        let mut driver = words(56, &[(16, 32), (20, 16), (24, 6), (28, 0x400), (32, 5), (36, self.uar_page)]);
        put64(&mut driver, 0, self.memory.address() + RQ);
        put64(&mut driver, 8, self.memory.address() + 0x30c0);
        let cap = [(32, 32), (36, 16), (40, 2), (44, 4)];
        let mut request = words(56, &[(16, self.pd), (20, self.cq), (24, self.cq)]);
        for (at, n) in cap {
            request[at] = n;
        }
        request[53] = 4;
        word(&invoke(&*self.cdev, 24, &request, 32, &driver, 40).unwrap().0, 0)
    }

    /// MODIFY_QP: state and mask, and what is set besides.
    pub fn modify(&self, state: u8, mask: u32, set: impl FnOnce(&mut Vec<u8>)) -> Result<(), Errno> {
        let mut request = words(112, &[(64, self.qp), (68, mask)]);
        request[96] = state;
        set(&mut request);
        invoke(&*self.cdev, 26, &request, 0, &[], 0).map(drop)
    }

    pub fn to_init(&self) -> Result<(), Errno> {
        self.modify(1, 0x39, |r| {
            r[104] = 1;
            r[88] = 0xe;
        })
    }

    pub fn to_rtr(&self, other: &Rig) -> Result<(), Errno> {
        self.modify(2, 0x12_9181, |r| {
            r[..16].copy_from_slice(&other.gid);
            r[20..22].copy_from_slice(&other.lid.to_ne_bytes());
            r[24] = u8::from(self.lid == 0);
            r[25] = 64;
            r[30] = u8::from(self.lid == 0);
            r[31] = 1;
            r[84..88].copy_from_slice(&other.qpn.to_ne_bytes());
            (r[98], r[102], r[103]) = (3, 4, 12);
        })
    }

    pub fn to_rts(&self) -> Result<(), Errno> {
        self.modify(3, 0x1_2e01, |r| (r[101], r[105], r[106], r[107]) = (4, 10, 7, 7))
    }

    pub fn connect(&self, other: &Rig) {
        self.to_init().unwrap();
        self.to_rtr(other).unwrap();
        self.to_rts().unwrap();
    }

    pub fn doorbell(&self, offset: usize, value: u64) {
        let register = self.register.as_ref().unwrap().as_ptr();
        // SAFETY: within the mapped page, and aligned.
        unsafe { register.add(offset).cast::<u64>().write_volatile(value.to_be()) };
    }

    /// SEND of inline data, signaled; opcode 0x0a.
    pub fn send(&mut self, data: &[u8]) {
        let (head, _) = self.write_send(data);
        self.doorbell(0x800, head);
    }

    /// The same, with the whole WQE copied into the register; `spoil` changes the copy.
    pub fn send_blue_flame(&mut self, data: &[u8], spoil: u8) {
        let (_, mut wqe) = self.write_send(data);
        wqe.resize(64, 0);
        wqe[20] ^= spoil;
        for (i, word) in wqe.chunks(8).enumerate() {
            self.doorbell(0x900 + 8 * i, u64::from_be_bytes(word.try_into().unwrap()));
        }
    }

    /// Writes a SEND and its doorbell record; gives the doorbell and the WQE.
    pub fn write_send(&mut self, data: &[u8]) -> (u64, Vec<u8>) {
        let ds = 1 + (4 + data.len()).div_ceil(16) as u32;
        let head = u64::from(self.sq) << 40 | 0x0a << 32 | u64::from(self.qpn << 8 | ds);
        let mut wqe = head.to_be_bytes().to_vec();
        wqe.extend([0, 0, 0, 8, 0, 0, 0, 0]);
        wqe.extend((0x8000_0000 | data.len() as u32).to_be_bytes());
        wqe.extend(data);
        self.memory.put(SQ - 0xc00 + u64::from(self.sq % 32) * 64, &wqe);
        self.sq += wqe.len().div_ceil(64) as u16;
        self.memory.store_be32(QP_RECORD + 4, self.sq.into());
        (head, wqe)
    }

    pub fn receive(&mut self, len: u32, at: u64) {
        let mut wqe = [len.to_be_bytes(), self.key.to_be_bytes()].concat();
        wqe.extend((self.memory.address() + at).to_be_bytes());
        wqe.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.memory.put(RQ + u64::from(self.rq % 16) * 64, &wqe);
        self.rq += 1;
        self.memory.store_be32(QP_RECORD, self.rq.into());
    }

    pub fn arm(&self, sn: u32) {
        let arm = sn << 28 | self.ci;
        self.memory.store_be32(CQ_RECORD + 4, arm);
        self.doorbell(0x20, u64::from(arm) << 32 | u64::from(self.cqn));
    }

    pub fn poll(&mut self) -> Option<Vec<u8>> {
        let entry = self.memory.get(CQ + u64::from(self.ci % 64) * 64, 64);
        if entry[63] >> 4 == 15 || entry[63] & 1 != ((self.ci / 64) & 1) as u8 {
            return None;
        }
        std::sync::atomic::fence(Ordering::Acquire);
        let entry = self.memory.get(CQ + u64::from(self.ci % 64) * 64, 64);
        self.ci += 1;
        self.memory.store_be32(CQ_RECORD, self.ci);
        Some(entry)
    }

    /// Whether another completion queue can be made that tells `channel`.
    pub fn create_cq_on(&self, channel: &OwnedFd) -> Result<(), Errno> {
        create_cq(&*self.cdev, &self.memory, self.uar_page, channel.as_raw_fd()).map(drop)
    }

    pub fn destroy_qp(&self) -> Result<u32, Errno> {
        Ok(word(&ioctl(&*self.cdev, 4, 1, &[Object(0, self.qp.into()), Out(1, 4)])?[1], 0))
    }

    pub fn destroy_cq(&self) -> Result<(u32, u32), Errno> {
        let counts = ioctl(&*self.cdev, 3, 1, &[Object(0, self.cq.into()), Out(1, 8)])?.remove(1);
        Ok((word(&counts, 0), word(&counts, 4)))
    }

    pub fn handles(&self, kind: u64) -> Vec<u8> {
        let answers = ioctl(&*self.cdev, 0, 1, &[Number(0, kind), Out(1, 4), Out(2, 64)]).unwrap();
        let n = word(&answers[1], 0) as usize;
        answers[2][..n * 4].to_vec()
    }

    /// Gives the register page back.
    pub fn unmap(&mut self) {
        self.register = None;
    }
}

/// Two connected rigs.
pub fn pair(infiniband: bool) -> (SimHost, Rig, Rig) {
    let host = SimHost::new(1);
    for name in ["mlx5_0", "mlx5_1"] {
        host.add(if infiniband { SimDevice::infiniband(name) } else { SimDevice::roce(name) });
    }
    let (a, b) = (Rig::new(&host, "mlx5_0"), Rig::new(&host, "mlx5_1"));
    a.connect(&b);
    b.connect(&a);
    (host, a, b)
}

/// A record that is there, or `None`.
pub fn read(fd: &OwnedFd, len: usize) -> Option<Vec<u8>> {
    let mut record = vec![0; len];
    // SAFETY: the buffer is live for the call and as long as said.
    let n = unsafe { libc::recv(fd.as_raw_fd(), record.as_mut_ptr().cast(), len, libc::MSG_DONTWAIT) };
    (n == len as isize).then_some(record)
}

/// Bytes of a mapped page.
pub fn bytes(page: &Mapping, at: usize, len: usize) -> Vec<u8> {
    assert!(at + len <= page.len_bytes());
    // SAFETY: within the mapping, which is live; bytes are always aligned.
    (0..len).map(|i| unsafe { page.as_ptr().add(at + i).read_volatile() }).collect()
}
