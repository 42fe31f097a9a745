//! Each is borrowed from the queue.

fn two(cq: &mut ironverbs::Cq) -> Option<bool> {
    let mut completions = cq.poll().ok()?;
    let first = completions.next()?;
    let second = completions.next()?;
    Some(first.wr_id() == second.wr_id())
}

fn main() {}
