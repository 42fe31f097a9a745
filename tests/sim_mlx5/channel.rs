//! The loop that sleeps on a completion channel, in each order that its documentation allows: the device has nothing to say
//! against it.

use crate::rig::{Rig, send};
use ironverbs::{CompChannel, Notify, WrFlags};
use std::time::Duration;

/// Takes the events that are there.
fn drain(channel: &CompChannel) -> usize {
    channel.drain(|_| {}).unwrap()
}

#[test]
fn a_loop_on_a_channel_is_no_misuse() {
    let mut channel = None;
    let mut rig = Rig::with(softcx::SimDevice::roce("mlx5_0"), |context| {
        let made = channel.insert(context.create_comp_channel()?);
        context.cq_builder(64).channel(made).build()
    });
    let channel = channel.unwrap();
    let [mut a, _b] = rig.pair(16, None);
    for round in 0..20 {
        // Arms, and finds work that has raised its event already; arms once more before it takes that.
        for n in 0..round % 4 {
            rig.cq.arm(Notify::Any).unwrap();
            send(&mut a, n, WrFlags::SIGNALED | WrFlags::SOLICITED);
            rig.settle();
            assert_eq!(rig.poll().len(), 1, "what fails is the loop");
        }
        rig.cq.arm(Notify::Solicited).unwrap();
        rig.cq.arm(Notify::Any).unwrap();
        rig.cq.arm(Notify::Solicited).unwrap();
        assert_eq!(rig.poll(), []);
        send(&mut a, 9, WrFlags::SIGNALED);
        rig.settle();
        // Something wakes it: now, or since before.
        assert!(channel.wait(Duration::ZERO).unwrap(), "round {round}");
        assert_eq!(drain(&channel), 1, "round {round}");
        // Arms for what comes next before it takes what came, or after.
        let arms_first = round % 2 == 0;
        if arms_first {
            rig.cq.arm(Notify::Any).unwrap();
        }
        assert_eq!(rig.poll().len(), 1);
        if !arms_first {
            rig.cq.arm(Notify::Any).unwrap();
        }
        drain(&channel);
    }
    drop((a, _b));
    rig.finish();
}
