//! A queue pair that is not connected takes receives only.

fn early(qp: &mut ironverbs::PreparedQp) {
    qp.send_batch();
}

fn main() {}
