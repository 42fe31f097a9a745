//! Its slot goes back to the device when the batch ends.

fn keep(cq: &mut ironverbs::Cq) -> Option<u64> {
    let mut completions = cq.poll().ok()?;
    let completion = completions.next();
    drop(completions);
    completion.map(|completion| completion.wr_id())
}

fn main() {}
