//! Two connected queue pairs on one completion queue, and registered memory.
//!
//! # Safety argument
//!
//! The registered memory is allocated once per test and never freed. It is accessed by volatile reads and writes only.
#![allow(unsafe_code)]

use crate::rxe::{RxeCq, RxeQp, create_cq, create_qp};
use crate::uverbs::abi::verbs::access;
use crate::uverbs::attr::{AddressVector, CreateQp, GidType, ModifyQp, QpCap, QpState, qp_attr_mask as mask};
use crate::uverbs::context::Ucontext;
use crate::uverbs::device::DriverId;
use crate::uverbs::linux;
use crate::uverbs::object::{Handle, ObjectKind};
use crate::uverbs::types::{Gid, Lkey, Rkey};
use crate::uverbs::wr::{Payload, RemoteAddr, SendOp, SendWr, Sge, WcOpcode, WcStatus, WrFlags};
use std::alloc::{Layout, alloc_zeroed};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 1 << 20;
pub const PATIENCE: Duration = Duration::from_secs(20);
const WC_WITH_IMM: u32 = 2;

/// A completion, copied out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub wr_id: u64,
    pub status: WcStatus,
    pub opcode: WcOpcode,
    pub byte_len: u32,
    pub imm: Option<u32>,
    pub qpn: u32,
}

/// Two connected queue pairs on one completion queue, and registered memory.
pub struct Pair {
    // Dropped in this order: queue pairs before what they use.
    pub a: RxeQp,
    pub b: RxeQp,
    _mr: Handle,
    pub cq: RxeCq,
    pub cq_handle: Handle,
    pub pd: Handle,
    pub channel: OwnedFd,
    pub memory: *mut u8,
    pub lkey: Lkey,
    pub rkey: Rkey,
    pub gid: (Gid, u8),
    pub psn: u32,
}

pub fn open() -> Arc<Ucontext> {
    let file = File::options().read(true).write(true).open(node()).unwrap();
    Ucontext::open(linux::from_file(file, DriverId::RXE.0), &[], &mut []).unwrap()
}

fn node() -> PathBuf {
    let name = std::env::var("IRONVERBS_TEST_DEVICE").expect("IRONVERBS_TEST_DEVICE names no device");
    for entry in std::fs::read_dir("/sys/class/infiniband_verbs").unwrap().flatten() {
        let ibdev = std::fs::read_to_string(entry.path().join("ibdev")).unwrap_or_default();
        if ibdev.trim() == name {
            return PathBuf::from("/dev/infiniband").join(entry.file_name());
        }
    }
    panic!("no device {name}");
}

impl Pair {
    /// Both queue pairs with queues of at least these capacities, in RTS.
    pub fn new(cap: QpCap, cqe: u32) -> Self {
        let ctx = open();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        let channel = ctx.create_comp_channel().unwrap();
        let (cq_handle, cq) = create_cq(&ctx, cqe, ctx.next_user_handle(), Some(channel.as_fd()), 0).unwrap();
        let layout = Layout::from_size_align(BUFFER_BYTES, 4096).unwrap();
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        assert!(!memory.is_null());
        let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
        let at = memory.expose_provenance() as u64;
        // SAFETY: the memory is never freed.
        let (_mr, lkey, rkey) = unsafe { ctx.reg_mr(&pd, at, BUFFER_BYTES as u64, at, all) }.unwrap();
        let make = || {
            let (send_cq, recv_cq) = (&cq_handle, &cq_handle);
            let user_handle = ctx.next_user_handle();
            create_qp(&ctx, &CreateQp { pd: &pd, send_cq, recv_cq, qp_type: 2, sq_sig_all: false, cap, user_handle })
                .unwrap()
        };
        let (a, b) = (make(), make());
        let gids = ctx.gid_table().unwrap();
        let gid = gids.iter().find(|g| g.gid_type == GidType(2) && g.gid.to_ipv4().is_some()).expect("an IPv4 GID");
        let gid = (gid.gid, gid.index as u8);
        let mut pair = Self { a, b, _mr, cq, cq_handle, pd, channel, memory, lkey, rkey, gid, psn: 0xff_fff0 };
        pair.connect();
        pair
    }

    pub fn ctx(&self) -> &Arc<Ucontext> {
        self.pd.context()
    }

    /// Destroys everything, and checks that the kernel let it all go.
    pub fn close(self) {
        let ctx = Arc::clone(self.ctx());
        drop(self);
        assert_eq!(ctx.leaks(), []);
        for kind in [ObjectKind::Qp, ObjectKind::Cq, ObjectKind::Mr, ObjectKind::Pd] {
            assert_eq!(ctx.info_handles(kind).unwrap(), [], "{kind}");
        }
    }

    pub fn connect(&mut self) {
        for (qp, peer) in [(&self.a, &self.b), (&self.b, &self.a)] {
            let modify = |attr: ModifyQp| self.ctx().modify_qp(&qp.handle, &attr).unwrap();
            modify(ModifyQp {
                attr_mask: mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
                qp_state: QpState::INIT,
                port_num: 1,
                qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
                ..Default::default()
            });
            modify(ModifyQp {
                attr_mask: mask::STATE
                    | mask::AV
                    | mask::PATH_MTU
                    | mask::DEST_QPN
                    | mask::RQ_PSN
                    | mask::MAX_DEST_RD_ATOMIC
                    | mask::MIN_RNR_TIMER,
                qp_state: QpState::RTR,
                path_mtu: 3,
                dest_qp_num: peer.qpn.get(),
                rq_psn: self.psn,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 12,
                dest: AddressVector {
                    dgid: self.gid.0,
                    sgid_index: self.gid.1,
                    hop_limit: 64,
                    is_global: true,
                    port_num: 1,
                    ..Default::default()
                },
                ..Default::default()
            });
            modify(ModifyQp {
                attr_mask: mask::STATE
                    | mask::TIMEOUT
                    | mask::RETRY_CNT
                    | mask::RNR_RETRY
                    | mask::SQ_PSN
                    | mask::MAX_QP_RD_ATOMIC,
                qp_state: QpState::RTS,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 6,
                sq_psn: self.psn,
                max_rd_atomic: 4,
                ..Default::default()
            });
        }
    }

    pub fn modify_both(&self, state: QpState) {
        for qp in [&self.a, &self.b] {
            let attr = ModifyQp { attr_mask: mask::STATE, qp_state: state, ..Default::default() };
            self.ctx().modify_qp(&qp.handle, &attr).unwrap();
        }
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BUFFER_BYTES);
        for (i, &byte) in bytes.iter().enumerate() {
            // SAFETY: inside the buffer.
            unsafe { self.memory.add(at + i).write_volatile(byte) };
        }
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= BUFFER_BYTES);
        // SAFETY: inside the buffer.
        (0..len).map(|i| unsafe { self.memory.add(at + i).read_volatile() }).collect()
    }

    pub fn read_u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.read(at, 8).try_into().unwrap())
    }

    pub fn sge(&self, at: usize, len: usize) -> Sge {
        assert!(at + len <= BUFFER_BYTES);
        Sge::from_raw(self.memory.addr() as u64 + at as u64, len as u32, self.lkey)
    }

    pub fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: self.memory.addr() as u64 + at as u64, rkey: self.rkey }
    }

    /// What is there now.
    pub fn poll_now(&mut self, seen: &mut Vec<Seen>) {
        self.cq.begin();
        while let Some(cqe) = self.cq.next() {
            seen.push(Seen {
                wr_id: cqe.wr_id(),
                status: cqe.status(),
                opcode: cqe.opcode(),
                byte_len: cqe.byte_len(),
                imm: (cqe.wc_flags() & WC_WITH_IMM != 0).then(|| cqe.imm()),
                qpn: cqe.qpn(),
            });
        }
        self.cq.end();
    }

    /// The next `n` completions.
    pub fn poll(&mut self, n: usize) -> Vec<Seen> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while seen.len() < n {
            assert!(Instant::now() < deadline, "{} of {n} completions: {seen:?}", seen.len());
            self.poll_now(&mut seen);
            std::thread::yield_now();
        }
        assert_eq!(seen.len(), n, "{seen:?}");
        seen
    }

    /// Posts one signaled work request on `a` and gives its completion, and the receive's if there is one.
    pub fn send(&mut self, op: SendOp, payload: Payload<'_>, receive: Option<&[Sge]>) -> (Seen, Option<Seen>) {
        if let Some(sges) = receive {
            self.b.rq.begin();
            self.b.rq.push(2, sges).unwrap();
            self.b.rq.submit();
        }
        self.a.sq.begin();
        self.a.sq.push(&SendWr { wr_id: 1, flags: WrFlags::SIGNALED, op, payload }).unwrap();
        self.a.sq.submit().unwrap();
        let seen = self.poll(1 + usize::from(receive.is_some()));
        for wc in &seen {
            assert_eq!(wc.status, WcStatus::SUCCESS, "{op:?}: {wc:?}");
        }
        let sent = *seen.iter().find(|wc| wc.wr_id == 1).unwrap();
        assert_eq!(sent.qpn, self.a.qpn.get());
        (sent, seen.into_iter().find(|wc| wc.wr_id == 2))
    }
}
