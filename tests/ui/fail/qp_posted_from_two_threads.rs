//! Posting takes the queue pair for itself.

fn share(mut qp: ironverbs::Qp) {
    std::thread::scope(|scope| {
        scope.spawn(|| qp.send_batch().remaining());
        scope.spawn(|| qp.send_batch().remaining());
    });
}

fn main() {}
