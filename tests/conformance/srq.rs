//! Shared receive queues: many queue pairs, one queue of receives.

use crate::fixture::{
    PATIENCE, Setup, builder, completions, connect, receives_may_be_late, silent, try_recv, try_recv_shared, try_send,
};
use crate::harness::step;
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{
    AccessFlags, AckTimeout, AsyncEvent, AsyncEventType, ConnectOptions, Context, Cq, Errno, Error, Mr, Pd, Pool,
    PostError, Qp, QpState, Sge, Srq, Subject, Wc, WcOpcode, WcStatus, WrFlags,
};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::thread;
use std::time::{Duration, Instant};

tests! {
    holds_what_it_says,
    what_is_asked_must_be_within_the_limits,
    receive_caps_of_its_queue_pairs_mean_nothing,
    its_queue_pairs_take_no_receives_of_their_own,
    receives_are_taken_in_order_by_whoever_gets_a_message,
    filled_to_the_last_receive_and_again,
    slots_come_back_by_the_queue_pair_that_took_them,
    limit_is_told_once_and_armed_again,
    resized_under_traffic,
    too_small_a_size_is_refused_and_changes_nothing,
    posted_from_another_thread,
    is_not_flushed_by_a_queue_pair_in_error,
    may_be_dropped_before_its_queue_pairs,
    closes_when_its_queue_pairs_are_gone,
    completion_queues_dropped_unread_take_no_receives_with_them,
    many_queue_pairs_and_much_traffic,
}

/// Bytes of a message.
const LEN: usize = 16;
/// Messages that have a place of their own in each region, if a test needs no more.
const PLACES: usize = 256;

/// A server with one shared receive queue, and a client for each of its queue pairs.
struct Star {
    /// Messages that have a place of their own in each region.
    places: usize,
    served: Vec<Qp>,
    clients: Vec<Qp>,
    srq: Srq,
    cq: Cq,
    mr: Mr,
    client_cq: Cq,
    client_mr: Mr,
    client_pd: Pd,
    pd: Pd,
    context: Context,
}

impl Star {
    fn new(target: &Target, queue_pairs: usize, max_wr: u32) -> Self {
        Self::with_options(target, queue_pairs, max_wr, PLACES, receives_may_be_late)
    }

    fn with_options(
        target: &Target,
        queue_pairs: usize,
        max_wr: u32,
        places: usize,
        options: fn(&mut ConnectOptions),
    ) -> Self {
        let setup = Setup { cq_depth: 2048, options, ..Setup::default() };
        let context = target.open();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(setup.cq_depth).unwrap());
        let srq = context.create_srq(&pd, max_wr).unwrap();
        let mr = pd.alloc_mr(places * LEN, AccessFlags::ALL).unwrap();
        let peer = target.open_peer();
        let (client_pd, client_cq) = (peer.alloc_pd().unwrap(), peer.create_cq(setup.cq_depth).unwrap());
        let client_mr = client_pd.alloc_mr(places * LEN, AccessFlags::ALL).unwrap();
        let (mut served, mut clients) = (vec![], vec![]);
        for _ in 0..queue_pairs {
            let server = builder(target, &pd, &cq, &cq, &setup).srq(&srq).build().unwrap();
            let client = builder(target, &client_pd, &client_cq, &client_cq, &setup).build().unwrap();
            let (server_end, client_end) = (server.endpoint(), client.endpoint());
            served.push(connect(server, &client_end, &setup));
            clients.push(connect(client, &server_end, &setup));
        }
        Self { places, served, clients, srq, cq, mr, client_cq, client_mr, client_pd, pd, context }
    }

    fn place(&self, number: u64) -> Sge {
        let at = number as usize % self.places * LEN;
        self.mr.sge(at..at + LEN).unwrap()
    }

    /// Posts a receive, whose number is that of its place.
    fn recv(&mut self, number: u64) {
        let place = self.place(number);
        try_recv_shared(&mut self.srq, |batch| batch.recv(number, &[place])).unwrap();
    }

    /// The message of that number.
    fn message(number: u64) -> [u8; LEN] {
        let mut bytes = [number as u8; LEN];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        bytes
    }

    /// Sends a message with its number as immediate data.
    fn send(&mut self, client: usize, number: u64) {
        let at = number as usize % self.places * LEN;
        self.client_mr.write(at, &Self::message(number)).unwrap();
        let entry = self.client_mr.sge(at..at + LEN).unwrap();
        try_send(&mut self.clients[client], |batch| batch.send_imm(number, WrFlags::SIGNALED, &[entry], number as u32))
            .unwrap();
    }

    fn sent(&mut self, n: usize) {
        for wc in completions(&mut self.client_cq, n) {
            assert_eq!(wc.status(), WcStatus::SUCCESS, "{wc:?}");
        }
    }

    /// The message that came into the place of a receive.
    fn came(&self, wc: &Wc) -> u64 {
        let done = wc.outcome().unwrap_or_else(|error| panic!("{wc:?}: {error}"));
        assert_eq!((done.opcode, done.byte_len as usize), (WcOpcode::RECV, LEN), "{wc:?}");
        let mut bytes = [0; LEN];
        self.mr.read(wc.wr_id as usize % self.places * LEN, &mut bytes).unwrap();
        let number = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
        assert_eq!((bytes, done.imm), (Self::message(number), Some(number as u32)), "{wc:?}");
        number
    }
}

fn holds_what_it_says(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    for (asked, sges) in [(1, 1), (2, 3), (100, 27), (1000, 0)] {
        let builder = || context.srq_builder(&pd, asked).max_sge(sges);
        let (mut srq, limit) = match builder().limit(asked / 2).build() {
            Ok(srq) => (srq, asked / 2),
            // The driver of mlx5 devices has none from the start.
            Err(error @ Error::Unsupported { .. }) => {
                assert!(!target.kind.is_rxe() && error.to_string().contains("arm_limit"), "{error}");
                (builder().build().unwrap(), 0)
            }
            Err(error) => panic!("{error}"),
        };
        assert!(srq.capacity() >= asked && srq.max_sge() >= sges, "{srq:?}");
        let attr = srq.query().unwrap();
        assert_eq!((attr.max_wr, attr.max_sge, attr.limit), (srq.capacity(), srq.max_sge(), limit));
        let capacity = srq.capacity();
        assert_eq!(srq.recv_batch().remaining(), capacity);
        srq.close().unwrap();
    }
    seen::works("SRQ create");
    seen::works("SRQ query");
}

fn what_is_asked_must_be_within_the_limits(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let attr = context.attr();
    let refused = |result: Result<Srq, Error>, limit: String| {
        let error = result.err().unwrap();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(&limit), "{error}");
    };
    refused(context.create_srq(&pd, 0), format!("1 to {}", attr.max_srq_wr));
    refused(context.create_srq(&pd, attr.max_srq_wr + 1), format!("1 to {}", attr.max_srq_wr));
    let sges = attr.max_srq_sge;
    refused(context.srq_builder(&pd, 8).max_sge(sges + 1).build(), format!("up to {sges}"));
    refused(context.srq_builder(&pd, 8).limit(9).build(), "holds 8 receives".into());
    let other = target.open();
    refused(other.create_srq(&pd, 8), "another context".into());
    let mut srq = context.create_srq(&pd, 8).unwrap();
    let error = srq.arm_limit(srq.capacity() + 1).unwrap_err();
    assert!(error.to_string().contains(&format!("holds {} receives", srq.capacity())), "{error}");
    let error = srq.resize(attr.max_srq_wr + 1).unwrap_err();
    assert!(error.to_string().contains(&format!("1 to {}", attr.max_srq_wr)), "{error}");
    let (other_pd, other_cq) = (other.alloc_pd().unwrap(), other.create_cq(8).unwrap());
    let foreign =
        builder::<ironverbs::Rc>(target, &other_pd, &other_cq, &other_cq, &Setup::default()).srq(&srq).build();
    assert!(foreign.unwrap_err().to_string().contains("another context"));
}

/// A queue pair on a shared receive queue has none of its own, so that what was asked for its size is not looked at.
fn receive_caps_of_its_queue_pairs_mean_nothing(target: &Target) {
    let setup = Setup { recv_wr: u32::MAX, recv_sge: 999, ..Setup::default() };
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let srq = context.create_srq(&pd, 8).unwrap();
    let prepared = builder::<ironverbs::Rc>(target, &pd, &cq, &cq, &setup).srq(&srq).build().unwrap();
    assert_eq!((prepared.cap().max_recv_wr, prepared.cap().max_recv_sge), (0, 0));
    let alone = builder::<ironverbs::Rc>(target, &pd, &cq, &cq, &setup).build();
    assert!(matches!(alone, Err(Error::Invalid { .. })), "{alone:?}");
}

fn its_queue_pairs_take_no_receives_of_their_own(target: &Target) {
    let mut star = Star::new(target, 1, 8);
    let qp = &mut star.served[0];
    let entry = star.mr.sge(0..LEN).unwrap();
    assert_eq!(qp.recv_batch().remaining(), 0);
    assert_eq!(qp.recv_batch().reserve(1), Err(PostError::SharedReceives));
    for sges in [&[entry][..], &[]] {
        assert_eq!(try_recv(qp, |batch| batch.recv(1, sges)), Err(PostError::SharedReceives));
    }
    let pool = Pool::new(&star.pd, 1, LEN).unwrap();
    let refused = qp.recv_slot(pool.take().unwrap()).unwrap_err();
    assert_eq!((refused.error, refused.slot.is_some()), (PostError::SharedReceives, true));
    // Through a reset and back it stays so.
    qp.modify(&ironverbs::QpUpdate::to(QpState::RESET)).unwrap();
    assert!(try_recv(qp, |batch| batch.recv(1, &[])).is_err());
}

fn receives_are_taken_in_order_by_whoever_gets_a_message(target: &Target) {
    let mut star = Star::new(target, 3, 64);
    let mut number = 0;
    for round in 0..20 {
        for n in number..number + 6 {
            star.recv(n);
        }
        for client in [0, 2, 1, 1, 0, 2] {
            star.send(client, number);
            let wc = completions(&mut star.cq, 1)[0];
            assert_eq!((wc.wr_id, wc.qpn()), (number, star.served[client].qpn().get()), "round {round}");
            assert_eq!(star.came(&wc), number);
            number += 1;
        }
        star.sent(6);
    }
    silent(&mut star.cq);
    seen::works("SRQ RECV");
}

fn filled_to_the_last_receive_and_again(target: &Target) {
    for asked in [1, 2, 3, 5, 16, 100] {
        let mut star = Star::new(target, 2, asked);
        let capacity = star.srq.capacity();
        let (mut number, mut under_way) = (0, 0);
        for round in 0..3 {
            step(format!("asked for {asked}, got {capacity}, round {round}"));
            let first = number;
            for n in first..first + u64::from(capacity) {
                star.recv(n);
            }
            let entry = star.place(0);
            assert_eq!(try_recv_shared(&mut star.srq, |batch| batch.recv(9, &[entry])), Err(PostError::QueueFull));
            let text = star.srq.explain(PostError::QueueFull).to_string();
            assert!(text.starts_with(&format!("post_recv: queue is full with {capacity} work requests; ")), "{text}");
            for _ in 0..capacity {
                star.send(number as usize % 2, number);
                number += 1;
                under_way += 1;
                if under_way == 16 {
                    star.sent(std::mem::take(&mut under_way));
                }
            }
            star.sent(std::mem::take(&mut under_way));
            let mut all: Vec<_> =
                completions(&mut star.cq, capacity as usize).iter().map(|wc| (wc.wr_id, star.came(wc))).collect();
            // Queue pairs take receives in their order, but complete each at its own pace.
            all.sort_by_key(|(id, _)| *id);
            assert!(all.iter().map(|(id, _)| *id).eq(first..number), "each receive was taken once");
            all.sort_by_key(|(_, message)| *message);
            assert!(all.iter().map(|(_, message)| *message).eq(first..number), "each message came once");
            assert_eq!(star.srq.recv_batch().remaining(), capacity);
        }
        silent(&mut star.cq);
    }
}

fn slots_come_back_by_the_queue_pair_that_took_them(target: &Target) {
    let mut star = Star::new(target, 2, 16);
    let pool = Pool::new(&star.pd, 4, LEN).unwrap();
    for number in 0..200_u64 {
        while let Some(slot) = pool.take() {
            star.srq.recv_slot(slot).unwrap();
        }
        star.send(number as usize % 2, number);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            assert!(Instant::now() < deadline, "message {number} did not come");
            let mut completions = star.cq.poll().unwrap();
            if let Some(completion) = completions.next() {
                let (slot, wc) = pool.reclaim(completion).unwrap();
                assert_eq!(wc.outcome().unwrap().imm, Some(number as u32));
                assert_eq!(wc.qpn(), star.served[number as usize % 2].qpn().get());
                assert_eq!(slot[..], Star::message(number));
                break;
            }
            thread::yield_now();
        }
        star.sent(1);
    }
}

/// The kernel tells of the limit once and forgets it.
fn limit_is_told_once_and_armed_again(target: &Target) {
    let mut star = Star::new(target, 1, 16);
    let events = star.context.async_events();
    let told = AsyncEvent { kind: AsyncEventType::SRQ_LIMIT_REACHED, subject: Subject::Srq(star.srq.id()) };
    let mut number = 0;
    for round in 0..3 {
        step(format!("round {round}"));
        for n in 0..8 {
            star.recv(n);
        }
        star.srq.arm_limit(5).unwrap();
        assert_eq!(star.srq.query().unwrap().limit, 5);
        // Of eight, five are left after three.
        for left in (0..8).rev() {
            star.send(0, number);
            star.sent(1);
            completions(&mut star.cq, 1);
            number += 1;
            let expected = (left == 4).then_some(told);
            let event = events.next(Duration::from_millis(if left == 4 { 10_000 } else { 20 })).unwrap();
            assert_eq!(event, expected, "{left} receives are left");
            assert_eq!(star.srq.query().unwrap().limit, if left > 4 { 5 } else { 0 });
        }
    }
    star.srq.arm_limit(3).unwrap();
    star.srq.arm_limit(0).unwrap();
    assert_eq!(star.srq.query().unwrap().limit, 0);
    seen::works("SRQ limit");
}

/// Ends the test where the driver makes no shared receive queue larger or smaller.
fn needs_resize(target: &Target) {
    if let Err(error @ ironverbs::Error::Unsupported { .. }) = Star::new(target, 1, 32).srq.resize(64) {
        seen::refused("SRQ resize", &error);
        crate::harness::skip(error.to_string());
    }
}

/// What is posted stays posted while messages come in by several queue pairs.
fn resized_under_traffic(target: &Target) {
    needs_resize(target);
    let mut star = Star::new(target, 4, 32);
    let (mut posted, mut sent, mut received) = (0_u64, 0_u64, 0_u64);
    let (mut seen_messages, mut taken) = (vec![false; 4000], vec![false; 4000]);
    let mut under_way = 0;
    let mut sizes = [32, 200, 48, 64, 500, 33].into_iter().cycle();
    let deadline = Instant::now() + Duration::from_secs(60);
    while received < 4000 {
        assert!(Instant::now() < deadline, "{received} of {sent} came");
        while posted < received + 24 && posted < 4000 {
            star.recv(posted);
            posted += 1;
        }
        while sent < posted && under_way < 16 {
            star.send(sent as usize % 4, sent);
            sent += 1;
            under_way += 1;
        }
        if received % 20 < 4 {
            star.srq.resize(sizes.next().unwrap()).unwrap();
        }
        while let Some(wc) = star.cq.poll_one().unwrap() {
            assert!(!std::mem::replace(&mut taken[wc.wr_id as usize], true), "receive {} twice", wc.wr_id);
            let message = star.came(&wc) as usize;
            assert!(!std::mem::replace(&mut seen_messages[message], true), "message {message} came twice");
            received += 1;
        }
        while let Some(wc) = star.client_cq.poll_one().unwrap() {
            assert_eq!(wc.status(), WcStatus::SUCCESS, "{wc:?}");
            under_way -= 1;
        }
        thread::yield_now();
    }
    silent(&mut star.cq);
    seen::works("SRQ resize");
}

fn too_small_a_size_is_refused_and_changes_nothing(target: &Target) {
    needs_resize(target);
    let mut star = Star::new(target, 1, 100);
    let capacity = star.srq.capacity();
    for n in 0..20 {
        star.recv(n);
    }
    let error = star.srq.resize(5).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    assert!(error.to_string().contains("fewer than are posted"), "{error}");
    star.srq.arm_limit(15).unwrap();
    let error = star.srq.resize(14).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
    assert_eq!((star.srq.capacity(), star.srq.query().unwrap().max_wr), (capacity, capacity));
    star.srq.resize(20).unwrap();
    let capacity = star.srq.capacity();
    assert_eq!(star.srq.recv_batch().remaining(), capacity - 20);
    for n in 0..20 {
        star.send(0, n);
        star.sent(1);
        let wc = completions(&mut star.cq, 1)[0];
        assert_eq!((wc.wr_id, star.came(&wc)), (n, n));
    }
}

/// One thread posts, another sends and polls.
fn posted_from_another_thread(target: &Target) {
    const MESSAGES: u64 = 2000;
    let mut star = Star::new(target, 4, 64);
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let entries: Vec<_> = (0..PLACES as u64).map(|n| star.place(n)).collect();
    let mut srq = std::mem::replace(&mut star.srq, star.context.create_srq(&star.pd, 1).unwrap());
    thread::scope(|scope| {
        // Gone with this closure, also if it panics: the other thread then ends.
        let tell = tell;
        scope.spawn(move || {
            for n in 0..MESSAGES {
                if n >= 32 && told.recv().is_err() {
                    return;
                }
                try_recv_shared(&mut srq, |batch| batch.recv(n, &[entries[n as usize % PLACES]])).unwrap();
            }
        });
        let (mut sent, mut under_way) = (0, 0);
        let (mut came, mut taken) = (vec![false; MESSAGES as usize], vec![false; MESSAGES as usize]);
        let mut last = Instant::now();
        let mut received = 0;
        while received < MESSAGES {
            while sent < MESSAGES && under_way < 16 {
                star.send(sent as usize % 4, sent);
                sent += 1;
                under_way += 1;
            }
            // All that was sent may have come before the sender hears of any of it: look at both sides.
            while let Some(wc) = star.client_cq.poll_one().unwrap() {
                assert_eq!(wc.status(), WcStatus::SUCCESS, "{wc:?}");
                under_way -= 1;
            }
            let Some(wc) = star.cq.poll_one().unwrap() else {
                assert!(last.elapsed() < PATIENCE, "{received} of {sent} came, {under_way} are under way");
                thread::yield_now();
                continue;
            };
            last = Instant::now();
            received += 1;
            assert!(!std::mem::replace(&mut taken[wc.wr_id as usize], true), "receive {} twice", wc.wr_id);
            assert!(!std::mem::replace(&mut came[star.came(&wc) as usize], true), "{wc:?} came twice");
            let _ = tell.send(());
        }
    });
}

/// Teardown needs no event that some kernels never give: to ERR, then closed, at once. What was posted is there for others.
fn is_not_flushed_by_a_queue_pair_in_error(target: &Target) {
    let mut star = Star::new(target, 2, 16);
    for n in 0..8 {
        star.recv(n);
    }
    let started = Instant::now();
    let mut dying = star.served.remove(0);
    dying.to_error().unwrap();
    silent(&mut star.cq);
    assert_eq!(dying.query().unwrap().qp_state, QpState::ERR);
    dying.close().unwrap();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let capacity = star.srq.capacity();
    assert_eq!(star.srq.recv_batch().remaining(), capacity - 8, "nothing was taken");
    star.clients.remove(0);
    for n in 0..8 {
        star.send(0, n);
        star.sent(1);
        let wc = completions(&mut star.cq, 1)[0];
        assert_eq!((wc.wr_id, star.came(&wc)), (n, n));
    }
}

fn may_be_dropped_before_its_queue_pairs(target: &Target) {
    let before = target.objects();
    {
        let mut star = Star::new(target, 2, 16);
        for n in 0..8 {
            star.recv(n);
        }
        let (place, small) = (star.place(3), star.context.create_srq(&star.pd, 1).unwrap());
        drop(std::mem::replace(&mut star.srq, small));
        for n in 0..8 {
            star.send(n as usize % 2, n);
            star.sent(1);
            let wc = completions(&mut star.cq, 1)[0];
            assert_eq!((wc.wr_id, star.came(&wc)), (n, n), "what was posted is still received into");
        }
        assert_eq!(place.length() as usize, LEN);
        star.served.clear();
        assert_eq!(star.context.leaks(), vec![]);
    }
    match (before, target.objects()) {
        (Ok(before), Ok(after)) => assert_eq!(before, after),
        (before, after) => eprintln!("objects are not counted: {before:?}, {after:?}"),
    }
}

fn closes_when_its_queue_pairs_are_gone(target: &Target) {
    let mut star = Star::new(target, 2, 16);
    let refused = star.srq.close().unwrap_err();
    assert!(refused.error.to_string().contains("number of queue pairs on it is 2"), "{}", refused.error);
    let srq = refused.object;
    star.served.pop();
    let refused = srq.close().unwrap_err();
    assert!(refused.error.to_string().contains("number of queue pairs on it is 1"), "{}", refused.error);
    star.served.pop();
    refused.object.close().unwrap();
    assert_eq!(star.context.leaks(), vec![]);
}

/// Whatever goes first, and whether the completions came before or after: each receive that was taken is free again.
fn completion_queues_dropped_unread_take_no_receives_with_them(target: &Target) {
    const MESSAGES: u64 = 4;
    #[derive(Clone, Copy, Debug)]
    enum First {
        CompletionQueue,
        QueuePair,
        /// And the messages come after that.
        CompletionQueueUnused,
    }
    let mut star = Star::new(target, 0, 16);
    let setup = Setup { options: receives_may_be_late, ..Setup::default() };
    let capacity = star.srq.capacity();
    for round in 0..30 {
        let first = [First::CompletionQueue, First::QueuePair, First::CompletionQueueUnused][round % 3];
        step(format!("round {round}, {first:?} goes first"));
        let cq = star.context.create_cq(64).unwrap();
        let server = builder(target, &star.pd, &cq, &cq, &setup).srq(&star.srq).build().unwrap();
        let client = builder(target, &star.client_pd, &star.client_cq, &star.client_cq, &setup).build().unwrap();
        let (server_end, client_end) = (server.endpoint(), client.endpoint());
        let server: Qp = connect(server, &client_end, &setup);
        star.clients.push(connect(client, &server_end, &setup));
        (0..MESSAGES).for_each(|number| star.recv(number));
        let mut cq = Some(cq);
        if let First::CompletionQueueUnused = first {
            cq = None;
        }
        (0..MESSAGES).for_each(|number| star.send(0, number));
        star.sent(MESSAGES as usize);
        if let First::CompletionQueue = first {
            cq = None;
        }
        drop(server);
        drop(cq);
        star.clients.clear();
        let free = star.srq.recv_batch().remaining();
        assert_eq!(free, capacity, "round {round}: receives were lost when {first:?} went first");
    }
}

/// 64 queue pairs take from one shared receive queue and complete on one completion queue. Every message comes once, as it was
/// sent, and in order on its queue pair.
///
/// `IRONVERBS_TEST_MESSAGES` tells how many (default 3000). Meant for a link that loses packets and changes their order, too:
/// then many messages are to be under way, since a queue pair that lost one stands still until its acknowledgement is due.
fn many_queue_pairs_and_much_traffic(target: &Target) {
    const QUEUE_PAIRS: usize = 64;
    /// Messages of one queue pair under way at once.
    const WINDOW: u64 = 16;
    const PLACES: usize = QUEUE_PAIRS * WINDOW as usize;
    let total = std::env::var("IRONVERBS_TEST_MESSAGES").map_or(3000, |n| n.parse::<u64>().unwrap());
    let before = target.objects();
    let mut star = Star::with_options(target, QUEUE_PAIRS, PLACES as u32, PLACES, |options| {
        // 8 ms; seven retries are without end on Soft-RoCE.
        options.timeout = AckTimeout::from_code(11).unwrap();
        (options.retry_count, options.rnr_retry) = (7, 7);
    });
    let of: HashMap<u32, usize> = star.served.iter().enumerate().map(|(i, qp)| (qp.qpn().get(), i)).collect();
    // Places of the shared receive queue that are free; the number of a receive is that of its place.
    let mut free: Vec<u64> = (0..PLACES as u64).collect();
    let mut sent = [0_u64; QUEUE_PAIRS];
    let mut done = [0_u64; QUEUE_PAIRS];
    let mut came = [0_u64; QUEUE_PAIRS];
    let (mut all_sent, mut all_done, mut all_came) = (0, 0, 0);
    let (started, mut last) = (Instant::now(), Instant::now());
    let mut room = [const { MaybeUninit::uninit() }; 128];
    while all_came < total || all_done < total {
        step(format!("{all_sent} sent, {all_done} complete, {all_came} came, of {total}"));
        let Star { srq, mr, clients, client_mr, .. } = &mut star;
        try_recv_shared(srq, |batch| {
            free.drain(..).try_for_each(|place| {
                let at = place as usize * LEN;
                batch.recv(place, &[mr.sge(at..at + LEN).unwrap()])
            })
        })
        .unwrap();
        for (client, qp) in clients.iter_mut().enumerate() {
            let first = sent[client];
            let n = (WINDOW - (first - done[client])).min(total - all_sent);
            // Half a window at least, for one doorbell.
            if n == 0 || (n < WINDOW / 2 && all_sent + n < total) {
                continue;
            }
            try_send(qp, |batch| {
                (first..first + n).try_for_each(|number| {
                    // Client and number, in the message and in its place of the clients' region.
                    let (id, at) =
                        (number << 8 | client as u64, (client as u64 * WINDOW + number % WINDOW) as usize * LEN);
                    client_mr.write(at, &Star::message(id)).unwrap();
                    batch.send_imm(id, WrFlags::SIGNALED, &[client_mr.sge(at..at + LEN).unwrap()], id as u32)
                })
            })
            .unwrap();
            sent[client] += n;
            all_sent += n;
        }
        let seen = all_came + all_done;
        for wc in star.cq.poll_into(&mut room).unwrap().iter().copied() {
            let client = of[&wc.qpn()];
            assert_eq!(star.came(&wc), came[client] << 8 | client as u64, "{wc:?}");
            came[client] += 1;
            all_came += 1;
            free.push(wc.wr_id);
        }
        for wc in star.client_cq.poll_into(&mut room).unwrap() {
            let client = (wc.wr_id & 0xff) as usize;
            assert_eq!((wc.status(), wc.wr_id >> 8), (WcStatus::SUCCESS, done[client]), "{wc:?}");
            done[client] += 1;
            all_done += 1;
        }
        if all_came + all_done != seen {
            last = Instant::now();
        } else {
            assert!(last.elapsed() < Duration::from_secs(30), "nothing came for half a minute");
            thread::yield_now();
        }
    }
    let took = started.elapsed();
    let each_second = total as f64 / took.as_secs_f64();
    eprintln!("{total} messages over {QUEUE_PAIRS} queue pairs in {took:.1?}: {each_second:.0} each second");
    assert_eq!(sent, came);
    silent(&mut star.cq);
    silent(&mut star.client_cq);
    assert_eq!(star.context.leaks(), vec![]);
    drop(star);
    match (before, target.objects()) {
        (Ok(before), Ok(after)) => assert_eq!(before, after),
        (before, after) => eprintln!("objects are not counted: {before:?}, {after:?}"),
    }
}
