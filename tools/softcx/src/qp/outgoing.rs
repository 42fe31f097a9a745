//! Packets of the sending side: what is next, where it goes, and the bytes in it.

use super::requester::Pending;
use super::{Qp, psn};
use crate::mkey::{Access, KeyError, KeyRange};
use crate::packet::{Body, Packet, Part, Remote};
use crate::port::{Path, PathGrh};
use crate::report::Misuse;
use crate::shared::Shared;
use crate::syndrome::Syndrome;
use crate::wqe::{Av, Segment, Work};

/// Every so many packets of a long message ask for an answer.
const ACK_EVERY: u32 = 16;

impl Qp {
    /// Sends the packet at the cursor. False if nothing more can be sent.
    pub(super) fn send_next(&mut self, shared: &mut Shared) -> bool {
        let cursor = self.requester.cursor;
        let Some(place) = self.requester.pending.iter().position(|p| p.contains(cursor)) else {
            self.requester.cursor = self.requester.end;
            return true;
        };
        let pending = &self.requester.pending[place];
        if pending.failed.is_some() {
            return false;
        }
        let next = if pending.wqe.is_read() { pending.end() } else { psn::add(cursor, 1) };
        match self.packet(shared, pending, cursor) {
            Ok(Some(packet)) => {
                shared.progress = true;
                shared.out.push(packet);
            }
            // The port has no such address: the packet goes nowhere.
            Ok(None) => {}
            Err(e) => {
                self.report(shared, Some(&pending.image), Misuse::LocalAccess(e));
                self.requester.pending[place].failed = Some(Syndrome::LOCAL_PROTECTION);
                self.requester.stopped = true;
                return false;
            }
        }
        let requester = &mut self.requester;
        requester.cursor = next;
        if psn::ahead(next, requester.sent) > 0 {
            requester.sent = next;
        }
        if !self.spec.kind.is_reliable() {
            requester.una = next;
        } else if requester.timer.is_none() {
            self.restart_timer(shared);
        }
        true
    }

    /// The packet with number `at` of a WQE.
    pub(super) fn packet(&self, shared: &Shared, pending: &Pending, at: u32) -> Result<Option<Packet>, KeyError> {
        let wqe = &pending.wqe;
        let n = psn::ahead(at, pending.first) as u32;
        let part = Part { first: n == 0, last: n + 1 == pending.packets };
        let offset = u64::from(n) * u64::from(self.mtu(shared));
        let left = wqe.len_bytes() - offset.min(wqe.len_bytes());
        let range = offset..offset + left.min(self.mtu(shared).into());
        let (address, rkey) = wqe.remote.unwrap_or_default();
        let len = wqe.len_bytes() as u32;
        let at_last = |imm: Option<[u8; 4]>| imm.filter(|_| part.last);
        let body = match &wqe.work {
            Work::Send { imm, invalidate } => Body::Send {
                part,
                payload: self.gather(shared, &wqe.data, range)?,
                imm: at_last(*imm),
                invalidate: invalidate.filter(|_| part.last),
            },
            Work::Write { imm } => Body::Write {
                part,
                remote: Remote { address, rkey, len },
                payload: self.gather(shared, &wqe.data, range)?,
                imm: at_last(*imm),
            },
            Work::Read => {
                Body::ReadRequest { remote: Remote { address: address.wrapping_add(offset), rkey, len: left as u32 } }
            }
            Work::Atomic(op) => Body::AtomicRequest { remote: Remote { address, rkey, len: 8 }, op: *op },
            Work::Nop | Work::Umr(_) => return Ok(None),
        };
        let ack_req = part.last || (n + 1).is_multiple_of(ACK_EVERY);
        let Some(mut packet) = (match &wqe.av {
            None => self.address(shared, at, ack_req, wqe.solicited && part.last, body),
            Some(av) => self.address_datagram(shared, at, wqe.solicited, av, body),
        }) else {
            return Ok(None);
        };
        packet.xrc_srqn = wqe.xrc_srqn.unwrap_or(0);
        Ok(Some(packet))
    }

    pub(super) fn address_datagram(
        &self,
        shared: &Shared,
        at: u32,
        solicited: bool,
        av: &Av,
        body: Body,
    ) -> Option<Packet> {
        let path = Path {
            dlid: av.rlid,
            sl: av.sl,
            src_path_bits: av.src_path_bits,
            static_rate: av.static_rate,
            dmac: av.rmac,
            udp_sport: av.rlid,
            grh: av.grh.then_some(PathGrh {
                sgid_index: av.sgid_index,
                dgid: av.rgid,
                flow_label: av.flow_label,
                tclass: av.tclass,
                hop_limit: av.hop_limit,
            }),
        };
        let port = shared.ports.get(usize::from(self.attr.port).wrapping_sub(1))?;
        // A Q_Key with the top bit set stands for the queue pair's own.
        let qkey = if av.qkey & 1 << 31 != 0 { self.attr.qkey } else { av.qkey };
        Some(Packet {
            route: port.route(&path)?,
            pkey: port.pkeys.get(usize::from(self.attr.pkey_index)).copied()?,
            transport: self.spec.kind.transport(),
            dest_qpn: av.dqpn,
            src_qpn: self.qpn,
            psn: at,
            ack_req: false,
            solicited,
            qkey,
            xrc_srqn: 0,
            body,
        })
    }

    /// Bytes `range` of a message.
    pub(super) fn gather(
        &self,
        shared: &Shared,
        data: &[Segment],
        range: std::ops::Range<u64>,
    ) -> Result<Vec<u8>, KeyError> {
        let mut out = Vec::with_capacity((range.end - range.start) as usize);
        let mut base = 0;
        for segment in data {
            let len = match segment {
                Segment::Inline(bytes) => bytes.len() as u64,
                Segment::Sge(sge) => sge.len.into(),
            };
            let from = range.start.clamp(base, base + len) - base;
            let to = range.end.clamp(base, base + len) - base;
            base += len;
            match segment {
                _ if from == to => {}
                Segment::Inline(bytes) => out.extend_from_slice(&bytes[from as usize..to as usize]),
                Segment::Sge(sge) => {
                    let part = KeyRange { key: sge.lkey, address: sge.address.wrapping_add(from), len: to - from };
                    out.extend(shared.mkeys.read(&*shared.memory, self.asker(), part, Access::LOCAL_READ)?);
                }
            }
        }
        Ok(out)
    }

    /// Puts `bytes` at `offset` of where a message's answer goes.
    pub(super) fn scatter(&self, shared: &Shared, data: &[Segment], offset: u64, bytes: &[u8]) -> Result<(), KeyError> {
        let (mut base, end) = (0, offset + bytes.len() as u64);
        for segment in data {
            let Segment::Sge(sge) = segment else { continue };
            let len = u64::from(sge.len);
            let from = offset.clamp(base, base + len);
            let to = end.clamp(base, base + len);
            if from != to {
                let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                let at = (sge.lkey, sge.address.wrapping_add(from - base));
                shared.mkeys.write(&*shared.memory, self.asker(), at, Access::LOCAL_WRITE, part)?;
            }
            base += len;
        }
        Ok(())
    }
}
