//! Asynchronous events of queue pairs, and those of objects that are gone when they are told.

use crate::fixture::{Half, PATIENCE, Pair, SHORT, Setup, connect, eventually, prepare, recv_early};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::{Kind, Target};
use crate::tests;
use ironverbs::{
    AsyncEvent, AsyncEventType, AsyncEvents, Context, Grh, Lacking, Path, QpBuilder, QpUpdate, RnrTimer, Subject,
    WrFlags,
};

tests! {
    message_before_ready_to_send_establishes_communication,
    last_work_request_of_a_shared_queue_is_told,
    event_of_a_queue_dropped_since_is_told_as_such,
}

/// Waits for the event, or skips the test if the driver does not raise it.
fn expect_or_skip(events: &AsyncEvents, kind: AsyncEventType, raised: bool) -> AsyncEvent {
    let timeout = if raised { PATIENCE } else { SHORT * 10 };
    match events.next(timeout).unwrap() {
        Some(event) => {
            assert_eq!(event.kind, kind);
            event
        }
        None if raised => panic!("no {kind} within {timeout:?}"),
        None => {
            let name = kind.to_string();
            seen::refused_by(&format!("event {}", name.trim_start_matches("QP_")), Lacking::Driver);
            skip(format!("Soft-RoCE of this kernel raises no {kind}"))
        }
    }
}

/// The first message to a queue pair that is not yet ready to send.
fn message_before_ready_to_send_establishes_communication(target: &Target) {
    let setup = Setup::default();
    let (a, b) = (Half::new(target, target.open(), &setup), Half::new(target, target.open_peer(), &setup));
    let (a_end, b_end) = (a.prepared.endpoint(), b.prepared.endpoint());
    let sgid_index = b.prepared.gid_index().unwrap_or_else(|| skip("the port has no GID"));
    let Half { mut prepared, context, .. } = b;
    recv_early(&mut prepared, 1, &[]);
    let mut qp = prepared.into_unconnected();
    let dgid = a_end.gid.unwrap();
    let grh = Some(Grh { dgid, sgid_index, hop_limit: 64, traffic_class: 0, flow_label: 0 });
    let rtr = QpUpdate::to(ironverbs::QpState::RTR)
        .path(&Path { port: target.port, dlid: a_end.lid, sl: 0, static_rate: Default::default(), grh })
        .path_mtu(a_end.mtu.unwrap())
        .dest_qpn(a_end.qpn)
        .rq_psn(a_end.psn)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(RnrTimer::DEFAULT);
    qp.modify(&rtr).unwrap();
    let mut a = a.connect(&b_end, &setup);
    a.send(|batch| batch.send(1, WrFlags::SIGNALED, &[]));
    a.success();
    let event = expect_or_skip(&context.async_events(), AsyncEventType::COMM_EST, !target.kind.is_rxe());
    assert_eq!(event.subject, Subject::Qp(qp.qpn()));
    seen::works("event COMM_EST");
}

/// A queue pair that has failed takes no more receives from the shared queue, and says so.
fn last_work_request_of_a_shared_queue_is_told(target: &Target) {
    let setup = Setup::default();
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let (cq, peer_cq) = (context.create_cq(16).unwrap(), context.create_cq(16).unwrap());
    let srq = context.create_srq(&pd, 8).unwrap();
    let prepared = QpBuilder::rc(&pd, &cq, &cq).port(target.port).srq(&srq).build().unwrap();
    let other = prepare(target, &pd, &peer_cq, &peer_cq, &setup);
    let (end, other_end) = (prepared.endpoint(), other.endpoint());
    let mut qp = connect(prepared, &other_end, &setup);
    let _other = connect(other, &end, &setup);
    let events = context.async_events();
    assert_eq!(events.try_next().unwrap(), None);
    qp.to_error().unwrap();
    let event = expect_or_skip(&events, AsyncEventType::QP_LAST_WQE_REACHED, target.kind != Kind::Rxe6_1);
    assert_eq!(event.subject, Subject::Qp(qp.qpn()));
    seen::works("event LAST_WQE_REACHED");
    step("it can be closed all the same");
    qp.close().unwrap();
}

/// The event was read, by a thread that waits for another queue, while its own queue was still there.
fn event_of_a_queue_dropped_since_is_told_as_such(target: &Target) {
    let setup = Setup { cq_depth: 4, send_wr: 64, channel: true, ..Setup::default() };
    let mut pair = Pair::new(target, &setup);
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(0));
    let n = u64::from(pair.a.cq.capacity()) + 9;
    pair.a.send(|batch| (0..n).try_for_each(|id| batch.write(id, WrFlags::SIGNALED, &[entry], remote)));
    let context: Context = pair.a.context.clone();
    let channel = context.create_comp_channel().unwrap();
    let mut other = context.cq_builder(4).channel(&channel).build().unwrap();
    eventually("the overrun is noticed", || {
        assert!(!other.wait(SHORT).unwrap());
        // What is there comes first.
        while let Ok(Some(_)) = pair.a.cq.poll_one() {}
        pair.a.cq.poll_one().is_err()
    });
    drop(pair);
    let event = context.async_events().try_next().unwrap().unwrap();
    assert_eq!((event.kind, event.subject), (AsyncEventType::CQ_ERR, Subject::Dropped));
}
