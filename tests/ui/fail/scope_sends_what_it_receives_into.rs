//! The device would write it and read it at once.

use std::time::Duration;

fn both(qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq) -> Result<(), ironverbs::Error> {
    let mut buffer = [0; 4];
    qp.scope(cq, Duration::from_secs(1), |scope| {
        scope.recv(&mut buffer)?;
        scope.send(&buffer)
    })
}

fn main() {}
