//! Messages that come inside their completion.

use crate::rig::{Rig, receive};
use ironverbs::{AccessFlags, Any, Completion, Cq, Inline, Pool, Qp, Srq, WcOpcode, WrFlags};
use softcx::SimDevice;
use std::time::Duration;

/// Most that an entry of so many bytes carries.
const fn room(entry_bytes: u32) -> usize {
    entry_bytes as usize / 2
}

fn rig(entry_bytes: u32) -> Rig {
    Rig::with(SimDevice::roce("mlx5_0"), |context| context.cq_builder(31).entry_bytes(entry_bytes).build())
}

fn pair(rig: &Rig, srq: Option<&Srq>) -> [Qp; 2] {
    rig.pair_with(16, srq, |builder| builder.data_in_completions(true))
}

fn send_bytes(qp: &mut Qp, wr_id: u64, bytes: &[u8]) {
    let mut batch = qp.send_batch();
    batch.send_imm(wr_id, WrFlags::SIGNALED, Inline(bytes), bytes.len() as u32).unwrap();
    // SAFETY: inline payload.
    unsafe { batch.submit().unwrap() };
}

/// Looks at all completions that are there, of which `n` are of receives.
fn received(cq: &mut Cq, n: u64, mut look: impl FnMut(Completion<'_, Any>, u64)) {
    let mut completions = cq.poll().unwrap();
    let mut seen = 0;
    while let Some(completion) = completions.next() {
        if completion.outcome().unwrap().opcode != WcOpcode::SEND {
            look(completion, seen);
            seen += 1;
        }
    }
    assert_eq!(seen, n);
}

/// What came, and whether it was inside.
fn data_of(completion: &Completion<'_, Any>, rig_mr: &ironverbs::Mr) -> (Vec<u8>, bool) {
    let done = completion.outcome().unwrap();
    assert_eq!((done.opcode, done.imm), (WcOpcode::RECV, Some(done.byte_len)));
    let mut bytes = vec![0; done.byte_len as usize];
    rig_mr.read(0, &mut bytes).unwrap();
    match completion.inline_data() {
        // Nothing is in memory.
        Some(data) => {
            assert!(bytes.iter().all(|byte| *byte == 0xcc), "{bytes:02x?}");
            (data.to_vec(), true)
        }
        None => (bytes, false),
    }
}

/// Of every length, in both sizes of entries, around the ring, into own queues and a shared one.
#[test]
fn short_messages_are_in_the_completion_and_others_in_memory() {
    for (entry_bytes, shared) in [(64, false), (64, true), (128, false), (128, true)] {
        let mut rig = rig(entry_bytes);
        rig.mr.write(0, &[0xcc; 128]).unwrap();
        let mut srq = rig.context.create_srq(&rig.pd, 16).unwrap();
        let [mut a, mut b] = pair(&rig, shared.then_some(&srq));
        for len in 0..100 {
            if shared {
                let mut batch = srq.recv_batch();
                batch.recv(len as u64, &[rig.mr.sge(0..128).unwrap()]).unwrap();
                // SAFETY: see the file's argument.
                unsafe { batch.submit().unwrap() };
            } else {
                let mut batch = b.recv_batch();
                batch.recv(len as u64, &[rig.mr.sge(0..128).unwrap()]).unwrap();
                // SAFETY: see the file's argument.
                unsafe { batch.submit().unwrap() };
            }
            let bytes: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
            send_bytes(&mut a, 1, &bytes);
            rig.settle();
            let Rig { cq, mr, .. } = &mut rig;
            received(cq, 1, |completion, _| {
                assert_eq!(completion.wr_id(), len as u64);
                let is_inside = (1..=room(entry_bytes)).contains(&len);
                assert_eq!(data_of(&completion, mr), (bytes.clone(), is_inside), "{len} bytes in {entry_bytes}");
                if is_inside && entry_bytes == 64 {
                    // What lies in the same place otherwise is not told of it.
                    let source = completion.wc().source().unwrap();
                    assert!(source.lid.0 == 0 && source.sl == 0 && !source.grh);
                }
            });
            rig.mr.write(0, &[0xcc; 128]).unwrap();
        }
        drop((a, b, srq));
        rig.finish();
    }
}

/// Only where it was asked for, also where others on the same completion queue have it.
#[test]
fn who_did_not_ask_has_everything_in_memory() {
    let mut rig = rig(64);
    rig.mr.write(0, &[0xcc; 128]).unwrap();
    let ([mut a, mut b], [mut c, mut d]) = (pair(&rig, None), rig.pair(16, None));
    for (from, to, inside) in [(&mut a, &mut b, true), (&mut c, &mut d, false)] {
        receive(to, 1, &rig.mr);
        send_bytes(from, 1, &[1, 2, 3]);
        rig.settle();
        let Rig { cq, mr, .. } = &mut rig;
        received(cq, 1, |completion, _| assert_eq!(data_of(&completion, mr), (vec![1, 2, 3], inside)));
    }
    drop((a, b, c, d));
    rig.finish();
}

/// A pool's slots hold what came, wherever the device put it.
#[test]
fn a_pool_copies_it_into_the_slot() {
    for entry_bytes in [64, 128] {
        let mut rig = rig(entry_bytes);
        let [mut a, mut b] = pair(&rig, None);
        let pool = Pool::new(&rig.pd, 4, 128).unwrap();
        for len in 0..100_usize {
            let mut slot = pool.take().unwrap();
            slot.fill(0xee);
            b.recv_slot(slot).unwrap();
            let bytes: Vec<u8> = (0..len).map(|i| (i + len) as u8).collect();
            send_bytes(&mut a, 1, &bytes);
            rig.settle();
            received(&mut rig.cq, 1, |completion, _| {
                let (slot, wc) = pool.reclaim(completion).unwrap();
                assert_eq!(wc.outcome().unwrap().byte_len as usize, len);
                assert_eq!(slot[..len], bytes, "{len} bytes in an entry of {entry_bytes}");
                assert!(slot[len..].iter().all(|byte| *byte == 0xee), "{:02x?}", &slot[len..]);
            });
        }
        drop((a, b, pool));
        rig.finish();
    }
}

/// Answers of READs and atomics, of queue pairs that signal all.
#[test]
fn answers_are_in_the_completion_where_all_are_signaled() {
    for signal_all in [true, false] {
        let mut rig = rig(64);
        let [mut a, b] = rig.pair_with(16, None, |builder| builder.data_in_completions(true).signal_all(signal_all));
        let remote: Vec<u8> = (0..64).collect();
        rig.mr.write(1024, &remote).unwrap();
        for (len, is_inside) in [(1, true), (20, true), (32, true), (33, false), (64, false)] {
            rig.mr.write(0, &[0xcc; 64]).unwrap();
            let mut batch = a.send_batch();
            let to = rig.mr.sge(0..len).unwrap();
            batch.read(len as u64, WrFlags::SIGNALED, &[to], rig.mr.remote(1024).unwrap()).unwrap();
            // SAFETY: see the file's argument.
            unsafe { batch.submit().unwrap() };
            rig.settle();
            let mut completions = rig.cq.poll().unwrap();
            let completion = completions.next().unwrap();
            let done = completion.outcome().unwrap();
            assert_eq!((completion.wr_id(), done.opcode, done.byte_len), (len as u64, WcOpcode::RDMA_READ, len as u32));
            let data = completion.inline_data();
            assert_eq!(data.is_some(), is_inside && signal_all, "{len} bytes");
            let mut memory = vec![0; len];
            rig.mr.read(0, &mut memory).unwrap();
            match data {
                Some(data) => assert_eq!((&data[..], memory), (&remote[..len], vec![0xcc; len])),
                None => assert_eq!(memory, remote[..len]),
            }
        }
        let mut batch = a.send_batch();
        batch.fetch_add(9, WrFlags::SIGNALED, rig.mr.sge(0..8).unwrap(), rig.mr.remote(1024).unwrap(), 1).unwrap();
        // SAFETY: see the file's argument.
        unsafe { batch.submit().unwrap() };
        rig.settle();
        let mut completions = rig.cq.poll().unwrap();
        let data = completions.next().unwrap().inline_data();
        assert_eq!(data.map(|data| data.to_vec()), signal_all.then(|| remote[..8].to_vec()));
        drop(completions);
        drop((a, b));
        rig.finish();
    }
}

/// Completions with data move to another ring, and outlive their queue pair.
#[test]
fn data_stay_with_their_completion() {
    for entry_bytes in [64, 128] {
        let mut rig = rig(entry_bytes);
        let message = vec![0x5a; room(entry_bytes)];
        for depth in [100, 31, 200] {
            let [mut a, mut b] = pair(&rig, None);
            for id in 0..5 {
                receive(&mut b, id, &rig.mr);
                send_bytes(&mut a, 1, &message);
            }
            rig.settle();
            rig.cq.resize(depth).unwrap();
            drop((a, b));
            received(&mut rig.cq, 5, |completion, id| {
                assert_eq!((completion.wr_id(), completion.inline_data().unwrap().to_vec()), (id, message.clone()));
            });
        }
        rig.finish();
    }
}

#[test]
fn a_scope_is_refused() {
    let mut rig = rig(64);
    let prepare = || {
        let builder = ironverbs::QpBuilder::rc(&rig.pd, &rig.cq, &rig.cq).access(AccessFlags::ALL);
        builder.data_in_completions(true).build().unwrap()
    };
    let qp = prepare();
    let end = qp.endpoint();
    let mut qp = qp.connect(&end).unwrap();
    let mut room = [0; 8];
    let error = qp.scope(&mut rig.cq, Duration::from_secs(1), |scope| scope.recv(&mut room)).unwrap_err();
    assert!(error.to_string().contains("the device puts short messages into completions"), "{error}");
    drop(qp);
    rig.finish();
}
