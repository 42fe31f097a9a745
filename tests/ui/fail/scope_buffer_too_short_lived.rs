//! The device may write it until the scope ends.

use std::time::Duration;

fn short(qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq) -> Result<(), ironverbs::Error> {
    qp.scope(cq, Duration::from_secs(1), |scope| {
        let mut buffer = [0; 4];
        scope.recv(&mut buffer)?;
        scope.wait()?;
        Ok(())
    })
}

fn main() {}
