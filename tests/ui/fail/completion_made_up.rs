//! Only a completion queue makes completions.

fn forge(pool: &ironverbs::Pool) {
    let completion = ironverbs::Completion::<ironverbs::Any> { entry: todo!() };
    let _ = pool.reclaim(completion);
}

fn main() {}
