//! A datagram names its peer.

use ironverbs::{Any, Inline, Qp, Ud, WrFlags};

fn send(qp: &mut Qp<Any, Ud>) {
    let mut batch = qp.send_batch();
    let _ = batch.send(1, WrFlags::SIGNALED, Inline(b"to whom?"));
}

fn main() {}
