//! One walk through every command, for tests of the commands' bytes and forms.
//!
//! # Safety argument
//!
//! The registered memory is a number that the fake kernel never follows.
#![allow(unsafe_code)]

use super::abi::ioctl::cq_create_flags;
use super::attr::{AddressVector, CreateQp, ModifyQp, QpCap, QpDomain, QpState, qp_attr_mask as mask};
use super::context::Ucontext;
use super::doorbell::SendDoorbell;
use super::object::{Handle, ObjectKind};
use super::shared_receive_queue::{CreateSrq, CreatedSrq, ModifySrq, SrqAttr, XrcReceives};
use super::sys::Cdev;
use super::types::{Gid, Lid, Lkey, Mtu, PortNum, Rkey, Srqn};
use super::wr::Sge;
use super::xrc::XrcdOpen;
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// A multicast group.
const GROUP: Gid = Gid([0xff, 0x12, 0x60, 0x1b, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);

/// Opens a context, makes one of each object, connects and kicks a queue pair, queries, and destroys it all.
pub fn walk(cdev: Arc<dyn Cdev>) -> Arc<Ucontext> {
    let ctx = Ucontext::open(cdev, &[], &mut []).unwrap();
    ctx.query_device().unwrap();
    ctx.query_port(PortNum::ONE).unwrap();
    let pd = ctx.alloc_pd(&mut []).unwrap();
    let (addr, len) = (0x7f00_1234_5008, 0x2000);
    // SAFETY: the fake kernel does not touch the memory.
    let (mr, _, _) = unsafe { ctx.reg_mr(&pd, addr, len, addr, 0xf) }.unwrap();
    let channel = ctx.create_comp_channel().unwrap();
    let user_handle = ctx.next_user_handle();
    let (cq, _) = ctx.create_cq(100, user_handle, Some(channel.as_fd()), 0, &[], &mut [0; 16]).unwrap();
    ctx.req_notify_cq(&cq, false).unwrap();
    ctx.req_notify_cq(&cq, true).unwrap();
    let request = CreateQp {
        domain: QpDomain::Pd(&pd),
        send_cq: Some(&cq),
        recv_cq: Some(&cq),
        srq: None,
        qp_type: 2,
        sq_sig_all: true,
        cap: QpCap { max_send_wr: 16, max_recv_wr: 17, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 64 },
        user_handle: ctx.next_user_handle(),
    };
    let qp = ctx.create_qp(&request, &[], &mut [0; 32]).unwrap().handle;
    for attr in [to_init(), to_rtr(), to_rts()] {
        ctx.modify_qp(&qp, &attr).unwrap();
    }
    assert_eq!(ctx.query_qp(&qp).unwrap().qp_state, QpState::RTS);
    SendDoorbell::new(ctx.cdev(), &qp).ring(&mut false).unwrap();
    qp.destroy().unwrap();
    let (srq, shared_qp) = shared_receives(&ctx, &pd, &cq);
    ctx.resize_cq(&cq, 200, &[], &mut [0; 16]).unwrap();
    let ah = ctx.create_ah(&pd, &to_rtr().dest, &mut [0; 8]).unwrap();
    for lid in [Lid(0), Lid(0xc001)] {
        ctx.attach_mcast(&shared_qp, GROUP, lid).unwrap();
        ctx.detach_mcast(&shared_qp, GROUP, lid).unwrap();
    }
    shared_qp.destroy().unwrap();
    srq.destroy().unwrap();
    ah.destroy().unwrap();
    cq.destroy().unwrap();
    mr.destroy().unwrap();
    pd.destroy().unwrap();
    drop((shared_qp, srq, ah, qp, cq, mr, pd));
    ctx
}

/// Makes a shared receive queue, changes and queries it, and makes a queue pair that receives from it.
fn shared_receives(ctx: &Arc<Ucontext>, pd: &Handle, cq: &Handle) -> (Handle, Handle) {
    let request = CreateSrq { pd, max_wr: 100, max_sge: 3, limit: 7, user_handle: ctx.next_user_handle(), xrc: None };
    let CreatedSrq { handle: srq, max_sge, srqn } = ctx.create_srq(&request, &[], &mut [0; 24]).unwrap();
    assert_eq!(srqn, None);
    assert_eq!(max_sge, 3);
    for (change, address) in [(ModifySrq::Limit(5), 0_u64), (ModifySrq::MaxWr(200), 0x7f00_1234_5678)] {
        // SAFETY: the fake kernel does not touch the memory.
        unsafe { ctx.modify_srq(&srq, change, address.as_bytes()) }.unwrap();
    }
    assert_eq!(ctx.query_srq(&srq).unwrap(), SrqAttr { max_wr: 127, max_sge: 3, limit: 5 });
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 0, max_send_sge: 2, max_recv_sge: 0, max_inline_data: 0 };
    let (user_handle, srq_of_qp) = (ctx.next_user_handle(), Some(&srq));
    let request = CreateQp {
        domain: QpDomain::Pd(pd),
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq: srq_of_qp,
        qp_type: 2,
        sq_sig_all: false,
        cap,
        user_handle,
    };
    let qp = ctx.create_qp(&request, &[], &mut [0; 32]).unwrap().handle;
    (srq, qp)
}

/// The commands that have only an ioctl method.
pub fn walk_native_only(ctx: &Arc<Ucontext>) {
    assert_eq!(ctx.gid_table().unwrap().len(), 2);
    assert_eq!(ctx.query_gid(PortNum::ONE, 3).unwrap().unwrap().index, 3);
    assert_eq!(ctx.query_gid(PortNum::ONE, 4).unwrap(), None);
    assert_eq!(ctx.info_handles(ObjectKind::Qp).unwrap(), vec![]);
}

/// What can be done to memory beyond its registration: changes, windows, and kinds of memory that need the ioctl.
pub fn walk_memory(cdev: Arc<dyn Cdev>, natives: bool) {
    let ctx = Ucontext::open(cdev, &[], &mut []).unwrap();
    let (pd, other_pd) = (ctx.alloc_pd(&mut []).unwrap(), ctx.alloc_pd(&mut []).unwrap());
    // The address by which work requests name it is another one.
    // SAFETY: the fake kernel does not touch the memory.
    let (mr, ..) = unsafe { ctx.reg_mr(&pd, 0x7f00_1234_5678, 0x2000, 0x1_0000_0678, 0x1f) }.unwrap();
    assert_eq!(ctx.rereg_mr(&mr, Some(&other_pd), Some(0x15)).unwrap(), (Lkey(0x1111_1111), Rkey(0x2222_2222)));
    ctx.rereg_mr(&mr, None, Some(5)).unwrap();
    ctx.rereg_mr(&mr, Some(&pd), None).unwrap();
    for mw_type in [1, 2] {
        let (mw, rkey) = ctx.alloc_mw(&other_pd, mw_type).unwrap();
        assert_eq!(rkey, Rkey(0x4455_6600 | u32::from(mw_type)));
        mw.destroy().unwrap();
    }
    if natives {
        let file = std::io::stderr();
        // Offset, length and address are three numbers, and the first is not always zero.
        let (mr, lkey, rkey) = ctx.reg_dmabuf_mr(&pd, file.as_fd(), 17_920, 0x3000, 0x1_0000_0600, 7).unwrap();
        assert_eq!((lkey, rkey), (Lkey(0x0123_4567), Rkey(0x89ab_cdef)));
        let pieces = [Sge::from_raw(0x1_0000_0600, 16, lkey), Sge::from_raw(0x1_0000_1600, 0x20, lkey)];
        ctx.advise_mr(&pd, 1, true, &pieces).unwrap();
        drop(mr);
        drop(ctx.alloc_dm(0x1000, 6).unwrap());
    }
}

/// What adapters have beside what Soft-RoCE has: extended reliable connections, and moderation of events.
pub fn walk_adapter(cdev: Arc<dyn Cdev>, natives: bool) {
    let ctx = Ucontext::open(cdev, &[], &mut []).unwrap();
    let pd = ctx.alloc_pd(&mut []).unwrap();
    let (cq, _) = ctx.create_cq(100, ctx.next_user_handle(), None, 0, &[], &mut [0; 16]).unwrap();
    ctx.modify_cq(&cq, 0x1234, 0x0567).unwrap();
    let file = std::io::stderr();
    let xrcd = ctx.open_xrcd(None).unwrap();
    for how in [XrcdOpen::Existing, XrcdOpen::OrCreate, XrcdOpen::New] {
        ctx.open_xrcd(Some((file.as_fd(), how))).unwrap().destroy().unwrap();
    }
    let xrc = Some(XrcReceives { xrcd: &xrcd, cq: &cq });
    let user_handle = ctx.next_user_handle();
    let request = CreateSrq { pd: &pd, max_wr: 100, max_sge: 3, limit: 7, user_handle, xrc };
    let CreatedSrq { handle: srq, srqn, .. } = ctx.create_srq(&request, &[], &mut [0; 24]).unwrap();
    assert_eq!(srqn, Some(Srqn::new(0x33).unwrap()));
    let cap = QpCap { max_send_wr: 16, max_send_sge: 2, max_inline_data: 64, ..QpCap::default() };
    let of_type = |domain, send_cq, qp_type, cap| CreateQp {
        domain,
        send_cq,
        recv_cq: None,
        srq: None,
        qp_type,
        sq_sig_all: false,
        cap,
        user_handle: ctx.next_user_handle(),
    };
    let send = ctx.create_qp(&of_type(QpDomain::Pd(&pd), Some(&cq), 9, cap), &[], &mut [0; 32]).unwrap();
    let recv = ctx.create_qp(&of_type(QpDomain::Xrcd(&xrcd), None, 10, QpCap::default()), &[], &mut [0; 32]).unwrap();
    let opened = ctx.open_qp(&xrcd, recv.qpn, ctx.next_user_handle()).unwrap();
    for handle in [&opened, &recv.handle, &send.handle, &srq, &xrcd, &cq, &pd] {
        handle.destroy().unwrap();
    }
    if natives {
        drop(
            ctx.create_cq_with_flags(100, 9, None, 1, cq_create_flags::TIMESTAMP_COMPLETION, &[], &mut [0; 16])
                .unwrap(),
        );
    }
}

fn to_init() -> ModifyQp {
    ModifyQp {
        attr_mask: mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        qp_state: QpState::INIT,
        port_num: 1,
        qp_access_flags: 0xe,
        ..Default::default()
    }
}

fn to_rtr() -> ModifyQp {
    ModifyQp {
        attr_mask: mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER,
        qp_state: QpState::RTR,
        path_mtu: Mtu::B1024.raw(),
        dest_qp_num: 0x11,
        rq_psn: 0x12_3456,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        dest: AddressVector {
            dgid: Gid::from(std::net::IpAddr::from([10, 9, 9, 1])),
            flow_label: 0xf_edcb,
            sgid_index: 1,
            hop_limit: 64,
            traffic_class: 0x20,
            is_global: true,
            port_num: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}

fn to_rts() -> ModifyQp {
    ModifyQp {
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
        sq_psn: 0x65_4321,
        max_rd_atomic: 3,
        ..Default::default()
    }
}
