//! The device may be writing it.

use std::time::Duration;

fn peek(qp: &mut ironverbs::Qp, cq: &mut ironverbs::Cq) -> Result<(), ironverbs::Error> {
    let mut buffer = [0; 4];
    qp.scope(cq, Duration::from_secs(1), |scope| {
        scope.recv(&mut buffer)?;
        println!("{}", buffer[0]);
        Ok(())
    })
}

fn main() {}
