//! A queue pair's states and attributes, whatever queues it has.

use super::access::AccessFlags;
use super::attr::QpUpdate;
use super::device::ContextInner;
use super::route::explain_route;
use super::transition::{self, Transport};
use crate::uverbs::attr::qp_attr_mask as mask;
use crate::uverbs::attr::{QpAttr, QpState};
use crate::uverbs::errno::Errno;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::object::Handle;
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
            let error = self.explain(error);
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

    /// A refused change is most often one from a state that the device has left.
    fn explain(&self, error: Error) -> Error {
        if error.errno() != Some(Errno::EINVAL) {
            return error;
        }
        let state = self.state();
        match self.query() {
            Ok(attr) if attr.qp_state != state => {
                error.with_hint(format!("the queue pair went from {state} to {} by itself", attr.qp_state))
            }
            _ => error,
        }
    }
}
