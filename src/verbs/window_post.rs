//! Work requests that open and close memory windows.
//!
//! # Safety argument
//!
//! [`Qp::bind_mw`] and [`Qp::invalidate_mw`] submit a batch of one request that names no memory of the program to read or
//! write: a bind names a range of a region whose owner allowed windows, and what peers then do there they could do with the
//! region's own remote key. Its number is below 2^32, so that no pool takes its completion for one of its own.
#![allow(unsafe_code)]

use super::batch::SendBatch;
use super::provider::Provider;
use super::qp::Qp;
use super::window::{Mw, MwType};
use crate::uverbs::memory_wr::MwBinding;
use crate::uverbs::types::Rkey;
use crate::uverbs::wr::{Payload, PostError, SendOp, WrFlags};

impl<P: Provider> SendBatch<'_, P> {
    /// Binds a memory window, as [`Mw::plan_bind`] or [`Mw::plan_unbind`] planned it. Always signaled: the window must
    /// [`observe`](Mw::observe) the completion. If the batch is dropped, [`give_up`](Mw::give_up) the request.
    #[doc(alias("ibv_wr_bind_mw", "ibv_bind_mw"))]
    #[inline(always)]
    pub fn bind_mw(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        window: &mut Mw,
        binding: MwBinding,
    ) -> Result<(), PostError> {
        let owner = self.owner();
        window.check_bind(owner, &binding)?;
        // As the window has it: so the compiler knows what is pushed, and makes no table of all kinds of requests.
        let binding = MwBinding { type_2: window.mw_type() == MwType::Type2, ..binding };
        self.push(wr_id, flags | WrFlags::SIGNALED, SendOp::Bind(binding), Payload::Sges(&[]))?;
        window.binding_posted(wr_id, owner, &binding);
        Ok(())
    }

    /// Invalidates the key of a memory window of type 2 that is known to be bound. Starts only when all earlier work
    /// requests of the queue are done. Always signaled, as [`bind_mw`](Self::bind_mw).
    #[doc(alias = "ibv_wr_local_inv")]
    #[inline(always)]
    pub fn local_inv(&mut self, wr_id: u64, flags: WrFlags, window: &mut Mw) -> Result<(), PostError> {
        let owner = self.owner();
        window.check_invalidate(owner)?;
        let op = SendOp::LocalInvalidate(window.rkey());
        self.push(wr_id, flags | WrFlags::SIGNALED, op, Payload::Sges(&[]))?;
        window.invalidate_posted(wr_id, owner);
        Ok(())
    }

    /// SEND with invalidate: as [`send`](Self::send), and the peer's device invalidates `rkey`, the key of a window of type 2
    /// that the peer bound on its queue pair. The peer finds it in the completion
    /// ([`Wc::invalidated_rkey`](crate::Wc::invalidated_rkey)).
    ///
    /// Send it for a window that is bound, and once: see [`Mw`] for what a Soft-RoCE peer does otherwise.
    #[doc(alias = "ibv_wr_send_inv")]
    #[inline(always)]
    pub fn send_inv<'a>(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        payload: impl Into<Payload<'a>>,
        rkey: Rkey,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::SendInvalidate(rkey), payload.into())
    }
}

impl<P: Provider> Qp<P> {
    /// Binds a memory window of either type, by a work request of its own.
    #[doc(alias = "ibv_bind_mw")]
    pub fn bind_mw(&mut self, wr_id: u32, window: &mut Mw, binding: MwBinding) -> Result<(), PostError> {
        let mut batch = self.send_batch();
        batch.bind_mw(wr_id.into(), WrFlags::SIGNALED, window, binding)?;
        // SAFETY: see the module's argument.
        undone_unless_posted(unsafe { batch.submit() }, window)
    }

    /// Invalidates the key of a memory window of type 2, by a work request of its own.
    #[doc(alias = "ibv_wr_local_inv")]
    pub fn invalidate_mw(&mut self, wr_id: u32, window: &mut Mw) -> Result<(), PostError> {
        let mut batch = self.send_batch();
        batch.local_inv(wr_id.into(), WrFlags::SIGNALED, window)?;
        // SAFETY: see the module's argument.
        undone_unless_posted(unsafe { batch.submit() }, window)
    }
}

/// With a doorbell refused, the request is in the queue all the same.
fn undone_unless_posted(submitted: Result<(), PostError>, window: &mut Mw) -> Result<(), PostError> {
    if !matches!(submitted, Ok(()) | Err(PostError::Doorbell(_))) {
        window.not_posted();
    }
    submitted
}
