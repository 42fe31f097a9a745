//! Protection domains, memory regions, memory windows, device memory.
//!
//! # Safety argument
//!
//! Registering hands memory to the device by address, so [`Ucontext::reg_mr`] is unsafe and its caller answers for how
//! long the memory stays. The other unsafe blocks send requests that name no memory of the program.
#![allow(unsafe_code)]

use super::abi::ioctl::{attr, method};
use super::abi::verbs::{access, core_support};
use super::abi::write::{self, command, rereg};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Lacking, Verb};
use super::explain::{self, Wanted};
use super::object::{Handle, ObjectKind};
use super::types::{Lkey, Rkey};
use super::wr::Sge;
use std::os::fd::{AsRawFd, BorrowedFd};
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
    /// `enum ib_uverbs_access_flags`; those that a kernel may ignore are left out if this one would not.
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
        check_access(Verb::RegMr, access)?;
        check_region(Verb::RegMr, "memory", addr, len, iova)?;
        let request = write::RegMr {
            response: 0,
            start: addr,
            length: len,
            hca_va: iova,
            pd_handle: pd.id(),
            access_flags: self.without_unknown_hints(access),
        };
        let mut response = write::RegMrResp::default();
        // SAFETY: the command's number goes with the two structures; the caller keeps the memory that they name.
        unsafe { self.kernel().invoke_raw(command::REG_MR, request.as_bytes(), response.as_mut_bytes(), &[], &mut []) }
            .map_err(|errno| {
                explain::registration(Error::kernel(Verb::RegMr, errno), Wanted { addr, len_bytes: len, access })
            })?;
        let handle = Handle::new(self, ObjectKind::Mr, response.mr_handle);
        Ok((handle, Lkey(response.lkey), Rkey(response.rkey)))
    }

    /// Changes the protection domain or the access of a region, or both; returns its keys from now on.
    pub fn rereg_mr(&self, mr: &Handle, pd: Option<&Handle>, access: Option<u32>) -> Result<(Lkey, Rkey), Error> {
        let verb = Verb::ReregMr;
        if let Some(access) = access {
            check_access(verb, access)?;
        }
        let flags = pd.map_or(0, |_| rereg::PD) | access.map_or(0, |_| rereg::ACCESS);
        let request = write::ReregMr {
            mr_handle: mr.id(),
            flags,
            pd_handle: pd.map_or(0, Handle::id),
            access_flags: access.map_or(0, |access| self.without_unknown_hints(access)),
            ..Default::default()
        };
        let mut response = write::ReregMrResp::default();
        // SAFETY: the command's number goes with the two structures. The flags say that the request's addresses do not
        // count: the region keeps its memory.
        unsafe {
            self.kernel().invoke_raw(command::REREG_MR, request.as_bytes(), response.as_mut_bytes(), &[], &mut [])
        }
        .map_err(|errno| match errno {
            Errno::EOPNOTSUPP => {
                let what = match (pd, access) {
                    (_, None) => "changing a region's protection domain".to_owned(),
                    (None, Some(access)) => format!("changing a region's access to {}", access::names(access)),
                    (Some(_), Some(access)) => {
                        format!("changing a region's protection domain, and its access to {}", access::names(access))
                    }
                };
                Error::Unsupported { verb, what: what.into(), by: Lacking::Driver }
            }
            errno => Error::kernel(verb, errno),
        })?;
        Ok((Lkey(response.lkey), Rkey(response.rkey)))
    }

    /// Makes a memory window of type 1 or 2, bound to nothing.
    pub fn alloc_mw(self: &Arc<Self>, pd: &Handle, mw_type: u8) -> Result<(Handle, Rkey), Error> {
        let request = write::AllocMw { response: 0, pd_handle: pd.id(), mw_type, reserved: [0; 3] };
        let mut response = write::AllocMwResp::default();
        self.kernel().invoke(&request, &mut response, &[], &mut []).map_err(|errno| match errno {
            Errno::EOPNOTSUPP => lacks(Verb::AllocMw, format!("a memory window of type {mw_type}"), Lacking::Driver),
            Errno::ENOMEM => Error::kernel(Verb::AllocMw, errno).with_hint("the device has no more windows (max_mw)"),
            errno => Error::kernel(Verb::AllocMw, errno),
        })?;
        Ok((Handle::new(self, ObjectKind::Mw, response.mw_handle), Rkey(response.rkey)))
    }

    /// Registers `len` bytes of a dma-buf, from `offset` on, to be named by addresses from `iova` on. The kernel keeps the
    /// buffer.
    pub fn reg_dmabuf_mr(
        self: &Arc<Self>,
        pd: &Handle,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: u32,
    ) -> Result<(Handle, Lkey, Rkey), Error> {
        let verb = Verb::RegDmabufMr;
        check_access(verb, access)?;
        check_region(verb, "offset", offset, len, iova)?;
        let (mut lkey, mut rkey) = (0_u32, 0_u32);
        let fd = fd.as_raw_fd();
        let mut cmd = self.kernel().command(method::REG_DMABUF_MR);
        cmd.object_out(attr::reg_dmabuf_mr::HANDLE);
        cmd.object_in(attr::reg_dmabuf_mr::PD_HANDLE, pd.id());
        cmd.ptr_in(attr::reg_dmabuf_mr::OFFSET, &offset);
        cmd.ptr_in(attr::reg_dmabuf_mr::LENGTH, &len);
        cmd.ptr_in(attr::reg_dmabuf_mr::IOVA, &iova);
        cmd.ptr_in(attr::reg_dmabuf_mr::FD, &fd);
        cmd.flags_in(attr::reg_dmabuf_mr::ACCESS_FLAGS, self.without_unknown_hints(access));
        cmd.ptr_out(attr::reg_dmabuf_mr::RESP_LKEY, &mut lkey);
        cmd.ptr_out(attr::reg_dmabuf_mr::RESP_RKEY, &mut rkey);
        let answer = cmd.issue(&**self.cdev()).map_err(|errno| method_refused(verb, "memory of a dma-buf", errno))?;
        let handle = Handle::new(self, ObjectKind::Mr, answer.handle(attr::reg_dmabuf_mr::HANDLE));
        Ok((handle, Lkey(lkey), Rkey(rkey)))
    }

    /// Tells the device which parts of regions will be used soon (`enum ib_uverbs_advise_mr_advice`).
    pub fn advise_mr(&self, pd: &Handle, advice: u32, flush: bool, sges: &[Sge]) -> Result<(), Error> {
        let verb = Verb::AdviseMr;
        if sges.is_empty() {
            return Err(Error::invalid(verb, "number of entries", 0, "at least one"));
        }
        // The kernel's entries are the same: address, length, key.
        let list: Vec<[u32; 4]> = sges
            .iter()
            .map(|sge| {
                let [low, high]: [u32; 2] = zerocopy::transmute!(sge.addr);
                [low, high, sge.length, sge.lkey.0]
            })
            .collect();
        let mut cmd = self.kernel().command(method::ADVISE_MR);
        cmd.object_in(attr::advise_mr::PD_HANDLE, pd.id());
        cmd.const_in(attr::advise_mr::ADVICE, advice.into());
        cmd.flags_in(attr::advise_mr::FLAGS, flush.into());
        cmd.ptr_in(attr::advise_mr::SGE_LIST, list.as_slice());
        cmd.issue(&**self.cdev()).map_err(|errno| method_refused(verb, "advice about regions", errno)).map(|_| ())
    }

    /// Allocates memory of the device itself, aligned to a power of two.
    pub fn alloc_dm(self: &Arc<Self>, len: u64, log2_align: u32) -> Result<Handle, Error> {
        let mut cmd = self.kernel().command(method::DM_ALLOC);
        cmd.object_out(attr::alloc_dm::HANDLE);
        cmd.ptr_in(attr::alloc_dm::LENGTH, &len);
        cmd.ptr_in(attr::alloc_dm::ALIGNMENT, &log2_align);
        // The kernel takes the whole object type away where the driver has none of it.
        let refused = |errno| match errno {
            Errno::EPROTONOSUPPORT => lacks(Verb::AllocDm, "device memory".to_owned(), Lacking::Driver),
            errno => method_refused(Verb::AllocDm, "device memory", errno),
        };
        let answer = cmd.issue(&**self.cdev()).map_err(refused)?;
        Ok(Handle::new(self, ObjectKind::Dm, answer.handle(attr::alloc_dm::HANDLE)))
    }

    /// Leaves out flags that are hints, where the kernel would refuse those it does not know.
    fn without_unknown_hints(&self, access: u32) -> u32 {
        if self.core_support() & core_support::OPTIONAL_MR_ACCESS != 0 {
            access
        } else {
            access & !access::OPTIONAL_RANGE
        }
    }
}

fn lacks(verb: Verb, what: String, by: Lacking) -> Error {
    Error::Unsupported { verb, what: what.into(), by }
}

/// The error of a method that a kernel may not know, and a driver may not have.
fn method_refused(verb: Verb, what: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::EPROTONOSUPPORT | Errno::ENOTTY => lacks(verb, what.to_owned(), Lacking::Kernel),
        Errno::EOPNOTSUPP => lacks(verb, what.to_owned(), Lacking::Driver),
        errno => Error::kernel(verb, errno),
    }
}

/// Refuses combinations that every kernel refuses, and flags that nobody knows (`ib_check_mr_access`).
fn check_access(verb: Verb, access: u32) -> Result<(), Error> {
    let unknown = access::unknown(access) & !access::OPTIONAL_RANGE;
    if unknown != 0 {
        let limit = format!("{unknown:#x} is no access flag that this library knows");
        return Err(Error::invalid(verb, "access", access::names(access), limit));
    }
    if access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 && access & access::LOCAL_WRITE == 0 {
        return Err(Error::invalid(
            verb,
            "access",
            access::names(access),
            "remote write and remote atomic need local write as well",
        ));
    }
    Ok(())
}

/// Refuses what every kernel refuses, with the reason that `EINVAL` does not give (`ib_uverbs_reg_mr`).
fn check_region(verb: Verb, what: &str, start: u64, len: u64, iova: u64) -> Result<(), Error> {
    if len == 0 {
        return Err(Error::invalid(verb, "length", len, "a memory region has at least 1 byte"));
    }
    if start.checked_add(len).is_none() {
        return Err(Error::invalid(verb, "length", len, format!("from {start:#x} on it exceeds the address space")));
    }
    // The address after the last byte too must be one: it names an empty range at the end.
    if iova.checked_add(len).is_none() {
        return Err(Error::invalid(
            verb,
            "iova",
            format!("{iova:#x}"),
            format!("{len} bytes do not fit from there on"),
        ));
    }
    if !(start ^ iova).is_multiple_of(SMALLEST_PAGE) {
        return Err(Error::invalid(
            verb,
            "iova",
            format!("{iova:#x}"),
            format!("it must lie at the same offset in its page as the {what}, which starts at {start:#x}"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::observe::{Fault, Record};

    fn check(addr: u64, len: u64, iova: u64, access: u32) -> Result<(), Error> {
        check_access(Verb::RegMr, access)?;
        check_region(Verb::RegMr, "memory", addr, len, iova)
    }

    fn refusal(addr: u64, len: u64, iova: u64, access: u32) -> String {
        match check(addr, len, iova, access) {
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
        for len in [0x1000, 0x2000] {
            assert!(refusal(0x1000, len, u64::MAX - 0xfff, 0).contains("do not fit from there on"));
        }
        check(0x1000, 0xfff, u64::MAX - 0xfff, 0).unwrap();
        let unknown = refusal(0x1000, 16, 0x1000, 1 << 19 | access::LOCAL_WRITE);
        assert!(unknown.contains("access is LOCAL_WRITE | 0x80000; 0x80000 is no access flag"), "{unknown}");
    }

    #[test]
    fn lets_through_what_a_kernel_may_take() {
        for (addr, iova, access) in
            [(0x1008, 0x7008, 0), (0x1000, 0, access::REMOTE_READ), (5, 5, access::REMOTE_WRITE | access::LOCAL_WRITE)]
        {
            check(addr, 16, iova, access).unwrap();
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

    /// Reports of a hint that made registration fail with kernels that do not know hints.
    #[test]
    fn hints_are_sent_only_to_kernels_that_know_hints() {
        for (knows, sent) in [(Knows::ALL, 0x2010_0001), (Knows::WRITE, 1)] {
            let record = Record::new();
            let ctx = Ucontext::open(record.wrap(FakeKernel::new(knows)), &[], &mut []).unwrap();
            let pd = ctx.alloc_pd(&mut []).unwrap();
            // SAFETY: the fake kernel does not touch the memory.
            let mr = unsafe { ctx.reg_mr(&pd, 0x1000, 16, 0x1000, 0x2010_0001) }.unwrap();
            ctx.rereg_mr(&mr.0, None, Some(0x2010_0001)).unwrap();
            let text: String = record.take().iter().map(|c| format!("{c}\n")).collect();
            let told = format!("{:08x}", u32::from_be(sent));
            assert_eq!(
                text.lines().filter(|line| line.trim_end().ends_with(&format!(" {told}"))).count(),
                2,
                "{told} in\n{text}"
            );
        }
    }
}
