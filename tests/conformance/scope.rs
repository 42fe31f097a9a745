//! Scopes: plain borrowed buffers, the program's again when the scope ends, however it ends.

use crate::fixture::{PATIENCE, Pair, SHORT, Setup, impatient};
use crate::target::{Target, fast_forward};
use crate::tests;
use fastrand::Rng;
use ironverbs::{Error, QpState, RemoteAddr, Scope, Verb, WcOpcode, WcStatus, WrFlags};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

tests! {
    sends_and_receives_borrowed_buffers,
    writes_and_reads_the_peer,
    ends_in_time_when_nothing_comes,
    failures_are_told_and_everything_is_freed,
    a_failure_that_nobody_looked_at_is_the_scopes,
    one_deadline_for_all_waits,
    a_panic_in_the_closure_passes_through,
    refused_where_it_would_not_be_safe,
    posts_no_more_than_the_queue_holds,
}

const LONG: Duration = Duration::from_secs(10);

fn sends_and_receives_borrowed_buffers(target: &Target) {
    let mut rng = Rng::with_seed(91);
    let mut pair = Pair::new(target, &Setup::default());
    for len in [0, 1, 100, 5000] {
        let question: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
        let mut answer = vec![0; len + 10];
        let (a, b) = (&mut pair.a, &mut pair.b);
        let received =
            b.qp.scope(&mut b.cq, LONG, |scope| {
                scope.recv(&mut answer)?;
                let sent = a.qp.scope(&mut a.cq, LONG, |scope| {
                    scope.send(&question)?;
                    scope.wait()
                })?;
                assert_eq!(sent.len(), 1);
                assert_eq!(sent[0].outcome().unwrap().opcode, WcOpcode::SEND);
                scope.wait()
            })
            .unwrap();
        assert_eq!(received.len(), 1);
        let done = received[0].outcome().unwrap();
        assert_eq!((done.opcode, done.byte_len as usize), (WcOpcode::RECV, len));
        assert_eq!(answer[..len], question);
        assert_eq!(answer[len..], [0; 10]);
    }
}

fn writes_and_reads_the_peer(target: &Target) {
    let mut rng = Rng::with_seed(92);
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut rng);
    let (first, second) = ([1u8; 100], [2u8; 50]);
    let (mut back, mut more) = (vec![0; 150], vec![0; 200]);
    let (at, after) = (pair.b.remote(1000), pair.b.remote(1100));
    let a = &mut pair.a;
    let all =
        a.qp.scope(&mut a.cq, LONG, |scope| {
            scope.write(&first, at)?;
            scope.write(&second, after)?;
            let written = scope.wait()?;
            assert_eq!(written.len(), 2);
            scope.read(&mut back, at)?;
            scope.read(&mut more, at)?;
            scope.wait()
        })
        .unwrap();
    assert!(all.iter().all(|wc| wc.outcome().unwrap().opcode == WcOpcode::RDMA_READ));
    pair.b.expect(1000, &first);
    pair.b.expect(1100, &second);
    assert_eq!(back, pair.b.image[1000..1150]);
    assert_eq!(more, pair.b.image[1000..1200]);
    pair.check();
    // What is not waited for is waited for at the end.
    let a = &mut pair.a;
    let third = [3u8; 64];
    a.qp.scope(&mut a.cq, Duration::MAX, |scope| scope.write(&third, at)).unwrap();
    pair.b.expect(1000, &third);
    pair.check();
    pair.a.silent();
}

/// Nobody sends: the time-out ends the wait, the buffer is the program's again, and the queue pair is in error.
fn ends_in_time_when_nothing_comes(target: &Target) {
    let mut pair = Pair::new(target, &Setup { options: impatient, ..Setup::default() });
    let mut buffer = [0; 64];
    let started = Instant::now();
    let a = &mut pair.a;
    let error =
        a.qp.scope(&mut a.cq, SHORT, |scope| {
            scope.recv(&mut buffer)?;
            scope.wait()
        })
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(buffer, [0; 64]);
    buffer.fill(1);
    assert_eq!(pair.a.qp.query().unwrap().qp_state, QpState::ERR);
    let entry = pair.b.sge(0, 8);
    pair.b.send(|batch| batch.send(1, WrFlags::SIGNALED, &[entry]));
    fast_forward(PATIENCE);
    assert_ne!(pair.b.completions(1)[0].status(), WcStatus::SUCCESS);
    assert_eq!(buffer, [1; 64], "the device wrote into a buffer that was given back");
}

fn failures_are_told_and_everything_is_freed(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let wrong = ironverbs::RemoteAddr { addr: 0, rkey: ironverbs::Rkey(0) };
    let (bytes, mut buffer) = ([5u8; 10], [0; 10]);
    let a = &mut pair.a;
    let all =
        a.qp.scope(&mut a.cq, LONG, |scope| {
            scope.recv(&mut buffer)?;
            scope.write(&bytes, wrong)?;
            scope.wait_each()
        })
        .unwrap();
    let statuses: Vec<_> = all.iter().map(|wc| wc.status()).collect();
    assert!(statuses.contains(&WcStatus::REM_ACCESS_ERR) && statuses.contains(&WcStatus::WR_FLUSH_ERR), "{statuses:?}");
    pair.a.silent();
    assert!(pair.a.context.leaks().is_empty());
}

/// Silent loss: a send that fails after the closure has returned, or of which the closure drops what `wait` said.
fn a_failure_that_nobody_looked_at_is_the_scopes(target: &Target) {
    let wrong = ironverbs::RemoteAddr { addr: 0, rkey: ironverbs::Rkey(0) };
    let bytes = [5u8; 10];
    type Closure<'env> = fn(&mut Scope<'_, 'env>, &'env [u8], RemoteAddr) -> Result<(), Error>;
    let closures: [Closure<'_>; 3] = [
        |scope, bytes, wrong| scope.write(bytes, wrong),
        |scope, bytes, wrong| {
            scope.write(bytes, wrong)?;
            scope.wait().map(|_| ())
        },
        |scope, bytes, wrong| {
            scope.write(bytes, wrong)?;
            let _ = scope.wait();
            Ok(())
        },
    ];
    for closure in closures {
        let mut pair = Pair::new(target, &Setup::default());
        let a = &mut pair.a;
        let error = a.qp.scope(&mut a.cq, LONG, |scope| closure(scope, &bytes, wrong)).unwrap_err();
        let Error::Failed { verb: Verb::PostSend, index: 0, error: reason } = &error else { panic!("{error:?}") };
        assert_eq!(reason.status, WcStatus::REM_ACCESS_ERR);
        assert!(
            error.to_string().starts_with("post_send: operation 0 of the scope, counted from 0, failed: REM_ACCESS")
        );
        pair.a.silent();
    }
    // The cause is told, and not what was flushed because of it.
    let mut pair = Pair::new(target, &Setup::default());
    let mut buffer = [0; 10];
    let a = &mut pair.a;
    let error =
        a.qp.scope(&mut a.cq, LONG, |scope| {
            scope.recv(&mut buffer)?;
            scope.write(&bytes, wrong)
        })
        .unwrap_err();
    assert!(
        matches!(&error, Error::Failed { index: 1, error, .. } if error.status != WcStatus::WR_FLUSH_ERR),
        "{error}"
    );
}

/// An explicit wait that timed out is not followed by another of the same length.
fn one_deadline_for_all_waits(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let mut buffer = [0; 64];
    let timeout = Duration::from_secs(2);
    let (started, mut waited) = (Instant::now(), Instant::now());
    let a = &mut pair.a;
    let error =
        a.qp.scope(&mut a.cq, timeout, |scope| {
            scope.recv(&mut buffer)?;
            let result = scope.wait().map(|_| ());
            waited = Instant::now();
            result
        })
        .unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(waited - started >= timeout, "{:?}", waited - started);
    assert!(waited.elapsed() < timeout / 4, "{:?} more", waited.elapsed());
}

fn a_panic_in_the_closure_passes_through(target: &Target) {
    let mut pair = Pair::new(target, &Setup { options: impatient, ..Setup::default() });
    let mut buffer = [0; 64];
    let a = &mut pair.a;
    let caught = catch_unwind(AssertUnwindSafe(|| {
        a.qp.scope(&mut a.cq, LONG, |scope| -> Result<(), Error> {
            scope.recv(&mut buffer)?;
            std::panic::resume_unwind(Box::new("out"))
        })
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"out"));
    buffer.fill(9);
    let entry = pair.b.sge(0, 8);
    pair.b.send(|batch| batch.send(1, WrFlags::SIGNALED, &[entry]));
    fast_forward(PATIENCE);
    assert_ne!(pair.b.completions(1)[0].status(), WcStatus::SUCCESS);
    assert_eq!(buffer, [9; 64], "the device wrote into a buffer that was given back");
}

fn refused_where_it_would_not_be_safe(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let expect = |error: Error, text: &str| assert!(error.to_string().contains(text), "{error}");
    let mut other = pair.a.context.create_cq(8).unwrap();
    let error = pair.a.qp.scope(&mut other, LONG, |_| Ok(())).unwrap_err();
    expect(error, "the completion queue must be that of the queue pair's both queues");
    pair.a.recv(1, &[]);
    let a = &mut pair.a;
    let error = a.qp.scope(&mut a.cq, LONG, |_| Ok(())).unwrap_err();
    expect(error, "earlier work requests are still under way");
    pair.b.send(|batch| batch.send(1, WrFlags::SIGNALED, &[]));
    pair.b.success();
    let a = &mut pair.a;
    let capacity = a.qp.cap().max_recv_wr;
    // Elsewhere a receive is used up when its completion is polled.
    if target.kind.is_rxe() {
        crate::fixture::eventually("the receive is used up", || a.qp.recv_batch().remaining() == capacity);
    }
    let error = a.qp.scope(&mut a.cq, LONG, |_| Ok(())).unwrap_err();
    expect(error, "earlier work requests are still under way");
    pair.a.success();
    let a = &mut pair.a;
    a.qp.scope(&mut a.cq, LONG, |_| Ok(())).unwrap();
}

fn posts_no_more_than_the_queue_holds(target: &Target) {
    let mut pair = Pair::new(target, &Setup { recv_wr: 3, ..Setup::default() });
    let capacity = pair.a.qp.cap().max_recv_wr as usize;
    let mut buffers = vec![[0u8; 8]; capacity + 1];
    let a = &mut pair.a;
    let error =
        a.qp.scope(&mut a.cq, SHORT, |scope| buffers.iter_mut().try_for_each(|buffer| scope.recv(buffer))).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("post_recv: buffer is 8 bytes; the queue is full: poll completions first"), "{text}");
}
