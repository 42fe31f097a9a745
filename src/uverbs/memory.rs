//! Protection domains and memory regions.
//!
//! # Safety argument
//!
//! Registering hands memory to the device by address, so [`Ucontext::reg_mr`] is unsafe and its caller answers for how
//! long the memory stays. The one unsafe block sends the request that it describes.
#![allow(unsafe_code)]

use super::abi::verbs::access;
use super::abi::write::{self, command};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::object::{Handle, ObjectKind};
use super::types::{Lkey, Rkey};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The smallest page of any kernel. Address and `iova` must agree below it; a kernel with larger pages checks further.
const SMALLEST_PAGE: u64 = 4096;

impl Ucontext {
    /// Makes a protection domain.
    pub fn alloc_pd(self: &Arc<Self>, uhw_out: &mut [u8]) -> Result<Handle, Error> {
        let mut response = write::AllocPdResp::default();
        self.kernel()
            .invoke(&write::AllocPd::default(), &mut response, &[], uhw_out)
            .map_err(|e| Error::kernel(Verb::AllocPd, e))?;
        Ok(Handle::new(self, ObjectKind::Pd, response.pd_handle))
    }

    /// Registers `len` bytes of memory at `addr`, to be named by addresses from `iova` on. `access` holds bits of
    /// `enum ib_uverbs_access_flags`.
    ///
    /// # Safety
    ///
    /// The memory must stay allocated until the handle is destroyed with success: the device may read it, and write it
    /// if `access` allows writing.
    pub unsafe fn reg_mr(
        self: &Arc<Self>,
        pd: &Handle,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
    ) -> Result<(Handle, Lkey, Rkey), Error> {
        check_region(addr, len, iova, access)?;
        let request = write::RegMr {
            response: 0,
            start: addr,
            length: len,
            hca_va: iova,
            pd_handle: pd.id(),
            access_flags: access,
        };
        let mut response = write::RegMrResp::default();
        // SAFETY: the command's number goes with the two structures; the caller keeps the memory that they name.
        unsafe { self.kernel().invoke_raw(command::REG_MR, request.as_bytes(), response.as_mut_bytes(), &[], &mut []) }
            .map_err(|e| reg_refused(e, addr, len))?;
        let handle = Handle::new(self, ObjectKind::Mr, response.mr_handle);
        Ok((handle, Lkey(response.lkey), Rkey(response.rkey)))
    }
}

/// Refuses what every kernel refuses, with the reason that `EINVAL` does not give (`ib_uverbs_reg_mr`,
/// `ib_check_mr_access`).
fn check_region(addr: u64, len: u64, iova: u64, access: u32) -> Result<(), Error> {
    let verb = Verb::RegMr;
    if len == 0 {
        return Err(Error::invalid(verb, "length", len, "a memory region has at least 1 byte"));
    }
    if addr.checked_add(len).is_none() {
        return Err(Error::invalid(verb, "length", len, format!("from {addr:#x} on it exceeds the address space")));
    }
    if !(addr ^ iova).is_multiple_of(SMALLEST_PAGE) {
        return Err(Error::invalid(
            verb,
            "iova",
            format!("{iova:#x}"),
            format!("it must lie at the same offset in its page as the memory, which starts at {addr:#x}"),
        ));
    }
    if access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && access & access::LOCAL_WRITE == 0 {
        return Err(Error::invalid(
            verb,
            "access",
            format!("{access:#x}"),
            "remote write and remote atomic need local write as well",
        ));
    }
    Ok(())
}

fn reg_refused(errno: Errno, addr: u64, len: u64) -> Error {
    let error = Error::kernel(Verb::RegMr, errno);
    match errno {
        Errno::ENOMEM => error.with_hint(memlock_hint(len)),
        Errno::EFAULT => error.with_hint(format!(
            "not all of the {len} bytes at {addr:#x} are mapped, or the mapping is read-only and the access is not"
        )),
        Errno::EINVAL | Errno::EOPNOTSUPP => {
            error.with_hint("the device does not support this combination of access flags and memory")
        }
        _ => error,
    }
}

/// What `ENOMEM` means for a command that pins `len_bytes` of memory.
pub(super) fn memlock_hint(len_bytes: u64) -> String {
    let limit = |bytes| match bytes {
        RLIM_INFINITY => "unlimited".to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((RLIM_INFINITY, _)) => {
            format!(
                "it pins {len_bytes} bytes; RLIMIT_MEMLOCK is unlimited, so the host or the device is out of memory"
            )
        }
        Ok((soft, hard)) => format!(
            "it pins {len_bytes} bytes; all pinned memory of the process counts against RLIMIT_MEMLOCK, which is {} \
             (hard limit {}): raise it (ulimit -l, or LimitMEMLOCK= of the service), or give the process CAP_IPC_LOCK",
            limit(soft),
            limit(hard)
        ),
        Err(_) => format!("it pins {len_bytes} bytes: is RLIMIT_MEMLOCK (ulimit -l) high enough?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::observe::Fault;

    fn refusal(addr: u64, len: u64, iova: u64, access: u32) -> String {
        match check_region(addr, len, iova, access) {
            Err(error @ Error::Invalid { verb: Verb::RegMr, .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn refuses_what_every_kernel_refuses() {
        assert!(refusal(0x1000, 0, 0x1000, 1).contains("length is 0"));
        assert!(refusal(u64::MAX, 2, u64::MAX, 1).contains("exceeds the address space"));
        assert!(refusal(0x1008, 16, 0x2010, 1).contains("iova is 0x2010"));
        assert!(refusal(0x1000, 16, 0x1000, access::REMOTE_WRITE).contains("need local write"));
        assert!(refusal(0x1000, 16, 0x1000, access::REMOTE_ATOMIC).contains("need local write"));
    }

    #[test]
    fn lets_through_what_a_kernel_may_take() {
        for (addr, iova, access) in
            [(0x1008, 0x7008, 0), (0x1000, 0, access::REMOTE_READ), (5, 5, access::REMOTE_WRITE | access::LOCAL_WRITE)]
        {
            check_region(addr, 16, iova, access).unwrap();
        }
    }

    #[test]
    fn enomem_names_the_limit() {
        let fault = Fault::new();
        let ctx = Ucontext::open(fault.wrap(FakeKernel::new(Knows::ALL)), &[], &mut []).unwrap();
        let pd = ctx.alloc_pd(&mut []).unwrap();
        fault.fail_matching(|c| c.write_number() == Some(command::REG_MR), Errno::ENOMEM);
        // SAFETY: the command never reaches a device.
        let error = unsafe { ctx.reg_mr(&pd, 0x1000, 123_456, 0x1000, 0) }.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ENOMEM));
        let text = error.to_string();
        assert!(text.contains("123456 bytes") && text.contains("RLIMIT_MEMLOCK"), "{text}");
    }
}
