//! Extended reliable connections: one connection for all processes of a host, which a shared receive queue's number tells
//! apart.

use crate::fixture::{
    PATIENCE, Patience, completions, eventually, receives_may_be_late, silent, try_recv_shared, try_send,
};
use crate::harness::{descriptors_may_stay, skip, step};
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::sys::Fault;
use ironverbs::{
    AccessFlags, Any, AsyncEventType, Context, Cq, Endpoint, Errno, Error, Inline, Lacking, Mr, Notify, Pd, Pool,
    PostError, Qp, QpBuilder, QpState, QpUpdate, Qpn, RemoteAddr, Sge, Srq, Srqn, Subject, Wc, WcOpcode, WcStatus,
    WrFlags, Xrc, XrcRecvQp, XrcSend, Xrcd, XrcdOpen,
};
use std::fs::File;
use std::time::Duration;

tests! {
    a_driver_without_them_says_so,
    every_verb_reaches_the_queue_that_it_names,
    two_queues_are_told_apart,
    a_message_waits_for_its_receive,
    slots_go_through,
    a_queue_that_is_not_there_ends_the_connection,
    memory_is_that_of_the_named_queue,
    the_receiving_end_must_allow_it,
    contexts_share_a_domain_by_a_file,
    a_file_says_who_is_first,
    a_receiving_end_goes_with_its_last_handle,
    a_domain_outlives_what_is_in_it,
    a_failed_connect_gives_the_receiving_end_back,
    transitions_are_those_of_their_ends,
    flushed_in_error_and_connected_again,
    its_completion_queue_has_events,
    few_receives_are_told,
    closes_in_order_only,
    another_handles_change_of_state_is_named_first,
    what_the_kernel_kept_for_a_while_is_forgotten_when_it_goes,
    every_command_may_fail,
}

const BYTES: usize = 4096;

/// One process with a shared receive queue.
struct Receiver {
    srq: Srq<Any, Xrc>,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    xrcd: Xrcd,
    context: Context,
}

/// The other side.
struct Sender {
    qp: Qp<Any, XrcSend>,
    cq: Cq,
    mr: Mr,
    _pd: Pd,
    _context: Context,
}

/// A domain of one's own, or the test is skipped.
fn domain(context: &Context) -> Xrcd {
    match context.create_xrcd() {
        Err(Error::Unsupported { what, by, .. }) => skip(format!("{by} has no {what}")),
        other => other.unwrap(),
    }
}

impl Receiver {
    fn new(target: &Target) -> Self {
        let context = target.open();
        let xrcd = domain(&context);
        Self::in_domain(context, xrcd)
    }

    fn in_domain(context: Context, xrcd: Xrcd) -> Self {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
        let srq = context.srq_builder(&pd, 16).max_sge(2).xrc(&xrcd, &cq).build().unwrap();
        let mr = pd.alloc_mr(BYTES, AccessFlags::ALL).unwrap();
        Self { srq, cq, mr, pd, xrcd, context }
    }

    fn recv(&mut self, wr_id: u64, at: usize, len: usize) {
        let entry = self.mr.sge(at..at + len).unwrap();
        try_recv_shared(&mut self.srq, |batch| batch.recv(wr_id, &[entry])).unwrap();
    }

    fn remote(&self, at: usize) -> RemoteAddr {
        self.mr.remote(at).unwrap()
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(at, &mut bytes).unwrap();
        bytes
    }

    fn received(&mut self) -> Wc {
        completions(&mut self.cq, 1)[0]
    }
}

/// A sending end, and the receiving end that it is connected with.
fn connect(target: &Target, to: &Receiver) -> (Sender, XrcRecvQp) {
    connect_with_access(target, to, AccessFlags::ALL)
}

fn connect_with_access(target: &Target, to: &Receiver, access: AccessFlags) -> (Sender, XrcRecvQp) {
    let context = target.open_peer();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64).unwrap());
    let mr = pd.alloc_mr(BYTES, AccessFlags::ALL).unwrap();
    let mut send = QpBuilder::xrc_send(&pd, &cq).port(target.port).max_send_sge(3).max_inline_bytes(64);
    let mut recv = to.xrcd.recv_qp().port(target.port).access(access);
    if let Some(index) = target.gid_index {
        (send, recv) = (send.gid_index(index), recv.gid_index(index));
    }
    let (send, recv) = (send.build().unwrap(), recv.build().unwrap());
    let mut options = recv.connect_options();
    receives_may_be_late(&mut options);
    let (send_end, recv_end) = (send.endpoint(), recv.endpoint());
    let recv = recv.connect_with(&send_end, &options).unwrap();
    let qp = send.connect_with(&recv_end, &options).unwrap();
    (Sender { qp, cq, mr, _pd: pd, _context: context }, recv)
}

impl Sender {
    fn sge(&self, at: usize, len: usize) -> Sge {
        self.mr.sge(at..at + len).unwrap()
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.mr.write(at, bytes).unwrap();
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(at, &mut bytes).unwrap();
        bytes
    }

    /// A few bytes to a queue.
    fn hello(&mut self, wr_id: u64, srqn: Srqn, bytes: &[u8]) {
        try_send(&mut self.qp, |batch| batch.to_srq(srqn).send(wr_id, WrFlags::SIGNALED, Inline(bytes))).unwrap();
    }

    #[track_caller]
    fn sent(&mut self, wr_id: u64, opcode: WcOpcode) {
        let wc = completions(&mut self.cq, 1)[0];
        let done = wc.outcome().unwrap();
        assert_eq!((wc.wr_id, wc.qpn(), done.opcode), (wr_id, self.qp.qpn().get(), opcode));
    }
}

fn a_driver_without_them_says_so(target: &Target) {
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4).unwrap());
    let file = File::open("/proc/self/exe").unwrap();
    let made = context.create_xrcd();
    if !target.kind.is_rxe() {
        made.unwrap();
        skip("the driver has them");
    }
    let errors = [
        made.unwrap_err(),
        context.open_xrcd(&file, XrcdOpen::OrCreate).unwrap_err(),
        QpBuilder::xrc_send(&pd, &cq).port(target.port).build().unwrap_err(),
    ];
    for error in &errors {
        assert!(matches!(error, Error::Unsupported { by: Lacking::Driver, .. }), "{error}");
    }
    seen::refused("XRC domain", &errors[0]);
    seen::refused("XRC send queue pair", &errors[2]);
}

fn every_verb_reaches_the_queue_that_it_names(target: &Target) {
    let mut to = Receiver::new(target);
    let (mut from, recv) = connect(target, &to);
    let (srqn, other) = (to.srq.number(), recv.qpn().get());
    let data: Vec<u8> = (0..100).collect();
    from.put(0, &data);
    for n in 0..4 {
        to.recv(n, 100 * n as usize, 100);
    }
    let two = [from.sge(0, 60), from.sge(60, 40)];
    let check = |wc: Wc, wr_id, opcode, len, imm| {
        let done = wc.outcome().unwrap_or_else(|error| panic!("{error}: {wc:?}"));
        assert_eq!((wc.wr_id, wc.qpn(), done.opcode, done.byte_len, done.imm), (wr_id, other, opcode, len, imm));
    };
    step("SEND");
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).send(10, WrFlags::SIGNALED, &two)).unwrap();
    from.sent(10, WcOpcode::SEND);
    check(to.received(), 0, WcOpcode::RECV, 100, None);
    assert_eq!(to.bytes(0, 100), data);
    seen::works("XRC SEND");
    step("SEND with immediate");
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).send_imm(11, WrFlags::SIGNALED, Inline(b"now"), 0x1122_3344))
        .unwrap();
    from.sent(11, WcOpcode::SEND);
    check(to.received(), 1, WcOpcode::RECV, 3, Some(0x1122_3344));
    assert_eq!(to.bytes(100, 3), b"now");
    seen::works("XRC SEND imm");
    step("WRITE");
    let remote = to.remote(1000);
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).write(12, WrFlags::SIGNALED, &two, remote)).unwrap();
    from.sent(12, WcOpcode::RDMA_WRITE);
    assert_eq!(to.bytes(1000, 100), data);
    seen::works("XRC WRITE");
    step("WRITE with immediate");
    let remote = to.remote(1200);
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).write_imm(13, WrFlags::SIGNALED, &two, remote, 7)).unwrap();
    from.sent(13, WcOpcode::RDMA_WRITE);
    check(to.received(), 2, WcOpcode::RECV_RDMA_WITH_IMM, 100, Some(7));
    assert_eq!(to.bytes(1200, 100), data);
    seen::works("XRC WRITE imm");
    step("READ");
    to.mr.write(2000, &data).unwrap();
    let (back, remote) = ([from.sge(200, 30), from.sge(300, 70)], to.remote(2000));
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).read(14, WrFlags::SIGNALED, &back, remote)).unwrap();
    from.sent(14, WcOpcode::RDMA_READ);
    assert_eq!([from.bytes(200, 30), from.bytes(300, 70)].concat(), data);
    seen::works("XRC READ");
    step("atomics");
    to.mr.write(3000, &5_u64.to_ne_bytes()).unwrap();
    let (result, remote) = (from.sge(400, 8), to.remote(3000));
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).compare_swap(15, WrFlags::SIGNALED, result, remote, 5, 9))
        .unwrap();
    from.sent(15, WcOpcode::COMP_SWAP);
    assert_eq!(from.bytes(400, 8), 5_u64.to_ne_bytes());
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).fetch_add(16, WrFlags::SIGNALED, result, remote, 3)).unwrap();
    from.sent(16, WcOpcode::FETCH_ADD);
    assert_eq!((from.bytes(400, 8), to.bytes(3000, 8)), (9_u64.to_ne_bytes().to_vec(), 12_u64.to_ne_bytes().to_vec()));
    seen::works("XRC atomics");
    step("what was not asked for did not happen");
    silent(&mut to.cq);
    assert!(to.context.leaks().is_empty());
}

fn two_queues_are_told_apart(target: &Target) {
    let mut first = Receiver::new(target);
    let (pd, mut cq) = (first.context.alloc_pd().unwrap(), first.context.create_cq(64).unwrap());
    let mr = pd.alloc_mr(BYTES, AccessFlags::ALL).unwrap();
    let mut second = first.context.srq_builder(&pd, 16).xrc(&first.xrcd, &cq).build().unwrap();
    assert_ne!(first.srq.number(), second.number());
    let (mut from, _recv) = connect(target, &first);
    for n in 0..8 {
        first.recv(n, 64 * n as usize, 64);
        let entry = mr.sge(64 * n as usize..64 * n as usize + 64).unwrap();
        try_recv_shared(&mut second, |batch| batch.recv(100 + n, &[entry])).unwrap();
    }
    step("one batch for both");
    let numbers = [first.srq.number(), second.number()];
    try_send(&mut from.qp, |batch| {
        for n in 0..16_u64 {
            batch.to_srq(numbers[n as usize % 2]).send(n, WrFlags::SIGNALED, Inline(&[n as u8; 9]))?;
        }
        Ok(())
    })
    .unwrap();
    for (n, wc) in completions(&mut from.cq, 16).into_iter().enumerate() {
        assert_eq!((wc.wr_id, wc.status()), (n as u64, WcStatus::SUCCESS));
    }
    for (n, wc) in completions(&mut first.cq, 8).into_iter().enumerate() {
        assert_eq!((wc.wr_id, wc.outcome().unwrap().byte_len), (n as u64, 9));
        assert_eq!(first.bytes(64 * n, 9), [2 * n as u8; 9]);
    }
    for (n, wc) in completions(&mut cq, 8).into_iter().enumerate() {
        let mut bytes = [0; 9];
        mr.read(64 * n, &mut bytes).unwrap();
        assert_eq!((wc.wr_id, bytes), (100 + n as u64, [2 * n as u8 + 1; 9]));
    }
}

fn a_message_waits_for_its_receive(target: &Target) {
    let mut to = Receiver::new(target);
    let (mut from, _recv) = connect(target, &to);
    from.hello(1, to.srq.number(), b"early");
    silent(&mut from.cq);
    to.recv(2, 0, 64);
    from.sent(1, WcOpcode::SEND);
    assert_eq!((to.received().wr_id, to.bytes(0, 5)), (2, b"early".to_vec()));
    step("as many as it holds, and no more");
    let capacity = to.srq.capacity();
    assert!(capacity >= 16 && to.srq.max_sge() >= 2);
    for n in 0..u64::from(capacity) {
        to.recv(n, 0, 64);
    }
    let entry = to.mr.sge(0..8).unwrap();
    let full = try_recv_shared(&mut to.srq, |batch| batch.recv(99, &[entry])).unwrap_err();
    assert_eq!(full, PostError::QueueFull);
    assert_eq!(to.srq.query().unwrap().max_wr, capacity);
}

fn slots_go_through(target: &Target) {
    let mut to = Receiver::new(target);
    let (mut from, _recv) = connect(target, &to);
    let (there, here) = (Pool::new(&to.pd, 4, 64).unwrap(), Pool::new(&from._pd, 4, 64).unwrap());
    while let Some(slot) = there.take() {
        to.srq.recv_slot(slot).unwrap();
    }
    for (n, imm) in [(0, None), (1, Some(77))] {
        let mut slot = here.take().unwrap();
        slot[..5].copy_from_slice(b"slot!");
        let srqn = to.srq.number();
        match imm {
            None => from.qp.send_slot_to_srq(slot, 5, srqn).unwrap(),
            Some(imm) => from.qp.send_imm_slot_to_srq(slot, 5, imm, srqn).unwrap(),
        }
        assert!(to.cq.poll().is_ok());
        let patience = Patience::new();
        let (slot, wc) = loop {
            if let Some(completion) = to.cq.poll().unwrap().next() {
                break there.reclaim(completion).unwrap();
            }
            patience.check("the slot comes back");
        };
        assert_eq!((&slot[..5], wc.outcome().unwrap().imm), (b"slot!".as_slice(), imm), "message {n}");
        loop {
            if let Some(completion) = from.cq.poll().unwrap().next() {
                here.reclaim(completion).unwrap();
                break;
            }
            patience.check("the slot comes back");
        }
    }
}

fn a_queue_that_is_not_there_ends_the_connection(target: &Target) {
    let own = Receiver::new(target);
    let foreign = Receiver::new(target);
    let nobody = Srqn::MAX;
    for (what, srqn) in [("of nobody", nobody), ("of another domain", foreign.srq.number())] {
        step(what);
        let (mut from, recv) = connect(target, &own);
        from.hello(1, srqn, b"?");
        let wc = completions(&mut from.cq, 1)[0];
        assert_eq!((wc.wr_id, wc.status()), (1, WcStatus::REM_INV_REQ_ERR), "{wc:?}");
        eventually("the receiving end is in error", || recv.query().unwrap().qp_state == QpState::ERR);
    }
    step("an ordinary shared receive queue has no number to be named by");
    let ordinary = own.context.create_srq(&own.pd, 4).unwrap();
    assert!(QpBuilder::rc(&own.pd, &own.cq, &own.cq).port(target.port).srq(&ordinary).build().is_ok());
}

fn memory_is_that_of_the_named_queue(target: &Target) {
    let to = Receiver::new(target);
    let other_pd = to.context.alloc_pd().unwrap();
    let other = other_pd.alloc_mr(BYTES, AccessFlags::ALL).unwrap();
    let (mut from, _recv) = connect(target, &to);
    let (srqn, entry) = (to.srq.number(), [from.sge(0, 8)]);
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).write(1, WrFlags::SIGNALED, &entry, to.remote(0))).unwrap();
    from.sent(1, WcOpcode::RDMA_WRITE);
    let remote = other.remote(0).unwrap();
    try_send(&mut from.qp, |batch| batch.to_srq(srqn).write(2, WrFlags::SIGNALED, &entry, remote)).unwrap();
    let wc = completions(&mut from.cq, 1)[0];
    assert_eq!((wc.wr_id, wc.status()), (2, WcStatus::REM_ACCESS_ERR), "{wc:?}");
}

fn the_receiving_end_must_allow_it(target: &Target) {
    let to = Receiver::new(target);
    let (mut from, _recv) = connect_with_access(target, &to, AccessFlags::REMOTE_WRITE);
    let (srqn, entry) = (to.srq.number(), [from.sge(0, 8)]);
    try_send(&mut from.qp, |batch| {
        batch.to_srq(srqn).write(1, WrFlags::SIGNALED, &entry, to.remote(0))?;
        batch.to_srq(srqn).read(2, WrFlags::SIGNALED, &entry, to.remote(0))
    })
    .unwrap();
    let both = completions(&mut from.cq, 2);
    assert_eq!((both[0].wr_id, both[0].status()), (1, WcStatus::SUCCESS));
    let wc = both[1];
    assert!([WcStatus::REM_ACCESS_ERR, WcStatus::REM_INV_REQ_ERR].contains(&wc.status()), "{wc:?}");
}

/// A file of the test's own.
fn file(name: &str) -> File {
    let path = std::env::temp_dir().join(format!("ironverbs-xrc-{}-{name}", std::process::id()));
    let file = File::create(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn contexts_share_a_domain_by_a_file(target: &Target) {
    let file = file("shared");
    let (one, two) = (target.open(), target.open());
    drop(domain(&one));
    let xrcd = one.open_xrcd(&file, XrcdOpen::New).unwrap();
    let first = Receiver::in_domain(one, xrcd);
    let xrcd = two.open_xrcd(&file, XrcdOpen::Existing).unwrap();
    let mut second = Receiver::in_domain(two, xrcd);
    let (mut from, recv) = connect(target, &first);
    step("through the first one's connection into the second one's queue");
    second.recv(5, 0, 64);
    from.hello(1, second.srq.number(), b"through");
    from.sent(1, WcOpcode::SEND);
    assert_eq!((second.received().wr_id, second.bytes(0, 7)), (5, b"through".to_vec()));
    step("the second one opens the connection, and the first one goes");
    let opened = second.xrcd.open_recv_qp(recv.qpn()).unwrap();
    assert_eq!((opened.qpn(), opened.state()), (recv.qpn(), QpState::RTS));
    drop((recv, first));
    second.recv(6, 0, 64);
    from.hello(2, second.srq.number(), b"alone");
    from.sent(2, WcOpcode::SEND);
    assert_eq!((second.received().wr_id, second.bytes(0, 5)), (6, b"alone".to_vec()));
    step("another domain cannot open it");
    let foreign = domain(&second.context);
    assert_eq!(foreign.open_recv_qp(opened.qpn()).unwrap_err().errno(), Some(Errno::EINVAL));
    seen::works("XRC shared domain");
}

fn a_file_says_who_is_first(target: &Target) {
    let (context, file) = (target.open(), file("first"));
    drop(domain(&context));
    let error = context.open_xrcd(&file, XrcdOpen::Existing).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EAGAIN));
    assert!(error.to_string().contains("nobody has opened a domain by this file"), "{error}");
    let first = context.open_xrcd(&file, XrcdOpen::OrCreate).unwrap();
    let error = context.open_xrcd(&file, XrcdOpen::New).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    assert!(error.to_string().contains("somebody has opened"), "{error}");
    let second = context.open_xrcd(&file, XrcdOpen::OrCreate).unwrap();
    drop(first);
    let third = context.open_xrcd(&file, XrcdOpen::Existing).unwrap();
    second.close().unwrap();
    third.close().unwrap();
    assert_eq!(context.open_xrcd(&file, XrcdOpen::Existing).unwrap_err().errno(), Some(Errno::EAGAIN), "all are gone");
}

fn a_receiving_end_goes_with_its_last_handle(target: &Target) {
    let to = Receiver::new(target);
    let made = to.xrcd.recv_qp().port(target.port).build().unwrap();
    let qpn = made.endpoint().qpn;
    let opened = to.xrcd.open_recv_qp(qpn).unwrap();
    assert_eq!(opened.state(), QpState::INIT);
    drop(made);
    let again = to.xrcd.open_recv_qp(qpn).unwrap();
    opened.close().unwrap();
    again.modify(&QpUpdate::to(QpState::ERR)).unwrap();
    assert_eq!(again.query().unwrap().qp_state, QpState::ERR);
    again.close().unwrap();
    let error = to.xrcd.open_recv_qp(qpn).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL));
    assert!(error.to_string().contains("no receiving end"), "{error}");
    assert!(to.context.leaks().is_empty());
}

fn a_domain_outlives_what_is_in_it(target: &Target) {
    let Receiver { srq, cq, mr, pd, xrcd, context } = Receiver::new(target);
    let recv = xrcd.recv_qp().port(target.port).build().unwrap();
    // The worst order.
    drop((xrcd, pd, cq));
    drop(mr);
    drop(srq);
    drop(recv);
    assert!(context.leaks().is_empty(), "{:?}", context.leaks());
    step("its handles are independent of each other");
    let xrcd = domain(&context);
    let other = xrcd.clone();
    let refused = xrcd.close().unwrap_err();
    assert!(refused.error.to_string().contains("close_xrcd: XRC domain is in use"), "{}", refused.error);
    drop(refused);
    other.close().unwrap();
    assert!(context.leaks().is_empty());
}

fn a_failed_connect_gives_the_receiving_end_back(target: &Target) {
    let mut to = Receiver::new(target);
    let context = target.open_peer();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let send = QpBuilder::xrc_send(&pd, &cq).port(target.port).max_inline_bytes(16).build().unwrap();
    let recv = to.xrcd.recv_qp().port(target.port).build().unwrap();
    let nowhere = Endpoint { gid: None, lid: ironverbs::Lid(0), ..send.endpoint() };
    let failed = recv.connect(&nowhere).unwrap_err();
    assert!(failed.error.to_string().contains("missing") || failed.error.to_string().contains("LID"), "{failed}");
    let mut options = failed.prepared.connect_options();
    let far = Endpoint { mtu: Some(ironverbs::Mtu::B4096), ..send.endpoint() };
    options.path_mtu = Some(ironverbs::Mtu::B4096);
    let recv = match failed.prepared.connect_with(&far, &options) {
        Ok(connected) => {
            drop(connected);
            to.xrcd.recv_qp().port(target.port).build().unwrap()
        }
        Err(failed) => failed.prepared,
    };
    let recv_end = recv.endpoint();
    let _recv = recv.connect(&send.endpoint()).unwrap();
    let mut qp = send.connect(&recv_end).unwrap();
    to.recv(1, 0, 64);
    let srqn = to.srq.number();
    try_send(&mut qp, |batch| batch.to_srq(srqn).send(2, WrFlags::NONE, Inline(b"x"))).unwrap();
    assert_eq!(to.received().status(), WcStatus::SUCCESS);
}

fn transitions_are_those_of_their_ends(target: &Target) {
    let to = Receiver::new(target);
    let (mut from, recv) = connect(target, &to);
    let error = recv.modify(&QpUpdate::to(QpState::INIT)).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: XRC receive queue pair, RTS to INIT: there is no such transition");
    let error = from.qp.modify(&QpUpdate::to(QpState::RTS).min_rnr_timer(ironverbs::RnrTimer::DEFAULT)).unwrap_err();
    assert!(error.to_string().contains("XRC send queue pair, RTS to RTS: not allowed min_rnr_timer"), "{error}");
    recv.modify(&QpUpdate::to(QpState::RTS).min_rnr_timer(ironverbs::RnrTimer::DEFAULT)).unwrap();
    let attr = recv.query().unwrap();
    assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, from.qp.qpn().get()));
    let attr = from.qp.query().unwrap();
    assert_eq!((attr.qp_state, attr.dest_qp_num), (QpState::RTS, recv.qpn().get()));
    let cap = from.qp.cap();
    assert_eq!((cap.max_recv_wr, cap.max_recv_sge), (0, 0));
    assert!(cap.max_send_wr >= 16 && cap.max_send_sge >= 3 && cap.max_inline_data >= 64);
    assert_eq!(recv.xrcd().clone().close().unwrap_err().error.to_string().split(':').next(), Some("close_xrcd"));
}

fn flushed_in_error_and_connected_again(target: &Target) {
    let mut to = Receiver::new(target);
    let (mut from, recv) = connect(target, &to);
    let srqn = to.srq.number();
    from.hello(1, srqn, b"waits");
    from.qp
        .drain(&mut [&mut from.cq], PATIENCE, |completion| {
            assert_eq!((completion.wr_id(), completion.status()), (1, WcStatus::WR_FLUSH_ERR));
        })
        .unwrap();
    from.qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    step("the same two ends once more");
    recv.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    let (a, b) = (from.qp.endpoint(), recv.query().unwrap());
    assert_eq!(b.qp_state, QpState::RESET);
    let send = QpBuilder::xrc_send(&from._pd, &from.cq).port(target.port).max_inline_bytes(64).build().unwrap();
    drop(recv);
    let recv = to.xrcd.recv_qp().port(target.port).build().unwrap();
    let recv_end = recv.endpoint();
    assert_ne!(a.qpn, recv_end.qpn);
    let _recv = recv.connect(&send.endpoint()).unwrap();
    from.qp = send.connect(&recv_end).unwrap();
    to.recv(7, 0, 64);
    from.hello(8, srqn, b"again");
    from.sent(8, WcOpcode::SEND);
    assert_eq!(to.received().wr_id, 7);
}

fn its_completion_queue_has_events(target: &Target) {
    let context = target.open();
    let xrcd = domain(&context);
    let (pd, channel) = (context.alloc_pd().unwrap(), context.create_comp_channel().unwrap());
    let mut cq = context.cq_builder(16).channel(&channel).build().unwrap();
    let mut srq = context.srq_builder(&pd, 8).xrc(&xrcd, &cq).build().unwrap();
    let mr = pd.alloc_mr(64, AccessFlags::ALL).unwrap();
    let to = Receiver::in_domain(context.clone(), xrcd.clone());
    let (mut from, _recv) = connect(target, &to);
    for round in 0..5 {
        let entry = mr.sge(..64).unwrap();
        try_recv_shared(&mut srq, |batch| batch.recv(round, &[entry])).unwrap();
        cq.arm(Notify::Any).unwrap();
        from.hello(round, srq.number(), b"wake up");
        assert!(cq.wait(PATIENCE).unwrap(), "round {round}");
        assert_eq!(completions(&mut cq, 1)[0].wr_id, round);
        from.sent(round, WcOpcode::SEND);
    }
    assert!(!cq.wait(Duration::from_millis(20)).unwrap());
    assert_eq!((cq.load().queue_pairs, cq.load().demand), (1, 8), "the queue counts as what puts completions there");
}

fn few_receives_are_told(target: &Target) {
    let mut to = Receiver::new(target);
    let events = to.context.async_events();
    let (mut from, recv) = connect(target, &to);
    for n in 0..4 {
        to.recv(n, 0, 64);
    }
    to.srq.arm_limit(3).unwrap();
    for n in 0..2 {
        from.hello(n, to.srq.number(), b"one less");
        from.sent(n, WcOpcode::SEND);
    }
    let patience = Patience::new();
    loop {
        match events.try_next().unwrap() {
            Some(event) if event.kind == AsyncEventType::SRQ_LIMIT_REACHED => {
                assert_eq!(event.subject, Subject::Srq(to.srq.id()));
                break;
            }
            Some(event) => assert_eq!(event.subject, Subject::Qp(recv.qpn()), "{event:?}"),
            None => patience.check("the limit is told"),
        }
    }
}

fn closes_in_order_only(target: &Target) {
    let Receiver { srq, cq, mr: _mr, pd: _pd, xrcd, context } = Receiver::new(target);
    let refused = cq.close().unwrap_err();
    assert!(refused.error.to_string().contains("drop them first"), "{}", refused.error);
    let recv = xrcd.recv_qp().port(target.port).build().unwrap();
    srq.close().unwrap();
    refused.object.close().unwrap();
    drop(recv);
    xrcd.close().unwrap();
    assert!(context.leaks().is_empty());
    step("a number that is no receiving end's");
    let xrcd = domain(&context);
    assert_eq!(xrcd.open_recv_qp(Qpn::new(0x12_3456).unwrap()).unwrap_err().errno(), Some(Errno::EINVAL));
}

/// It is why the change is refused, and not a limit that it goes beyond as well.
fn another_handles_change_of_state_is_named_first(target: &Target) {
    let to = Receiver::new(target);
    let prepared = to.xrcd.recv_qp().port(target.port).build().unwrap();
    let own = prepared.endpoint();
    let other = to.xrcd.open_recv_qp(own.qpn).unwrap();
    other.modify(&QpUpdate::to(QpState::ERR)).unwrap();
    let mut options = prepared.connect_options();
    options.max_dest_rd_atomic = 255;
    let refused = prepared.connect_with(&own, &options).unwrap_err();
    assert!(refused.to_string().contains("the queue pair went from INIT to ERR by itself"), "{refused}");
}

/// The kernel refused to destroy it at first. Once it is gone its events are those of something that was dropped.
fn what_the_kernel_kept_for_a_while_is_forgotten_when_it_goes(target: &Target) {
    drop(domain(&target.open()));
    let fault = Fault::new();
    let sys = fault.wrap_sys(target.host.sys());
    let info = sys.devices().unwrap().into_iter().find(|info| info.name == target.device).unwrap();
    let context = Context::open_on(&*sys, &info).unwrap();
    let to = Receiver::in_domain(context.clone(), domain(&context));
    let (mut from, recv) = connect_with_access(target, &to, AccessFlags::REMOTE_WRITE);
    let entry = [from.sge(0, 8)];
    let refused = to.remote(0);
    try_send(&mut from.qp, |batch| batch.to_srq(to.srq.number()).read(1, WrFlags::SIGNALED, &entry, refused)).unwrap();
    assert_ne!(completions(&mut from.cq, 1)[0].status(), WcStatus::SUCCESS);
    step("its event is read by a thread that waits for something else");
    let channel = context.create_comp_channel().unwrap();
    let mut other = context.cq_builder(4).channel(&channel).build().unwrap();
    assert!(!other.wait(Duration::from_millis(50)).unwrap());
    fault.fail_matching(|command| command.name() == "QP.DESTROY", Errno::EPERM);
    drop(recv);
    fault.clear();
    assert_eq!(context.leaks().len(), 1);
    drop(context.alloc_pd().unwrap());
    assert_eq!(context.leaks(), vec![]);
    let event = context.async_events().try_next().unwrap().expect("a READ that was not allowed is told");
    assert_eq!(event.subject, Subject::Dropped, "{event:?}");
}

/// Everything of a connection, made in an order in which each object is there before those that need it.
fn set_up(target: &Target, context: &Context, file: &File) -> Result<(), Error> {
    let xrcd = context.open_xrcd(file, XrcdOpen::OrCreate)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(16)?);
    let srq = context.srq_builder(&pd, 8).xrc(&xrcd, &cq).build()?;
    let send = QpBuilder::xrc_send(&pd, &cq).port(target.port).build()?;
    let recv = xrcd.recv_qp().port(target.port).build()?;
    let (send_end, recv_end) = (send.endpoint(), recv.endpoint());
    let recv = recv.connect(&send_end)?;
    let send = send.connect(&recv_end)?;
    let opened = xrcd.open_recv_qp(recv.qpn())?;
    recv.modify(&QpUpdate::to(QpState::ERR))?;
    assert_eq!((opened.query()?.qp_state, send.state()), (QpState::ERR, QpState::RTS));
    drop(srq);
    Ok(())
}

/// Nothing is left of what was made before, and the domain is open to the next one.
fn every_command_may_fail(target: &Target) {
    descriptors_may_stay();
    drop(domain(&target.open()));
    let file = file("faults");
    let fault = Fault::new();
    let sys = fault.wrap_sys(target.host.sys());
    let info = sys.devices().unwrap().into_iter().find(|info| info.name == target.device).unwrap();
    let context = Context::open_on(&*sys, &info).unwrap();
    for (n, errno) in (0..).flat_map(|n| [(n, Errno::ENOMEM), (n, Errno::EINVAL)]) {
        step(format!("command {n} fails with {errno:?}"));
        fault.clear();
        fault.fail_nth(n, errno);
        let before = fault.injected();
        let result = set_up(target, &context, &file);
        let injected = fault.injected() - before;
        fault.clear();
        let leaks = context.leaks();
        if injected == 0 {
            result.unwrap();
            assert!(n > 20, "a set-up has more than {n} commands");
            break;
        }
        match result {
            Err(error) => assert_eq!(error.errno(), Some(errno), "{error}"),
            // It was the end of one of the objects, which is told, as long as the kernel was not asked again; or something that
            // there is another way for: a doorbell page of the queue's own, a GID where a LID does.
            Ok(()) => {
                // What needs an object that stayed stays, too.
                let mut told = leaks.iter().map(|leak| leak.errno);
                assert!(told.next().is_none_or(|first| first == errno) && told.all(|e| e == Errno::EBUSY), "{leaks:?}");
            }
        }
        drop(context.open_xrcd(&file, XrcdOpen::OrCreate).unwrap());
        assert_eq!(context.leaks(), vec![], "what was refused once was not asked for again");
    }
}
