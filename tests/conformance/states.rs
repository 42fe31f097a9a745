//! The life of a connection: states, attributes, and the same queue pair used again.

use crate::fixture::{Half, Pair, Setup, Side, connect, prepare, receives_may_be_late, recv_early};
use crate::harness::{skip, step};
use crate::opcodes::{Local, Op, exchange};
use crate::target::Target;
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AccessFlags, AckTimeout, Endpoint, Errno, Error, Gid, Grh, Lid, LinkLayer, Mtu, Path, PostError, Psn, QKey,
    QpBuilder, QpState, QpUpdate, RnrTimer, WcStatus, WrFlags,
};

tests! {
    every_setting_reaches_the_kernel,
    receives_posted_before_the_connection,
    reset_and_connect_again,
    reset_discards_what_was_posted,
    failed_connect_gives_the_queue_pair_back,
    path_mtu_is_the_lower_of_both,
    wrong_attributes_are_named_before_any_call,
    nothing_is_posted_in_the_wrong_state,
    fence_waits_for_reads,
    qp_state_changed_by_the_device_is_told,
    an_index_beyond_the_table_of_partition_keys_is_named,
}

/// Reports of settings that a builder took and dropped.
fn every_setting_reaches_the_kernel(target: &Target) {
    let setup = Setup {
        psn: Some(Psn::new(0x12_3456).unwrap()),
        qp_access: AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC,
        signal_all: true,
        send_wr: 40,
        recv_wr: 50,
        options: |options| {
            options.path_mtu = Some(Mtu::B512);
            options.timeout = AckTimeout::from_code(17).unwrap();
            options.retry_count = 5;
            options.rnr_retry = 4;
            options.min_rnr_timer = RnrTimer::from_code(9).unwrap();
            options.max_rd_atomic = 4;
            options.max_dest_rd_atomic = 8;
            options.traffic_class = 0x28;
            options.hop_limit = 33;
            options.flow_label = 0x1_2345;
            options.sl = 3;
        },
        ..Setup::default()
    };
    let pair = Pair::new(target, &setup);
    let (attr, remote) = (pair.a.qp.query().unwrap(), pair.b.qp.endpoint());
    assert_eq!(attr.qp_state, QpState::RTS);
    assert_eq!(attr.path_mtu, Some(Mtu::B512));
    assert_eq!(attr.dest_qp_num, remote.qpn.get());
    assert_eq!((attr.sq_psn, attr.rq_psn), (0x12_3456, 0x12_3456));
    assert_eq!(attr.qp_access_flags & AccessFlags::ALL.bits(), setup.qp_access.bits());
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (17, 5, 4, 9));
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 8));
    assert_eq!((attr.port_num, attr.pkey_index), (target.port.get(), 0));
    assert!(attr.sq_sig_all);
    assert!(attr.cap.max_send_wr >= 40 && attr.cap.max_recv_wr >= 50, "{:?}", attr.cap);
    if let Some(gid) = remote.gid {
        assert!(attr.dest.is_global);
        assert_eq!(attr.dest.dgid, gid);
        assert_eq!(Some(attr.dest.sgid_index), pair.a.gid_index.map(|index| index.0));
        assert_eq!((attr.dest.traffic_class, attr.dest.flow_label), (0x28, 0x1_2345));
    }
    if pair.a.context.query_port(target.port).unwrap().link_layer != LinkLayer::Ethernet {
        // On Ethernet the kernel takes the hop limit from the route (`ib_resolve_unicast_gid_dmac`), and there is no SL.
        assert_eq!((attr.dest.hop_limit, attr.dest.sl), (33, 3));
    }
}

/// Receives can wait before the peer even knows of the queue pair.
fn receives_posted_before_the_connection(target: &Target) {
    let mut rng = Rng::with_seed(51);
    let setup = Setup::default();
    let a = Half::new(target, target.open(), &setup);
    let mut b = Half::new(target, target.open_peer(), &setup);
    let capacity = u64::from(b.prepared.cap().max_recv_wr);
    for id in 0..capacity {
        let entry = b.mr.sge(id as usize * 16..id as usize * 16 + 8).unwrap();
        recv_early(&mut b.prepared, id, &[entry]);
    }
    assert_eq!(b.prepared.recv_batch().remaining(), 0);
    let mut pair = Pair::join(a, b, &setup);
    pair.scramble(&mut rng);
    for id in 0..capacity {
        let at = id as usize * 8;
        let entry = pair.a.sge(at, 8);
        pair.a.send(|batch| batch.send(id, WrFlags::SIGNALED, &[entry]));
        assert_eq!((pair.a.success().wr_id, pair.b.success().wr_id), (id, id));
        let payload = pair.a.image[at..at + 8].to_vec();
        pair.b.expect(at * 2, &payload);
    }
    pair.check();
}

/// The kernel goes on in the rings where it was: a library that starts again at zero loses requests or repeats them.
fn reset_and_connect_again(target: &Target) {
    let mut rng = Rng::with_seed(52);
    let mut pair = Pair::new(target, &Setup { send_wr: 7, recv_wr: 7, ..Setup::default() });
    pair.scramble(&mut rng);
    for round in 0..6 {
        for n in 0..1 + round * 3 % 11 {
            step(format!("round {round}, message {n}"));
            let op = [Op::Send, Op::Write, Op::WriteImm, Op::Read][rng.usize(..4)];
            let len = rng.usize(1..300);
            exchange(target, &mut pair, op, &Local::Sges(vec![len]), &[len], &mut rng);
            pair.swap();
        }
        step(format!("round {round}: connect again"));
        reconnect(&mut pair, round);
        let caps = pair.a.qp.cap();
        assert_eq!(pair.a.qp.send_batch().remaining(), caps.max_send_wr);
        assert_eq!(pair.a.qp.recv_batch().remaining(), caps.max_recv_wr);
    }
    pair.a.silent();
    pair.b.silent();
}

/// Also from the error state, with requests posted that then never come back.
fn reset_discards_what_was_posted(target: &Target) {
    let mut rng = Rng::with_seed(53);
    let setup = Setup { send_wr: 7, recv_wr: 7, options: receives_may_be_late, ..Setup::default() };
    let mut pair = Pair::new(target, &setup);
    pair.scramble(&mut rng);
    for round in 0..8 {
        step(format!("round {round}"));
        let wrong = pair.b.sge(0, 8);
        for id in 0..rng.u64(0..6) {
            pair.a.recv(100 + id, &[]);
        }
        if round % 2 == 0 {
            // These find no receive and stay in the queue.
            let entry = pair.a.sge(0, 8);
            let n = rng.u64(0..7);
            pair.a.send(|batch| (0..n).try_for_each(|id| batch.send(200 + id, WrFlags::SIGNALED, &[entry])));
        } else {
            for id in 0..rng.u64(0..6) {
                pair.b.recv(300 + id, &[wrong]);
            }
        }
        reconnect(&mut pair, round);
        while pair.a.cq.poll_one().unwrap().is_some() || pair.b.cq.poll_one().unwrap().is_some() {}
        exchange(target, &mut pair, Op::Send, &Local::Sges(vec![100]), &[100], &mut rng);
        exchange(target, &mut pair, Op::Read, &Local::Sges(vec![100]), &[], &mut rng);
        pair.a.silent();
        pair.b.silent();
        pair.swap();
    }
}

/// Both queue pairs through RESET and up again, by hand; `round` counts how often before.
fn reconnect(pair: &mut Pair, round: u32) {
    for side in [&mut pair.a, &mut pair.b] {
        side.qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
        assert_eq!(side.qp.state(), QpState::RESET);
    }
    // Packets of the connection before may still be on their way. By the same numbers they would be taken for this one's.
    let renumbered = |side: &Side| {
        let end = side.qp.endpoint();
        Endpoint { psn: Psn::new(end.psn.get().wrapping_add(0x1_0000 * (round + 1)) & 0xff_ffff).unwrap(), ..end }
    };
    let (a, b) = (renumbered(&pair.a), renumbered(&pair.b));
    bring_up(&mut pair.a, &a, &b);
    bring_up(&mut pair.b, &b, &a);
}

fn bring_up(side: &mut Side, local: &Endpoint, remote: &Endpoint) {
    let grh = remote.gid.zip(side.gid_index).map(|(dgid, sgid_index)| Grh {
        dgid,
        sgid_index,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
    });
    let init = QpUpdate::to(QpState::INIT).port(side.port).pkey_index(0).access(AccessFlags::ALL);
    side.qp.modify(&init).unwrap();
    let rtr = QpUpdate::to(QpState::RTR)
        .path(&Path { port: side.port, dlid: remote.lid, sl: 0, static_rate: Default::default(), grh })
        .path_mtu(local.mtu.unwrap().min(remote.mtu.unwrap()))
        .dest_qpn(remote.qpn)
        .rq_psn(remote.psn)
        .max_dest_rd_atomic(4)
        .min_rnr_timer(RnrTimer::DEFAULT);
    side.qp.modify(&rtr).unwrap();
    let rts = QpUpdate::to(QpState::RTS)
        .timeout(AckTimeout::DEFAULT)
        .retry_count(7)
        .rnr_retry(7)
        .sq_psn(local.psn)
        .max_rd_atomic(4);
    side.qp.modify(&rts).unwrap();
}

fn failed_connect_gives_the_queue_pair_back(target: &Target) {
    let setup = Setup::default();
    let (a, b) = (Half::new(target, target.open(), &setup), Half::new(target, target.open_peer(), &setup));
    let remote = b.prepared.endpoint();
    step("refused before any call");
    let Half { prepared, cq, pd, mr: _, context, .. } = a;
    let mut options = prepared.connect_options();
    options.rnr_retry = 8;
    let failed = prepared.connect_with(&remote, &options).unwrap_err();
    assert_eq!(failed.error.to_string(), "modify_qp: rnr_retry is 8; at most 7");
    step("a peer without a GID");
    let prepared = failed.prepared;
    // An InfiniBand port is reached by LID.
    let prepared = if remote.lid == Lid(0) {
        let failed = prepared.connect(&Endpoint { gid: None, ..remote }).unwrap_err();
        assert!(failed.error.to_string().contains("peer's GID is missing"), "{}", failed.error);
        let zero = Endpoint { gid: Some(Gid([0; 16])), ..remote };
        let failed = failed.prepared.connect(&zero).unwrap_err();
        assert!(failed.error.to_string().contains("peer's GID is missing"), "{}", failed.error);
        failed.prepared
    } else {
        prepared
    };
    step("and then it connects");
    let mut qp = connect(prepared, &remote, &setup);
    assert_eq!(qp.query().unwrap().qp_state, QpState::RTS);
    let b = b.connect(&qp.endpoint(), &setup);
    let mr = pd.alloc_mr(64, AccessFlags::LOCAL_READ).unwrap();
    let (entry, to) = (mr.sge(0..64).unwrap(), b.remote(0));
    crate::fixture::try_send(&mut qp, |batch| batch.write(1, WrFlags::SIGNALED, &[entry], to)).unwrap();
    let mut cq = cq;
    assert_eq!(crate::fixture::completions(&mut cq, 1)[0].status(), WcStatus::SUCCESS);
    drop(context);
}

/// Reports of large transfers failing where small ones work: one side's MTU was larger than the other's, or assumed. Some
/// drivers take any path MTU, so it is the library that refuses one above the active MTU.
fn path_mtu_is_the_lower_of_both(target: &Target) {
    let setup = Setup::default();
    let half = |context| Half::new(target, context, &setup);
    let b = half(target.open_peer());
    let remote = b.prepared.endpoint();
    let active = half(target.open()).prepared.endpoint().mtu.unwrap();
    for theirs in [Some(Mtu::B256), Some(Mtu::B4096), None] {
        step(format!("active here {active}, there {theirs:?}"));
        let side = half(target.open()).connect(&Endpoint { mtu: theirs, ..remote }, &setup);
        let lower = theirs.map_or(active, |theirs| theirs.min(active));
        assert_eq!(side.qp.query().unwrap().path_mtu, Some(lower));
    }
    let Some(above) = Mtu::ALL.into_iter().find(|mtu| *mtu > active) else {
        return;
    };
    let a = half(target.open());
    let mut options = a.prepared.connect_options();
    options.path_mtu = Some(above);
    let error = a.prepared.connect_with(&remote, &options).unwrap_err().error;
    let text =
        format!("modify_qp: path_mtu is {above}; the active MTU is {active}; raise the link's MTU, or ask for less");
    assert_eq!(error.to_string(), text);
}

/// Reports of a bare EINVAL from a change of state.
fn wrong_attributes_are_named_before_any_call(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let error = pair.a.qp.modify(&QpUpdate::to(QpState::RTR)).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: RC queue pair, RTS to RTR: there is no such transition");
    pair.a.qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    let update = QpUpdate::to(QpState::INIT).pkey_index(0).qkey(QKey(1));
    let error = pair.a.qp.modify(&update).unwrap_err();
    assert_eq!(error.to_string(), "modify_qp: RC queue pair, RESET to INIT: missing access, port; not allowed qkey");
    let Error::Transition(told) = error else { panic!("{error:?}") };
    assert_eq!((told.missing, told.extra), (vec!["access", "port"], vec!["qkey"]));
    assert_eq!(pair.a.qp.query().unwrap().qp_state, QpState::RESET);
}

fn nothing_is_posted_in_the_wrong_state(target: &Target) {
    let setup = Setup::default();
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(32).unwrap());
    let mut qp = prepare(target, &pd, &cq, &cq, &setup).into_unconnected();
    assert_eq!(qp.state(), QpState::INIT);
    let send = |qp: &mut _| crate::fixture::try_send(qp, |batch| batch.send(1, WrFlags::SIGNALED, &[]));
    let recv = |qp: &mut _| crate::fixture::try_recv(qp, |batch| batch.recv(1, &[]));
    assert_eq!(send(&mut qp), Err(PostError::BadState));
    recv(&mut qp).unwrap();
    qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
    assert_eq!(send(&mut qp), Err(PostError::BadState));
    assert_eq!(recv(&mut qp), Err(PostError::BadState));
    let caps = qp.cap();
    assert_eq!(qp.send_batch().remaining(), caps.max_send_wr, "what was refused is not in the queue");
    assert_eq!(qp.recv_batch().remaining(), caps.max_recv_wr, "what was refused is not in the queue");
}

/// A message that is sent from where a READ is still bringing bytes waits for them.
fn fence_waits_for_reads(target: &Target) {
    let mut rng = Rng::with_seed(54);
    let mut pair = Pair::new(target, &Setup { mr_bytes: 64 * 1024, ..Setup::default() });
    pair.scramble(&mut rng);
    const LEN: usize = 16 * 1024;
    for round in 0..20 {
        step(format!("round {round}"));
        let (whole, last, from, into) =
            (pair.a.sge(0, LEN), pair.a.sge(LEN - 8, 8), pair.b.remote(32 * 1024), pair.b.sge(0, 8));
        pair.b.recv(1, &[into]);
        pair.a.send(|batch| {
            batch.read(1, WrFlags::NONE, &[whole], from)?;
            batch.send(2, WrFlags::SIGNALED | WrFlags::FENCE, &[last])
        });
        assert_eq!((pair.a.success().wr_id, pair.b.success().wr_id), (2, 1));
        let read = pair.b.image[32 * 1024..][..LEN].to_vec();
        pair.a.expect(0, &read);
        pair.b.expect(0, &read[LEN - 8..]);
        pair.check();
        pair.b.scramble(&mut rng);
    }
}

/// The device moved the queue pair to the error state by itself; a change that then fails says so.
fn qp_state_changed_by_the_device_is_told(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let entry = pair.a.sge(0, 8);
    let wrong = ironverbs::RemoteAddr { addr: 0, rkey: ironverbs::Rkey(0) };
    pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], wrong));
    assert_ne!(pair.a.completions(1)[0].status(), WcStatus::SUCCESS);
    assert_eq!(pair.a.qp.state(), QpState::RTS, "as last put in from here");
    let error = pair.a.qp.modify(&QpUpdate::to(QpState::RTS).access(AccessFlags::ALL)).unwrap_err();
    assert!(error.to_string().contains("the queue pair went from RTS to ERR by itself"), "{error}");
    pair.a.qp.modify(&QpUpdate::to(QpState::RESET)).unwrap();
}

/// A bare EINVAL, where what is wrong is one number of many.
fn an_index_beyond_the_table_of_partition_keys_is_named(target: &Target) {
    let context = target.open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let len = context.query_port(target.port).unwrap().pkey_tbl_len;
    match QpBuilder::rc(&pd, &cq, &cq).port(target.port).pkey_index(len).build() {
        Err(error) => {
            assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
            let text = error.to_string();
            let named = format!("pkey_index is {len}, and the partition key table of port {} has {len} ", target.port);
            assert!(text.contains(&named), "{text}");
        }
        Ok(_) => skip("the driver takes any index"),
    }
}
