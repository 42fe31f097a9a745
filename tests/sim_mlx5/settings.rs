//! Settings that only show in what the device does: when it tells, what time it gives, how fast it may send, and in which order
//! it answers.

use crate::rig::{Rig, receive, send};
use ironverbs::{AtomicOrder, Context, Inline, Path, QpBuilder, Stamps, StaticRate, WcOpcode, WrFlags};
use softcx::{Entry, SimDevice, SimHost};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The time, and not ticks, which a device has to be able to.
#[test]
fn completions_carry_the_time() {
    let mut rig = Rig::with(SimDevice::roce("mlx5_0").keeps_time(true), |context| {
        context.cq_builder(64).stamps(Stamps::RealTime).build()
    });
    let mut ticking = rig.context.cq_builder(8).stamps(Stamps::Ticks).build().unwrap();
    let khz = u128::from(rig.context.attr().hca_core_clock_khz);
    let [mut a, mut b] = rig.pair(16, None);
    let other = QpBuilder::rc(&rig.pd, &ticking, &ticking).max_inline_bytes(16).build().unwrap();
    let end = other.endpoint();
    let mut other = other.connect(&end).unwrap();
    for at in [Duration::from_nanos(1_700_000_000_123_456_789), Duration::from_nanos(1_700_000_001_000_000_001)] {
        rig.host.fabric().step(at);
        receive(&mut b, 1, &rig.mr);
        send(&mut a, 2, WrFlags::SIGNALED);
        receive(&mut other, 3, &rig.mr);
        send(&mut other, 4, WrFlags::NONE);
        while rig.host.fabric().step(at) {}
        let want = at.as_secs() << 32 | u64::from(at.subsec_nanos());
        let mut completions = rig.cq.poll().unwrap();
        for _ in 0..2 {
            assert_eq!(completions.next().unwrap().timestamp(), Some(want), "{at:?}");
        }
        drop(completions);
        let mut completions = ticking.poll().unwrap();
        let want = at.as_nanos() * khz / 1_000_000;
        assert_eq!(completions.next().unwrap().timestamp().map(u128::from), Some(want), "in ticks");
    }
    drop((a, b, other, ticking));
    rig.finish();
}

/// An event for so many completions, or after so long, and no sooner.
#[test]
fn events_wait_for_their_number_or_their_time() {
    let host = SimHost::new(3);
    host.add(SimDevice::roce("mlx5_0"));
    let info = ironverbs::sys::Sys::devices(&host).unwrap().remove(0);
    let context = Context::open_on(&host, &info).unwrap();
    let channel = context.create_comp_channel().unwrap();
    let pd = context.alloc_pd().unwrap();
    let mut cq = context.cq_builder(64).channel(&channel).build().unwrap();
    let qp = QpBuilder::rc(&pd, &cq, &cq).max_inline_bytes(16).build().unwrap();
    let end = qp.endpoint();
    let mut qp = qp.connect(&end).unwrap();
    let period = Duration::from_millis(2);
    cq.moderate(4, period).unwrap();
    let mut now = Duration::from_secs(1);
    let nops = |qp: &mut ironverbs::Qp, n: u64, now: Duration| {
        let mut batch = qp.send_batch();
        (0..n).for_each(|id| batch.nop(id, WrFlags::SIGNALED).unwrap());
        // SAFETY: no memory is named.
        unsafe { batch.submit().unwrap() };
        while host.fabric().step(now) {}
    };
    let events = || channel.drain(|_| ()).unwrap();
    for round in 0..6_u64 {
        cq.arm(ironverbs::Notify::Any).unwrap();
        nops(&mut qp, 3, now);
        assert_eq!(events(), 0, "round {round}: three are too few");
        if round % 2 == 0 {
            nops(&mut qp, 1, now);
            assert_eq!(events(), 1, "round {round}: four are enough");
        } else {
            now += period - Duration::from_nanos(1);
            while host.fabric().step(now) {}
            assert_eq!(events(), 0, "round {round}: the time is not over");
            now += Duration::from_nanos(1);
            while host.fabric().step(now) {}
            assert_eq!(events(), 1, "round {round}: the time is over");
        }
        let all: Vec<_> = std::iter::from_fn(|| cq.poll_one().unwrap()).collect();
        assert_eq!(all.len(), 4 - (round % 2) as usize);
    }
    cq.moderate(0, Duration::ZERO).unwrap();
    cq.arm(ironverbs::Notify::Any).unwrap();
    nops(&mut qp, 1, now);
    assert_eq!(events(), 1, "at once, as at first");
    assert!(host.fabric().take_reports().is_empty());
}

/// The rate comes to the device: of a connection with its path, of a datagram with the work request.
#[test]
fn the_device_is_told_the_rate() {
    let rig = Rig::new(64);
    let prepare = || QpBuilder::rc(&rig.pd, &rig.cq, &rig.cq).build().unwrap();
    let (a, b) = (prepare(), prepare());
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let mut options = a.connect_options();
    options.static_rate = StaticRate::GBPS_10;
    let a = a.connect_with(&to_b, &options).unwrap();
    let b = b.connect(&to_a).unwrap();
    let rate = |qpn: u32| rig.host.with(rig.device, |device| device.query_qp(qpn).unwrap().1.path.static_rate).unwrap();
    // `IB_RATE_10_GBPS`, and the port's own.
    assert_eq!((rate(a.qpn().get()), rate(b.qpn().get())), (3, 0));
    let seen = Arc::new(Mutex::new(vec![]));
    let rates = Arc::clone(&seen);
    rig.host
        .with(rig.device, |device| {
            device.tap(move |tapped| {
                if let Entry::Send { bytes, .. } = tapped.entry {
                    // The address vector's byte 12, bits 7:4, behind the control segment.
                    rates.lock().unwrap().push(bytes[16 + 12] >> 4);
                }
            });
        })
        .unwrap();
    let prepared = QpBuilder::ud(&rig.pd, &rig.cq, &rig.cq).max_inline_bytes(16).build().unwrap();
    let index = prepared.gid_index().unwrap();
    let mut ud = prepared.activate().unwrap();
    let end = ud.endpoint();
    let path = Path::to_gid(ironverbs::PortNum::ONE, index, end.gid.unwrap());
    for rate in [StaticRate::PORT, StaticRate::GBPS_10, StaticRate::GBPS_100] {
        let ah = rig.pd.create_ah(&Path { static_rate: rate, ..path }).unwrap();
        let mut batch = ud.send_batch();
        batch.send_to(1, WrFlags::SIGNALED, Inline(b"slowly"), ah.to(end.qpn, ironverbs::QKey(0))).unwrap();
        // SAFETY: inline payload.
        unsafe { batch.submit().unwrap() };
        rig.settle();
    }
    // The device's own numbers: none, 10 Gb/s and 100 Gb/s.
    assert_eq!(*seen.lock().unwrap(), [0, 8, 3]);
    drop((a, b, ud));
    rig.finish();
}

/// Operands and what is in memory are the host's numbers; the answer is in the device's order.
#[test]
fn atomics_answer_in_the_devices_order() {
    for big_endian in [false, true] {
        let mut rig =
            Rig::with(SimDevice::roce("mlx5_0").big_endian_atomics(big_endian), |context| context.create_cq(16));
        let [mut a, b] = rig.pair(16, None);
        let (start, add, swap) = (0x0102_0304_0506_0708_u64, 0x1010_u64, 0x1112_1314_1516_1718_u64);
        rig.mr.write(64, &start.to_ne_bytes()).unwrap();
        let (sum, remote) = (start.wrapping_add(add), rig.mr.remote(64).unwrap());
        let mut batch = a.send_batch();
        batch.fetch_add(1, WrFlags::SIGNALED, rig.mr.sge(0..8).unwrap(), remote, add).unwrap();
        // Compares with another number, then with the one that is there.
        batch.compare_swap(2, WrFlags::SIGNALED, rig.mr.sge(8..16).unwrap(), remote, start, swap).unwrap();
        batch.compare_swap(3, WrFlags::SIGNALED, rig.mr.sge(16..24).unwrap(), remote, sum, swap).unwrap();
        // SAFETY: see the file's argument.
        unsafe { batch.submit().unwrap() };
        rig.settle();
        let opcodes: Vec<_> = rig.poll().iter().map(|wc| wc.outcome().unwrap().opcode).collect();
        assert_eq!(opcodes, [WcOpcode::FETCH_ADD, WcOpcode::COMP_SWAP, WcOpcode::COMP_SWAP]);
        let order = rig.context.atomic_order();
        assert_eq!(order, if big_endian { AtomicOrder::BigEndian } else { AtomicOrder::Host });
        let read = |at: usize| {
            let mut bytes = [0; 8];
            rig.mr.read(at, &mut bytes).unwrap();
            bytes
        };
        for (at, old) in [(0, start), (8, sum), (16, sum)] {
            assert_eq!(read(at), if big_endian { old.to_be_bytes() } else { old.to_ne_bytes() });
            assert_eq!(order.value(read(at)), old);
        }
        assert_eq!(u64::from_ne_bytes(read(64)), swap, "in memory it is the host's");
        drop((a, b));
        rig.finish();
    }
}
