//! Work requests about what a peer's memory holds for certain: atomic writes and flushes.

use super::batch::SendBatch;
use super::device::Context;
use super::provider::Provider;
use crate::uverbs::abi::verbs::device_cap;
use crate::uverbs::memory_wr::{FlushLevel, FlushPlacement};
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, WrFlags};

impl<P: Provider> SendBatch<'_, P> {
    /// ATOMIC_WRITE of eight aligned bytes, in host order: a reader at the peer sees all of them or none. The region needs
    /// [`REMOTE_WRITE`](crate::AccessFlags::REMOTE_WRITE).
    ///
    /// Refused with [`PostError::NoAtomicWrite`] unless the device says that it can
    /// ([`Context::has_atomic_write`]). The queue pair must be made for at least one entry.
    #[doc(alias = "ibv_wr_atomic_write")]
    #[inline(always)]
    pub fn atomic_write(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        remote: RemoteAddr,
        value: u64,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::AtomicWrite(remote, value), Payload::Sges(&[]))
    }

    /// FLUSH: completes when what earlier requests of this queue pair wrote there has the placement asked for. Region and
    /// peer's queue pair need the access flags that [`FlushPlacement`] names.
    ///
    /// Refused with [`PostError::NoFlush`] unless the device says that it can ([`Context::has_flush`]). The queue pair must
    /// be made for at least one entry.
    #[doc(alias = "ibv_wr_flush")]
    #[inline(always)]
    pub fn flush(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        remote: RemoteAddr,
        placement: FlushPlacement,
        level: FlushLevel,
    ) -> Result<(), PostError> {
        self.push(wr_id, flags, SendOp::Flush(remote, placement, level), Payload::Sges(&[]))
    }
}

impl<P: Provider> Context<P> {
    /// Whether the device has ATOMIC_WRITE (`IB_UVERBS_DEVICE_ATOMIC_WRITE`).
    pub fn has_atomic_write(&self) -> bool {
        self.attr().device_cap_flags_ex & device_cap::ATOMIC_WRITE != 0
    }

    /// Whether the device has FLUSH to that placement (`IB_UVERBS_DEVICE_FLUSH_GLOBAL`, `…_PERSISTENT`).
    pub fn has_flush(&self, placement: FlushPlacement) -> bool {
        let caps = self.attr().device_cap_flags_ex;
        let lacks = |cap, one| placement.contains(one) && caps & cap == 0;
        !lacks(device_cap::FLUSH_GLOBAL, FlushPlacement::GLOBAL_VISIBILITY)
            && !lacks(device_cap::FLUSH_PERSISTENT, FlushPlacement::PERSISTENCE)
    }
}
