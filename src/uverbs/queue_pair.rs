//! Queue pairs: create, modify, query.

use super::abi::ioctl::{attr, method, qp_create_flags};
use super::abi::verbs::QpCap as WireCap;
use super::abi::write::{self, QpDest};
use super::attr::{AddressVector, CreateQp, CreatedQp, ModifyQp, QpAttr, QpCap, QpDomain, QpState, qp_attr_mask};
use super::context::Ucontext;
use super::errno::Errno;
use super::error::{Error, Verb};
use super::explain;
use super::kernel::{Form, Native};
use super::object::{Handle, ObjectKind};
use super::types::{Gid, Lid, Mtu, QKey, Qpn};
use std::sync::Arc;
use zerocopy::FromZeros;

/// A queue pair as the command returned it.
struct Made {
    handle: u32,
    qpn: u32,
    cap: QpCap,
}

impl Ucontext {
    /// Makes a queue pair, in state RESET.
    ///
    /// Memory that `uhw_in` names stays until the object is destroyed ([`Handle::keeping`]).
    pub fn create_qp(
        self: &Arc<Self>,
        req: &CreateQp<'_>,
        uhw_in: &[u8],
        uhw_out: &mut [u8],
    ) -> Result<CreatedQp, Error> {
        let made = self
            .kernel()
            .attempt(Native::QpCreate, |form| match form {
                Form::Native => self.create_qp_native(req, uhw_in, uhw_out),
                Form::Legacy => self.create_qp_legacy(req, uhw_in, uhw_out),
            })
            .map_err(|errno| qp_refused(errno, &req.cap))?;
        let handle = Handle::new(self, ObjectKind::Qp, made.handle);
        let qpn = Qpn::new(made.qpn).map_err(|e| Error::Abi {
            verb: Verb::CreateQp,
            what: "queue pair number".into(),
            need: "24 bits".into(),
            got: e.to_string().into(),
        })?;
        Ok(CreatedQp { handle, qpn, cap: made.cap })
    }

    fn create_qp_native(&self, req: &CreateQp<'_>, uhw_in: &[u8], uhw_out: &mut [u8]) -> Result<Made, Errno> {
        let &CreateQp { domain, send_cq, recv_cq, srq, qp_type, sq_sig_all, cap, user_handle } = req;
        let cap = WireCap {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        };
        let mut resp_cap = WireCap::default();
        let mut qpn = 0_u32;
        let mut cmd = self.kernel().command(method::QP_CREATE);
        cmd.object_out(attr::create_qp::HANDLE);
        match domain {
            QpDomain::Pd(pd) => cmd.object_in(attr::create_qp::PD_HANDLE, pd.id()),
            QpDomain::Xrcd(xrcd) => cmd.object_in(attr::create_qp::XRCD_HANDLE, xrcd.id()),
        }
        if let Some(srq) = srq {
            cmd.object_in(attr::create_qp::SRQ_HANDLE, srq.id());
        }
        if let Some(cq) = send_cq {
            cmd.object_in(attr::create_qp::SEND_CQ_HANDLE, cq.id());
        }
        if let Some(cq) = recv_cq {
            cmd.object_in(attr::create_qp::RECV_CQ_HANDLE, cq.id());
        }
        cmd.ptr_in(attr::create_qp::USER_HANDLE, &user_handle);
        cmd.ptr_in(attr::create_qp::CAP, &cap);
        cmd.const_in(attr::create_qp::TYPE, qp_type.into());
        if sq_sig_all {
            cmd.flags_in(attr::create_qp::FLAGS, qp_create_flags::SQ_SIG_ALL);
        }
        cmd.ptr_out(attr::create_qp::RESP_CAP, &mut resp_cap);
        cmd.ptr_out(attr::create_qp::RESP_QP_NUM, &mut qpn);
        cmd.uhw(uhw_in, uhw_out);
        let answer = cmd.issue(&**self.cdev())?;
        Ok(Made {
            handle: answer.handle(attr::create_qp::HANDLE),
            qpn,
            cap: QpCap {
                max_send_wr: resp_cap.max_send_wr,
                max_recv_wr: resp_cap.max_recv_wr,
                max_send_sge: resp_cap.max_send_sge,
                max_recv_sge: resp_cap.max_recv_sge,
                max_inline_data: resp_cap.max_inline_data,
            },
        })
    }

    fn create_qp_legacy(&self, req: &CreateQp<'_>, uhw_in: &[u8], uhw_out: &mut [u8]) -> Result<Made, Errno> {
        let &CreateQp { domain, send_cq, recv_cq, srq, qp_type, sq_sig_all, cap, user_handle } = req;
        let (QpDomain::Pd(domain) | QpDomain::Xrcd(domain)) = domain;
        let request = write::CreateQp {
            user_handle,
            pd_handle: domain.id(),
            send_cq_handle: send_cq.map_or(0, Handle::id),
            recv_cq_handle: recv_cq.map_or(0, Handle::id),
            srq_handle: srq.map_or(0, Handle::id),
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
            sq_sig_all: sq_sig_all.into(),
            qp_type,
            is_srq: srq.is_some().into(),
            ..Default::default()
        };
        let mut response = write::CreateQpResp::default();
        self.kernel().invoke(&request, &mut response, uhw_in, uhw_out)?;
        Ok(Made {
            handle: response.qp_handle,
            qpn: response.qpn,
            cap: QpCap {
                max_send_wr: response.max_send_wr,
                max_recv_wr: response.max_recv_wr,
                max_send_sge: response.max_send_sge,
                max_recv_sge: response.max_recv_sge,
                max_inline_data: response.max_inline_data,
            },
        })
    }

    /// Changes a queue pair. With an address vector on RoCE the kernel resolves the peer's address, and may take seconds.
    pub fn modify_qp(&self, qp: &Handle, attr: &ModifyQp) -> Result<(), Error> {
        let request = write::ModifyQp {
            dest: wire_dest(&attr.dest),
            alt_dest: wire_dest(&attr.alt_dest),
            qp_handle: qp.id(),
            attr_mask: attr.attr_mask,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags,
            pkey_index: attr.pkey_index,
            alt_pkey_index: attr.alt_pkey_index,
            qp_state: attr.qp_state.0,
            cur_qp_state: attr.cur_qp_state.0,
            path_mtu: attr.path_mtu,
            path_mig_state: attr.path_mig_state,
            en_sqd_async_notify: attr.en_sqd_async_notify.into(),
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            alt_port_num: attr.alt_port_num,
            alt_timeout: attr.alt_timeout,
            reserved: [0; 2],
        };
        self.kernel().invoke(&request, &mut (), &[], &mut []).map_err(|errno| modify_refused(errno, attr))
    }

    /// A queue pair's attributes.
    pub fn query_qp(&self, qp: &Handle) -> Result<QpAttr, Error> {
        /// Every attribute (`enum ib_qp_attr_mask`): drivers fill all of them whatever is asked for.
        const ALL: u32 = (qp_attr_mask::DEST_QPN << 1) - 1;
        let mut response = write::QueryQpResp::new_zeroed();
        let request = write::QueryQp { response: 0, qp_handle: qp.id(), attr_mask: ALL };
        self.kernel().invoke(&request, &mut response, &[], &mut []).map_err(|e| Error::kernel(Verb::QueryQp, e))?;
        Ok(qp_attr(&response))
    }
}

fn qp_refused(errno: Errno, cap: &QpCap) -> Error {
    let error = Error::kernel(Verb::CreateQp, errno);
    match errno {
        Errno::EINVAL => error.with_hint(format!(
            "{} send and {} receive work requests, {} and {} scatter/gather entries, {} inline bytes: one may be outside \
             the device's limits (max_qp_wr, max_sge)",
            cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data
        )),
        Errno::ENOMEM => explain::queue_memory(error),
        Errno::EOPNOTSUPP => error.with_hint("the device has no queue pairs of this type"),
        _ => error,
    }
}

fn modify_refused(errno: Errno, attr: &ModifyQp) -> Error {
    let error = Error::kernel(Verb::ModifyQp, errno);
    let qkey = QKey(attr.qkey);
    if errno == Errno::EPERM && attr.attr_mask & qp_attr_mask::QKEY != 0 && qkey.is_controlled() {
        return error.with_hint(format!(
            "Q_Key {qkey} is a controlled one, since its highest bit is set: give the process CAP_NET_RAW, or use a Q_Key \
             below 0x80000000"
        ));
    }
    error
}

fn wire_dest(av: &AddressVector) -> QpDest {
    QpDest {
        dgid: av.dgid.0,
        flow_label: av.flow_label,
        dlid: av.dlid.0,
        reserved: 0,
        sgid_index: av.sgid_index,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: av.is_global.into(),
        port_num: av.port_num,
    }
}

fn address_vector(dest: &QpDest) -> AddressVector {
    AddressVector {
        dgid: Gid(dest.dgid),
        flow_label: dest.flow_label,
        dlid: Lid(dest.dlid),
        sgid_index: dest.sgid_index,
        hop_limit: dest.hop_limit,
        traffic_class: dest.traffic_class,
        sl: dest.sl,
        src_path_bits: dest.src_path_bits,
        static_rate: dest.static_rate,
        is_global: dest.is_global != 0,
        port_num: dest.port_num,
    }
}

fn qp_attr(response: &write::QueryQpResp) -> QpAttr {
    QpAttr {
        qp_state: QpState(response.qp_state),
        cur_qp_state: QpState(response.cur_qp_state),
        path_mtu: Mtu::from_raw(response.path_mtu),
        path_mig_state: response.path_mig_state,
        qkey: response.qkey,
        rq_psn: response.rq_psn,
        sq_psn: response.sq_psn,
        dest_qp_num: response.dest_qp_num,
        qp_access_flags: response.qp_access_flags,
        cap: QpCap {
            max_send_wr: response.max_send_wr,
            max_recv_wr: response.max_recv_wr,
            max_send_sge: response.max_send_sge,
            max_recv_sge: response.max_recv_sge,
            max_inline_data: response.max_inline_data,
        },
        dest: address_vector(&response.dest),
        alt_dest: address_vector(&response.alt_dest),
        pkey_index: response.pkey_index,
        alt_pkey_index: response.alt_pkey_index,
        sq_draining: response.sq_draining != 0,
        max_rd_atomic: response.max_rd_atomic,
        max_dest_rd_atomic: response.max_dest_rd_atomic,
        min_rnr_timer: response.min_rnr_timer,
        port_num: response.port_num,
        timeout: response.timeout,
        retry_cnt: response.retry_cnt,
        rnr_retry: response.rnr_retry,
        alt_port_num: response.alt_port_num,
        alt_timeout: response.alt_timeout,
        sq_sig_all: response.sq_sig_all != 0,
    }
}
