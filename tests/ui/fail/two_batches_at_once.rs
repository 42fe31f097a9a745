//! Two open batches on one queue would write the same slots.

fn both(qp: &mut ironverbs::Qp) {
    let mut first = qp.send_batch();
    let mut second = qp.send_batch();
    first.remaining();
    second.remaining();
}

fn main() {}
