use super::*;
use crate::mlx5::context::BlueFlame;
use crate::mlx5::fake::FakeMlx5;
use crate::mlx5::testing::peek_page;
use crate::uverbs::observe::Fault;
use crate::uverbs::types::Lkey;
use crate::uverbs::wr::{Inline, SendOp, SendWr, Sge, WrFlags};

fn open() -> (Arc<FakeMlx5>, Arc<Mlx5Context>) {
    let fake = FakeMlx5::new();
    let context = Mlx5Context::open(fake.clone(), BlueFlame::WhereProven).unwrap();
    (fake, context)
}

fn cq_request(cqe: u32) -> CqRequest<'static> {
    CqRequest { cqe, user_handle: 3, channel: None, comp_vector: 0, entry_bytes: 64, compressed: false, stamps: None }
}

const CAP: QpCap = QpCap { max_send_wr: 10, max_recv_wr: 20, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 64 };

fn qp_request<'a>(pd: &'a Handle, cq: &'a NewCq, cap: QpCap) -> CreateQp<'a> {
    let handle = &cq.object;
    CreateQp {
        domain: QpDomain::Pd(pd),
        send_cq: Some(handle),
        recv_cq: Some(handle),
        srq: None,
        qp_type: 2,
        sq_sig_all: false,
        cap,
        user_handle: 4,
    }
}

fn new_qp(context: &Mlx5Context, pd: &Handle, cq: &NewCq, cap: QpCap, from: ReceiveFrom) -> Result<NewQp, Error> {
    create_qp(context, &qp_request(pd, cq, cap), from, cq.cq.mailbox(), cq.cq.mailbox(), false)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn a_completion_queues_request() {
    let (fake, context) = open();
    let uar = context.shared_uar().page_id();
    for (cqe, capacity) in [(1, 1), (2, 3), (63, 63), (64, 127)] {
        let new = create_cq(&context, &cq_request(cqe)).unwrap();
        assert_eq!(new.cq.capacity(), capacity);
        let request = fake.request(3, 0);
        assert_eq!((request.len(), u64_at(&request, 0) % 4096, u64_at(&request, 8) % 8), (32, 0, 0));
        assert_eq!(u32_at(&request, 16), 64);
        // No compression; flag 2: the page's index follows.
        assert_eq!(request[20..24], [0, 0, 2, 0]);
        assert_eq!(u32_at(&request, 24), uar);
        assert_eq!(request[28..], [0; 4]);
        // Nothing is consumed; and what a first arming stores is another word, which the device sees by that.
        assert_eq!(peek_page(u64_at(&request, 8) as usize, 8), [0, 0, 0, 0, 0x20, 0, 0, 0]);
    }
    let all = CqRequest { entry_bytes: 128, compressed: true, stamps: Some(Stamps::RealTime), ..cq_request(9) };
    create_cq(&context, &all).unwrap();
    let request = fake.request(3, 0);
    assert_eq!((u32_at(&request, 16), &request[20..24]), (128, [1, 1, 6, 0].as_slice()));
}

/// A queue pair that is destroyed is let go of by the poller, which need not wait for another one with its index.
#[test]
fn a_queue_pair_that_is_gone_is_looked_up_no_more() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let mut cq = create_cq(&context, &cq_request(63)).unwrap();
    let qp = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    let NewQp { object, sq, rq, .. } = qp;
    let routes = &mut cq.cq.routes;
    routes.take_mail(|_| ());
    // The first index that is given.
    assert!(routes.sends(0).is_some() && routes.receives(0).is_some());
    drop((sq, rq, object));
    routes.take_mail(|_| ());
    assert!(routes.sends(0).is_none() && routes.receives(0).is_none());
    drop(fake);
}

#[test]
fn a_device_without_real_time_stamps_is_not_asked_for_them() {
    let fake = FakeMlx5::new();
    fake.set_caps(36, &[0; 4]);
    let context = Mlx5Context::open(fake, BlueFlame::WhereProven).unwrap();
    let error = create_cq(&context, &CqRequest { stamps: Some(Stamps::RealTime), ..cq_request(9) }).err().unwrap();
    assert!(matches!(error, Error::Unsupported { by: Lacking::Device, .. }), "{error}");
}

#[test]
fn a_queue_pairs_request() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let cq = create_cq(&context, &cq_request(100)).unwrap();
    let qp = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    let request = fake.request(4, 0);
    assert_eq!((request.len(), u64_at(&request, 0) % 4096, u64_at(&request, 8) % 8), (56, 0, 0));
    // Elements of three blocks: 30 blocks, rounded up. 20 receives of 4 entries, rounded up.
    assert_eq!((u32_at(&request, 16), u32_at(&request, 20), u32_at(&request, 24)), (32, 32, 6));
    // The page's index, and nothing that scatters messages into completions.
    assert_eq!(u32_at(&request, 28), 0x400);
    assert_eq!(u32_at(&request, 32), 0, "the first index");
    assert_ne!(u32_at(&request, 36), context.shared_uar().page_id(), "a register of its own");
    assert_eq!(request[40..], [0; 16]);
    let cap = QpCap { max_send_wr: 10, max_recv_wr: 32, max_send_sge: 2, max_recv_sge: 4, max_inline_data: 64 };
    assert_eq!((qp.cap, qp.qpn.get()), (cap, 0x11));
    assert!(qp.sq.is_some() && qp.rq.is_some());
}

#[test]
fn data_in_completions_only_where_asked_for() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let (sends, receives) =
        (create_cq(&context, &cq_request(100)).unwrap(), create_cq(&context, &cq_request(100)).unwrap());
    for on in [false, true] {
        let (send_cq, recv_cq) = (sends.cq.mailbox(), receives.cq.mailbox());
        let request = qp_request(&pd, &sends, CAP);
        create_qp(&context, &request, ReceiveFrom::Own, send_cq, recv_cq, on).unwrap();
        assert_eq!(u32_at(&fake.request(4, 0), 28), if on { 0x402 } else { 0x400 });
        assert_eq!((send_cq.expects_data(), recv_cq.expects_data()), (on, on));
    }
}

/// The kernel refuses a receive ring where there is none, and what was asked for it does not count.
#[test]
fn with_a_shared_receive_queue_there_is_no_receive_ring() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let cq = create_cq(&context, &cq_request(100)).unwrap();
    let cap = QpCap { max_recv_wr: u32::MAX, max_recv_sge: 999, ..CAP };
    let from = ReceiveFrom::Shared(Arc::new(SrqShared::new(4)));
    let qp = new_qp(&context, &pd, &cq, cap, from).unwrap();
    let request = fake.request(4, 0);
    assert_eq!((u32_at(&request, 20), u32_at(&request, 24)), (0, 0));
    assert!(qp.rq.is_none() && qp.sq.is_some());
    let qp = new_qp(&context, &pd, &cq, QpCap { max_recv_wr: 0, ..CAP }, ReceiveFrom::Own).unwrap();
    let request = fake.request(4, 0);
    assert_eq!((u32_at(&request, 20), u32_at(&request, 24), qp.rq.is_none()), (0, 0, true));
}

#[test]
fn limits_are_refused_before_any_command() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let cq = create_cq(&context, &cq_request(100)).unwrap();
    fake.core.take_log();
    let error = new_qp(&context, &pd, &cq, QpCap { max_send_sge: 61, ..CAP }, ReceiveFrom::Own).err().unwrap();
    assert!(matches!(error, Error::Invalid { what: "max_send_sge", .. }), "{error}");
    assert!(fake.core.take_log().is_empty());
}

/// What is posted is in the memory that the kernel was told of: receives first, then sends.
#[test]
fn the_rings_are_where_the_kernel_was_told() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let cq = create_cq(&context, &cq_request(100)).unwrap();
    let qp = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    let (mut sq, mut rq) = (qp.sq.unwrap(), qp.rq.unwrap());
    rq.push(1, &[Sge::from_raw(0x1234, 5, Lkey(6))]).unwrap();
    rq.submit();
    let wr = SendWr { wr_id: 1, flags: WrFlags::NONE, op: SendOp::Send, payload: Inline(b"abc").into() };
    sq.push(&wr).unwrap();
    sq.submit();
    let request = fake.request(4, 0);
    let buf = u64_at(&request, 0) as usize;
    let peek = |at, len| crate::mlx5::testing::peek_page(at, len);
    assert_eq!(peek(buf, 8), [0, 0, 0, 5, 0, 0, 0, 6]);
    assert_eq!(peek(buf + 32 * 64, 8), [0, 0, 0, 0x0a, 0, 0, 0x11, 2]);
    assert_eq!(peek(u64_at(&request, 8) as usize, 8), [0, 0, 0, 1, 0, 0, 0, 1]);
}

/// The queues outlive the object without harm, and the object the queues: the memory goes with the last.
#[test]
fn any_order_of_drops() {
    for order in 0..6 {
        let (fake, context) = open();
        let pd = alloc_pd(&context).unwrap();
        let mut cq = create_cq(&context, &cq_request(100)).unwrap();
        let qp = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
        let NewQp { object, sq, rq, .. } = qp;
        let (mut sq, mut rq) = (sq.unwrap(), rq.unwrap());
        let use_queues = |sq: &mut Sq, rq: &mut Rq| {
            rq.push(1, &[]).unwrap();
            rq.submit();
            sq.push_nop(1, WrFlags::NONE).unwrap();
            sq.submit();
        };
        match order {
            0 => {
                drop(object);
                use_queues(&mut sq, &mut rq);
            }
            1 => {
                drop((sq, rq));
                drop(object);
            }
            2 => {
                use_queues(&mut sq, &mut rq);
                drop(context);
                drop(object);
                use_queues(&mut sq, &mut rq);
            }
            3 => {
                drop(cq.cq);
                drop(object);
                drop(cq.object);
                drop(fake);
                continue;
            }
            4 => {
                sq.resync();
                rq.resync();
                drop(object);
                sq.resync();
                use_queues(&mut sq, &mut rq);
                assert!(cq.cq.open().next().is_none());
            }
            _ => {
                drop(object);
                drop(cq.object);
                use_queues(&mut sq, &mut rq);
                assert!(cq.cq.open().next().is_none());
                drop(pd);
                assert_eq!(fake.core.live(), []);
                continue;
            }
        }
        drop(cq);
        drop(pd);
        assert_eq!(fake.core.live(), [], "order {order}");
    }
}

/// An index is given again once its object is gone and its queues are, and never while either is there.
#[test]
fn user_indices_are_unique_among_the_living() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let cq = create_cq(&context, &cq_request(100)).unwrap();
    let index = || u32_at(&fake.request(4, 0), 32);
    let mut qps = vec![];
    for want in 0..3 {
        qps.push(new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap());
        assert_eq!(index(), want);
    }
    let NewQp { object, sq, rq, .. } = qps.remove(1);
    drop(object);
    let other = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    assert_eq!(index(), 3, "its queues are still there");
    drop((sq, rq));
    let again = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    assert_eq!(index(), 1);
    drop((other, again));
}

/// A completion that was not polled when its queue pair went does not go to the next one with its index, in either direction.
#[test]
fn completions_of_a_queue_pair_that_is_gone_keep_their_numbers() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let mut cq = create_cq(&context, &cq_request(100)).unwrap();
    // A send of block 0 that is done, and a message received: both of user index 0, on the first pass.
    let entry = |kind: u8| {
        let mut bytes = [0; 64];
        bytes[63] = kind << 4;
        bytes
    };
    let mut made = 0;
    let mut next = |cq: &NewCq| {
        let qp = new_qp(&context, &pd, cq, CAP, ReceiveFrom::Own).unwrap();
        assert_eq!(u32_at(&fake.request(4, 0), 32), 0, "the same index");
        let NewQp { object, sq, rq, .. } = qp;
        let (mut sq, mut rq) = (sq.unwrap(), rq.unwrap());
        made += 1;
        sq.push_nop(made, WrFlags::SIGNALED).unwrap();
        rq.push(made + 100, &[]).unwrap();
        (object, sq, rq)
    };
    let first = next(&cq);
    cq.cq.ring.write(0, &entry(0));
    cq.cq.ring.write(1, &entry(2));
    drop(first);
    let got: Vec<u64> = std::iter::from_fn(|| cq.cq.open().next().map(|cqe| cqe.wr_id())).collect();
    assert_eq!(got, [1, 101], "also while nobody has the index");
    let second = next(&cq);
    cq.cq.ring.write(2, &entry(0));
    cq.cq.ring.write(3, &entry(2));
    drop(second);
    let _third = next(&cq);
    cq.cq.ring.write(4, &entry(2));
    cq.cq.ring.write(5, &entry(0));
    let got: Vec<u64> = std::iter::from_fn(|| cq.cq.open().next().map(|cqe| cqe.wr_id())).collect();
    assert_eq!((got, cq.cq.disowned()), (vec![2, 102, 103, 3], 0));
}

/// What the kernel will not destroy keeps its memory, its record and its index for ever.
#[test]
fn a_refused_destroy_leaks_and_says_so() {
    let (fake, context) = open();
    let pd = alloc_pd(&context).unwrap();
    let cq = create_cq(&context, &cq_request(100)).unwrap();
    let mut qp = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    let buf = u64_at(&fake.request(4, 0), 0) as usize;
    fake.core.refuse_destroy(Some(Errno::EBUSY));
    assert_eq!(qp.object.destroy().unwrap_err().errno(), Some(Errno::EBUSY));
    qp.sq.as_mut().unwrap().push_nop(1, WrFlags::NONE).unwrap();
    drop(qp);
    assert_eq!(context.ucontext().leaks().len(), 1);
    // Still mapped: the receive ring, and the element behind it.
    assert_eq!(crate::mlx5::testing::peek_page(buf + 32 * 64, 4), [0; 4]);
    fake.core.refuse_destroy(None);
    let _next = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own).unwrap();
    assert_eq!(u32_at(&fake.request(4, 0), 32), 1, "index 0 is never given again");
}

/// Makes every command fail in turn: nothing panics, and nothing is left.
#[test]
fn every_command_may_fail() {
    for nth in 0.. {
        let fake = FakeMlx5::new();
        let fault = Fault::new();
        fault.fail_nth(nth, Errno::ENOMEM);
        let made = (|| -> Result<(), Error> {
            let context = Mlx5Context::open(fault.wrap(fake.clone()), BlueFlame::WhereProven)?;
            let pd = alloc_pd(&context)?;
            let cq = create_cq(&context, &cq_request(10))?;
            let _qp = new_qp(&context, &pd, &cq, CAP, ReceiveFrom::Own)?;
            Ok(())
        })();
        if fault.injected() == 0 {
            made.unwrap();
            assert!(nth > 8, "there are more commands than {nth}");
            break;
        }
        let left = fake.core.live().len() + fake.uars().0;
        // A queue pair that is refused to go keeps its completion queue and protection domain.
        let may_be_left = if made.is_ok() { 3 } else { 0 };
        assert!(left <= may_be_left, "command {nth} failed, and {left} objects are left");
    }
}

#[test]
fn a_shared_receive_queues_request() {
    let (_fake, context) = open();
    let plan = SrqPlan::new(&context, 20, 2).unwrap();
    let abi::CreateSrq { buf_addr, db_addr, flags, reserved0, uidx, reserved1 } = plan.request;
    assert_eq!((buf_addr % 4096, db_addr % 8, flags, reserved0, uidx, reserved1), (0, 0, 0, 0, 0, 0));
    // 31 of 32 elements; a head and two entries round up to 64 bytes, which hold three.
    assert_eq!(plan.max_wr_and_sge(), (31, 3));
    let second = SrqPlan::new(&context, 20, 2).unwrap();
    assert_eq!(second.request.uidx, 1, "queue pairs and shared queues have one set of indices");
}
