//! Work completions.

use super::provider::Provider;
use super::provider::sealed::{CompEntry, CompOps};
use crate::uverbs::wr::{WcOpcode, WcStatus};
use std::fmt;

/// Work completion (WC), as a value of its own.
///
/// A failed completion tells only its work request, its queue pair and why it failed: the device leaves every other
/// field undefined, so there is no way to read them.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The number given with the work request.
    pub wr_id: u64,
    /// The local queue pair's number.
    pub qpn: u32,
    /// What was done, or why it failed.
    pub outcome: Result<Done, WcError>,
}

/// What a successful work request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes transferred. For RDMA WRITE with immediate at the receiver: bytes written.
    pub byte_len: u32,
    /// Immediate data in host order, where the operation carried it.
    pub imm: Option<u32>,
}

/// Why a work request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}{}", Vendor(*vendor_err))]
#[non_exhaustive]
pub struct WcError {
    /// The status.
    pub status: WcStatus,
    /// The device's own code, zero if it has none.
    pub vendor_err: u32,
}

struct Vendor(u32);

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, ", vendor error {:#x}", self.0) }
    }
}

impl Wc {
    /// The status, also of a success.
    pub fn status(&self) -> WcStatus {
        match self.outcome {
            Ok(_) => WcStatus::SUCCESS,
            Err(e) => e.status,
        }
    }
}

/// A completion still in the completion queue: fields are read as they are asked for.
///
/// Not `Clone`: there is exactly one for each work request, which is why a [`Pool`](crate::Pool) can take its slot back
/// for one.
pub struct Completion<'a, P: Provider + 'a> {
    entry: <P::Cq as CompOps>::Entry<'a>,
}

impl<'a, P: Provider> Completion<'a, P> {
    #[inline(always)]
    pub(super) fn new(entry: <P::Cq as CompOps>::Entry<'a>) -> Self {
        Self { entry }
    }

    /// The number given with the work request.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.entry.wr_id()
    }

    /// The local queue pair's number.
    #[inline(always)]
    pub fn qpn(&self) -> u32 {
        self.entry.qpn()
    }

    /// The status.
    #[inline(always)]
    pub fn status(&self) -> WcStatus {
        self.entry.status()
    }

    /// What was done, or why it failed.
    #[inline(always)]
    pub fn outcome(&self) -> Result<Done, WcError> {
        match self.entry.status() {
            WcStatus::SUCCESS => {
                Ok(Done { opcode: self.entry.opcode(), byte_len: self.entry.byte_len(), imm: self.entry.imm() })
            }
            status => Err(WcError { status, vendor_err: self.entry.vendor_err() }),
        }
    }

    /// All of it, as a value.
    #[inline(always)]
    pub fn wc(&self) -> Wc {
        Wc { wr_id: self.wr_id(), qpn: self.qpn(), outcome: self.outcome() }
    }
}

impl<P: Provider> fmt::Debug for Completion<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wc().fmt(f)
    }
}
