//! A pool takes the completion by value.

fn twice(pool: &ironverbs::Pool, cq: &mut ironverbs::Cq) {
    let mut completions = cq.poll().unwrap();
    let completion = completions.next().unwrap();
    let _ = pool.reclaim(completion);
    let _ = pool.reclaim(completion);
}

fn main() {}
