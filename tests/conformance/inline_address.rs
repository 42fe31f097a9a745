//! Address vectors in the work request, as a kernel wants them that gives address handles no number.
//!
//! # Safety argument
//!
//! [`Unnumbered`] hands every command on unchanged, and so keeps what the inner file promises. What it changes is an answer
//! of the driver, in the room that the command has for it, during the call.
#![allow(unsafe_code)]

use crate::fixture::{DATAGRAM_ROOM, QKEY, Setup, Side};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::sys::{Cdev, Linux, Mapping, Sys};
use ironverbs::{Context, Datagram, DeviceInfo, Errno, Error, GidIndex, GidType, Inline, WrFlags};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

tests! {
    address_in_the_work_request,
}

/// A device whose driver numbers no address handle.
struct Unnumbered {
    inner: Arc<dyn Cdev>,
    changed: Arc<AtomicU32>,
}

/// `enum ib_uverbs_write_cmds`.
const CREATE_AH: u64 = 5;
/// Numbers of attributes: `UVERBS_ATTR_WRITE_CMD`, and `UVERBS_ATTR_UHW_OUT`.
const WRITE_CMD: u64 = 2;
const UHW_OUT: u64 = 0x1001;

// SAFETY: see the module's argument.
unsafe impl Cdev for Unnumbered {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.inner.ioctl(command) }?;
        let attr = |id| command[3..].chunks_exact(2).find(|attr| attr[0] & 0xffff == id);
        // Object and method of what the command inside an ioctl has are both zero.
        let inside = command[0] >> 16 & 0xffff_ffff == 0;
        if inside && attr(WRITE_CMD).is_some_and(|attr| attr[1] == CREATE_AH) {
            let room = attr(UHW_OUT).expect("room for the driver's answer");
            assert!(room[0] >> 16 & 0xffff >= 4);
            let number = std::ptr::with_exposed_provenance_mut::<u32>(room[1] as usize);
            // SAFETY: the caller gave room for at least these four bytes until this function returns.
            unsafe {
                assert_ne!(number.read_unaligned(), 0, "the driver gave no number anyway");
                number.write_unaligned(0);
            }
            self.changed.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.inner.write(command) }
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        self.inner.map(offset, len_bytes)
    }

    fn close(&self) -> Result<(), Errno> {
        self.inner.close()
    }

    fn driver_id(&self) -> u32 {
        self.inner.driver_id()
    }

    fn raw_fd(&self) -> Option<RawFd> {
        self.inner.raw_fd()
    }
}

/// The host, with such devices only.
struct Host(Arc<AtomicU32>);

impl Sys for Host {
    fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        Linux::new().devices()
    }

    fn open(&self, device: &DeviceInfo) -> Result<Arc<dyn Cdev>, Error> {
        Ok(Arc::new(Unnumbered { inner: Linux::new().open(device)?, changed: self.0.clone() }))
    }
}

fn address_in_the_work_request(target: &Target) {
    if !target.kind.is_rxe() {
        skip("other drivers number no address handles");
    }
    let changed = Arc::new(AtomicU32::new(0));
    let host = Host(changed.clone());
    let info = host.devices().unwrap().into_iter().find(|info| info.name == target.device).unwrap();
    let context = Context::open_on(&host, &info).unwrap();
    let mut table = context.gid_table().unwrap();
    table.retain(|entry| entry.port == target.port && entry.gid_type == GidType::ROCE_V2);
    assert!(!table.is_empty());
    for (n, entry) in (1..).zip(&table) {
        step(format!("{}", entry.gid));
        let index = Some(GidIndex(entry.index as u8));
        let setup = Setup { inline: 64, ..Setup::default() };
        let mut a = Side::datagrams(target, context.clone(), index, &setup);
        let mut b = Side::datagrams(target, target.open(), index, &setup);
        let ah = a.qp.create_ah(&b.qp.endpoint()).unwrap();
        assert_eq!(changed.load(Ordering::Relaxed), n);
        let room = b.sge(0, DATAGRAM_ROOM);
        for len in [0, 1, 63, 64] {
            b.recv(7, &[room]);
            let payload = vec![len as u8; len];
            a.send(|batch| batch.send_to(1, WrFlags::SIGNALED, Inline(&payload), ah.to(b.qp.qpn(), QKEY)));
            a.success();
            let wc = b.success();
            let buffer = b.bytes(0, DATAGRAM_ROOM);
            let datagram = Datagram::new(&buffer, &wc).unwrap();
            assert_eq!(datagram.payload, payload);
            let grh = datagram.grh.unwrap();
            assert_eq!((grh.sgid, grh.dgid), (entry.gid, entry.gid));
        }
    }
    seen::works("UD address in the request");
}
