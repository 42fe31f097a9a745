//! The methods that ioctls have of their own.

use super::attributes::{Attributes, DRIVER_IN, DRIVER_OUT, Kind, MAY, MUST, Takes};
use super::caps::COMP_VECTORS;
use super::cdev::get_context;
use super::create::{CqWish, SrqWish};
use super::create_qp::QpWish;
use super::file::{Context, File, kind};
use super::uapi::{Request, Response};
use ironverbs::Errno;

/// Object and method numbers.
mod method {
    use super::kind::*;
    pub const INFO_HANDLES: (u16, u16) = (DEVICE, 1);
    pub const QUERY_PORT: (u16, u16) = (DEVICE, 2);
    pub const GET_CONTEXT: (u16, u16) = (DEVICE, 3);
    pub const QUERY_CONTEXT: (u16, u16) = (DEVICE, 4);
    pub const QUERY_GID_TABLE: (u16, u16) = (DEVICE, 5);
    pub const QUERY_GID_ENTRY: (u16, u16) = (DEVICE, 6);
    pub const PD_DESTROY: (u16, u16) = (PD, 0);
    pub const CQ_CREATE: (u16, u16) = (CQ, 0);
    pub const CQ_DESTROY: (u16, u16) = (CQ, 1);
    pub const QP_CREATE: (u16, u16) = (QP, 0);
    pub const QP_DESTROY: (u16, u16) = (QP, 1);
    pub const SRQ_CREATE: (u16, u16) = (SRQ, 0);
    pub const SRQ_DESTROY: (u16, u16) = (SRQ, 1);
    pub const AH_DESTROY: (u16, u16) = (AH, 0);
    pub const MW_DESTROY: (u16, u16) = (MW, 0);
    pub const MR_DESTROY: (u16, u16) = (MR, 1);
    pub const MR_QUERY: (u16, u16) = (MR, 3);
    pub const XRCD_DESTROY: (u16, u16) = (XRCD, 0);
    pub const ASYNC_EVENT_ALLOC: (u16, u16) = (ASYNC_EVENT, 0);
    pub const UAR_ALLOC: (u16, u16) = (UAR, 0x1000);
    pub const UAR_DESTROY: (u16, u16) = (UAR, 0x1001);
}

/// What INVOKE_WRITE takes.
pub(super) const INVOKE_WRITE_TAKES: &[Takes] =
    &[(0, Kind::InAtLeast(0), MAY), (1, Kind::Out(0), MAY), (2, Kind::Constant, MUST)];

/// What a method takes; `None`: there is no such method.
pub(super) fn takes(object: u16, number: u16) -> Option<&'static [Takes]> {
    use Kind::*;
    Some(match (object, number) {
        method::INFO_HANDLES => &[(0, Constant, MUST), (1, Out(4), MAY), (2, Out(4), MUST)],
        method::QUERY_PORT => &[(0, Constant, MUST), (1, Out(48), MUST)],
        method::GET_CONTEXT => &[(0, Out(4), MAY), (1, Out(8), MAY)],
        method::QUERY_CONTEXT => &[(0, Out(4), MAY), (1, Out(8), MAY), (0x1000, Out(48), MUST)],
        method::QUERY_GID_TABLE => &[(0, Constant, MUST), (1, Flags(0), MAY), (2, Out(32), MUST), (3, Out(8), MUST)],
        method::QUERY_GID_ENTRY => &[(0, Constant, MUST), (1, Constant, MUST), (2, Flags(0), MUST), (3, Out(32), MUST)],
        method::PD_DESTROY | method::AH_DESTROY | method::MW_DESTROY | method::MR_DESTROY | method::XRCD_DESTROY => {
            &[(0, Object, MUST)]
        }
        method::CQ_DESTROY => &[(0, Object, MUST), (1, Out(8), MUST)],
        method::QP_DESTROY | method::SRQ_DESTROY => &[(0, Object, MUST), (1, Out(4), MUST)],
        method::CQ_CREATE => &[
            (0, Object, MUST),
            (1, In(4), MUST),
            (2, In(8), MUST),
            (3, File, MAY),
            (4, In(4), MUST),
            (5, Flags(3), MAY),
            (6, Out(4), MUST),
            (7, File, MAY),
            (0x1002, In(4), MAY),
        ],
        method::QP_CREATE => &[
            (0, Object, MUST),
            (1, Object, MAY),
            (2, Object, MAY),
            (3, Object, MAY),
            (4, Object, MAY),
            (5, Object, MAY),
            (6, Object, MAY),
            (7, In(8), MUST),
            (8, In(20), MUST),
            (9, Constant, MUST),
            (10, Flags(1 << 1 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12), MAY),
            (11, In(4), MAY),
            (12, File, MAY),
            (13, Out(20), MUST),
            (14, Out(4), MUST),
        ],
        method::SRQ_CREATE => &[
            (0, Object, MUST),
            (1, Object, MUST),
            (2, Object, MAY),
            (3, Object, MAY),
            (4, In(8), MUST),
            (5, In(4), MUST),
            (6, In(4), MUST),
            (7, In(4), MUST),
            (8, In(4), MAY),
            (9, Constant, MUST),
            (10, File, MAY),
            (11, Out(4), MUST),
            (12, Out(4), MUST),
            (13, Out(4), MAY),
        ],
        method::MR_QUERY => {
            &[(0, Object, MUST), (1, Out(4), MUST), (2, Out(4), MUST), (3, Out(8), MUST), (4, Out(8), MAY)]
        }
        method::ASYNC_EVENT_ALLOC => &[(0, File, MUST)],
        method::UAR_ALLOC => &[
            (0x1000, Object, MUST),
            (0x1001, Constant, MUST),
            (0x1002, Out(8), MUST),
            (0x1003, Out(4), MUST),
            (0x1004, Out(4), MUST),
        ],
        method::UAR_DESTROY => &[(0x1000, Object, MUST)],
        _ => return None,
    })
}

/// Whether the method destroys something: those succeed on a dead device, too.
pub(super) fn destroys(object: u16, number: u16) -> bool {
    matches!(
        (object, number),
        method::PD_DESTROY
            | method::AH_DESTROY
            | method::MW_DESTROY
            | method::MR_DESTROY
            | method::XRCD_DESTROY
            | method::CQ_DESTROY
            | method::QP_DESTROY
            | method::SRQ_DESTROY
            | method::UAR_DESTROY
    )
}

/// Whether the method works before there is a context.
pub(super) fn needs_no_context(object: u16, number: u16) -> bool {
    (object, number) == method::GET_CONTEXT
}

/// Runs a method.
pub(super) fn run(file: &File, object: u16, number: u16, a: &mut Attributes<'_>) -> Result<(), Errno> {
    let destroy = |a: &Attributes<'_>, id| file.destroy(object, a.object(id).unwrap_or(u32::MAX));
    match (object, number) {
        method::GET_CONTEXT => {
            let request = a.input(DRIVER_IN).unwrap_or_default();
            let (cqe_version, driver) = get_context(file, Request(&request), a.room(DRIVER_OUT))?;
            file.state().context = Some(Context { cqe_version });
            a.output(DRIVER_OUT, &driver);
            describe_core(a);
        }
        method::QUERY_CONTEXT => {
            let version = file.state().context()?.cqe_version;
            let answer = file.describe(version, a.room(0x1000).unwrap_or(0));
            a.output(0x1000, &answer);
            describe_core(a);
        }
        method::INFO_HANDLES => {
            let kind = u16::try_from(a.number(0)).map_err(|_| Errno::EINVAL)?;
            let mut handles = file.handles(kind);
            handles.truncate(a.room(2).unwrap_or(0) / 4);
            let bytes: Vec<u8> = handles.iter().flat_map(|h| h.to_ne_bytes()).collect();
            a.output(2, &bytes);
            a.output(1, &(handles.len() as u32).to_ne_bytes());
        }
        method::QUERY_PORT => {
            let port = file.query_port(a.number(0))?.done();
            a.output(1, &port);
        }
        method::QUERY_GID_TABLE => {
            if a.number(0) != 32 {
                return Err(Errno::EINVAL);
            }
            let entries = file.gid_entries();
            if a.room(2).unwrap_or(0) < entries.len() * 32 {
                return Err(Errno::EINVAL);
            }
            a.output(2, &entries.concat());
            a.output(3, &(entries.len() as u64).to_ne_bytes());
        }
        method::QUERY_GID_ENTRY => {
            let entry = file.gid(a.number(0) as u32, a.number(1) as u32)?;
            a.output(3, &entry);
        }
        method::CQ_CREATE => create_cq(file, a)?,
        method::QP_CREATE => create_qp(file, a)?,
        method::SRQ_CREATE => create_srq(file, a)?,
        method::CQ_DESTROY => {
            let (completions, others) = destroy(a, 0)?;
            a.output(1, &Response::new(8).u32(0, completions).u32(4, others).done());
        }
        method::QP_DESTROY | method::SRQ_DESTROY => {
            let (_, events) = destroy(a, 0)?;
            a.output(1, &events.to_ne_bytes());
        }
        method::UAR_DESTROY => drop(destroy(a, 0x1000)?),
        method::MR_QUERY => {
            let (key, len, iova) = file.query_mr(a.object(0).unwrap_or(u32::MAX))?;
            a.output(1, &key.to_ne_bytes());
            a.output(2, &key.to_ne_bytes());
            a.output(3, &len.to_ne_bytes());
            a.output(4, &iova.to_ne_bytes());
        }
        method::ASYNC_EVENT_ALLOC => {
            let number = file.open_async_file()?;
            a.set(0, i64::from(number).cast_unsigned());
        }
        method::UAR_ALLOC => {
            let (handle, offset, page) = file.alloc_uar(a.number(0x1001))?;
            a.set(0x1000, handle.into());
            a.output(0x1002, &offset.to_ne_bytes());
            a.output(0x1003, &4096_u32.to_ne_bytes());
            a.output(0x1004, &page.to_ne_bytes());
        }
        _ => drop(destroy(a, 0)?),
    }
    Ok(())
}

fn describe_core(a: &mut Attributes<'_>) {
    /// Hints among access flags are known to be hints.
    const OPTIONAL_MR_ACCESS: u64 = 1;
    a.output(0, &COMP_VECTORS.to_ne_bytes());
    a.output(1, &OPTIONAL_MR_ACCESS.to_ne_bytes());
}

fn file_number(a: &Attributes<'_>, id: u16) -> Option<i32> {
    a.has(id).then(|| a.number(id) as i32)
}

fn create_cq(file: &File, a: &mut Attributes<'_>) -> Result<(), Errno> {
    let driver = a.input(DRIVER_IN).unwrap_or_default();
    let (handle, cqe, answer) = file.create_cq(&CqWish {
        cqe: a.u32(1),
        user_handle: Request(&a.input(2).unwrap_or_default()).u64(0),
        channel: file_number(a, 3),
        vector: a.u32(4),
        flags: a.number(5),
        event_file: file_number(a, 7),
        uar_page: a.has(0x1002).then(|| a.u32(0x1002)),
        driver: Request(&driver),
        driver_room: a.room(DRIVER_OUT),
    })?;
    a.set(0, handle.into());
    a.output(6, &cqe.to_ne_bytes());
    a.output(DRIVER_OUT, &answer);
    Ok(())
}

fn create_qp(file: &File, a: &mut Attributes<'_>) -> Result<(), Errno> {
    let driver = a.input(DRIVER_IN).unwrap_or_default();
    let cap_bytes = a.input(8).unwrap_or_default();
    let cap: [u32; 5] = std::array::from_fn(|i| Request(&cap_bytes).u32(4 * i));
    let (handle, qpn, answer) = file.create_qp(&QpWish {
        user_handle: Request(&a.input(7).unwrap_or_default()).u64(0),
        pd: a.object(2),
        xrcd: a.object(1),
        srq: a.object(3),
        send_cq: a.object(4),
        recv_cq: a.object(5),
        cap,
        qp_type: a.number(9),
        flags: a.number(10),
        event_file: file_number(a, 12),
        driver: Request(&driver),
        driver_room: a.room(DRIVER_OUT),
    })?;
    a.set(0, handle.into());
    // The kernel knows nothing of rings that the program made: what was asked for comes back.
    a.output(13, &cap_bytes);
    a.output(14, &qpn.to_ne_bytes());
    a.output(DRIVER_OUT, &answer);
    Ok(())
}

fn create_srq(file: &File, a: &mut Attributes<'_>) -> Result<(), Errno> {
    let driver = a.input(DRIVER_IN).unwrap_or_default();
    let (handle, max_wr, srqn, answer) = file.create_srq(&SrqWish {
        pd: a.object(1).unwrap_or(u32::MAX),
        xrcd: a.object(2),
        cq: a.object(3),
        user_handle: Request(&a.input(4).unwrap_or_default()).u64(0),
        max_wr: a.u32(5),
        max_sge: a.u32(6),
        srq_type: a.number(9),
        event_file: file_number(a, 10),
        driver: Request(&driver),
        driver_room: a.room(DRIVER_OUT),
    })?;
    a.set(0, handle.into());
    let max_sge = a.u32(6);
    a.output(11, &max_wr.to_ne_bytes());
    a.output(12, &max_sge.to_ne_bytes());
    a.output(13, &srqn.to_ne_bytes());
    a.output(DRIVER_OUT, &answer);
    Ok(())
}
