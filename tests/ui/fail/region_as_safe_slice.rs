//! A peer may write a region at any time.

fn look(mr: &ironverbs::Mr) -> u8 {
    mr.as_slice()[0]
}

fn main() {}
