//! Memory shared with a device: mappings, ring arithmetic, barriers, atomics. Knows nothing of RDMA.

pub mod atomic;
pub mod barrier;
pub mod branch;
pub mod copy;
pub mod detach;
pub mod map;
pub mod numbered;
pub mod ring;
