//! Packets as bytes, for a bridge to another process. Both ends must be of one version of this crate: nothing here is a
//! wire format of any network.

use crate::packet::{Body, Gid, Grh, Mac, Nak, Network, Packet, Part, Remote, Route, Transport};
use crate::wqe::Atomic;

/// What goes over a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Packet(Packet),
    /// Ethernet addresses of the ports at this end, by GID.
    Addresses(Vec<(Gid, Network, Mac)>),
}

/// First byte of a frame; changes when the format does.
const VERSION: u8 = 1;

impl Frame {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer(vec![VERSION]);
        match self {
            Self::Packet(packet) => {
                out.u8(0);
                out.packet(packet);
            }
            Self::Addresses(list) => {
                out.u8(1);
                for (gid, network, mac) in list {
                    out.bytes(gid);
                    out.u8(*network as u8);
                    out.bytes(mac);
                }
            }
        }
        out.0
    }

    /// `None` if the bytes are no frame.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        if from.u8()? != VERSION {
            return None;
        }
        let frame = match from.u8()? {
            0 => Self::Packet(from.packet()?),
            1 => {
                let mut list = vec![];
                while !from.0.is_empty() {
                    list.push((from.array()?, from.network()?, from.array()?));
                }
                Self::Addresses(list)
            }
            _ => return None,
        };
        from.0.is_empty().then_some(frame)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    fn sized(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.bytes(bytes);
    }

    fn optional(&mut self, bytes: Option<[u8; 4]>) {
        self.u8(bytes.is_some().into());
        self.bytes(&bytes.unwrap_or_default());
    }

    fn remote(&mut self, Remote { address, rkey, len }: Remote) {
        self.u64(address);
        self.u32(rkey);
        self.u32(len);
    }

    fn packet(&mut self, packet: &Packet) {
        let Packet { route, pkey, transport, dest_qpn, src_qpn, psn, ack_req, solicited, qkey, xrc_srqn, body } =
            packet;
        self.u8(route.network as u8);
        for n in [route.slid, route.dlid, route.udp_sport, *pkey] {
            self.bytes(&n.to_be_bytes());
        }
        self.u8(route.sl);
        self.bytes(&route.smac);
        self.bytes(&route.dmac);
        self.u8(route.grh.is_some().into());
        if let Some(g) = &route.grh {
            self.bytes(&g.sgid);
            self.bytes(&g.dgid);
            self.u32(g.flow_label);
            self.bytes(&[g.tclass, g.hop_limit]);
        }
        self.bytes(&[*transport as u8, u8::from(*ack_req), u8::from(*solicited)]);
        for n in [*dest_qpn, *src_qpn, *psn, *qkey, *xrc_srqn] {
            self.u32(n);
        }
        self.body(body);
    }

    fn body(&mut self, body: &Body) {
        let part = |p: &Part| u8::from(p.first) | u8::from(p.last) << 1;
        match body {
            Body::Send { part: p, payload, imm, invalidate } => {
                self.bytes(&[0, part(p)]);
                self.optional(*imm);
                self.optional(invalidate.map(u32::to_be_bytes));
                self.sized(payload);
            }
            Body::Write { part: p, remote, payload, imm } => {
                self.bytes(&[1, part(p)]);
                self.remote(*remote);
                self.optional(*imm);
                self.sized(payload);
            }
            Body::ReadRequest { remote } => {
                self.u8(2);
                self.remote(*remote);
            }
            Body::AtomicRequest { remote, op } => {
                self.u8(3);
                self.remote(*remote);
                let (kind, operands) = match *op {
                    Atomic::CompareSwap { compare, swap, compare_mask, swap_mask } => {
                        (0, [compare, swap, compare_mask, swap_mask])
                    }
                    Atomic::FetchAdd { add, boundary } => (1, [add, boundary, 0, 0]),
                };
                self.u8(kind);
                operands.into_iter().for_each(|n| self.u64(n));
            }
            Body::ReadResponse { payload } => {
                self.u8(4);
                self.sized(payload);
            }
            Body::AtomicResponse { old } => {
                self.u8(5);
                self.u64(*old);
            }
            Body::Ack => self.u8(6),
            Body::RnrNak { timer } => self.bytes(&[7, *timer]),
            Body::Nak(nak) => self.bytes(&[8, *nak as u8]),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, n: usize) -> Option<&[u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[b]| b)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().map(|b| b != 0)
    }

    fn sized(&mut self) -> Option<Vec<u8>> {
        let len = self.u32()? as usize;
        self.take(len).map(<[u8]>::to_vec)
    }

    fn optional(&mut self) -> Option<Option<[u8; 4]>> {
        let there = self.flag()?;
        self.array().map(|bytes| there.then_some(bytes))
    }

    fn network(&mut self) -> Option<Network> {
        [Network::InfiniBand, Network::RoceV1, Network::RoceV2].get(usize::from(self.u8()?)).copied()
    }

    fn part(&mut self) -> Option<Part> {
        self.u8().map(|bits| Part { first: bits & 1 != 0, last: bits & 2 != 0 })
    }

    fn remote(&mut self) -> Option<Remote> {
        Some(Remote { address: self.u64()?, rkey: self.u32()?, len: self.u32()? })
    }

    fn packet(&mut self) -> Option<Packet> {
        let network = self.network()?;
        let (slid, dlid, udp_sport, pkey) = (self.u16()?, self.u16()?, self.u16()?, self.u16()?);
        let (sl, smac, dmac) = (self.u8()?, self.array()?, self.array()?);
        let grh = if self.flag()? {
            Some(Grh {
                sgid: self.array()?,
                dgid: self.array()?,
                flow_label: self.u32()?,
                tclass: self.u8()?,
                hop_limit: self.u8()?,
            })
        } else {
            None
        };
        let transport = *[Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc].get(usize::from(self.u8()?))?;
        Some(Packet {
            route: Route { network, slid, dlid, sl, smac, dmac, grh, udp_sport },
            pkey,
            transport,
            ack_req: self.flag()?,
            solicited: self.flag()?,
            dest_qpn: self.u32()?,
            src_qpn: self.u32()?,
            psn: self.u32()?,
            qkey: self.u32()?,
            xrc_srqn: self.u32()?,
            body: self.body()?,
        })
    }

    fn body(&mut self) -> Option<Body> {
        Some(match self.u8()? {
            0 => {
                let part = self.part()?;
                let (imm, invalidate) = (self.optional()?, self.optional()?.map(u32::from_be_bytes));
                Body::Send { part, imm, invalidate, payload: self.sized()? }
            }
            1 => {
                let (part, remote, imm) = (self.part()?, self.remote()?, self.optional()?);
                Body::Write { part, remote, imm, payload: self.sized()? }
            }
            2 => Body::ReadRequest { remote: self.remote()? },
            3 => {
                let (remote, kind) = (self.remote()?, self.u8()?);
                let [a, b, c, d] = [self.u64()?, self.u64()?, self.u64()?, self.u64()?];
                let op = match kind {
                    0 => Atomic::CompareSwap { compare: a, swap: b, compare_mask: c, swap_mask: d },
                    1 => Atomic::FetchAdd { add: a, boundary: b },
                    _ => return None,
                };
                Body::AtomicRequest { remote, op }
            }
            4 => Body::ReadResponse { payload: self.sized()? },
            5 => Body::AtomicResponse { old: self.u64()? },
            6 => Body::Ack,
            7 => Body::RnrNak { timer: self.u8()? },
            8 => {
                let all = [Nak::SequenceError, Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperation];
                Body::Nak(*all.get(usize::from(self.u8()?))?)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bodies() -> Vec<Body> {
        let remote = Remote { address: 0x1122_3344_5566_7788, rkey: 7, len: 9 };
        let part = Part { first: true, last: false };
        let payload = vec![1, 2, 3];
        vec![
            Body::Send { part, payload: payload.clone(), imm: Some([1; 4]), invalidate: None },
            Body::Send { part, payload: vec![], imm: None, invalidate: Some(5) },
            Body::Write { part, remote, payload: payload.clone(), imm: Some([2; 4]) },
            Body::ReadRequest { remote },
            Body::AtomicRequest {
                remote,
                op: Atomic::CompareSwap { compare: 1, swap: 2, compare_mask: 3, swap_mask: 4 },
            },
            Body::AtomicRequest { remote, op: Atomic::FetchAdd { add: 1, boundary: 2 } },
            Body::ReadResponse { payload },
            Body::AtomicResponse { old: 6 },
            Body::Ack,
            Body::RnrNak { timer: 9 },
            Body::Nak(Nak::SequenceError),
            Body::Nak(Nak::InvalidRequest),
            Body::Nak(Nak::RemoteAccess),
            Body::Nak(Nak::RemoteOperation),
        ]
    }

    fn packet(network: Network, transport: Transport, grh: bool, body: Body) -> Packet {
        let grh = grh.then_some(Grh { sgid: [1; 16], dgid: [2; 16], flow_label: 0xabcde, tclass: 3, hop_limit: 64 });
        Packet {
            route: Route { network, slid: 1, dlid: 2, sl: 3, smac: [4; 6], dmac: [5; 6], grh, udp_sport: 6 },
            pkey: 0xffff,
            transport,
            dest_qpn: 7,
            src_qpn: 8,
            psn: 9,
            ack_req: true,
            solicited: false,
            qkey: 10,
            xrc_srqn: 11,
            body,
        }
    }

    #[test]
    fn every_frame_comes_back_as_it_was() {
        for network in [Network::InfiniBand, Network::RoceV1, Network::RoceV2] {
            for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc] {
                for body in bodies() {
                    let frame = Frame::Packet(packet(network, transport, network != Network::InfiniBand, body));
                    let bytes = frame.encode();
                    assert_eq!(Frame::decode(&bytes).as_ref(), Some(&frame));
                    assert_eq!(Frame::decode(&bytes[..bytes.len() - 1]), None);
                    assert_eq!(Frame::decode(&[bytes, vec![0]].concat()), None);
                }
            }
        }
        let addresses = Frame::Addresses(vec![([7; 16], Network::RoceV2, [8; 6]), ([9; 16], Network::RoceV1, [1; 6])]);
        assert_eq!(Frame::decode(&addresses.encode()), Some(addresses));
    }

    proptest! {
        #[test]
        fn damaged_frames_do_no_harm(mut at in any::<prop::sample::Index>(), with: u8, which in 0..14_usize) {
            let _ = &mut at;
            let mut bytes = Frame::Packet(packet(Network::RoceV2, Transport::Rc, true, bodies().remove(which))).encode();
            let i = at.index(bytes.len());
            bytes[i] ^= with;
            let _ = Frame::decode(&bytes);
        }
    }
}
