//! Addresses of datagrams: address handles and multicast groups.

use super::abi::write::{self, AhAttr, GlobalRoute};
use super::attr::AddressVector;
use super::context::Ucontext;
use super::error::{Error, Verb};
use super::object::{Handle, ObjectKind};
use super::types::{Gid, Lid};
use std::sync::Arc;

impl Ucontext {
    /// Makes an address handle. On RoCE the kernel resolves the peer's address, and may take seconds.
    pub fn create_ah(self: &Arc<Self>, pd: &Handle, av: &AddressVector, uhw_out: &mut [u8]) -> Result<Handle, Error> {
        let request = write::CreateAh {
            response: 0,
            user_handle: self.next_user_handle(),
            pd_handle: pd.id(),
            reserved: 0,
            attr: wire_address(av),
        };
        let mut response = write::CreateAhResp::default();
        self.kernel()
            .invoke(&request, &mut response, &[], uhw_out)
            .map_err(|errno| Error::kernel(Verb::CreateAh, errno))?;
        Ok(Handle::new(self, ObjectKind::Ah, response.ah_handle))
    }

    /// Joins a queue pair to a multicast group. Joining twice is no error.
    pub fn attach_mcast(&self, qp: &Handle, gid: Gid, lid: Lid) -> Result<(), Error> {
        let request = write::AttachMcast { gid: gid.0, qp_handle: qp.id(), mlid: lid.0, reserved: 0 };
        self.kernel().invoke(&request, &mut (), &[], &mut []).map_err(|errno| Error::kernel(Verb::AttachMcast, errno))
    }

    /// Takes a queue pair out of a multicast group.
    pub fn detach_mcast(&self, qp: &Handle, gid: Gid, lid: Lid) -> Result<(), Error> {
        let request = write::DetachMcast { gid: gid.0, qp_handle: qp.id(), mlid: lid.0, reserved: 0 };
        self.kernel().invoke(&request, &mut (), &[], &mut []).map_err(|errno| Error::kernel(Verb::DetachMcast, errno))
    }
}

fn wire_address(av: &AddressVector) -> AhAttr {
    AhAttr {
        grh: GlobalRoute {
            dgid: av.dgid.0,
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
            reserved: 0,
        },
        dlid: av.dlid.0,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: av.is_global.into(),
        port_num: av.port_num,
        reserved: 0,
    }
}

impl From<&AhAttr> for AddressVector {
    fn from(raw: &AhAttr) -> Self {
        Self {
            dgid: Gid(raw.grh.dgid),
            flow_label: raw.grh.flow_label,
            dlid: Lid(raw.dlid),
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            sl: raw.sl,
            src_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
            is_global: raw.is_global != 0,
            port_num: raw.port_num,
        }
    }
}
