//! RDMA verbs in pure Rust over the kernel's device files.
