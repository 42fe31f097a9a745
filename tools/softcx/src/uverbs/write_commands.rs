//! The commands of the write() interface, which an ioctl can carry, too.

use super::create::{CqWish, SrqWish};
use super::create_qp::QpWish;
use super::file::{File, kind};
use super::uapi::{Answer, Call, Response};
use ironverbs::Errno;

const EX: u32 = 1 << 31;

/// Bytes of a command's structure and of its answer, for the commands that the driver serves.
pub(super) fn sizes(number: u32) -> Option<(usize, usize)> {
    Some(match number {
        0 => (8, 8),
        1 => (8, 176),
        2 => (16, 40),
        3 => (8, 4),
        4 | 8 | 13 | 16 | 38 => (4, 0),
        5 => (56, 4),
        9 => (40, 12),
        11 => (48, 8),
        14 => (16, 8),
        17 => (8, 4),
        18 => (32, 8),
        19 => (16, 8),
        20 => (16, 8),
        24 => (56, 32),
        25 => (16, 128),
        26 => (112, 0),
        27 | 35 => (16, 4),
        30 | 31 => (24, 0),
        32 => (32, 16),
        33 => (16, 0),
        34 => (16, 16),
        37 => (16, 4),
        39 => (48, 16),
        40 => (32, 32),
        n if n == EX | 1 => (8, 304),
        n if n == EX | 26 => (120, 8),
        n if n == EX | 57 => (16, 0),
        _ => return None,
    })
}

/// Whether the command destroys something: those succeed on a dead device, too.
pub(super) fn destroys(number: u32) -> bool {
    matches!(number, 4 | 8 | 13 | 16 | 20 | 27 | 31 | 35 | 38)
}

/// Runs a command.
pub(super) fn run(file: &File, number: u32, call: &Call<'_>) -> Result<Answer, Errno> {
    let request = call.request;
    let destroy = |kind, at| file.destroy(kind, request.u32(at));
    let nothing = |(): ()| Ok(Answer::default());
    match number {
        1 => Ok(file.query_device().into()),
        2 => {
            let mut port = file.query_port(request.u8(8).into())?.done();
            port.truncate(40);
            Ok(Answer { core: port, driver: vec![] })
        }
        3 => file.alloc_pd(call),
        4 => destroy(kind::PD, 0).map(|_| Answer::default()),
        5 => file.create_ah(call),
        8 => destroy(kind::AH, 0).map(|_| Answer::default()),
        9 => file.reg_mr(request).map(Answer::from),
        11 => file.rereg_mr(request).map(Answer::from),
        13 => destroy(kind::MR, 0).map(|_| Answer::default()),
        14 => file.alloc_mw(call),
        16 => destroy(kind::MW, 0).map(|_| Answer::default()),
        17 => file.open_channel().map(Answer::from),
        18 => {
            let channel = request.u32(24) as i32;
            let (handle, cqe, driver) = file.create_cq(&CqWish {
                cqe: request.u32(16),
                user_handle: request.u64(8),
                channel: (channel >= 0).then_some(channel),
                vector: request.u32(20),
                flags: 0,
                event_file: None,
                uar_page: None,
                driver: call.driver,
                driver_room: call.driver_room,
            })?;
            Ok(Answer { core: Response::new(8).u32(0, handle).u32(4, cqe).done(), driver })
        }
        19 => file.resize_cq(call).map(Answer::from),
        20 => {
            let (completions, others) = destroy(kind::CQ, 8)?;
            Ok(Response::new(8).u32(0, completions).u32(4, others).into())
        }
        24 => create_qp(file, call),
        25 => file.query_qp(request.u32(8)).map(Answer::from),
        26 => file.modify_qp(request).and_then(nothing),
        27 => destroy(kind::QP, 8).map(|(_, events)| Response::new(4).u32(0, events).into()),
        30 => file.multicast(request, true).and_then(nothing),
        31 => file.multicast(request, false).and_then(nothing),
        32 | 39 => create_srq(file, number, call),
        33 => file.modify_srq(request).and_then(nothing),
        34 => file.query_srq(request.u32(8)).map(Answer::from),
        35 => destroy(kind::SRQ, 8).map(|(_, events)| Response::new(4).u32(0, events).into()),
        37 => file.open_xrcd(request).map(Answer::from),
        38 => destroy(kind::XRCD, 0).map(|_| Answer::default()),
        40 => file.open_qp(request).map(Answer::from),
        n if n == EX | 1 => file.query_device_ex(call),
        n if n == EX | 26 => {
            if request.u32(112) != 0 {
                return Err(Errno::EOPNOTSUPP);
            }
            file.modify_qp(request)?;
            Ok(Response::new(8).u32(4, 8).into())
        }
        n if n == EX | 57 => file.modify_cq(request).and_then(nothing),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn create_qp(file: &File, call: &Call<'_>) -> Result<Answer, Errno> {
    const XRC_INI: u8 = 9;
    const XRC_TGT: u8 = 10;
    const SQ_SIG_ALL: u64 = 1 << 12;
    let request = call.request;
    let qp_type = request.u8(53);
    let target = qp_type == XRC_TGT;
    let receives = !matches!(qp_type, XRC_INI | XRC_TGT);
    let cap: [u32; 5] = std::array::from_fn(|i| request.u32(32 + 4 * i));
    let (handle, qpn, driver) = file.create_qp(&QpWish {
        user_handle: request.u64(8),
        // The receiving end of XRC has its domain where others have a protection domain.
        pd: (!target).then(|| request.u32(16)),
        xrcd: target.then(|| request.u32(16)),
        srq: (request.u8(54) != 0 && receives).then(|| request.u32(28)),
        send_cq: (!target).then(|| request.u32(20)),
        recv_cq: receives.then(|| request.u32(24)),
        cap,
        qp_type: qp_type.into(),
        flags: if request.u8(52) != 0 { SQ_SIG_ALL } else { 0 },
        event_file: None,
        driver: call.driver,
        driver_room: call.driver_room,
    })?;
    let mut core = Response::new(32).u32(0, handle).u32(4, qpn);
    for (i, n) in cap.into_iter().enumerate() {
        core = core.u32(8 + 4 * i, n);
    }
    Ok(Answer { core: core.done(), driver })
}

fn create_srq(file: &File, number: u32, call: &Call<'_>) -> Result<Answer, Errno> {
    const CREATE_XSRQ: u32 = 39;
    const XRC: u32 = 1;
    let request = call.request;
    let wish = if number == CREATE_XSRQ {
        let xrc = request.u32(16) == XRC;
        SrqWish {
            pd: request.u32(20),
            xrcd: xrc.then(|| request.u32(40)),
            cq: xrc.then(|| request.u32(44)),
            user_handle: request.u64(8),
            max_wr: request.u32(24),
            max_sge: request.u32(28),
            srq_type: request.u32(16).into(),
            event_file: None,
            driver: call.driver,
            driver_room: call.driver_room,
        }
    } else {
        SrqWish {
            pd: request.u32(16),
            xrcd: None,
            cq: None,
            user_handle: request.u64(8),
            max_wr: request.u32(20),
            max_sge: request.u32(24),
            srq_type: 0,
            event_file: None,
            driver: call.driver,
            driver_room: call.driver_room,
        }
    };
    let (handle, max_wr, srqn, driver) = file.create_srq(&wish)?;
    let core = Response::new(16).u32(0, handle).u32(4, max_wr).u32(8, wish.max_sge).u32(12, srqn);
    Ok(Answer { core: core.done(), driver })
}
