//! A datagram queue pair has no peer to connect to.

use ironverbs::{Endpoint, PreparedQp, Any, Ud};

fn connect(prepared: PreparedQp<Any, Ud>, remote: &Endpoint) {
    let _ = prepared.connect(remote);
}

fn main() {}
