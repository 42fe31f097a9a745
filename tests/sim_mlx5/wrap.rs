//! Indices that wrap.

use crate::rig::Rig;
use ironverbs::{Inline, Notify, QpState, WcOpcode, WrFlags};
use softcx::{Punish, SimDevice};

/// The indices of the rings have 16 bits, those of the completion queue 24: all of them go around, with queues that they do
/// not divide; and an event comes whenever it is asked for. `IRONVERBS_TEST_POSTS=17000000` goes past the latter, too.
#[test]
fn indices_wrap() {
    let posts: u64 = std::env::var("IRONVERBS_TEST_POSTS").map_or(70_000, |n| n.parse().unwrap());
    for shared in [false, true] {
        let mut channel = None;
        let mut rig = Rig::with(SimDevice::roce("mlx5_0"), |context| {
            let channel = channel.insert(context.create_comp_channel()?);
            context.cq_builder(200).channel(channel).build()
        });
        let channel = channel.unwrap();
        // Poisoning takes time, and others test it.
        let punish = Punish { poison: false, ..Punish::default() };
        rig.host.with(rig.device, |device| device.set_punish(punish)).unwrap();
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
            // Nothing is there, so that there is one event, however many completions come.
            rig.cq.arm(Notify::Any).unwrap();
            rig.settle();
            assert_eq!(channel.drain(|_| ()).unwrap(), 1, "after {posted} posts");
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
