//! There is one for each work request: a second one would bring a pool's slot back twice.

fn twice(pool: &ironverbs::Pool, cq: &mut ironverbs::Cq) {
    let mut completions = cq.poll().unwrap();
    let completion = completions.next().unwrap();
    let _ = pool.reclaim(completion.clone());
    let _ = pool.reclaim(completion);
}

fn main() {}
