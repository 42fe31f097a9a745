//! Memory shared with a device: mappings, ring arithmetic, barriers, atomics. Knows nothing of RDMA.

pub mod map;
