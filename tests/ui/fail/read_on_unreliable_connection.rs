//! A READ needs an answer, which an unreliable connection does not promise.

use ironverbs::{Any, Qp, RemoteAddr, Sge, Uc, WrFlags};

fn read(qp: &mut Qp<Any, Uc>, sge: Sge, remote: RemoteAddr) {
    let mut batch = qp.send_batch();
    let _ = batch.read(1, WrFlags::SIGNALED, &[sge], remote);
}

fn main() {}
