//! A datagram cannot write to a peer's memory.

use ironverbs::{Any, Qp, RemoteAddr, Sge, Ud, WrFlags};

fn write(qp: &mut Qp<Any, Ud>, sge: Sge, remote: RemoteAddr) {
    let mut batch = qp.send_batch();
    let _ = batch.write(1, WrFlags::SIGNALED, &[sge], remote);
}

fn main() {}
