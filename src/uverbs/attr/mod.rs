//! What devices, ports and queue pairs tell of themselves, and what a queue pair is asked to be. Host order throughout.

mod device;
mod port;
mod qp;

pub use device::{DeviceAttr, OdpCaps, RssCaps, TmCaps};
pub use port::{GidEntry, GidType, PortAttr, PortState};
pub use qp::{AddressVector, QpAttr, QpCap, QpState};
pub(crate) use qp::{CreateQp, CreatedQp, ModifyQp, qp_attr_mask};
