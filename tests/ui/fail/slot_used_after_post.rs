//! The device has it.

fn reuse(qp: &mut ironverbs::Qp, mut slot: ironverbs::Slot) {
    let _ = qp.send_slot(slot, 4);
    slot[0] = 1;
}

fn main() {}
