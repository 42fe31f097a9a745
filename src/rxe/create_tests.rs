//! Creating queues, against a model of the kernel that makes the rings it is told to.
//!
//! # Safety argument
//!
//! The driver's response is written where the command says, for the length it says, during the call.
#![allow(unsafe_code)]

use super::*;
use crate::mem::map::Mapping;
use crate::rxe::testing::ring;
use crate::sys::{Cdev, Fault};
use crate::uverbs::attr::QpDomain;
use crate::uverbs::fake::{FakeKernel, Knows};
use crate::uverbs::wr::{Payload, PostError, SendOp, SendWr, WrFlags};
use std::os::fd::RawFd;

/// `log2_elem_size` and `index_mask` of the rings it makes.
#[derive(Clone, Copy)]
struct Rings {
    cq: (u32, u32),
    sq: (u32, u32),
    rq: (u32, u32),
}

const CQ_OFFSET: u64 = 0x1000;
const RQ_OFFSET: u64 = 0x2000;
const SQ_OFFSET: u64 = 0x3000;

impl Rings {
    /// As the kernel makes them for [`cap`].
    const RIGHT: Self = Self { cq: (7, 127), sq: (9, 15), rq: (7, 31) };

    fn at(&self, offset: u64) -> (u32, u32) {
        match offset {
            CQ_OFFSET => self.cq,
            RQ_OFFSET => self.rq,
            SQ_OFFSET => self.sq,
            _ => panic!("no queue at {offset:#x}"),
        }
    }

    fn info(&self, offset: u64) -> MmapInfo {
        let (log2, mask) = self.at(offset);
        MmapInfo { offset, size: 384 + ((mask + 1) << log2), pad: 0 }
    }
}

struct Rxe {
    core: Arc<FakeKernel>,
    rings: Rings,
}

// SAFETY: commands and their pointers go on to the core, which keeps the contract; the driver's response is written into
// the buffer that the command gives for it. Mappings own their memory.
unsafe impl Cdev for Rxe {
    unsafe fn ioctl(&self, command: &mut [u64]) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.core.ioctl(command) }?;
        let response = match command[0] >> 16 & 0xffff_ffff {
            0x0000_0003 => CreateCqResp { mi: self.rings.info(CQ_OFFSET) }.as_bytes().to_vec(),
            0x0000_0004 => CreateQpResp { rq_mi: self.rings.info(RQ_OFFSET), sq_mi: self.rings.info(SQ_OFFSET) }
                .as_bytes()
                .to_vec(),
            _ => return Ok(()),
        };
        let attr = command[3..].chunks_exact(2).find(|a| a[0] & 0xffff == 0x1001).expect("UHW_OUT");
        assert_eq!(attr[0] >> 16 & 0xffff, response.len() as u64, "the driver writes without looking at the length");
        // SAFETY: the caller's buffer has the response's length, as just checked.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(attr[1] as usize).copy_from(response.as_ptr(), response.len())
        };
        Ok(())
    }

    unsafe fn write(&self, command: &[u64]) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.core.write(command) }
    }

    fn map(&self, offset: u64, len_bytes: usize) -> Result<Mapping, Errno> {
        let (log2, mask) = self.rings.at(offset);
        let (mapping, _kernel) = ring(log2, mask, 0);
        assert_eq!(mapping.len_bytes(), len_bytes);
        Ok(mapping)
    }

    fn driver_id(&self) -> u32 {
        self.core.driver_id()
    }

    fn raw_fd(&self) -> Option<RawFd> {
        None
    }
}

fn cap() -> QpCap {
    QpCap { max_send_wr: 10, max_recv_wr: 20, max_send_sge: 4, max_recv_sge: 2, max_inline_data: 100 }
}

struct Setup {
    core: Arc<FakeKernel>,
    fault: Fault,
    ctx: Arc<Ucontext>,
}

fn setup(rings: Rings) -> Setup {
    let core = FakeKernel::new(Knows::ALL);
    let fault = Fault::new();
    let ctx = Ucontext::open(fault.wrap(Arc::new(Rxe { core: core.clone(), rings })), &[], &mut []).unwrap();
    core.take_log();
    Setup { core, fault, ctx }
}

impl Setup {
    fn create_cq(&self) -> Result<(Handle, RxeCq), Error> {
        create_cq(&self.ctx, 100, 7, None, 0)
    }

    fn create_qp(&self, pd: &Handle, cq: &Handle, qp_type: u8, cap: QpCap) -> Result<RxeQp, Error> {
        let request = CreateQp {
            domain: QpDomain::Pd(pd),
            send_cq: Some(cq),
            recv_cq: Some(cq),
            srq: None,
            qp_type,
            sq_sig_all: false,
            cap,
            user_handle: 8,
        };
        create_qp(&self.ctx, &request)
    }
}

/// A queue may move to the thread that uses it, and be looked at from others.
#[test]
fn queues_are_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<RxeSq>();
    check::<RxeRq>();
    check::<RxeCq>();
}

#[test]
fn capacities_are_those_of_the_rings() {
    let setup = setup(Rings::RIGHT);
    let pd = setup.ctx.alloc_pd(&mut []).unwrap();
    let (cq_handle, cq) = setup.create_cq().unwrap();
    assert_eq!(cq.capacity(), 127);
    let qp = setup.create_qp(&pd, &cq_handle, qp_type::RC, cap()).unwrap();
    // The kernel model returns what was asked for, as kernels before 6.12 do.
    assert_eq!(qp.cap, QpCap { max_send_wr: 15, max_recv_wr: 31, ..cap() });
    assert_eq!((qp.sq.capacity(), qp.sq.max_sge(), qp.sq.max_inline()), (15, 4, 100));
    assert_eq!((qp.rq.capacity(), qp.rq.max_sge()), (31, 2));
}

#[test]
fn the_doorbell_is_that_of_the_queue_pair() {
    let setup = setup(Rings::RIGHT);
    let pd = setup.ctx.alloc_pd(&mut []).unwrap();
    let (cq_handle, _cq) = setup.create_cq().unwrap();
    let mut first = setup.create_qp(&pd, &cq_handle, qp_type::RC, cap()).unwrap();
    let mut second = setup.create_qp(&pd, &cq_handle, qp_type::RC, cap()).unwrap();
    let wr = SendWr { wr_id: 1, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Inline(b"x") };
    for qp in [&mut second, &mut first] {
        qp.sq.push(&wr).unwrap();
        qp.sq.push(&wr).unwrap();
        qp.sq.submit().unwrap();
    }
    assert_eq!(setup.core.kicks(), [second.handle.id(), first.handle.id()]);
    setup.fault.fail_nth(0, Errno::ENOMEM);
    first.sq.push(&wr).unwrap();
    assert_eq!(first.sq.submit(), Err(PostError::Doorbell(Errno::ENOMEM)));
    // The queues outlive the kernel's object.
    drop(first.handle);
    assert_eq!(first.sq.push(&wr), Ok(()));
}

#[test]
fn a_ring_too_small_is_refused_and_its_object_destroyed() {
    let right = Rings::RIGHT;
    for (queue, rings) in [
        ("completion queue", Rings { cq: (5, 127), ..right }),
        ("completion queue", Rings { cq: (7, 126), ..right }),
        // 208 bytes and 100 inline bytes are more than 256.
        ("send queue", Rings { sq: (8, 15), ..right }),
        ("send queue", Rings { sq: (9, 14), ..right }),
        // 40 bytes and 2 entries are more than 64.
        ("receive queue", Rings { rq: (6, 31), ..right }),
        ("receive queue", Rings { rq: (7, 30), ..right }),
    ] {
        let setup = setup(rings);
        let pd = setup.ctx.alloc_pd(&mut []).unwrap();
        let error = match setup.create_cq() {
            Ok((cq, _)) => {
                let error = setup.create_qp(&pd, &cq, qp_type::RC, cap()).err();
                assert_eq!(setup.core.live(), [pd.id(), cq.id()]);
                error
            }
            Err(error) => Some(error),
        };
        let error = error.unwrap();
        assert!(
            matches!(error, Error::Abi { verb: Verb::MapQueue, .. }) && error.to_string().contains(queue),
            "{error}"
        );
        assert_eq!(setup.core.live(), [pd.id()]);
    }
}

#[test]
fn another_transport_is_refused_before_anything_is_made() {
    let setup = setup(Rings::RIGHT);
    let pd = setup.ctx.alloc_pd(&mut []).unwrap();
    let (cq, _) = setup.create_cq().unwrap();
    setup.core.take_log();
    const RAW_PACKET: u8 = 8;
    let error = setup.create_qp(&pd, &cq, RAW_PACKET, cap()).err().unwrap();
    assert!(matches!(error, Error::Unsupported { verb: Verb::CreateQp, by: Lacking::Library, .. }), "{error}");
    assert_eq!(setup.core.take_log(), Vec::<String>::new());
}

#[test]
fn whichever_command_fails_nothing_is_left_behind() {
    let run = |setup: &Setup| -> Result<(), Error> {
        let pd = setup.ctx.alloc_pd(&mut [])?;
        let (cq, _ring) = setup.create_cq()?;
        setup.create_qp(&pd, &cq, qp_type::RC, cap())?;
        Ok(())
    };
    let setup = setup(Rings::RIGHT);
    let before = setup.fault.count();
    run(&setup).unwrap();
    // What is left are the three destroys.
    let steps = setup.fault.count() - before - 3;
    assert_eq!(steps, 6, "PD, CQ, map, QP, two maps");
    for n in 0..steps {
        setup.fault.fail_nth(n, Errno::ENOMEM);
        let error = run(&setup).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOMEM), "step {n}: {error}");
        assert_eq!((setup.core.live(), setup.ctx.leaks()), (vec![], vec![]), "step {n}");
        assert_eq!(setup.fault.injected(), n + 1);
    }
    run(&setup).unwrap();
}

#[test]
fn a_refusal_with_inline_data_names_the_one_limit_no_query_tells() {
    let setup = setup(Rings::RIGHT);
    let pd = setup.ctx.alloc_pd(&mut []).unwrap();
    let (cq, _ring) = setup.create_cq().unwrap();
    for (inline, hinted) in [(513, true), (0, false)] {
        setup.fault.fail_nth(0, Errno::EINVAL);
        let cap = QpCap { max_inline_data: inline, ..cap() };
        let error = setup.create_qp(&pd, &cq, qp_type::RC, cap).err().unwrap();
        assert_eq!(error.errno(), Some(Errno::EINVAL));
        assert_eq!(error.to_string().contains("rxe takes up to 512"), hinted, "{error}");
    }
}
