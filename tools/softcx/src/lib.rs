//! A software ConnectX.

pub mod bits;
mod cq;
mod device;
mod event;
mod fabric;
mod memory;
mod mkey;
mod packet;
mod port;
mod qp;
mod recv;
mod report;
mod shared;
mod syndrome;
mod uverbs;
mod wire;
mod wqe;

pub use cq::{Cq, CqSpec};
pub use device::{CLOCK_KHZ, Device, DeviceSpec, Refusal, UarPage};
pub use event::{Eq, Event, PortChange};
pub use fabric::{DeviceId, Engine, Fabric};
pub use memory::{Buffer, BusError, Memory, VecMemory};
pub use mkey::{Access, Asker, KeyError, KeyRange, Mkey, Mkeys, Translation, Why};
pub use packet::{Body, Gid, Grh, Mac, Nak, Network, Packet, Part, Remote, Route, Transport};
pub use port::{GidEntry, Link, Path, PathGrh, Port};
pub use qp::{Qp, QpAttr, QpKind, QpSpec, QpState, SendSpec};
pub use recv::{POISON, RecvSpec, SCRIBBLE, Sge, XrcSrq};
pub use report::{Misuse, Report, WqeImage};
pub use shared::Punish;
pub use syndrome::Syndrome;
pub use uverbs::{SimDevice, SimHost};
pub use wire::{Disturbance, Verdict};
pub use wqe::{Atomic, Av, Segment, SendWqe, Umr, Work};
