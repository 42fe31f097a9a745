//! What only a device that can be told what to do shows: every reason of a failure from the device to the completion,
//! completions out of order, queue pairs that go between their completions, indices that wrap. On simulated adapters.
//!
//! # Safety argument
//!
//! Batches are submitted whose payload is inline, or is of regions that outlive their queue pairs and that are read and written
//! by copying functions only.
#![allow(unsafe_code)]

use ironverbs::sys::Sys;
use ironverbs::{
    AccessFlags, Context, Cq, Inline, Mr, Pd, Qp, QpBuilder, QpState, Srq, Wc, WcOpcode, WcStatus, WrFlags,
};
use softcx::{DeviceId, Punish, SimDevice, SimHost, Syndrome};
use std::time::Duration;

/// An adapter whose queue pairs are connected to each other.
struct Rig {
    host: SimHost,
    device: DeviceId,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    context: Context,
}

impl Rig {
    fn new(cq_depth: u32) -> Self {
        let host = SimHost::new(1);
        let device = host.add(SimDevice::roce("mlx5_0"));
        let context = Context::open_on(&host, &host.devices().unwrap()[0]).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(cq_depth).unwrap();
        let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
        Self { host, device, cq, mr, pd, context }
    }

    /// Two queue pairs of that depth.
    fn pair(&self, depth: u32, srq: Option<&Srq>) -> [Qp; 2] {
        let prepare = || {
            let builder = QpBuilder::rc(&self.pd, &self.cq, &self.cq).access(AccessFlags::ALL).max_inline_bytes(64);
            let builder = builder.max_send_wr(depth).max_recv_wr(depth);
            match srq {
                Some(srq) => builder.srq(srq).build().unwrap(),
                None => builder.build().unwrap(),
            }
        };
        let (a, b) = (prepare(), prepare());
        let (to_a, to_b) = (a.endpoint(), b.endpoint());
        [a.connect(&to_b).unwrap(), b.connect(&to_a).unwrap()]
    }

    /// The device does everything that it can.
    fn settle(&self) {
        assert!(self.host.fabric().settle(Duration::from_secs(10)));
    }

    fn poll(&mut self) -> Vec<Wc> {
        std::iter::from_fn(|| self.cq.poll_one().unwrap()).collect()
    }

    fn finish(self) {
        let reports = self.host.fabric().take_reports();
        assert!(reports.is_empty(), "{reports:#?}");
        assert!(self.context.leaks().is_empty());
    }
}

fn send(qp: &mut Qp, wr_id: u64, flags: WrFlags) {
    let mut batch = qp.send_batch();
    batch.send(wr_id, flags, Inline(&wr_id.to_ne_bytes())).unwrap();
    // SAFETY: inline payload.
    unsafe { batch.submit().unwrap() };
}

fn receive(qp: &mut Qp, wr_id: u64, mr: &Mr) {
    let mut batch = qp.recv_batch();
    batch.recv(wr_id, &[mr.sge(0..64).unwrap()]).unwrap();
    // SAFETY: see the file's argument.
    unsafe { batch.submit().unwrap() };
}

const STATUSES: &[(Syndrome, WcStatus)] = &[
    (Syndrome::LOCAL_LENGTH, WcStatus::LOC_LEN_ERR),
    (Syndrome::LOCAL_QP_OP, WcStatus::LOC_QP_OP_ERR),
    (Syndrome::LOCAL_PROTECTION, WcStatus::LOC_PROT_ERR),
    (Syndrome::FLUSH, WcStatus::WR_FLUSH_ERR),
    (Syndrome::MW_BIND, WcStatus::MW_BIND_ERR),
    (Syndrome::BAD_RESPONSE, WcStatus::BAD_RESP_ERR),
    (Syndrome::LOCAL_ACCESS, WcStatus::LOC_ACCESS_ERR),
    (Syndrome::REMOTE_INVALID_REQUEST, WcStatus::REM_INV_REQ_ERR),
    (Syndrome::REMOTE_ACCESS, WcStatus::REM_ACCESS_ERR),
    (Syndrome::REMOTE_OPERATION, WcStatus::REM_OP_ERR),
    (Syndrome::RETRY_EXCEEDED, WcStatus::RETRY_EXC_ERR),
    (Syndrome::RNR_RETRY_EXCEEDED, WcStatus::RNR_RETRY_EXC_ERR),
    (Syndrome::REMOTE_ABORTED, WcStatus::REM_ABORT_ERR),
    // Of the future: no name, no vendor's byte.
    (Syndrome(0x77), WcStatus::GENERAL_ERR),
];

#[test]
fn every_syndrome_is_a_status_with_the_vendors_byte_on_either_side() {
    assert_eq!(STATUSES.len(), Syndrome::ALL.len() + 1, "a syndrome that this test does not know");
    for (syndrome, status) in STATUSES {
        for on_receive in [false, true] {
            let mut rig = Rig::new(64);
            let [mut a, mut b] = rig.pair(8, None);
            for wr_id in [1, 2] {
                receive(&mut b, wr_id, &rig.mr);
            }
            let qpn = if on_receive { b.qpn() } else { a.qpn() }.get();
            rig.host.with(rig.device, |device| {
                let fail =
                    if on_receive { softcx::Control::fail_next_receive } else { softcx::Control::fail_next_send };
                fail(device, qpn, *syndrome).unwrap();
            });
            // The first is not signaled: a failure completes all the same, and so does what comes after it.
            send(&mut a, 11, WrFlags::NONE);
            send(&mut a, 12, WrFlags::NONE);
            rig.settle();
            let all = rig.poll();
            let number = if on_receive { 1 } else { 11 };
            let failed = all.iter().find(|wc| wc.wr_id == number).unwrap_or_else(|| panic!("{syndrome}: {all:?}"));
            let error = failed.outcome().unwrap_err();
            assert_eq!((failed.qpn(), error.status), (qpn, *status), "{syndrome}");
            assert_eq!(error.vendor_err, u32::from(syndrome.vendor()), "{syndrome}");
            let next = all.iter().find(|wc| wc.wr_id == number + 1).unwrap_or_else(|| panic!("{syndrome}: {all:?}"));
            assert_eq!(next.status(), WcStatus::WR_FLUSH_ERR, "what comes after {syndrome}");
            assert_eq!(next.outcome().unwrap_err().vendor_err, u32::from(Syndrome::FLUSH.vendor()));
            rig.host.fabric().take_reports();
            drop((a, b));
            rig.finish();
        }
    }
}

/// Queue pairs complete in any order, each in its own.
#[test]
fn completions_of_several_queue_pairs_come_in_any_order() {
    let mut rig = Rig::new(1024);
    let mut pairs: Vec<_> = (0..8).map(|_| rig.pair(32, None)).collect();
    let mut orders = std::collections::BTreeSet::new();
    for round in 0..10 {
        for (n, [a, _]) in pairs.iter_mut().enumerate() {
            let mut batch = a.send_batch();
            for i in 0..8 {
                batch.write(n as u64 * 100 + i, WrFlags::SIGNALED, Inline(&[7]), rig.mr.remote(n).unwrap()).unwrap();
            }
            // SAFETY: inline payload.
            unsafe { batch.submit().unwrap() };
        }
        rig.settle();
        if round % 2 == 1 {
            // The order changes with each turn of the device: one more, in which nothing happens.
            rig.host.fabric().step(rig.host.fabric().now());
        }
        let all = rig.poll();
        assert_eq!(all.len(), 64);
        for n in 0..8 {
            let own: Vec<u64> = all.iter().map(|wc| wc.wr_id).filter(|id| id / 100 == n).collect();
            assert_eq!(own, (n * 100..n * 100 + 8).collect::<Vec<_>>(), "round {round}");
        }
        orders.insert(all.iter().map(|wc| wc.wr_id).collect::<Vec<_>>());
    }
    assert!(orders.len() > 1, "the device answers in one order only: nothing was tested");
    drop(pairs);
    rig.finish();
}

/// One of several queue pairs goes while its completions are in the queue, some read and some not; another takes its place
/// and its numbers at once.
#[test]
fn a_queue_pair_goes_between_its_completions() {
    let mut rig = Rig::new(256);
    let mut others = rig.pair(16, None);
    for round in 0..20_u64 {
        let [mut a, mut b] = rig.pair(16, None);
        for wr_id in 0..6 {
            receive(&mut b, 100 + wr_id, &rig.mr);
            send(&mut a, wr_id, WrFlags::SIGNALED);
        }
        rig.settle();
        let read: Vec<u64> = (0..round % 12).map(|_| rig.cq.poll_one().unwrap().unwrap().wr_id).collect();
        drop((a, b));
        let [mut c, mut d] = rig.pair(16, None);
        receive(&mut d, 300, &rig.mr);
        send(&mut c, 200, WrFlags::SIGNALED);
        receive(&mut others[1], 500, &rig.mr);
        send(&mut others[0], 400, WrFlags::SIGNALED);
        rig.settle();
        let rest = rig.poll();
        assert!(rest.iter().all(|wc| wc.status() == WcStatus::SUCCESS), "{rest:?}");
        let mut all: Vec<u64> = read.into_iter().chain(rest.iter().map(|wc| wc.wr_id)).collect();
        all.sort_unstable();
        let want: Vec<u64> = (0..6).chain(100..106).chain([200, 300, 400, 500]).collect();
        assert_eq!(all, want, "round {round}");
        drop((c, d));
    }
    drop(others);
    rig.finish();
}

/// The indices of the rings have 16 bits, those of the completion queue 24: all of them go around, with queues that they do
/// not divide. `IRONVERBS_TEST_POSTS=17000000` goes past the latter, too.
#[test]
fn indices_wrap() {
    let posts: u64 = std::env::var("IRONVERBS_TEST_POSTS").map_or(70_000, |n| n.parse().unwrap());
    for shared in [false, true] {
        let mut rig = Rig::new(200);
        // Poisoning takes time, and others test it.
        let punish = Punish { poison: false, ..Punish::default() };
        rig.host.with(rig.device, |device| device.set_punish(punish));
        let mut srq = rig.context.create_srq(&rig.pd, 60).unwrap();
        let [mut a, mut b] = rig.pair(48, shared.then_some(&srq));
        let room = [rig.mr.sge(0..64).unwrap()];
        let mut posted = 0;
        while posted < posts {
            let count = 1 + posted % 40;
            let ids = posted..posted + count;
            let mut batch = if shared { None } else { Some(b.recv_batch()) };
            match &mut batch {
                Some(batch) => ids.clone().for_each(|id| batch.recv(id, &room).unwrap()),
                None => {
                    let mut batch = srq.recv_batch();
                    ids.clone().for_each(|id| batch.recv(id, &room).unwrap());
                    // SAFETY: see the file's argument.
                    unsafe { batch.submit().unwrap() };
                }
            }
            if let Some(batch) = batch {
                // SAFETY: see the file's argument.
                unsafe { batch.submit().unwrap() };
            }
            let mut batch = a.send_batch();
            for id in ids.clone() {
                // Of one block and of two.
                let bytes = [id as u8; 60];
                let payload = if id % 3 == 0 { &bytes[..] } else { &bytes[..8] };
                batch.send_imm(id, WrFlags::SIGNALED, Inline(payload), id as u32).unwrap();
            }
            // SAFETY: inline payload.
            unsafe { batch.submit().unwrap() };
            rig.settle();
            let mut completions = rig.cq.poll().unwrap();
            let (mut sent, mut received) = (ids.clone(), ids);
            while let Some(completion) = completions.next() {
                let done = completion.outcome().unwrap();
                if done.opcode == WcOpcode::SEND {
                    assert_eq!(Some(completion.wr_id()), sent.next());
                } else {
                    let id = received.next();
                    assert_eq!((Some(completion.wr_id()), done.imm), (id, id.map(|id| id as u32)));
                }
            }
            drop(completions);
            assert!(sent.is_empty() && received.is_empty());
            posted += count;
        }
        assert_eq!(a.query().unwrap().qp_state, QpState::RTS);
        drop((a, b, srq));
        rig.finish();
    }
}
