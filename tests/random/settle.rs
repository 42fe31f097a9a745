//! What comes of work requests: completions, and memory.

use crate::program::{EXPOSED, Kind, Poll, Shared};
use crate::reference::{Message, Pair, Sends, Sent, Slot};
use crate::world::{INSIDE, Side, World, XRC};
use ironverbs::{Wc, WcOpcode, WcStatus};
use softcx::Syndrome;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes before a datagram's payload.
const GRH: usize = 40;

impl World {
    /// Polls one completion queue.
    pub fn poll(&mut self, side: usize, cq: usize, most: usize, how: Poll) -> usize {
        let queue = &mut self.sides[side].cqs[cq];
        let mut all: Vec<(Wc, Option<Vec<u8>>)> = vec![];
        // Only who looks at the completion itself sees what came inside.
        let may_be_inside = |pair: &Pair| pair.spec.inside && pair.spec.cqs.contains(&cq);
        let how = if self.pairs.iter().any(may_be_inside) { Poll::Lent } else { how };
        match how {
            Poll::One => {
                while all.len() < most
                    && let Some(wc) = queue.poll_one().unwrap()
                {
                    all.push((wc, None));
                }
            }
            Poll::Lent => {
                let mut completions = queue.poll().unwrap();
                while all.len() < most
                    && let Some(completion) = completions.next()
                {
                    let wc = completion.wc();
                    assert_eq!((completion.wr_id(), completion.status()), (wc.wr_id, wc.status()));
                    all.push((wc, completion.inline_data().map(|data| data.to_vec())));
                }
            }
            Poll::Into => {
                let mut room = vec![MaybeUninit::uninit(); most];
                all.extend(queue.poll_into(&mut room).unwrap().iter().map(|wc| (*wc, None)));
            }
        }
        for (wc, inside) in &all {
            self.observe(side, cq, wc, inside.as_deref());
        }
        all.len()
    }

    fn poll_everything(&mut self) {
        for side in 0..2 {
            for cq in 0..self.sides[side].cqs.len() {
                while self.poll(side, cq, 64, Poll::Into) > 0 {}
            }
        }
    }

    /// A completion has come: it must be one of those that should.
    fn observe(&mut self, side: usize, cq: usize, wc: &Wc, inside: Option<&[u8]>) {
        for pair in &mut self.pairs {
            let end = &mut pair.ends[side];
            if end.sends.expected.iter().any(|sent| sent.wr_id == wc.wr_id) {
                assert_eq!(cq, pair.spec.cqs[0], "on another completion queue: {wc:?}");
                let sent = end.sends.expected.pop_front().unwrap();
                check_sent(wc, &sent, end.qpns[0].get());
                if pair.spec.kind == Kind::Xrc && wc.status() == WcStatus::SUCCESS {
                    XRC[usize::from(sent.byte_len > 0)].fetch_add(1, Ordering::Relaxed);
                }
                match (&sent.answer, inside) {
                    (Some(answer), Some(inside)) => {
                        assert_eq!(inside, answer.data, "inside {wc:?}");
                        INSIDE[1].fetch_add(1, Ordering::Relaxed);
                    }
                    (Some(answer), None) => answer.apply(&mut self.sides[side].local_image),
                    (None, inside) => assert_eq!(inside, None, "{wc:?}"),
                }
                end.sends.freed = sent.count;
                if let Some(window) = &mut end.window
                    && window.wr_id == wc.wr_id
                {
                    assert!(window.mw.observe(wc), "the window does not know {wc:?}");
                }
                return;
            }
        }
        let owner = |pair: &Pair| pair.ends[side].slots.iter().any(|slot| slot.wr_id == wc.wr_id);
        if let Some(pair) = self.pairs.iter().position(owner) {
            let slot = self.pairs[pair].ends[side].slots.pop_front().unwrap();
            assert_eq!(slot.wr_id, wc.wr_id, "receives complete in order");
            self.received(side, cq, pair, &slot, (wc, inside));
            self.areas[self.pairs[pair].place][side].give_slot(slot.at);
            return;
        }
        for which in [Shared::Basic, Shared::Xrc] {
            let Some(queue) = &mut self.sides[side].shared[which as usize] else { continue };
            let Some(at) = queue.position(wc.wr_id) else { continue };
            let slot = queue.remove(at);
            let by_number = |pair: &Pair| pair.spec.queue() == Some(which) && pair.ends[side].qpns[1].get() == wc.qpn();
            let pair = self.pairs.iter().rposition(by_number);
            let pair = pair.unwrap_or_else(|| panic!("of no queue pair: {wc:?}"));
            self.pairs[pair].ends[side].took(&slot);
            self.received(side, cq, pair, &slot, (wc, inside));
            if let Some(queue) = &mut self.sides[side].shared[which as usize] {
                queue.area.give_slot(slot.at);
            }
            return;
        }
        panic!("a completion that should not be: {wc:?}");
    }

    fn received(&mut self, side: usize, cq: usize, at: usize, slot: &Slot, (wc, inside): (&Wc, Option<&[u8]>)) {
        let duplicates = self.duplicates;
        let (pair, Side { local, local_image, .. }) = (&mut self.pairs[at], &mut self.sides[side]);
        let (kind, gone) = (pair.spec.kind, pair.is_gone());
        let is_datagram = kind == Kind::Ud;
        let may_be_inside = pair.spec.inside;
        let (dead, reliable, end) = (pair.dead, pair.is_reliable(), &mut pair.ends[side]);
        assert_eq!((cq, wc.qpn()), (pair.spec.cqs[1], end.qpns[1].get()), "{wc:?}");
        let Ok(done) = wc.outcome() else {
            assert!(dead && kind != Kind::Xrc, "a receive failed: {wc:?}");
            let flushed = (WcStatus::WR_FLUSH_ERR, u32::from(Syndrome::FLUSH.vendor()));
            assert_eq!((wc.status(), vendor_err(wc)), flushed, "{wc:?}");
            return;
        };
        let before = if is_datagram { GRH } else { 0 };
        let byte_len = done.byte_len as usize;
        let payload = done.opcode == WcOpcode::RECV;
        // What is there now, message by message.
        let mut data = inside.unwrap_or_default().to_vec();
        if inside.is_some() {
            // Then the buffer is as it was.
            assert!(may_be_inside && payload && data.len() == byte_len, "{wc:?}, {data:02x?}");
            INSIDE[0].fetch_add(1, Ordering::Relaxed);
        }
        for piece in slot.pieces.iter().filter(|_| payload && inside.is_none()) {
            let piece = piece.start..piece.end.min(piece.start + byte_len - data.len());
            let mut bytes = vec![0; piece.len()];
            local.read(piece.start, &mut bytes).unwrap();
            local_image[piece].copy_from_slice(&bytes);
            data.extend(bytes);
        }
        let is_this = |message: &Message| {
            let told = (done.imm, wc.invalidated_rkey(), byte_len - before.min(byte_len));
            (message.imm, message.invalidates, message.byte_len) == told
                && message.data.is_some() == payload
                && message.data.as_deref().is_none_or(|sent| sent == &data[before..])
        };
        let found = end.messages.iter().position(is_this);
        let number = found.unwrap_or_else(|| panic!("not what was sent: {wc:?}, {data:02x?}; {:02x?}", end.messages));
        if reliable {
            assert_eq!(number, 0, "messages come in order: {wc:?}");
        }
        if reliable || !duplicates {
            end.messages.remove(number);
        }
        if let Some(window) = &mut end.window
            && wc.invalidated_rkey().is_some()
        {
            assert!(window.mw.observe(wc), "the window does not know {wc:?}");
        }
        if kind == Kind::Xrc {
            XRC[if gone { 3 } else { 2 }].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Runs the network until nothing moves any more, but not for long: a message that waits for a receive is sent again and
    /// again, and each time may be lost once too often.
    fn rests(&self) -> bool {
        self.host.fabric().settle(Duration::from_millis(3))
    }

    /// As far as it goes without receives.
    pub fn run_to_rest(&self) {
        assert!(self.rests(), "the network does not come to rest");
    }

    /// Everything under way is done, unread completions and all.
    pub fn come_to_rest(&mut self) {
        for _ in 0..1000 {
            if self.rests() {
                return;
            }
            if self.give_receives(1) == 0 {
                // A full queue may be one of receives that are done, and unread.
                return self.settle();
            }
        }
        panic!("the network does not come to rest: {:?}", self.host.fabric());
    }

    /// Posts receives to all reliable queue pairs that wait for some, and returns how many.
    fn give_receives(&mut self, at_least: usize) -> usize {
        let mut given = 0;
        for place in 0..self.places.len() {
            let at = self.places[place];
            for side in 0..2 {
                let pair = &self.pairs[at];
                let end = &pair.ends[side];
                let need = match pair.spec.queue() {
                    Some(_) => 4,
                    None => end.messages.len().saturating_sub(end.slots.len()),
                };
                let count = need.max(at_least).min(self.receive_room(at, side));
                if pair.is_reliable() && !end.messages.is_empty() && count > 0 {
                    given += self.receives(at, side, &vec![1; count]);
                }
            }
        }
        given
    }

    /// Everything comes to rest, every completion is polled, and all memory is as it should be.
    pub fn settle(&mut self) {
        for round in 0.. {
            let rests = self.rests();
            self.poll_everything();
            if rests {
                break;
            }
            assert!(round < 1000, "the network does not come to rest: {:?}", self.host.fabric());
            self.give_receives(0);
        }
        for pair in &mut self.pairs {
            for side in 0..2 {
                let (reliable, dead, gone) = (pair.is_reliable(), pair.dead, pair.is_gone());
                let (area, end) = (&mut self.areas[pair.place][side], &mut pair.ends[side]);
                assert!(end.sends.expected.is_empty(), "completions that did not come: {:?}", end.sends.expected);
                if reliable {
                    assert!(end.messages.is_empty(), "messages that did not arrive: {:02x?}", end.messages);
                }
                // What unreliable transports have not delivered by now is lost.
                end.messages.clear();
                end.sends.being_read.clear();
                if dead && !gone {
                    assert!(end.slots.is_empty(), "receives that were not flushed: {:?}", end.slots);
                }
                if gone {
                    end.slots.drain(..).for_each(|slot| area.give_slot(slot.at));
                }
                area.reset();
            }
        }
        for side in 0..2 {
            self.check_shared(side);
            self.compare(side);
        }
    }

    fn check_shared(&self, side: usize) {
        for which in [Shared::Basic, Shared::Xrc] {
            // UC keeps the receive of a message whose rest was lost.
            let keeps = |pair: &Pair| pair.spec.queue() == Some(which) && pair.spec.kind == Kind::Uc;
            if let Some(queue) = self.sides[side].shared(which)
                && !self.pairs.iter().any(keeps)
            {
                queue.check_taken_in_order();
            }
        }
    }

    fn compare(&mut self, side: usize) {
        let own = self.pairs.iter().flat_map(|pair| &pair.ends[side].slots);
        let Side { shared, local, local_image, exposed, exposed_image, maybe, .. } = &mut self.sides[side];
        let shared = shared.iter().flatten().flat_map(|queue| &queue.slots);
        let mut now = vec![0; local_image.len()];
        local.read(0, &mut now).unwrap();
        // What is posted is the device's.
        for slot in own.chain(shared) {
            for piece in &slot.pieces {
                now[piece.clone()].copy_from_slice(&local_image[piece.clone()]);
            }
        }
        same(side, "own", &now, local_image);
        let mut now = vec![0; exposed_image.len()];
        exposed.read(0, &mut now).unwrap();
        for (at, data) in maybe.drain(..) {
            for (place, byte) in (at..).zip(data) {
                if now[place] == byte {
                    exposed_image[place] = byte;
                }
            }
        }
        same(side, "exposed", &now, exposed_image);
    }
}

#[track_caller]
fn same(side: usize, which: &str, now: &[u8], image: &[u8]) {
    if now == image {
        return;
    }
    let wrong: Vec<_> = (0..now.len()).filter(|i| now[*i] != image[*i]).collect();
    let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
    let shown = first..(first + 16).min(now.len());
    panic!(
        "side {side}, {which} region: {} bytes between {first} and {last} differ (place {} from {}); there is {:02x?}, should be {:02x?}",
        wrong.len(),
        first / EXPOSED,
        first % EXPOSED,
        &now[shown.clone()],
        &image[shown],
    );
}

fn vendor_err(wc: &Wc) -> u32 {
    wc.outcome().map_or_else(|error| error.vendor_err, |_| 0)
}

fn check_sent(wc: &Wc, sent: &Sent, qpn: u32) {
    let told = (wc.wr_id, wc.qpn(), wc.status(), vendor_err(wc));
    assert_eq!(told, (sent.wr_id, qpn, sent.status, sent.vendor_err), "{wc:?} should be {sent:?}");
    if let Ok(done) = wc.outcome() {
        assert_eq!((done.opcode, done.byte_len, done.imm), (sent.opcode, sent.byte_len, None), "{wc:?}");
    }
}

impl Sends {
    /// One more was posted, signaled, which carries nothing back.
    pub fn expect(&mut self, wr_id: u64, opcode: WcOpcode) {
        self.posted += 1;
        let (count, status) = (self.posted, WcStatus::SUCCESS);
        self.expected.push_back(Sent { wr_id, count, opcode, byte_len: 0, status, vendor_err: 0, answer: None });
    }
}
