//! The command layer on a real kernel with an rxe device. Run in a guest, as root:
//!
//! ```text
//! ip link add d0 type veth peer name d1; ip link set d1 up
//! ip addr add 10.9.9.1/24 dev d0; ip link set d0 up
//! rdma link add rxe0 type rxe netdev d0
//! IRONVERBS_TEST_NODE=/dev/infiniband/uverbs0 TEST-BINARY --ignored live
//! ```
//!
//! # Safety argument
//!
//! Registered memory belongs to a vector that outlives the handle, or is refused. The raw system calls change the
//! credentials and limits of one thread or of this test process.
#![allow(unsafe_code)]

use super::abi::verbs::access;
use super::attr::{
    AddressVector, CreateQp, GidType, ModifyQp, PortState, QpCap, QpDomain, QpState, qp_attr_mask as mask,
};
use super::context::Ucontext;
use super::doorbell::SendDoorbell;
use super::errno::Errno;
use super::error::Error;
use super::event;
use super::linux;
use super::object::{Handle, ObjectKind};
use super::observe::{CommandForm, Fault, Trace};
use super::shared_receive_queue::{CreateSrq, ModifySrq};
use super::sys::Cdev;
use super::types::{Gid, LinkLayer, Mtu, PortNum, Qpn};
use super::wr::PostError;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

const RXE: u32 = 14;
const OUR_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);
const OUR_GID_INDEX: u8 = 1;
const NOBODYS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 77);

fn open() -> Arc<dyn Cdev> {
    let node = std::env::var_os("IRONVERBS_TEST_NODE").map_or("/dev/infiniband/uverbs0".into(), PathBuf::from);
    linux::from_file(File::options().read(true).write(true).open(node).unwrap(), RXE)
}

#[test]
#[ignore = "needs an rxe device named by IRONVERBS_TEST_NODE"]
fn live_native() {
    let ctx = Ucontext::open(open(), &[], &mut []).unwrap();
    assert_eq!(ctx.core_support() & 1, 1, "optional access flags");
    drop(ctx);
    let trace = Trace::new(|line| println!("{line}"));
    life(open(), &|| ());
    life(trace.wrap(open()), &|| ());
}

#[test]
#[ignore = "needs an rxe device named by IRONVERBS_TEST_NODE"]
fn live_without_native_methods() {
    /// What this library can do without, by object and method.
    const NATIVES: [(u16, u16); 11] =
        [(0, 2), (0, 3), (1, 0), (3, 0), (3, 1), (4, 0), (4, 1), (5, 0), (5, 1), (7, 1), (16, 0)];
    let fault = Fault::new();
    fault.fail_matching(|c| c.method().is_some_and(|m| NATIVES.contains(&m)), Errno::EPROTONOSUPPORT);
    life(fault.wrap(open()), &|| ());
    assert!(fault.injected() >= 10, "{fault:?}");
}

#[test]
#[ignore = "needs an rxe device named by IRONVERBS_TEST_NODE"]
fn live_without_the_ioctl() {
    let fault = Fault::new();
    let refuse = {
        let fault = fault.clone();
        move || fault.fail_matching(|c| c.form() == CommandForm::Ioctl, Errno::ENOTTY)
    };
    refuse();
    // Looking at handles takes the ioctl.
    life(fault.wrap(open()), &|| fault.clear());
    assert!(fault.injected() >= 2, "{fault:?}");
}

/// One life of everything. `before_looking` is called before queries that only the ioctl can answer.
fn life(cdev: Arc<dyn Cdev>, before_looking: &dyn Fn()) {
    let ctx = Ucontext::open(Arc::clone(&cdev), &[], &mut []).unwrap();
    assert!(ctx.num_comp_vectors() >= 1);
    check_event_file(ctx.async_fd());
    assert_eq!(event::read_async_events(ctx.async_fd(), |e| panic!("{e:?}")).unwrap(), 0);
    let second = Ucontext::open(cdev, &[], &mut []).unwrap_err();
    assert_eq!(second.errno(), Some(Errno::EINVAL), "a file has one context");

    check_device(&ctx);
    let page = vec![0_u64; 4096];
    let mut objects = make(&ctx, &page);
    connect_to_self(&ctx, &objects);
    refused_changes(&ctx, &objects);
    ring(&ctx, &objects);
    before_looking();
    check_gids(&ctx);
    check_handles(&ctx, &objects);
    destroy_in_odd_order(&ctx, &mut objects);
    drop(objects);
    for kind in [ObjectKind::Pd, ObjectKind::Mr, ObjectKind::Cq, ObjectKind::Srq, ObjectKind::Qp] {
        assert_eq!(ctx.info_handles(kind).unwrap(), vec![], "{kind}");
    }
    assert_eq!(ctx.leaks(), vec![]);
    leak_and_close(ctx, &page);
}

struct Objects {
    pd: Handle,
    other_pd: Handle,
    mr: Handle,
    channel: std::sync::Arc<std::os::fd::OwnedFd>,
    cq: Handle,
    srq: Handle,
    qp: Handle,
    /// On the shared receive queue.
    other_qp: Handle,
    qpn: Qpn,
}

fn check_event_file(fd: BorrowedFd<'_>) {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap());
    assert!(flags.contains(OFlag::O_NONBLOCK));
    let flags = FdFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFD).unwrap());
    assert!(flags.contains(FdFlag::FD_CLOEXEC));
}

fn check_device(ctx: &Arc<Ucontext>) {
    let device = ctx.query_device().unwrap();
    assert_eq!((device.vendor_id, device.max_sge, device.max_cqe, device.phys_port_cnt), (0xff_ffff, 32, 32767, 1));
    assert_eq!(device.device_cap_flags_ex as u32, device.device_cap_flags);
    let port = ctx.query_port(PortNum::ONE).unwrap();
    assert_eq!((port.state, port.link_layer), (PortState::ACTIVE, LinkLayer::Ethernet));
    assert_eq!((port.active_mtu, port.max_mtu, port.gid_tbl_len), (Some(Mtu::B1024), Some(Mtu::B4096), 1024));
    assert!(port.active_speed != 0 && port.active_width != 0);
    let no_port = ctx.query_port(PortNum::new(9).unwrap()).unwrap_err();
    assert_eq!(no_port.to_string(), "query_port: EINVAL (Invalid argument): the device has no port 9");
}

fn check_gids(ctx: &Arc<Ucontext>) {
    let table = ctx.gid_table().unwrap();
    let ours = table.iter().find(|e| e.index == OUR_GID_INDEX.into()).unwrap();
    assert_eq!((ours.gid.to_ipv4(), ours.gid_type, ours.port), (Some(OUR_ADDRESS), GidType::ROCE_V2, PortNum::ONE));
    assert!(ours.netdev_ifindex.is_some());
    assert_eq!(ctx.query_gid(PortNum::ONE, OUR_GID_INDEX.into()).unwrap().as_ref(), Some(ours));
    assert_eq!(ctx.query_gid(PortNum::ONE, 500).unwrap(), None);
    assert_eq!(ctx.query_gid(PortNum::ONE, 5000).unwrap_err().errno(), Some(Errno::EINVAL));
}

fn make(ctx: &Arc<Ucontext>, memory: &[u64]) -> Objects {
    let pd = ctx.alloc_pd(&mut []).unwrap();
    let other_pd = ctx.alloc_pd(&mut []).unwrap();
    let (addr, len) = (memory.as_ptr().expose_provenance() as u64, size_of_val(memory) as u64);
    let rights = access::LOCAL_WRITE | access::REMOTE_READ;
    // SAFETY: the vector outlives the handle, which is destroyed with success before it; nothing is posted.
    let (mr, lkey, rkey) = unsafe { ctx.reg_mr(&pd, addr, len, addr, rights) }.unwrap();
    assert_eq!(lkey.0, rkey.0, "as rxe has it");
    // SAFETY: nothing is mapped there, and the kernel refuses.
    let unmapped = unsafe { ctx.reg_mr(&pd, 0x1000, 4096, 0x1000, rights) }.unwrap_err();
    assert_eq!(unmapped.errno(), Some(Errno::EFAULT));
    assert!(unmapped.to_string().contains("those from 0x1000 on are not mapped"), "{unmapped}");

    let channel = ctx.create_comp_channel().unwrap();
    check_event_file(channel.as_fd());
    let (cq, cqe) = create_cq(ctx, 100, Some(channel.as_fd()), 0).unwrap();
    assert!(cqe >= 100);
    assert_eq!(create_cq(ctx, 0, None, 0).unwrap_err().errno(), Some(Errno::EINVAL));
    let no_vector = create_cq(ctx, 10, None, 99).unwrap_err();
    assert!(no_vector.to_string().contains("completion vector 99 does not exist"), "{no_vector}");
    resize_cq(ctx, &cq);
    let srq = create_srq(ctx, &pd);
    let (qp, qpn) = create_qp(ctx, &pd, &cq, None);
    let (other_qp, other_qpn) = create_qp(ctx, &pd, &cq, Some(&srq));
    assert_ne!(qpn, other_qpn);
    Objects { pd, other_pd, mr, channel, cq, srq, qp, other_qp, qpn }
}

fn resize_cq(ctx: &Arc<Ucontext>, cq: &Handle) {
    let mut uhw_out = [0; 16];
    ctx.resize_cq(cq, 300, &[], &mut uhw_out).unwrap();
    check_mapping(ctx, &uhw_out, 300);
    let error = ctx.resize_cq(cq, 0, &[], &mut uhw_out).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
}

/// Makes a shared receive queue, and changes each of its attributes.
fn create_srq(ctx: &Arc<Ucontext>, pd: &Handle) -> Handle {
    let request = CreateSrq { pd, max_wr: 50, max_sge: 3, limit: 7, user_handle: ctx.next_user_handle(), xrc: None };
    let mut uhw_out = [0; 24];
    let made = ctx.create_srq(&request, &[], &mut uhw_out).unwrap();
    assert!(made.max_sge >= 3);
    check_mapping(ctx, &uhw_out[..16], 50);
    let srq = made.handle;
    let before = ctx.query_srq(&srq).unwrap();
    assert!(before.max_wr >= 50 && before.max_sge == made.max_sge && before.limit == 7, "{before:?}");
    let mut mminfo = [0_u64; 2];
    let uhw_in = ((&raw mut mminfo).expose_provenance() as u64).to_ne_bytes();
    // SAFETY: the driver's part is the address of `mminfo`, which outlives the calls and is not used during one.
    let change = |change| unsafe { ctx.modify_srq(&srq, change, &uhw_in) };
    change(ModifySrq::Limit(5)).unwrap();
    change(ModifySrq::MaxWr(200)).unwrap();
    assert_eq!(change(ModifySrq::Limit(5000)).unwrap_err().errno(), Some(Errno::EINVAL));
    check_mapping(ctx, mminfo.as_bytes(), 200);
    let after = ctx.query_srq(&srq).unwrap();
    assert!(after.max_wr >= 200 && after.limit == 5, "{after:?}");
    srq
}

/// Makes a completion queue, and maps its ring for a moment.
fn create_cq(
    ctx: &Arc<Ucontext>,
    cqe: u32,
    channel: Option<BorrowedFd<'_>>,
    vector: u32,
) -> Result<(Handle, u32), Error> {
    let mut uhw_out = [0; 16];
    let made = ctx.create_cq(cqe, ctx.next_user_handle(), channel, vector, &[], &mut uhw_out)?;
    check_mapping(ctx, &uhw_out, cqe);
    Ok(made)
}

fn create_qp(ctx: &Arc<Ucontext>, pd: &Handle, cq: &Handle, srq: Option<&Handle>) -> (Handle, Qpn) {
    let cap = QpCap { max_send_wr: 16, max_recv_wr: 17, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 64 };
    let user_handle = ctx.next_user_handle();
    let request = CreateQp {
        domain: QpDomain::Pd(pd),
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq,
        qp_type: 2,
        sq_sig_all: false,
        cap,
        user_handle,
    };
    let mut uhw_out = [0; 32];
    let made = ctx.create_qp(&request, &[], &mut uhw_out).unwrap();
    assert!(made.qpn.get() > 1);
    assert!(made.cap.max_send_wr >= 16 && made.cap.max_inline_data >= 64, "{:?}", made.cap);
    if srq.is_none() {
        check_mapping(ctx, &uhw_out[..16], 17);
    }
    check_mapping(ctx, &uhw_out[16..], 16);
    (made.handle, made.qpn)
}

/// The driver's answer is a ring to map (`struct mminfo`), exactly once.
fn check_mapping(ctx: &Arc<Ucontext>, mminfo: &[u8], entries: u32) {
    let (offset, _) = u64::read_from_prefix(mminfo).unwrap();
    let (size, _) = u32::read_from_prefix(&mminfo[8..]).unwrap();
    let mapping = ctx.cdev().map(offset, size as usize).unwrap();
    assert_eq!(mapping.len_bytes(), size as usize);
    // SAFETY: the ring's header is longer than 8 bytes, and this word of it is written before the ring is handed out.
    let index_mask = unsafe { mapping.as_ptr().add(4).cast::<u32>().read_volatile() };
    assert!(index_mask >= entries && (index_mask + 1).is_power_of_two(), "{index_mask}");
    assert_eq!(ctx.cdev().map(offset, size as usize).err(), Some(Errno::EINVAL), "mapped twice");
}

fn to_init() -> ModifyQp {
    ModifyQp {
        attr_mask: mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
        qp_state: QpState::INIT,
        port_num: 1,
        qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
        ..Default::default()
    }
}

fn to_rtr(peer: Ipv4Addr, qpn: Qpn) -> ModifyQp {
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
        dest_qp_num: qpn.get(),
        rq_psn: 0x12_3456,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 12,
        dest: AddressVector {
            dgid: Gid::from(IpAddr::from(peer)),
            sgid_index: OUR_GID_INDEX,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..Default::default()
        },
        ..Default::default()
    }
}

fn connect_to_self(ctx: &Arc<Ucontext>, objects: &Objects) {
    ctx.modify_qp(&objects.qp, &to_init()).unwrap();
    assert_eq!(ctx.query_qp(&objects.qp).unwrap().qp_state, QpState::INIT);
    ctx.modify_qp(&objects.qp, &to_rtr(OUR_ADDRESS, objects.qpn)).unwrap();
    let to_rts = ModifyQp {
        attr_mask: mask::STATE
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::SQ_PSN
            | mask::MAX_QP_RD_ATOMIC,
        qp_state: QpState::RTS,
        timeout: 14,
        retry_cnt: 5,
        rnr_retry: 6,
        sq_psn: 0x65_4321,
        max_rd_atomic: 4,
        ..Default::default()
    };
    ctx.modify_qp(&objects.qp, &to_rts).unwrap();
    let qp = ctx.query_qp(&objects.qp).unwrap();
    assert_eq!((qp.qp_state, qp.port_num, qp.path_mtu), (QpState::RTS, 1, Some(Mtu::B1024)));
    assert_eq!((qp.dest_qp_num, qp.rq_psn, qp.sq_psn), (objects.qpn.get(), 0x12_3456, 0x65_4321));
    assert_eq!((qp.timeout, qp.retry_cnt, qp.rnr_retry, qp.min_rnr_timer), (14, 5, 6, 12));
    assert_eq!((qp.dest.dgid.to_ipv4(), qp.dest.sgid_index), (Some(OUR_ADDRESS), OUR_GID_INDEX));
    assert_eq!((qp.dest.is_global, qp.dest.hop_limit), (true, 64));
}

fn refused_changes(ctx: &Arc<Ucontext>, objects: &Objects) {
    let change = |attr: &ModifyQp| ctx.modify_qp(&objects.other_qp, attr);
    let mut attr = to_rtr(OUR_ADDRESS, objects.qpn);
    assert_eq!(change(&attr).expect_err("RESET to RTR").errno(), Some(Errno::EINVAL));
    change(&to_init()).unwrap();
    attr.dest.is_global = false;
    assert_eq!(change(&attr).expect_err("no global route on Ethernet").errno(), Some(Errno::EINVAL));
    attr.dest.is_global = true;
    attr.dest.sgid_index = 200;
    let empty = change(&attr).expect_err("an empty GID index");
    assert!(matches!(empty.errno(), Some(Errno::ENODATA | Errno::ENOENT)), "{empty}");
    let silent = change(&to_rtr(NOBODYS_ADDRESS, objects.qpn)).expect_err("an address that does not answer");
    println!("{silent}");
    let unreachable = [Errno::ETIMEDOUT, Errno::ENETUNREACH, Errno::EHOSTUNREACH];
    assert!(silent.errno().is_some_and(|errno| unreachable.contains(&errno)), "{silent}");
    assert_eq!(ctx.query_qp(&objects.other_qp).unwrap().qp_state, QpState::INIT);
}

fn ring(ctx: &Arc<Ucontext>, objects: &Objects) {
    ctx.req_notify_cq(&objects.cq, true).unwrap();
    ctx.req_notify_cq(&objects.cq, false).unwrap();
    assert_eq!(event::read_comp_events(objects.channel.as_fd(), |e| panic!("{e}")).unwrap(), 0);
    let doorbell = SendDoorbell::new(ctx.cdev(), &objects.qp);
    doorbell.ring(&mut false).unwrap();
    assert_eq!(
        SendDoorbell::new(ctx.cdev(), &objects.other_qp).ring(&mut false),
        Err(PostError::Doorbell(Errno::EINVAL)),
        "not connected"
    );
    if ctx.cdev().raw_fd().is_some() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                become_nobody();
                doorbell.ring(&mut false).unwrap();
            });
        });
    }
}

/// Changes the user of this thread alone, to one that the device file was not opened by.
fn become_nobody() {
    // SAFETY: it changes the credentials of the calling thread, which ends right after.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) }, 0);
}

fn check_handles(ctx: &Arc<Ucontext>, objects: &Objects) {
    let handles = |kind| ctx.info_handles(kind).unwrap();
    let sorted = |mut ids: Vec<u32>| {
        ids.sort_unstable();
        ids
    };
    let qps = vec![objects.qp.id(), objects.other_qp.id()];
    assert_eq!(sorted(handles(ObjectKind::Pd)), sorted(vec![objects.pd.id(), objects.other_pd.id()]));
    assert_eq!(handles(ObjectKind::Mr), vec![objects.mr.id()]);
    assert_eq!(handles(ObjectKind::Cq), vec![objects.cq.id()]);
    assert_eq!(handles(ObjectKind::Srq), vec![objects.srq.id()]);
    assert_eq!(sorted(handles(ObjectKind::Qp)), sorted(qps));
}

fn destroy_in_odd_order(ctx: &Arc<Ucontext>, objects: &mut Objects) {
    let busy = |handle: &mut Handle| assert_eq!(handle.destroy().unwrap_err().errno(), Some(Errno::EBUSY));
    busy(&mut objects.pd);
    busy(&mut objects.cq);
    objects.qp.destroy().unwrap();
    busy(&mut objects.cq);
    objects.mr.destroy().unwrap();
    busy(&mut objects.pd);
    busy(&mut objects.srq);
    objects.other_qp.destroy().unwrap();
    busy(&mut objects.pd);
    objects.srq.destroy().unwrap();
    objects.pd.destroy().unwrap();
    objects.cq.destroy().unwrap();
    assert_eq!(ctx.info_handles(ObjectKind::Pd).unwrap(), vec![objects.other_pd.id()]);
}

/// Drops what something else still uses: it leaks, says so, and goes when that goes.
fn leak_and_close(ctx: Arc<Ucontext>, memory: &[u64]) {
    let pd = ctx.alloc_pd(&mut []).unwrap();
    let channel = ctx.create_comp_channel().unwrap();
    let (cq, _) = create_cq(&ctx, 10, Some(channel.as_fd()), 0).unwrap();
    let (qp, _) = create_qp(&ctx, &pd, &cq, None);
    let addr = memory.as_ptr().expose_provenance() as u64;
    // SAFETY: the vector outlives the handle, which is dropped, and destroyed by that, before.
    let (mr, ..) = unsafe { ctx.reg_mr(&pd, addr, 4096, addr, 0) }.unwrap();
    drop(pd);
    drop(cq);
    let leaks = ctx.leaks();
    let kinds: Vec<_> = leaks.iter().map(|leak| (leak.kind, leak.errno)).collect();
    assert_eq!(kinds, [(ObjectKind::Pd, Errno::EBUSY), (ObjectKind::Cq, Errno::EBUSY)], "{leaks:?}");
    drop(mr);
    assert_eq!(ctx.leaks().len(), 2, "the queue pair still uses them");
    drop(qp);
    assert_eq!(ctx.leaks(), vec![], "nothing uses them any more");
    drop(ctx);
    let gone = event::read_comp_events(channel.as_fd(), |e| panic!("{e}")).unwrap_err();
    assert!(matches!(gone, Error::DeviceGone { .. }), "{gone}");
    let waited = event::wait_readable(channel.as_fd(), None, super::error::Verb::GetCqEvent).unwrap_err();
    assert!(matches!(waited, Error::DeviceGone { .. }), "{waited}");
}

/// Run as a user without CAP_IPC_LOCK.
#[test]
#[ignore = "needs an rxe device named by IRONVERBS_TEST_NODE, and a user without CAP_IPC_LOCK"]
fn live_memlock_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    setrlimit(Resource::RLIMIT_MEMLOCK, 65536, hard).unwrap();
    let ctx = Ucontext::open(open(), &[], &mut []).unwrap();
    let pd = ctx.alloc_pd(&mut []).unwrap();
    let memory = vec![0_u8; 1 << 20];
    let addr = memory.as_ptr().expose_provenance() as u64;
    // SAFETY: the vector outlives the handle, if there is one.
    let error = unsafe { ctx.reg_mr(&pd, addr, 1 << 20, addr, 0) }.unwrap_err();
    println!("{error}");
    let text = error.to_string();
    assert_eq!(error.errno(), Some(Errno::ENOMEM));
    assert!(text.contains("1048576 bytes") && text.contains("RLIMIT_MEMLOCK is 65536 bytes"), "{text}");
}
