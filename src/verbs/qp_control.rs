//! A queue pair's states and attributes, whatever queues it has.

use super::access::AccessFlags;
use super::attr::QpUpdate;
use super::device::ContextInner;
use super::route::explain_route;
use super::transition::{self, Transport};
use crate::uverbs::attr::qp_attr_mask as mask;
use crate::uverbs::attr::{ModifyQp, QpAttr, QpState};
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
use crate::uverbs::types::{Mtu, PortNum};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The kernel's queue pair, and what state it was put in.
pub(super) struct QpControl {
    pub(super) handle: Handle,
    pub(super) transport: Transport,
    /// As of the last change made from here; the device may have moved on to ERR.
    state: AtomicU8,
    context: Arc<ContextInner>,
}

impl QpControl {
    /// Of a queue pair in state RESET.
    pub(super) fn new(handle: Handle, transport: Transport, context: Arc<ContextInner>) -> Self {
        Self { handle, transport, state: AtomicU8::new(QpState::RESET.0), context }
    }

    pub(super) fn state(&self) -> QpState {
        QpState(self.state.load(Ordering::Relaxed))
    }

    /// Notes a state that somebody else put it in.
    pub(super) fn set_state(&self, state: QpState) {
        self.state.store(state.0, Ordering::Relaxed);
    }

    /// Changes state or attributes.
    pub(super) fn modify(&self, update: &QpUpdate) -> Result<(), Error> {
        let mut raw = update.raw;
        let access = AccessFlags::from_bits(raw.qp_access_flags);
        if update.by_kernel {
            // It knows what the transition takes, but not what the device can (Linux 6.12 hands out FLUSH to all).
            raw.qp_access_flags = access.offered(&self.context).bits();
        } else {
            update.check_ranges()?;
            if raw.attr_mask & mask::ACCESS_FLAGS != 0 {
                access.check_offered(Verb::ModifyQp, &self.context)?;
            }
            transition::check(self.transport, self.state(), update.state(), raw.attr_mask)?;
        }
        let done = self.context.ucontext.modify_qp(&self.handle, &raw);
        done.map_err(|error| {
            let error = self.explain(error, &raw);
            if raw.attr_mask & mask::AV == 0 {
                return error;
            }
            explain_route(error, &self.context, &raw.dest)
        })?;
        self.set_state(update.state());
        Ok(())
    }

    pub(super) fn query(&self) -> Result<QpAttr, Error> {
        self.context.ucontext.query_qp(&self.handle)
    }

    /// A bare `EINVAL` is most often a value that the port or the device does not have, or a state that the device has left.
    fn explain(&self, error: Error, raw: &ModifyQp) -> Error {
        if error.errno() != Some(Errno::EINVAL) {
            return error;
        }
        let (state, now) = (self.state(), self.query().ok());
        // What comes next is refused whatever its values are.
        if let Some(now) = now.as_ref().filter(|now| now.qp_state != state) {
            return error.with_hint(format!("the queue pair went from {state} to {} by itself", now.qp_state));
        }
        let port = match (raw.attr_mask & mask::PORT, &now) {
            (0, Some(now)) => now.port_num,
            _ => raw.port_num,
        };
        match self.beyond(raw, port) {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// The first value that is beyond what the port or the device has, if there is one.
    fn beyond(&self, raw: &ModifyQp, port: u8) -> Option<String> {
        let device = &self.context.attr;
        let has = |bit| raw.attr_mask & bit != 0;
        if has(mask::PORT) && !(1..=device.phys_port_cnt).contains(&port) {
            return Some(format!("port is {port}, and the device has ports 1 to {}", device.phys_port_cnt));
        }
        let ours = PortNum::new(port).ok().and_then(|port| self.context.query_port(port).ok());
        if let Some(ours) = ours {
            let (index, len) = (raw.pkey_index, ours.pkey_tbl_len);
            if has(mask::PKEY_INDEX) && index >= len {
                let entries = if len == 1 { "entry" } else { "entries" };
                return Some(format!(
                    "pkey_index is {index}, and the partition key table of port {port} has {len} {entries}, counted from 0"
                ));
            }
            if let (true, Some(mtu), Some(asked)) = (has(mask::PATH_MTU), ours.active_mtu, Mtu::from_raw(raw.path_mtu))
                && asked.raw() > mtu.raw()
            {
                return Some(format!("path_mtu is {} bytes, and port {port} runs with {}", asked.bytes(), mtu.bytes()));
            }
        }
        let counts = [
            (mask::MAX_QP_RD_ATOMIC, "max_rd_atomic", raw.max_rd_atomic, device.max_qp_init_rd_atom),
            (mask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", raw.max_dest_rd_atomic, device.max_qp_rd_atom),
        ];
        let (_, name, value, most) =
            counts.into_iter().find(|(bit, _, value, most)| has(*bit) && u32::from(*value) > *most)?;
        Some(format!("{name} is {value}, and the device takes up to {most}"))
    }
}
