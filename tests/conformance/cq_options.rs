//! What only some devices have of a completion queue: larger entries, packed ones, a clock, and events that wait.

use crate::fixture::{Half, PATIENCE, Setup, Side, completions, try_recv, try_send};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::Target;
use crate::tests;
use ironverbs::{
    AccessFlags, Context, Cq, CqBuilder, DeviceClock, Error, Inline, Lacking, Mr, Qp, QpBuilder, Stamps, WcOpcode,
    WcStatus, WrFlags,
};
use std::time::Duration;

tests! {
    a_driver_without_them_says_so,
    entries_of_128_bytes,
    packed_completions_are_all_there,
    packed_completions_survive_errors_and_a_new_size,
    packed_completions_are_not_for_shared_queues,
    sizes_of_entries_are_two,
    short_messages_come_inside_completions,
    completions_tell_when_they_were_made,
    the_devices_clock_runs,
    a_device_that_keeps_no_time_says_so,
    an_event_stands_for_several,
    moderation_has_limits,
}

/// The device has none of this; or the test is skipped there.
fn only_if_there(target: &Target) {
    if target.kind.is_rxe() {
        skip("Soft-RoCE's completion queues have no options");
    }
}

fn a_driver_without_them_says_so(target: &Target) {
    if !target.kind.is_rxe() {
        skip("the driver has them");
    }
    let context = target.open();
    let unsupported = |what: &str, result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { by: Lacking::Driver, .. }), "{error}");
        seen::refused(what, &error);
    };
    let build = |builder: CqBuilder<'_>| builder.build().map(drop);
    unsupported("CQ entry size", build(context.cq_builder(8).entry_bytes(64)));
    unsupported("CQ compression", build(context.cq_builder(8).compressed(true)));
    unsupported("CQ timestamps", build(context.cq_builder(8).stamps(Stamps::Ticks)));
    unsupported("device clock", context.clock().map(drop));
    let cq = context.create_cq(8).unwrap();
    let pd = context.alloc_pd().unwrap();
    let inside = QpBuilder::rc(&pd, &cq, &cq).data_in_completions(true).build();
    unsupported("data in completions", inside.map(drop));
    unsupported("CQ moderation", cq.moderate(2, Duration::from_micros(10)));
}

/// Sends and receives of a pair, each on a queue of its own that `with` makes.
fn rig(target: &Target, with: impl Fn(CqBuilder<'static>) -> CqBuilder<'static>) -> (Context, Cq, Cq, Qp, Qp, Mr) {
    rig_of(target, with, false)
}

/// As [`rig`], of queue pairs whose data may come inside completions.
fn rig_of(
    target: &Target,
    with: impl Fn(CqBuilder<'static>) -> CqBuilder<'static>,
    data_in_completions: bool,
) -> (Context, Cq, Cq, Qp, Qp, Mr) {
    let context = target.open();
    let cq = || with(context.cq_builder(64)).build().unwrap();
    let (sends, receives) = (cq(), cq());
    let pd = context.alloc_pd().unwrap();
    let mr = pd.alloc_mr(64 * 64, AccessFlags::ALL).unwrap();
    let build = || {
        let builder = QpBuilder::rc(&pd, &sends, &receives).port(target.port).access(AccessFlags::ALL);
        let builder = builder.max_send_wr(64).max_recv_wr(64).max_inline_bytes(32);
        let builder = builder.data_in_completions(data_in_completions);
        match target.gid_index {
            Some(index) => builder.gid_index(index),
            None => builder,
        }
        .build()
        .unwrap()
    };
    let (a, b) = (build(), build());
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&b_end).unwrap(), b.connect(&a_end).unwrap());
    (context, sends, receives, a, b, mr)
}

/// Sends `n` messages at once and checks everything that is told of them.
fn exchange(a: &mut Qp, b: &mut Qp, sends: &mut Cq, receives: &mut Cq, mr: &Mr, n: u64, from: u64) {
    try_recv(b, |batch| {
        for i in 0..n {
            batch.recv(from + i, &[mr.sge(64 * i as usize..64 * i as usize + 64).unwrap()])?;
        }
        Ok(())
    })
    .unwrap();
    try_send(a, |batch| {
        for i in 0..n {
            let bytes = [(from + i) as u8; 32];
            batch.send(1000 + from + i, WrFlags::SIGNALED, Inline(&bytes[..1 + i as usize % 32]))?;
        }
        Ok(())
    })
    .unwrap();
    for (i, wc) in completions(receives, n as usize).into_iter().enumerate() {
        let done = wc.outcome().unwrap();
        assert_eq!((wc.wr_id, done.opcode, done.byte_len), (from + i as u64, WcOpcode::RECV, 1 + i as u32 % 32));
        assert_eq!(wc.qpn(), b.qpn().get());
        let mut bytes = vec![0; done.byte_len as usize];
        mr.read(64 * i, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == (from + i as u64) as u8), "message {i}: {bytes:?}");
    }
    for (i, wc) in completions(sends, n as usize).into_iter().enumerate() {
        assert_eq!(
            (wc.wr_id, wc.qpn(), wc.outcome().unwrap().opcode),
            (1000 + from + i as u64, a.qpn().get(), WcOpcode::SEND)
        );
    }
}

fn entries_of_128_bytes(target: &Target) {
    only_if_there(target);
    let (context, mut sends, mut receives, mut a, mut b, mr) = rig(target, |builder| builder.entry_bytes(128));
    step("round and round");
    for round in 0..12 {
        exchange(&mut a, &mut b, &mut sends, &mut receives, &mr, 1 + 9 * round % 60, 100 * round);
    }
    step("in a ring of another size");
    for depth in [300, 20] {
        sends.resize(depth).unwrap();
        receives.resize(depth).unwrap();
        for round in 0..5 {
            exchange(&mut a, &mut b, &mut sends, &mut receives, &mr, 15, 20 * round);
        }
    }
    assert!(context.leaks().is_empty());
    seen::works("CQ entry size");
}

/// Makes a queue of packed completions, or skips the test where the device has none.
fn packed(target: &Target) -> (Context, Cq, Cq, Qp, Qp, Mr) {
    only_if_there(target);
    match target.open().cq_builder(8).compressed(true).build() {
        Err(Error::Unsupported { what, by, .. }) => skip(format!("{by} has no {what}")),
        made => drop(made.unwrap()),
    }
    rig(target, |builder| builder.compressed(true))
}

fn packed_completions_are_all_there(target: &Target) {
    let (context, mut sends, mut receives, mut a, mut b, mr) = packed(target);
    for round in 0..40 {
        exchange(&mut a, &mut b, &mut sends, &mut receives, &mr, 1 + 13 * round % 60, 70 * round);
    }
    assert!(context.leaks().is_empty());
    seen::works("CQ compression");
}

fn packed_completions_survive_errors_and_a_new_size(target: &Target) {
    let (_context, mut sends, mut receives, mut a, mut b, mr) = packed(target);
    exchange(&mut a, &mut b, &mut sends, &mut receives, &mr, 40, 0);
    receives.resize(200).unwrap();
    exchange(&mut a, &mut b, &mut sends, &mut receives, &mr, 50, 0);
    step("flushed, which is never packed");
    try_recv(&mut b, |batch| {
        for i in 0..20 {
            batch.recv(i, &[mr.sge(..8).unwrap()])?;
        }
        Ok(())
    })
    .unwrap();
    b.to_error().unwrap();
    for (i, wc) in completions(&mut receives, 20).into_iter().enumerate() {
        assert_eq!((wc.wr_id, wc.status()), (i as u64, WcStatus::WR_FLUSH_ERR));
    }
    drop(a);
}

/// Packed receives do not name their elements, and those of a shared queue are taken in any order.
fn packed_completions_are_not_for_shared_queues(target: &Target) {
    only_if_there(target);
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let srq = context.srq_builder(&pd, 8).build().unwrap();
    let plain = context.create_cq(8).unwrap();
    let packed = match context.cq_builder(8).compressed(true).build() {
        Err(Error::Unsupported { what, by, .. }) => skip(format!("{by} has no {what}")),
        made => made.unwrap(),
    };
    let what = "completion queue of a shared receive queue's receives is compressed; packed completions do not name the shared \
                queue's elements: make it without CqBuilder::compressed";
    let error = QpBuilder::rc(&pd, &plain, &packed).srq(&srq).build().unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    assert_eq!(error.to_string(), format!("create_qp: {what}"));
    // Sends do name theirs.
    QpBuilder::rc(&pd, &packed, &plain).srq(&srq).build().unwrap();
    let domain = context.create_xrcd().unwrap();
    let error = context.srq_builder(&pd, 8).xrc(&domain, &packed).build().unwrap_err();
    assert_eq!(error.to_string(), format!("create_srq: {what}"));
    context.srq_builder(&pd, 8).xrc(&domain, &plain).build().unwrap();
}

fn sizes_of_entries_are_two(target: &Target) {
    only_if_there(target);
    let context = target.open();
    for bytes in [0, 1, 32, 63, 96, 256, u32::MAX] {
        let error = context.cq_builder(8).entry_bytes(bytes).build().unwrap_err();
        let text = format!("create_cq: cqe_size is {bytes}; mlx5 has entries of 64 and of 128 bytes");
        assert_eq!(error.to_string(), text);
    }
    match context.cq_builder(8).entry_bytes(128).compressed(true).build() {
        Ok(cq) => drop(cq),
        Err(error) => {
            assert!(matches!(error, Error::Unsupported { by: Lacking::Device, .. }), "{error}");
            assert!(error.to_string().contains("compressed completions in entries of 128 bytes"), "{error}");
        }
    }
}

/// The device chooses where a message goes; what it was is the same.
fn short_messages_come_inside_completions(target: &Target) {
    only_if_there(target);
    let (_context, mut sends, mut receives, mut a, mut b, mr) = rig_of(target, |builder| builder, true);
    let mut inside = 0;
    for len in 0..=32_u8 {
        try_recv(&mut b, |batch| batch.recv(len.into(), &[mr.sge(..32).unwrap()])).unwrap();
        let bytes: Vec<u8> = (0..len).map(|i| i ^ len).collect();
        try_send(&mut a, |batch| batch.send(1, WrFlags::SIGNALED, Inline(&bytes))).unwrap();
        completions(&mut sends, 1);
        let patience = crate::fixture::Patience::new();
        let data = loop {
            if let Some(completion) = receives.poll().unwrap().next() {
                assert_eq!(completion.outcome().unwrap().byte_len, len.into());
                break completion.inline_data();
            }
            patience.check("a message comes");
        };
        let mut got = vec![0; len.into()];
        match data {
            Some(data) => got.copy_from_slice(&data),
            None => mr.read(0, &mut got).unwrap(),
        }
        inside += u32::from(data.is_some());
        assert_eq!(got, bytes);
    }
    if inside > 0 {
        seen::works("data in completions");
    }
}

fn clock(context: &Context) -> DeviceClock {
    let clock = context.clock().unwrap();
    assert!(clock.khz() > 0);
    clock
}

fn completions_tell_when_they_were_made(target: &Target) {
    only_if_there(target);
    let (context, mut sends, mut receives, mut a, mut b, mr) = rig(target, |builder| builder.stamps(Stamps::Ticks));
    let clock = clock(&context);
    let before = clock.now().unwrap();
    let mut last = before;
    for round in 0..20 {
        try_recv(&mut b, |batch| batch.recv(round, &[mr.sge(..8).unwrap()])).unwrap();
        try_send(&mut a, |batch| batch.send(round, WrFlags::SIGNALED, Inline(b"tick"))).unwrap();
        completions(&mut receives, 1);
        let patience = crate::fixture::Patience::new();
        let ticks = loop {
            if let Some(completion) = sends.poll().unwrap().next() {
                break completion.timestamp().unwrap();
            }
            patience.check("a send completes");
        };
        assert!(ticks >= last, "{ticks} after {last}");
        last = ticks;
    }
    crate::fixture::eventually("the clock passes the last completion", || clock.now().unwrap() >= last);
    let (first, then) = (clock.time(before).unwrap(), clock.time(last).unwrap());
    let took = then.duration_since(first).unwrap();
    assert!(took < PATIENCE, "{took:?}");
    // A millisecond has as many ticks as the clock says, to the precision of the kernel's factor.
    let ms = clock.time(before + 1000 * clock.khz()).unwrap().duration_since(first).unwrap().as_secs_f64();
    assert!((ms - 1.0).abs() < 1e-3, "1000 ms are {ms} s");
    seen::works("CQ timestamps");
}

fn the_devices_clock_runs(target: &Target) {
    only_if_there(target);
    let context = target.open();
    let clock = clock(&context);
    let (ticks, time) = (clock.now().unwrap(), clock.time(clock.now().unwrap()).unwrap());
    crate::fixture::eventually("the clock goes on", || {
        let now = clock.now().unwrap();
        assert!(now >= ticks);
        now > ticks && clock.time(now).unwrap() > time
    });
    // The pages stay for as long as the clock does.
    drop(context);
    assert!(clock.now().unwrap() >= ticks);
    seen::works("device clock");
}

fn a_device_that_keeps_no_time_says_so(target: &Target) {
    only_if_there(target);
    match target.open().cq_builder(8).stamps(Stamps::RealTime).build() {
        Ok(cq) => drop(cq),
        Err(error) => assert!(matches!(error, Error::Unsupported { by: Lacking::Device, .. }), "{error}"),
    }
}

fn an_event_stands_for_several(target: &Target) {
    only_if_there(target);
    let setup = Setup { channel: true, ..Setup::default() };
    let halves = [target.open(), target.open_peer()].map(|context| Half::new(target, context, &setup));
    let [a, b] = halves;
    let (a_end, b_end) = (a.prepared.endpoint(), b.prepared.endpoint());
    let (mut a, mut b): (Side, Side) = (a.connect(&b_end, &setup), b.connect(&a_end, &setup));
    b.cq.moderate(4, Duration::from_millis(4)).unwrap();
    for round in 0..5 {
        step(format!("round {round}"));
        for n in 0..4 {
            let entry = b.sge(0, 8);
            b.recv(n, &[entry]);
        }
        a.send(|batch| {
            for n in 0..4 {
                batch.send(n, WrFlags::SIGNALED, Inline(b"one"))?;
            }
            Ok(())
        });
        a.successes(4);
        // Enough of them: at once. Fewer would come when the time is over.
        assert!(b.cq.wait(PATIENCE).unwrap());
        b.successes(4);
    }
    step("fewer than it waits for");
    let entry = b.sge(0, 8);
    b.recv(9, &[entry]);
    a.send(|batch| batch.send(9, WrFlags::SIGNALED, Inline(b"one")));
    assert!(b.cq.wait(PATIENCE).unwrap());
    b.successes(1);
    step("not at all");
    b.cq.moderate(0, Duration::ZERO).unwrap();
    let entry = b.sge(0, 8);
    b.recv(10, &[entry]);
    a.send(|batch| batch.send(10, WrFlags::SIGNALED, Inline(b"one")));
    assert!(b.cq.wait(PATIENCE).unwrap());
    seen::works("CQ moderation");
}

fn moderation_has_limits(target: &Target) {
    only_if_there(target);
    let context = target.open();
    let cq = context.create_cq(8).unwrap();
    let longest = context.attr().max_cq_moderation_period_us;
    cq.moderate(context.attr().max_cq_moderation_count, Duration::from_micros(longest.into())).unwrap();
    let error = cq.moderate(1, Duration::from_micros(u64::from(longest) + 1)).unwrap_err();
    assert!(error.to_string().starts_with("modify_cq: period is "), "{error}");
    let error = cq.moderate(1, Duration::from_secs(1 << 40)).unwrap_err();
    assert!(error.to_string().contains(&format!("the device waits for up to {longest} us")), "{error}");
    if context.attr().max_cq_moderation_count < u16::MAX {
        let error = cq.moderate(u16::MAX, Duration::ZERO).unwrap_err();
        assert!(error.to_string().starts_with("modify_cq: count is 65535"), "{error}");
    }
}
