//! Shared receive queues: create, change, query.
//!
//! # Safety argument
//!
//! A driver's part of a change may name memory that the kernel writes to, so [`Ucontext::modify_srq`] is unsafe and its
//! caller answers for that memory. The one unsafe block passes it on.
#![allow(unsafe_code)]

use super::abi::ioctl::{attr, method};
use super::abi::verbs::srq_type;
use super::abi::write::{self, command, srq_attr_mask};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::kernel::{Form, Native};
use super::object::{Handle, ObjectKind};
use super::types::Srqn;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What is asked of a new shared receive queue.
pub struct CreateSrq<'a> {
    pub pd: &'a Handle,
    /// Receives that it holds at least.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive.
    pub max_sge: u32,
    /// Fewer receives than this give an event, once; 0 for none.
    pub limit: u32,
    /// Comes back in events.
    pub user_handle: u64,
    /// What makes it one of XRC.
    pub xrc: Option<XrcReceives<'a>>,
}

/// Of a shared receive queue that queue pairs of other processes name by its number.
#[derive(Clone, Copy)]
pub struct XrcReceives<'a> {
    /// What holds it and the receiving ends that may use it.
    pub xrcd: &'a Handle,
    /// Where its receives complete.
    pub cq: &'a Handle,
}

/// A new shared receive queue.
pub struct CreatedSrq {
    pub handle: Handle,
    pub max_sge: u32,
    /// The device's number of it, of XRC only.
    pub srqn: Option<Srqn>,
}

/// A shared receive queue's attributes (`struct ib_uverbs_query_srq_resp`).
///
/// ```no_run
/// # fn f(srq: &ironverbs::Srq) -> Result<(), ironverbs::Error> {
/// println!("{:?}", srq.query()?);
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_srq_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Receives that it holds at most.
    pub max_wr: u32,
    /// Scatter/gather entries of a receive.
    pub max_sge: u32,
    /// Fewer receives than this give an event. Zero: none is armed, or it was given.
    pub limit: u32,
}

/// What is changed of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub enum ModifySrq {
    /// It is to hold at least so many receives.
    MaxWr(u32),
    /// Fewer receives than this give an event, once; 0 for none.
    Limit(u32),
}

impl Ucontext {
    /// Makes a shared receive queue.
    ///
    /// Memory that `uhw_in` names stays until the object is destroyed ([`Handle::keeping`]).
    pub fn create_srq(
        self: &Arc<Self>,
        req: &CreateSrq<'_>,
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<CreatedSrq, Error> {
        let kernel = self.kernel();
        let kind = if req.xrc.is_some() { srq_type::XRC } else { srq_type::BASIC };
        let (id, max_sge, srqn) = kernel
            .attempt(Native::SrqCreate, |form| match form {
                Form::Native => {
                    let (mut max_wr, mut max_sge, mut srqn) = (0_u32, 0_u32, 0_u32);
                    let mut cmd = kernel.command(method::SRQ_CREATE);
                    cmd.object_out(attr::create_srq::HANDLE);
                    cmd.object_in(attr::create_srq::PD_HANDLE, req.pd.id());
                    if let Some(XrcReceives { xrcd, cq }) = req.xrc {
                        cmd.object_in(attr::create_srq::XRCD_HANDLE, xrcd.id());
                        cmd.object_in(attr::create_srq::CQ_HANDLE, cq.id());
                    }
                    cmd.ptr_in(attr::create_srq::USER_HANDLE, &req.user_handle);
                    cmd.ptr_in(attr::create_srq::MAX_WR, &req.max_wr);
                    cmd.ptr_in(attr::create_srq::MAX_SGE, &req.max_sge);
                    cmd.ptr_in(attr::create_srq::LIMIT, &req.limit);
                    cmd.const_in(attr::create_srq::TYPE, kind.into());
                    cmd.ptr_out(attr::create_srq::RESP_MAX_WR, &mut max_wr);
                    cmd.ptr_out(attr::create_srq::RESP_MAX_SGE, &mut max_sge);
                    if req.xrc.is_some() {
                        cmd.ptr_out(attr::create_srq::RESP_SRQ_NUM, &mut srqn);
                    }
                    cmd.uhw(uhw_in, uhw_out);
                    let answer = cmd.issue(&**self.cdev())?;
                    Ok((answer.handle(attr::create_srq::HANDLE), max_sge, srqn))
                }
                Form::Legacy => {
                    let mut response = write::CreateSrqResp::default();
                    let &CreateSrq { pd, max_wr, max_sge, limit: srq_limit, user_handle, xrc } = req;
                    let pd_handle = pd.id();
                    match xrc {
                        None => {
                            let request =
                                write::CreateSrq { response: 0, user_handle, pd_handle, max_wr, max_sge, srq_limit };
                            kernel.invoke(&request, &mut response, uhw_in, uhw_out)?;
                        }
                        Some(XrcReceives { xrcd, cq }) => {
                            let request = write::CreateXsrq {
                                response: 0,
                                user_handle,
                                srq_type: kind.into(),
                                pd_handle,
                                max_wr,
                                max_sge,
                                srq_limit,
                                max_num_tags: 0,
                                xrcd_handle: xrcd.id(),
                                cq_handle: cq.id(),
                            };
                            kernel.invoke(&request, &mut response, uhw_in, uhw_out)?;
                        }
                    }
                    Ok((response.srq_handle, response.max_sge, response.srqn))
                }
            })
            .map_err(|errno| create_refused(errno, req))?;
        let handle = Handle::new(self, ObjectKind::Srq, id);
        let srqn = req.xrc.map(|_| Srqn::new(srqn)).transpose().map_err(|e| Error::Abi {
            verb: Verb::CreateSrq,
            what: "shared receive queue number".into(),
            need: "24 bits".into(),
            got: e.to_string().into(),
        })?;
        Ok(CreatedSrq { handle, max_sge, srqn })
    }

    /// Changes a shared receive queue's size or limit.
    ///
    /// # Safety
    ///
    /// Memory that `uhw_in` names is valid for what the driver does with it during the call, and not used otherwise then.
    pub unsafe fn modify_srq(&self, srq: &Handle, change: ModifySrq, uhw_in: &[u8]) -> Result<(), Error> {
        let (attr_mask, max_wr, srq_limit) = match change {
            ModifySrq::MaxWr(n) => (srq_attr_mask::MAX_WR, n, 0),
            ModifySrq::Limit(n) => (srq_attr_mask::LIMIT, 0, n),
        };
        let request = write::ModifySrq { srq_handle: srq.id(), attr_mask, max_wr, srq_limit };
        // SAFETY: the command's number goes with the structure, which names no memory; the caller answers for the driver's
        // part.
        unsafe { self.kernel().invoke_raw(command::MODIFY_SRQ, request.as_bytes(), &mut [], uhw_in, &mut []) }
            .map_err(|errno| modify_refused(errno, change))
    }

    /// As [`modify_srq`](Self::modify_srq), for drivers that have no part in it.
    pub fn modify_srq_alone(&self, srq: &Handle, change: ModifySrq) -> Result<(), Error> {
        // SAFETY: no memory is named.
        unsafe { self.modify_srq(srq, change, &[]) }
    }

    /// A shared receive queue's attributes.
    pub fn query_srq(&self, srq: &Handle) -> Result<SrqAttr, Error> {
        let request = write::QuerySrq { response: 0, srq_handle: srq.id(), reserved: 0 };
        let mut response = write::QuerySrqResp::default();
        self.kernel()
            .invoke(&request, &mut response, &[], &mut [])
            .map_err(|errno| Error::kernel(Verb::QuerySrq, errno))?;
        Ok(SrqAttr { max_wr: response.max_wr, max_sge: response.max_sge, limit: response.srq_limit })
    }
}

fn create_refused(errno: Errno, req: &CreateSrq<'_>) -> Error {
    let error = Error::kernel(Verb::CreateSrq, errno);
    match errno {
        Errno::EINVAL => error.with_hint(format!(
            "{} receives of {} scatter/gather entries may be outside the device's limits (max_srq_wr, max_srq_sge)",
            req.max_wr, req.max_sge
        )),
        Errno::ENOMEM => error.with_hint("the kernel or the device has no memory for it: fewer receives may fit"),
        Errno::EOPNOTSUPP => error.with_hint("the device has no shared receive queues"),
        _ => error,
    }
}

fn modify_refused(errno: Errno, change: ModifySrq) -> Error {
    let error = Error::kernel(Verb::ModifySrq, errno);
    match (errno, change) {
        (Errno::EINVAL, ModifySrq::MaxWr(n)) => error.with_hint(format!(
            "{n} receives may be fewer than are posted or than the limit, or more than the device's max_srq_wr"
        )),
        (Errno::EINVAL, ModifySrq::Limit(n)) => {
            error.with_hint(format!("a limit of {n} may be more than the queue holds"))
        }
        (Errno::EOPNOTSUPP, ModifySrq::MaxWr(_)) => error.with_hint("the device cannot resize a shared receive queue"),
        _ => error,
    }
}
