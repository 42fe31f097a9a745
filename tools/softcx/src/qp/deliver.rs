//! Messages that arrive: into the receive buffers or straight into memory, and their completions.

use super::Qp;
use super::responder::{Message, Refused, Source};
use super::route_header::describe_route;
use crate::bits::cqe::{self, Cqe, opcode};
use crate::event::Event;
use crate::mkey::{Access, Asker, KeyError};
use crate::packet::{Body, Nak, Network, Packet, Part};
use crate::recv::RecvWqe;
use crate::report::Misuse;
use crate::shared::Shared;
use crate::syndrome::Syndrome;

impl Qp {
    /// A packet of a SEND or WRITE in its turn, of any connected transport.
    pub(super) fn deliver(&mut self, packet: Packet, shared: &mut Shared) -> Result<(), Refused> {
        let invalid = || Refused::With(Nak::InvalidRequest, Some(Event::QpInvalidRequest { qpn: self.qpn }));
        let (part, is_send) = match &packet.body {
            Body::Send { part, .. } => (*part, true),
            Body::Write { part, .. } => (*part, false),
            _ => return Err(invalid()),
        };
        let fits = match &self.responder.message {
            Message::None | Message::Ignored => part.first,
            Message::Send { .. } => !part.first && is_send,
            Message::Write { .. } => !part.first && !is_send,
        };
        let payload_len = match &packet.body {
            Body::Send { payload, .. } | Body::Write { payload, .. } => payload.len(),
            _ => 0,
        };
        let full = payload_len == self.attr.mtu_bytes as usize;
        if !fits || !part.last && !full || payload_len > self.attr.mtu_bytes as usize {
            return Err(invalid());
        }
        if is_send { self.deliver_send(packet, part, shared) } else { self.deliver_write(packet, part, shared) }
    }

    pub(super) fn deliver_send(&mut self, packet: Packet, part: Part, shared: &mut Shared) -> Result<(), Refused> {
        let Body::Send { payload, imm, invalidate, .. } = packet.body else { return Ok(()) };
        if part.first {
            let (wqe, source) = self.take_receive(shared, packet.xrc_srqn)?;
            self.responder.message = Message::Send { wqe, source, data: vec![] };
        }
        let Message::Send { wqe, source, mut data } = std::mem::take(&mut self.responder.message) else {
            return Ok(());
        };
        data.extend_from_slice(&payload);
        if data.len() as u64 > wqe.capacity() {
            return Err(self.fail_receive(shared, wqe, source, Syndrome::LOCAL_LENGTH, Nak::InvalidRequest));
        }
        if !part.last {
            self.responder.message = Message::Send { wqe, source, data };
            return Ok(());
        }
        if let Some(key) = invalidate
            && let Err(why) = self.invalidate(shared, key)
        {
            self.report(shared, Some(&wqe.image), Misuse::RemoteAccess(why));
            return Err(self.fail_receive(shared, wqe, source, Syndrome::LOCAL_ACCESS, Nak::RemoteAccess));
        }
        let op = match (imm, invalidate) {
            (Some(_), _) => opcode::RESP_SEND_IMM,
            (_, Some(_)) => opcode::RESP_SEND_INV,
            _ => opcode::RESP_SEND,
        };
        let mut entry = Cqe::new(op, self.qpn, source.user_index, wqe.index);
        entry.put(cqe::IMM_INVAL_PKEY, &imm.or(invalidate.map(u32::to_be_bytes)).unwrap_or_default());
        let grh = packet.route.grh.is_some();
        describe_route(
            &mut entry,
            &packet.route,
            self.attr.dest_qpn,
            grh && packet.route.network != Network::InfiniBand,
        );
        if packet.solicited {
            entry.body[cqe::OP_OWN] |= cqe::SOLICITED;
        }
        self.complete_receive(shared, wqe, source, entry, &data)
    }

    pub(super) fn deliver_write(&mut self, packet: Packet, part: Part, shared: &mut Shared) -> Result<(), Refused> {
        let Body::Write { remote, payload, imm, .. } = packet.body else { return Ok(()) };
        let asker = self.remote_asker(shared, packet.xrc_srqn)?;
        if part.first {
            self.may(shared, asker, remote, Access::REMOTE_WRITE)?;
        }
        let (remote, done) = match &self.responder.message {
            Message::Write { remote, done } => (*remote, *done),
            _ => (remote, 0),
        };
        let after = u32::try_from(payload.len()).ok().and_then(|len| done.checked_add(len)).unwrap_or(u32::MAX);
        if after > remote.len || part.last && after != remote.len {
            let event = Event::QpInvalidRequest { qpn: self.qpn };
            return Err(Refused::With(Nak::InvalidRequest, Some(event)));
        }
        // A message with immediate data needs a receive WQE at its end; without one, its last packet comes again.
        let receive = if imm.is_some() { Some(self.take_receive(shared, packet.xrc_srqn)?) } else { None };
        if !payload.is_empty() {
            let to = (remote.rkey, remote.address.wrapping_add(done.into()));
            shared
                .mkeys
                .write(&*shared.memory, asker, to, Access::REMOTE_WRITE, &payload)
                .map_err(|e| self.no_access(shared, e))?;
        }
        self.responder.message = if part.last { Message::None } else { Message::Write { remote, done: after } };
        let (Some((mut wqe, source)), Some(imm)) = (receive, imm) else { return Ok(()) };
        wqe.release(shared, source.asker, 0);
        let mut entry = Cqe::new(opcode::RESP_WRITE_IMM, self.qpn, source.user_index, wqe.index);
        entry.put(cqe::IMM_INVAL_PKEY, &imm).put(cqe::BYTE_CNT, &remote.len.to_be_bytes());
        let grh = packet.route.grh.is_some() && packet.route.network != Network::InfiniBand;
        describe_route(&mut entry, &packet.route, self.attr.dest_qpn, grh);
        if packet.solicited {
            entry.body[cqe::OP_OWN] |= cqe::SOLICITED;
        }
        self.write_completion(shared, source.cqn, entry)
    }

    /// Takes a receive WQE, from wherever this message has to take it.
    pub(super) fn take_receive(&mut self, shared: &mut Shared, xrc_srqn: u32) -> Result<(RecvWqe, Source), Refused> {
        if let Some(spare) = self.responder.spare.pop() {
            return Ok(spare);
        }
        let is_xrc = self.spec.xrcd.is_some();
        let from_srq = if is_xrc { Some(xrc_srqn) } else { self.spec.srq };
        let own = Source { asker: self.asker(), cqn: self.spec.recv_cq, user_index: self.spec.user_index.unwrap_or(0) };
        let Some(srqn) = from_srq else {
            let asker = self.asker();
            let recv = self.recv.as_mut().ok_or(Refused::NotReady)?;
            recv.refresh(shared, self.qpn, asker);
            return recv.take(shared).map(|wqe| (wqe, own)).ok_or(Refused::NotReady);
        };
        // Out of the map while the rest of the device is used.
        let invalid = Refused::With(Nak::InvalidRequest, Some(Event::QpInvalidRequest { qpn: self.qpn }));
        let Some(mut srq) = shared.srqs.remove(&srqn) else { return Err(invalid) };
        let source = match srq.xrc {
            Some(xrc) if is_xrc => {
                Source { asker: Asker { pd: srq.pd, qpn: self.qpn }, cqn: xrc.cqn, user_index: xrc.user_index }
            }
            // Without user indexes, a completion says which SRQ its WQE is of.
            _ => Source {
                asker: Asker { pd: srq.pd, qpn: self.qpn },
                user_index: self.spec.user_index.unwrap_or(srqn),
                ..own
            },
        };
        let same_domain = !is_xrc || srq.xrc.map(|x| x.xrcd) == self.spec.xrcd;
        let taken = if same_domain {
            srq.queue.refresh(shared, srqn, source.asker);
            srq.queue.take(shared).map(|wqe| (wqe, source)).ok_or(Refused::NotReady)
        } else {
            Err(invalid)
        };
        if taken.is_ok() && srq.queue.ready() < usize::from(srq.limit) {
            srq.limit = 0;
            shared.events.push_back(Event::SrqLimit { srqn });
        }
        shared.srqs.insert(srqn, srq);
        taken
    }

    /// Puts the data in their place and completes.
    pub(super) fn complete_receive(
        &mut self,
        shared: &mut Shared,
        mut wqe: RecvWqe,
        source: Source,
        mut entry: Cqe,
        data: &[u8],
    ) -> Result<(), Refused> {
        if let Some(syndrome) = self.inject_recv.take() {
            return Err(self.fail_receive(shared, wqe, source, syndrome, Nak::RemoteOperation));
        }
        entry.put(cqe::BYTE_CNT, &(data.len() as u32).to_be_bytes());
        let entry_bytes = shared.cqs.get(&source.cqn).map_or(64, |cq| cq.spec.entry_bytes);
        let mut done = 0;
        if self.spec.scatter_responder && !data.is_empty() && data.len() <= 32 && entry_bytes == 64 {
            entry.put(0, data);
            entry.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_32;
        } else if self.spec.scatter_responder && !data.is_empty() && data.len() <= 64 && entry_bytes == 128 {
            let mut before = [0; 64];
            before[..data.len()].copy_from_slice(data);
            entry.before = Some(before);
            entry.body[cqe::OP_OWN] |= cqe::FORMAT_INLINE_64;
        } else {
            for sge in &wqe.sges {
                let n = (data.len() - done).min(sge.len as usize);
                if n == 0 {
                    break;
                }
                let part = &data[done..done + n];
                let to = (sge.lkey, sge.address);
                // The whole buffer must be there, not only what this message needs of it.
                let written = shared
                    .mkeys
                    .check(source.asker, sge.range(), Access::LOCAL_WRITE)
                    .and_then(|()| shared.mkeys.write(&*shared.memory, source.asker, to, Access::LOCAL_WRITE, part));
                if let Err(e) = written {
                    self.report(shared, Some(&wqe.image), Misuse::LocalAccess(e));
                    return Err(self.fail_receive(
                        shared,
                        wqe,
                        source,
                        Syndrome::LOCAL_PROTECTION,
                        Nak::RemoteOperation,
                    ));
                }
                done += n;
            }
        }
        wqe.release(shared, source.asker, done as u64);
        self.write_completion(shared, source.cqn, entry)
    }

    pub(super) fn write_completion(&mut self, shared: &mut Shared, cqn: u32, entry: Cqe) -> Result<(), Refused> {
        if shared.complete(cqn, entry) {
            return Ok(());
        }
        Err(Refused::With(Nak::RemoteOperation, Some(Event::QpFatal { qpn: self.qpn })))
    }

    /// Completes a receive WQE in error; the answer to the other side is the caller's to give.
    pub(super) fn fail_receive(
        &mut self,
        shared: &mut Shared,
        mut wqe: RecvWqe,
        source: Source,
        syndrome: Syndrome,
        nak: Nak,
    ) -> Refused {
        wqe.release(shared, source.asker, 0);
        let to = (source.cqn, opcode::RESP_ERR, source.user_index);
        self.complete_error(shared, to, (syndrome, wqe.index, 0));
        Refused::With(nak, None)
    }

    /// The other side takes back a key of ours: only a window bound to this queue pair.
    pub(super) fn invalidate(&self, shared: &mut Shared, key: u32) -> Result<(), KeyError> {
        let (asker, fail) = (self.asker(), |why| KeyError { key, address: 0, len: 0, why });
        let mkey = shared.mkeys.entry(key).filter(|m| m.variant == key as u8 && !m.free);
        let mkey = mkey.ok_or(fail(crate::mkey::Why::NoKey))?;
        if !mkey.is_window || mkey.pd != asker.pd {
            return Err(fail(crate::mkey::Why::Forbidden));
        }
        if mkey.qpn != Some(asker.qpn) {
            return Err(fail(crate::mkey::Why::Qp));
        }
        mkey.free = true;
        Ok(())
    }
}
