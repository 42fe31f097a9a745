//! Completion channels and completion queues.

use super::abi::ioctl::{attr, method};
use super::abi::write;
use super::cmd;
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Lacking, Verb};
use super::event;
use super::explain;
use super::kernel::{Form, Native};
use super::object::{Handle, ObjectKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

impl Ucontext {
    /// Opens a completion channel: a file that events of completion queues are read from, non-blocking.
    pub fn create_comp_channel(self: &Arc<Self>) -> Result<Arc<OwnedFd>, Error> {
        let refused = |errno| Error::kernel(Verb::CreateCompChannel, errno);
        let mut response = write::CreateCompChannelResp { fd: u32::MAX };
        self.kernel().invoke(&write::CreateCompChannel::default(), &mut response, &[], &mut []).map_err(refused)?;
        let fd = cmd::adopt(i64::from(response.fd as i32)).ok_or_else(|| refused(Errno::EBADF))?;
        event::set_nonblocking(fd.as_fd()).map_err(refused)?;
        self.closing().watch(fd).map_err(refused)
    }

    /// Makes a completion queue of at least `cqe` entries; returns it and how many it has. Events on `channel` carry
    /// `user_handle`.
    ///
    /// Memory that `uhw_in` names stays until the object is destroyed ([`Handle::keeping`]).
    #[allow(clippy::too_many_arguments, reason = "the command has them all, and none has a default")]
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        user_handle: u64,
        channel: Option<BorrowedFd<'_>>,
        comp_vector: u32,
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<(Handle, u32), Error> {
        self.create_cq_with_flags(cqe, user_handle, channel, comp_vector, 0, uhw_in, uhw_out)
    }

    /// As [`create_cq`](Self::create_cq), with flags ([`cq_create_flags`](super::abi::ioctl::cq_create_flags)), which kernels without the ioctl do not take.
    #[allow(clippy::too_many_arguments, reason = "the command has them all, and none has a default")]
    pub fn create_cq_with_flags(
        self: &Arc<Self>,
        cqe: u32,
        user_handle: u64,
        channel: Option<BorrowedFd<'_>>,
        comp_vector: u32,
        flags: u32,
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<(Handle, u32), Error> {
        let kernel = self.kernel();
        let (id, cqe) = kernel
            .attempt(Native::CqCreate, |form| match form {
                Form::Native => {
                    let mut resp_cqe = 0_u32;
                    let mut cmd = kernel.command(method::CQ_CREATE);
                    cmd.object_out(attr::create_cq::HANDLE);
                    cmd.ptr_in(attr::create_cq::CQE, &cqe);
                    cmd.ptr_in(attr::create_cq::USER_HANDLE, &user_handle);
                    if let Some(channel) = channel {
                        cmd.fd_in(attr::create_cq::COMP_CHANNEL, channel);
                    }
                    cmd.ptr_in(attr::create_cq::COMP_VECTOR, &comp_vector);
                    if flags != 0 {
                        cmd.flags_in(attr::create_cq::FLAGS, flags);
                    }
                    cmd.ptr_out(attr::create_cq::RESP_CQE, &mut resp_cqe);
                    cmd.uhw(uhw_in, uhw_out);
                    let answer = cmd.issue(&**self.cdev())?;
                    Ok((answer.handle(attr::create_cq::HANDLE), resp_cqe))
                }
                Form::Legacy if flags != 0 => Err(Errno::EOPNOTSUPP),
                Form::Legacy => {
                    let request = write::CreateCq {
                        response: 0,
                        user_handle,
                        cqe,
                        comp_vector,
                        comp_channel: channel.map_or(-1, |fd| fd.as_raw_fd()),
                        reserved: 0,
                    };
                    let mut response = write::CreateCqResp::default();
                    kernel.invoke(&request, &mut response, uhw_in, uhw_out)?;
                    Ok((response.cq_handle, response.cqe))
                }
            })
            .map_err(|errno| self.cq_refused(errno, cqe, comp_vector))?;
        Ok((Handle::new(self, ObjectKind::Cq, id), cqe))
    }

    /// Makes a completion queue hold at least `cqe` completions. What is in it stays; fewer than are in it are refused.
    ///
    /// Memory that `uhw_in` names stays until the object is destroyed, or resized again.
    pub fn resize_cq(&self, cq: &Handle, cqe: u32, uhw_in: &[u8], uhw_out: &mut [u8]) -> Result<(), Error> {
        let request = write::ResizeCq { response: 0, cq_handle: cq.id(), cqe };
        let mut response = write::ResizeCqResp::default();
        self.kernel().invoke(&request, &mut response, uhw_in, uhw_out).map_err(|errno| {
            let error = Error::kernel(Verb::ResizeCq, errno);
            match errno {
                Errno::EINVAL => error.with_hint(format!(
                    "more than {cqe} completions may be in it, which are to be polled first; or the device has no room for so \
                     many (max_cqe)"
                )),
                Errno::ENOMEM => error.with_hint("the kernel or the device has no memory for it: fewer entries may fit"),
                Errno::EOPNOTSUPP => error.with_hint("the device cannot resize a completion queue"),
                _ => error,
            }
        })
    }

    /// Arms a completion queue through the kernel: the next completion, or the next solicited one, gives one event.
    /// Completions that are there already give none. Only for drivers that have no doorbell for it (rxe).
    pub fn req_notify_cq(&self, cq: &Handle, solicited_only: bool) -> Result<(), Error> {
        let request = write::ReqNotifyCq { cq_handle: cq.id(), solicited_only: solicited_only.into() };
        self.kernel().invoke(&request, &mut (), &[], &mut []).map_err(|e| Error::kernel(Verb::ReqNotifyCq, e))
    }

    /// Lets an event of a completion queue stand for up to `count` completions, and wait up to `period_us` microseconds.
    pub fn modify_cq(&self, cq: &Handle, count: u16, period_us: u16) -> Result<(), Error> {
        let attr = write::CqModeration { cq_count: count, cq_period: period_us };
        let request = write::ExModifyCq { cq_handle: cq.id(), attr_mask: write::CQ_MODERATE, attr, reserved: 0 };
        self.kernel().invoke(&request, &mut (), &[], &mut []).map_err(|errno| {
            let error = Error::kernel(Verb::ModifyCq, errno);
            match errno {
                Errno::EOPNOTSUPP => Error::Unsupported {
                    verb: Verb::ModifyCq,
                    what: "moderation of completion events".into(),
                    by: Lacking::Driver,
                },
                Errno::EINVAL => error.with_hint(format!(
                    "{count} completions or {period_us} us may be outside the device's limits (max_cq_moderation_count, \
                     max_cq_moderation_period_us)"
                )),
                _ => error,
            }
        })
    }

    fn cq_refused(&self, errno: Errno, cqe: u32, comp_vector: u32) -> Error {
        let error = Error::kernel(Verb::CreateCq, errno);
        match errno {
            Errno::EINVAL if comp_vector >= self.num_comp_vectors() => error.with_hint(format!(
                "completion vector {comp_vector} does not exist: there are {}",
                self.num_comp_vectors()
            )),
            Errno::EINVAL => error.with_hint(format!("{cqe} entries may be outside the device's limit (max_cqe)")),
            Errno::ENOMEM => explain::queue_memory(error),
            _ => error,
        }
    }
}
