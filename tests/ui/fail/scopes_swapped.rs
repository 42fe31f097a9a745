//! A scope that ended early would give its buffers back early.

use std::time::Duration;

fn swap(
    a: (&mut ironverbs::Qp, &mut ironverbs::Cq),
    b: (&mut ironverbs::Qp, &mut ironverbs::Cq),
) -> Result<(), ironverbs::Error> {
    let second = Duration::from_secs(1);
    a.0.scope(a.1, second, |one| {
        b.0.scope(b.1, second, |two| {
            std::mem::swap(one, two);
            Ok(())
        })
    })
}

fn main() {}
