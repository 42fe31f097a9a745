//! The provider for NVIDIA (Mellanox) ConnectX adapters: queues in the program's own memory, which the device reads and
//! writes by itself.
//!
//! The kernel is asked to make, change and destroy objects. Work requests, completions and requests for events need no
//! command: they are stores to a ring, a doorbell record, and a register in a mapped page of the device.

#[allow(dead_code, reason = "the interface as it is, also what is not used")]
pub(crate) mod abi;
mod av;
mod bus;
mod clock;
mod completion;
mod compressed;
mod context;
mod cq;
mod cq_memory;
mod cqe;
mod create;
mod dbrec;
mod head;
mod home;
mod layout;
mod mailbox;
mod memory;
mod owned;
mod resize;
mod ring;
mod rq;
mod shadow;
mod sq;
mod srq;
mod uar;
mod uar_object;
mod uidx;
mod umr;
mod wqe;

pub use clock::Clock;
pub use completion::Cqe;
pub use context::{BlueFlame, Mlx5Context};
pub use cq::{Cq, OpenCq};
pub use create::{
    CqRequest, NewCq, NewQp, NewSrq, ReceiveFrom, Stamps, alloc_pd, create_ah, create_cq, create_qp, create_srq,
    create_xrc_recv,
};
pub use rq::Rq;
pub use shadow::SrqShared;
pub use sq::{Destination, OpenSq, Sq, Target};
pub use srq::Srq;
pub use wqe::Av;

/// Where queue pairs are announced to the poller of a completion queue.
pub type CqMailbox = mailbox::Mailbox<cq_memory::CqRing>;

#[cfg(all(test, not(loom)))]
mod counters;
#[cfg(all(test, not(loom)))]
mod fake;
#[cfg(all(test, not(loom)))]
mod testing;
