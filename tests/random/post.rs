//! Work requests: what they look like, what the reference makes of them, and their way into a queue.
//!
//! # Safety argument
//!
//! This is the only file that submits batches. Every region they name belongs to the world's sides, whose regions outlive
//! their queue pairs and are read and written by copying functions only, so that no reference to their bytes exists.
#![allow(unsafe_code)]

use crate::connect::{AnyQp, QKEY};
use crate::program::{EXPOSED, From, INLINE, Kind, Op, Work};
use crate::push::{Bytes, Ready, ReadyOp, push_datagram, push_reliable, push_unreliable, push_xrc};
use crate::reference::{Answer, End, Message, SLOT, Sent, Slot, Window};
use crate::world::{Side, World};
use ironverbs::{
    AccessFlags, Any, Inline, PostError, Qp, QpType, RecvBatch, RemoteAddr, SendBatch, Sge, WcOpcode, WcStatus, WrFlags,
};
use softcx::Syndrome;
use std::ops::Range;

/// What becomes of a work request.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Done,
    /// It fails, whatever it is.
    Fails(WcStatus, u32),
    /// It is never posted.
    Dropped,
}

impl World {
    pub fn post(&mut self, pair: usize, from: usize, works: &[Work], dropped: bool) {
        if self.areas[self.pairs[pair].place][from].is_short() {
            self.settle();
        }
        let fate = match (dropped, self.pairs[pair].dead) {
            (true, _) => Fate::Dropped,
            (_, true) => Fate::Fails(WcStatus::WR_FLUSH_ERR, Syndrome::FLUSH.vendor().into()),
            _ => Fate::Done,
        };
        self.post_with(pair, from, works, fate, fate);
    }

    /// Posts a batch, of which the first that is taken has a fate of its own.
    fn post_with(&mut self, pair: usize, from: usize, works: &[Work], first: Fate, rest: Fate) {
        let room = self.pairs[pair].ends[from].send_room();
        let mut ready = vec![];
        let mut left = room;
        for work in works {
            let one = self.plan(pair, from, work, if left == room { first } else { rest }, left);
            left -= u64::from(one.expect.is_ok());
            ready.push(one);
        }
        let submit = first != Fate::Dropped;
        let [_, peer] = self.pairs[pair].ends[1 - from].qpns;
        match self.pairs[pair].ends[from].qp.as_mut().unwrap() {
            AnyQp::Rc(qp) => post_batch(qp, room, ready, submit, push_reliable),
            AnyQp::Uc(qp) => post_batch(qp, room, ready, submit, push_unreliable),
            AnyQp::Ud(qp, ah) => {
                let to = ah.to(peer, QKEY);
                post_batch(qp, room, ready, submit, |batch, one| push_datagram(batch, one, to));
            }
            AnyQp::Xrc(qp, _) => {
                let srqn = self.sides[1 - from].srqn();
                post_batch(qp, room, ready, submit, |batch, one| push_xrc(batch, one, srqn));
            }
        }
    }

    /// What a work request looks like. Unless it is dropped, the reference takes it for posted.
    fn plan(&mut self, pair: usize, from: usize, work: &Work, mut fate: Fate, room: u64) -> Ready {
        let kind = self.pairs[pair].spec.kind;
        let wr_id = u64::from(self.next_wr_id());
        let with_imm = |imm: bool, world: &mut Self| imm.then(|| world.next_imm());
        let short = !matches!(work.from, From::Entries(_));
        let cut = |len: usize| match work.from {
            From::Entries(0) => 0,
            _ if short => len.min(INLINE),
            _ => len,
        };
        let op = match (kind, &work.op) {
            (Kind::Rc | Kind::Xrc, op) => op.clone(),
            (_, Op::Send { .. }) | (Kind::Uc, Op::Write { .. }) => work.op.clone(),
            (Kind::Uc, Op::Read { at, len }) => Op::Write { at: *at, len: *len, imm: false },
            (_, Op::Write { len, imm, .. }) => Op::Send { len: *len, imm: *imm },
            (_, Op::Read { len, .. }) => Op::Send { len: *len, imm: false },
            (_, Op::Add { .. } | Op::Swap { .. }) => Op::Send { len: 8, imm: false },
        };
        let mut expect = if room == 0 { Err(PostError::QueueFull) } else { Ok(()) };
        if let (Kind::Ud, Op::Send { len, .. }) = (kind, &op)
            && cut(*len) > self.datagram
        {
            expect = Err(PostError::DatagramTooLong);
        }
        if expect.is_err() {
            fate = Fate::Dropped;
        }
        let goes = fate == Fate::Done;
        let mut fence = work.fence && kind.is_reliable();
        let mut answer = None;
        let (op, payload, opcode, byte_len) = match op {
            Op::Send { len, imm } => {
                let (data, payload) = self.payload(pair, from, work.from, cut(len));
                let imm = with_imm(imm, self);
                if goes {
                    self.message(pair, from, Some(data), imm, cut(len));
                }
                (ReadyOp::Send(imm), payload, WcOpcode::SEND, 0)
            }
            Op::Write { at, len, imm } => {
                let (data, payload) = self.payload(pair, from, work.from, cut(len));
                let imm = with_imm(imm, self);
                if goes {
                    fence |= self.is_being_read(pair, from, at..at + data.len());
                    if imm.is_some() {
                        self.message(pair, from, None, imm, data.len());
                    }
                    self.wrote(pair, from, at, data);
                }
                (
                    ReadyOp::Write(self.remote(pair, from, at, cut(len), work.window), imm),
                    payload,
                    WcOpcode::RDMA_WRITE,
                    0,
                )
            }
            Op::Read { at, len } => {
                let remote = self.remote(pair, from, at, len, work.window);
                let base = self.pairs[pair].place * EXPOSED;
                let data = self.sides[1 - from].exposed_image[base + at..base + at + len].to_vec();
                let entries = self.sink(pair, from, work.from, &data, goes.then_some(&mut answer));
                if goes {
                    let being_read = &mut self.pairs[pair].ends[from].sends.being_read;
                    if fence {
                        being_read.clear();
                    }
                    being_read.push(at..at + len);
                }
                (ReadyOp::Read(remote), Bytes::Entries(entries), WcOpcode::RDMA_READ, len as u32)
            }
            Op::Add { at, by } => {
                let old = self.word(pair, from, at);
                if goes {
                    fence |= self.is_being_read(pair, from, at..at + 8);
                    self.wrote(pair, from, at, old.wrapping_add(by).to_ne_bytes().to_vec());
                }
                let remote = self.remote(pair, from, at, 8, work.window);
                let entries = self.sink(pair, from, From::Entries(1), &old.to_ne_bytes(), goes.then_some(&mut answer));
                (ReadyOp::Add(remote, by), Bytes::Entries(entries), WcOpcode::FETCH_ADD, 8)
            }
            Op::Swap { at, hit, with } => {
                let old = self.word(pair, from, at);
                let compare = if hit { old } else { !old };
                if goes {
                    fence |= self.is_being_read(pair, from, at..at + 8);
                    if hit {
                        self.wrote(pair, from, at, with.to_ne_bytes().to_vec());
                    }
                }
                let remote = self.remote(pair, from, at, 8, work.window);
                let entries = self.sink(pair, from, From::Entries(1), &old.to_ne_bytes(), goes.then_some(&mut answer));
                (ReadyOp::Swap(remote, compare, with), Bytes::Entries(entries), WcOpcode::COMP_SWAP, 8)
            }
        };
        // A queue that is full of requests that nobody hears of would stay full.
        let signaled = work.signaled || room == 1;
        let flag = |on: bool, flag: WrFlags| if on { flag } else { WrFlags::NONE };
        let flags =
            flag(signaled, WrFlags::SIGNALED) | flag(fence, WrFlags::FENCE) | flag(work.solicited, WrFlags::SOLICITED);
        let is_read = matches!(op, ReadyOp::Read(_));
        let ends = &mut self.pairs[pair];
        let signaled = signaled || ends.spec.signal_all;
        // Where it cannot come inside, it is in memory, whoever hears of it.
        let may_be_inside =
            |answer: &Answer| ends.spec.inside && ends.spec.signal_all && answer.data.len() <= MOST_INSIDE;
        let answer = match answer {
            Some(answer) if !may_be_inside(&answer) => {
                answer.apply(&mut self.sides[from].local_image);
                None
            }
            other => other,
        };
        let sends = &mut ends.ends[from].sends;
        if fate != Fate::Dropped {
            if fence && !is_read {
                sends.being_read.clear();
            }
            sends.posted += 1;
            let count = sends.posted;
            let sent = Sent { wr_id, count, opcode, byte_len, status: WcStatus::SUCCESS, vendor_err: 0, answer };
            match fate {
                Fate::Fails(status, vendor_err) => sends.expected.push_back(Sent { status, vendor_err, ..sent }),
                _ if signaled => sends.expected.push_back(sent),
                _ => {}
            }
        }
        Ready { wr_id, flags, op, payload, expect }
    }

    /// Random payload in the form that is asked for.
    fn payload(&mut self, pair: usize, from: usize, form: From, len: usize) -> (Vec<u8>, Bytes) {
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        let payload = match form {
            From::Inline => Bytes::Inline(data.clone()),
            From::Pieces(n) => Bytes::Pieces(split(&data, n).map(|piece| data[piece].to_vec()).collect()),
            From::Entries(n) => {
                let (side, area) = (&mut self.sides[from], &mut self.areas[self.pairs[pair].place][from]);
                let entry = |piece: Range<usize>| {
                    let at = area.source(piece.len());
                    side.local.write(at, &data[piece.clone()]).unwrap();
                    side.local_image[at..at + piece.len()].copy_from_slice(&data[piece.clone()]);
                    side.local.sge(at..at + piece.len()).unwrap()
                };
                Bytes::Entries(split(&data, n).map(entry).collect())
            }
        };
        (data, payload)
    }

    /// Entries for what comes back, which is to be `data`.
    fn sink(
        &mut self,
        pair: usize,
        from: usize,
        form: From,
        data: &[u8],
        answer: Option<&mut Option<Answer>>,
    ) -> Vec<Sge> {
        let n = if let From::Entries(n) = form { n.max(1) } else { 1 };
        let (side, area) = (&mut self.sides[from], &mut self.areas[self.pairs[pair].place][from]);
        let places = split(data, n).map(|piece| (area.sink(piece.len()), piece.len()));
        let pieces: Vec<Range<usize>> = places.map(|(at, len)| at..at + len).collect();
        let entries = pieces.iter().map(|piece| side.local.sge(piece.clone()).unwrap()).collect();
        if let Some(answer) = answer {
            *answer = Some(Answer { pieces, data: data.to_vec() });
        }
        entries
    }

    /// Where the peer's piece is: through its window, if that covers it and is asked for.
    fn remote(&self, pair: usize, from: usize, at: usize, len: usize, through_window: bool) -> RemoteAddr {
        let pair = &self.pairs[pair];
        if through_window
            && let Some(Window { mw, piece, remote, .. }) = &pair.ends[1 - from].window
            && mw.is_bound()
            && piece.start <= at
            && at + len <= piece.end
        {
            return RemoteAddr { addr: remote.addr + (at - piece.start) as u64, ..*remote };
        }
        self.sides[1 - from].exposed.remote(pair.place * EXPOSED + at).unwrap()
    }

    fn word(&self, pair: usize, from: usize, at: usize) -> u64 {
        let at = self.pairs[pair].place * EXPOSED + at;
        u64::from_ne_bytes(self.sides[1 - from].exposed_image[at..at + 8].try_into().unwrap())
    }

    fn message(&mut self, pair: usize, from: usize, data: Option<Vec<u8>>, imm: Option<u32>, byte_len: usize) {
        let message = Message { data, byte_len, imm, invalidates: None };
        self.pairs[pair].ends[1 - from].messages.push_back(message);
    }

    /// What a READ reads while a later request changes it is not defined, unless that one waits.
    fn is_being_read(&self, pair: usize, from: usize, piece: Range<usize>) -> bool {
        let reads = &self.pairs[pair].ends[from].sends.being_read;
        reads.iter().any(|read| read.start < piece.end && piece.start < read.end)
    }

    /// The peer's memory was written, or may have been.
    fn wrote(&mut self, pair: usize, from: usize, at: usize, data: Vec<u8>) {
        let (at, side) = (self.pairs[pair].place * EXPOSED + at, &mut self.sides[1 - from]);
        if self.pairs[pair].is_reliable() {
            side.exposed_image[at..at + data.len()].copy_from_slice(&data);
        } else {
            side.maybe.push((at, data));
        }
    }

    /// Posts a batch of receives, and returns how many the queue took.
    pub fn receives(&mut self, pair: usize, at: usize, entries: &[usize]) -> usize {
        let (place, from) = (self.pairs[pair].place, self.pairs[pair].spec.queue());
        let room = self.receive_room(pair, at);
        let mut planned = vec![];
        for (n, entries) in entries.iter().enumerate() {
            let area = match from.and_then(|from| self.sides[at].shared[from as usize].as_mut()) {
                Some(queue) => &mut queue.area,
                None => &mut self.areas[place][at],
            };
            let Some(slot) = area.take_slot() else { break };
            let pieces: Vec<_> = split(&[0; SLOT], *entries).map(|p| slot + p.start..slot + p.end).collect();
            let wr_id = u64::from(self.next_wr_id());
            planned.push((Slot { wr_id, at: slot, pieces }, if n < room { Ok(()) } else { Err(PostError::QueueFull) }));
        }
        let (Side { shared, local, .. }, End { qp, slots, .. }) = (&mut self.sides[at], &mut self.pairs[pair].ends[at]);
        let (area, slots) = match from.and_then(|from| shared[from as usize].as_mut()) {
            Some(queue) => {
                post_receives(queue.srq.recv_batch(), room, &planned, local);
                (&mut queue.area, &mut queue.slots)
            }
            None => {
                match qp.as_mut().unwrap() {
                    AnyQp::Rc(qp) => post_receives(qp.recv_batch(), room, &planned, local),
                    AnyQp::Uc(qp) => post_receives(qp.recv_batch(), room, &planned, local),
                    AnyQp::Ud(qp, _) => post_receives(qp.recv_batch(), room, &planned, local),
                    AnyQp::Xrc(..) => unreachable!("it has no queue of its own"),
                }
                (&mut self.areas[place][at], slots)
            }
        };
        let before = slots.len();
        for (slot, expect) in planned {
            match expect {
                Ok(()) => slots.push_back(slot),
                Err(_) => area.give_slot(slot.at),
            }
        }
        slots.len() - before
    }

    /// Receives that can be posted now.
    pub fn receive_room(&self, pair: usize, at: usize) -> usize {
        let (spec, end) = (&self.pairs[pair].spec, &self.pairs[pair].ends[at]);
        match spec.queue().and_then(|from| self.sides[at].shared(from)) {
            Some(queue) => queue.srq.capacity() as usize - queue.slots.len(),
            None => end.recv_capacity() as usize - end.slots.len(),
        }
    }

    /// By requests of RC only: the library has those of windows on no other queue pairs.
    pub fn bind(&mut self, pair: usize, at: usize, type_2: bool, piece: Range<usize>) {
        if self.pairs[pair].spec.kind != Kind::Rc || self.pairs[pair].dead {
            return;
        }
        if self.pairs[pair].ends[at].window.is_some() {
            self.unbind(pair, at, false);
        }
        self.settle();
        if self.pairs[pair].ends[at].send_room() == 0 {
            return;
        }
        let wr_id = self.next_wr_id();
        let (side, pair) = (&self.sides[at], &mut self.pairs[pair]);
        let end = &mut pair.ends[at];
        let Some(AnyQp::Rc(qp)) = &mut end.qp else { return };
        let mut mw = if type_2 { qp.alloc_mw().unwrap() } else { side.pd.alloc_mw().unwrap() };
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let base = pair.place * EXPOSED;
        let binding = mw.plan_bind(&side.exposed, base + piece.start..base + piece.end, access).unwrap();
        qp.bind_mw(wr_id, &mut mw, binding).unwrap();
        end.window = Some(Window { mw, piece, remote: binding.remote(), wr_id: wr_id.into() });
        end.sends.expect(wr_id.into(), WcOpcode::BIND_MW);
    }

    pub fn unbind(&mut self, pair: usize, at: usize, by_peer: bool) {
        self.settle();
        let sender = if by_peer { 1 - at } else { at };
        if self.pairs[pair].dead
            || self.pairs[pair].ends[at].window.is_none()
            || self.pairs[pair].ends[sender].send_room() == 0
        {
            return;
        }
        let wr_id = self.next_wr_id();
        let [first, second] = &mut self.pairs[pair].ends;
        let (own, peer) = if at == 0 { (first, second) } else { (second, first) };
        let own_room = own.send_room();
        let (Some(AnyQp::Rc(qp)), Some(AnyQp::Rc(peer_qp))) = (&mut own.qp, &mut peer.qp) else { return };
        let Some(window) = &mut own.window else { return };
        window.wr_id = wr_id.into();
        match (window.mw.mw_type(), by_peer) {
            (ironverbs::MwType::Type2, true) => {
                let rkey = window.mw.rkey();
                let mut batch = peer_qp.send_batch();
                batch.send_inv(wr_id.into(), WrFlags::SIGNALED, Inline(b"gone"), rkey).unwrap();
                // SAFETY: inline payload.
                unsafe { batch.submit().unwrap() };
                let data = Some(b"gone".to_vec());
                own.messages.push_back(Message { data, byte_len: 4, imm: None, invalidates: Some(rkey) });
                peer.sends.expect(wr_id.into(), WcOpcode::SEND);
            }
            (ironverbs::MwType::Type2, false) => {
                qp.invalidate_mw(wr_id, &mut window.mw).unwrap();
                own.sends.expect(wr_id.into(), WcOpcode::LOCAL_INV);
            }
            _ => {
                if own_room == 0 {
                    return;
                }
                let binding = own.window.as_ref().unwrap().mw.plan_unbind().unwrap();
                let window = own.window.as_mut().unwrap();
                qp.bind_mw(wr_id, &mut window.mw, binding).unwrap();
                own.sends.expect(wr_id.into(), WcOpcode::BIND_MW);
            }
        }
        self.settle();
        let window = self.pairs[pair].ends[at].window.take().unwrap();
        assert!(!window.mw.is_bound(), "the window is still bound");
    }

    /// The first request fails on the device, for a reason of its own; both queue pairs end in error.
    pub fn break_down(&mut self, pair: usize, from: usize, syndrome: usize, works: &[Work]) {
        self.settle();
        if self.pairs[pair].dead || self.pairs[pair].ends[from].send_room() == 0 {
            return;
        }
        let (syndrome, status) = FAILURES[syndrome % FAILURES.len()];
        let [qpn, _] = self.pairs[pair].ends[from].qpns;
        self.host.with(self.devices[from], |device| device.fail_next_send(qpn.get(), syndrome)).unwrap().unwrap();
        let first = Fate::Fails(status, syndrome.vendor().into());
        let rest = Fate::Fails(WcStatus::WR_FLUSH_ERR, Syndrome::FLUSH.vendor().into());
        self.post_with(pair, from, works, first, rest);
        self.pairs[pair].dead = true;
        self.run_to_rest();
        for end in &mut self.pairs[pair].ends {
            end.qp.as_mut().unwrap().enter_error().unwrap();
        }
    }
}

/// Bytes of an answer inside a completion at most.
const MOST_INSIDE: usize = 32;

const FAILURES: [(Syndrome, WcStatus); 13] = [
    (Syndrome::LOCAL_LENGTH, WcStatus::LOC_LEN_ERR),
    (Syndrome::LOCAL_QP_OP, WcStatus::LOC_QP_OP_ERR),
    (Syndrome::LOCAL_PROTECTION, WcStatus::LOC_PROT_ERR),
    (Syndrome::MW_BIND, WcStatus::MW_BIND_ERR),
    (Syndrome::BAD_RESPONSE, WcStatus::BAD_RESP_ERR),
    (Syndrome::LOCAL_ACCESS, WcStatus::LOC_ACCESS_ERR),
    (Syndrome::REMOTE_INVALID_REQUEST, WcStatus::REM_INV_REQ_ERR),
    (Syndrome::REMOTE_ACCESS, WcStatus::REM_ACCESS_ERR),
    (Syndrome::REMOTE_OPERATION, WcStatus::REM_OP_ERR),
    (Syndrome::RETRY_EXCEEDED, WcStatus::RETRY_EXC_ERR),
    (Syndrome::RNR_RETRY_EXCEEDED, WcStatus::RNR_RETRY_EXC_ERR),
    (Syndrome::REMOTE_ABORTED, WcStatus::REM_ABORT_ERR),
    (Syndrome(0x7f), WcStatus::GENERAL_ERR),
];

/// `data` in `n` pieces, some of which may be empty; none at all for `n` of 0.
fn split(data: &[u8], n: usize) -> impl Iterator<Item = Range<usize>> {
    let len = data.len();
    // Uneven ones: each takes half of the rest, the last all of it.
    (0..n).scan(0, move |start, i| {
        let left = len - *start;
        let piece = *start..*start + if i + 1 == n { left } else { left / 2 };
        *start = piece.end;
        Some(piece)
    })
}

fn post_batch<T: QpType>(
    qp: &mut Qp<Any, T>,
    room: u64,
    ready: Vec<Ready>,
    submit: bool,
    mut push: impl FnMut(&mut SendBatch<'_, Any, T>, &Ready) -> Result<(), PostError>,
) {
    let mut batch = qp.send_batch();
    assert_eq!(u64::from(batch.remaining()), room, "room of the send queue");
    for one in &ready {
        assert_eq!(push(&mut batch, one), one.expect, "work request {}", one.wr_id);
    }
    if submit {
        // SAFETY: see the module's argument.
        unsafe { batch.submit().unwrap() };
    } else {
        drop(batch);
    }
    // Inline payload was copied: what becomes of the original does not matter.
    for mut one in ready {
        match &mut one.payload {
            Bytes::Entries(_) => {}
            Bytes::Inline(bytes) => bytes.fill(0xee),
            Bytes::Pieces(pieces) => pieces.iter_mut().for_each(|bytes| bytes.fill(0xee)),
        }
    }
}

fn post_receives<T: QpType>(
    mut batch: RecvBatch<'_, Any, T>,
    room: usize,
    planned: &[(Slot, Result<(), PostError>)],
    region: &ironverbs::Mr,
) {
    assert_eq!(batch.remaining() as usize, room, "room of the receive queue");
    for (slot, expect) in planned {
        let entries: Vec<Sge> = slot.pieces.iter().map(|piece| region.sge(piece.clone()).unwrap()).collect();
        assert_eq!(batch.recv(slot.wr_id, &entries), *expect, "receive {}", slot.wr_id);
    }
    // SAFETY: see the module's argument.
    unsafe { batch.submit().unwrap() };
}
