//! Extended reliable connections (XRC): domains, and receiving ends that several processes share.

use super::abi::verbs::qp_type;
use super::abi::write;
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Lacking, Verb};
use super::object::{Handle, ObjectKind};
use super::types::Qpn;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// What to do if nobody has opened the domain of a file, or somebody has.
///
/// ```no_run
/// # fn f(context: &ironverbs::Context, file: &std::fs::File) -> Result<(), ironverbs::Error> {
/// use ironverbs::XrcdOpen;
/// let xrcd = context.open_xrcd(file, XrcdOpen::OrCreate)?;
/// # drop(xrcd);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XrcdOpen {
    /// Open the domain that others have; fails if there is none.
    Existing,
    /// Open it, or make it if there is none.
    OrCreate,
    /// Make it; fails if there is one.
    New,
}

impl Ucontext {
    /// Makes an XRC domain of its own, or opens that of a file: one for each inode and device.
    pub fn open_xrcd(self: &Arc<Self>, file: Option<(BorrowedFd<'_>, XrcdOpen)>) -> Result<Handle, Error> {
        let (fd, how) = match file {
            None => (-1, XrcdOpen::OrCreate),
            Some((fd, how)) => (fd.as_raw_fd(), how),
        };
        let oflags = match how {
            XrcdOpen::Existing => 0,
            XrcdOpen::OrCreate => libc::O_CREAT,
            XrcdOpen::New => libc::O_CREAT | libc::O_EXCL,
        };
        let request = write::OpenXrcd { response: 0, fd, oflags: oflags as u32 };
        let mut response = write::OpenXrcdResp::default();
        self.kernel().invoke(&request, &mut response, &[], &mut []).map_err(|errno| open_refused(errno, how))?;
        Ok(Handle::new(self, ObjectKind::Xrcd, response.xrcd_handle))
    }

    /// Opens the receiving end of that number, which was made in the same domain: it stays until its last handle is gone.
    pub fn open_qp(self: &Arc<Self>, xrcd: &Handle, qpn: Qpn, user_handle: u64) -> Result<Handle, Error> {
        let request = write::OpenQp {
            user_handle,
            pd_handle: xrcd.id(),
            qpn: qpn.get(),
            qp_type: qp_type::XRC_TGT,
            ..Default::default()
        };
        let mut response = write::CreateQpResp::default();
        self.kernel().invoke(&request, &mut response, &[], &mut []).map_err(|errno| {
            let error = Error::kernel(Verb::OpenQp, errno);
            match errno {
                Errno::EINVAL => error.with_hint(format!("the domain has no receiving end of number {qpn}")),
                _ => error,
            }
        })?;
        Ok(Handle::new(self, ObjectKind::Qp, response.qp_handle))
    }
}

fn open_refused(errno: Errno, how: XrcdOpen) -> Error {
    let error = Error::kernel(Verb::OpenXrcd, errno);
    match (errno, how) {
        (Errno::EAGAIN, _) => error.with_hint("nobody has opened a domain by this file"),
        (Errno::EINVAL, XrcdOpen::New) => error.with_hint("somebody has opened the domain of this file"),
        (Errno::EOPNOTSUPP, _) => {
            Error::Unsupported { verb: Verb::OpenXrcd, what: "an XRC domain".into(), by: Lacking::Driver }
        }
        _ => error,
    }
}
