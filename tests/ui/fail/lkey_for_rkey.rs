//! The two keys are the same number on some devices, and not on others.

fn remote(mr: &ironverbs::Mr) -> ironverbs::RemoteAddr {
    ironverbs::RemoteAddr { addr: mr.addr(), rkey: mr.lkey() }
}

fn main() {}
