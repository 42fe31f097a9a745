//! Looks at RDMA devices and pings through them.
fn main() {}
