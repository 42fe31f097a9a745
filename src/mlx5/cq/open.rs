//! A batch of completions: the quick way of those that are plain.
//!
//! # Safety argument
//!
//! Entries are read at a copy of the queue's place. The queue is borrowed meanwhile, so its ring stays where it is; and the copy
//! moves as the queue's own does.
#![allow(unsafe_code)]

use super::{Cq, Read};
use crate::mem::barrier;
use crate::mlx5::bus::{Bus, Cpu};
use crate::mlx5::completion::Cqe;
use crate::mlx5::cq_memory::{Last, Place};
use crate::mlx5::cqe::opcode;
use crate::mlx5::mailbox::received_as;

/// A completion queue while a batch is read: what each completion needs is here, to be kept in registers. How far it was read is
/// in the queue at any time, so that a batch that is forgotten gives nothing twice.
pub struct OpenCq<'a, B = Cpu> {
    pub(super) cq: &'a mut Cq<B>,
    pub(super) place: Place,
}

impl<B: Bus> OpenCq<'_, B> {
    /// The queue itself, to look at.
    #[inline(always)]
    pub fn cq(&self) -> &Cq<B> {
        self.cq
    }

    /// The queue itself.
    #[inline(always)]
    pub fn queue(&mut self) -> &mut Cq<B> {
        self.cq
    }

    /// The next completion.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Cqe<'_>> {
        // SAFETY: see the module. After it was passed with `false` it was asked for anew.
        let body = unsafe { self.place.body() };
        let last = body.last().less(self.place.owner());
        // By far the most: a send is done, and nothing else is in the entry.
        if is_done_send(last) {
            barrier::from_device_barrier();
            if let Some(queue) = self.cq.routes.send_queue(body.uidx_word())
                && let Some((wr_id, completed)) = queue.complete_current(last.word())
            {
                self.pass();
                return Some(Cqe::done(body, opcode::REQ, wr_id, completed));
            }
        } else if let Some(kind) = done_receive(last) {
            barrier::from_device_barrier();
            if !self.cq.routes.has_mail()
                && let Some(queue) = self.cq.routes.receive_queue(body.uidx_word())
            {
                let wr_id = queue.complete(last.wqe_counter());
                self.pass();
                return Some(Cqe::done(body, kind, wr_id, received_as(kind)));
            }
        } else if last.is_missing() {
            return None;
        }
        let read = self.cq.read();
        self.place = self.cq.place;
        let Read { ci, kind, wr_id, completed, carries_data } = read?;
        let inside = if carries_data { Some(&self.cq.inside) } else { None };
        Some(Cqe::new(self.cq.ring.body(ci), kind, wr_id, completed).with(inside))
    }

    /// Goes on to the next entry. Those before this one are done with.
    #[inline(always)]
    fn pass(&mut self) {
        if self.place.pass() {
            self.cq.place.follow(&self.place);
        } else {
            self.place = self.cq.turn();
        }
    }

    /// Whether there is nothing to read, or nothing that can be.
    #[inline(always)]
    pub fn is_drained(&self) -> bool {
        // SAFETY: as in `next`.
        let last = unsafe { self.place.body() }.last();
        last.less(self.place.owner()).is_missing() || self.cq.has_fault()
    }

    /// Completions read, from the queue's start.
    #[inline(always)]
    pub fn ci(&self) -> u32 {
        self.place.ci()
    }

    /// Whether there are completions that were read, and whose entries were not given back.
    #[inline(always)]
    pub fn holds_slots(&self) -> bool {
        self.place.ci() != self.cq.given_back
    }

    /// Ends the batch, as [`Cq::end`] does. Not by it: how far the queue was read is in registers here.
    #[inline(always)]
    pub fn end(&mut self) -> bool {
        self.cq.end_at(self.place.ci())
    }
}

/// Set in an entry's last byte where the sender asked for an event.
const SOLICITED: u8 = 1 << 1;

/// Whether an entry, less the owner bit of this pass, says that a send is done, and carries nothing else.
#[inline(always)]
pub(super) fn is_done_send(last: Last) -> bool {
    last.op_own() & !SOLICITED == opcode::REQ << 4
}

/// The kind of receive that an entry, less the owner bit of this pass, says is done, if it carries nothing else.
#[inline(always)]
fn done_receive(last: Last) -> Option<u8> {
    let kind = last.op_own() & !SOLICITED;
    // Neither the owner nor the format of what is carried is set.
    (kind & 0xf == 0 && kind >> 4 <= opcode::RESP_SEND_INV).then_some(kind >> 4)
}
