//! Completions as values, many at once: runs of sends of one queue, as most completions are.
//!
//! What a run needs of the queue is looked up at its start.
//!
//! # Safety argument
//!
//! Entries are read as [`open`](super::open) reads them: at a copy of the queue's place. A run is not longer than what is left of a half of
//! the ring; the last entry of that is passed by the queue itself, which asks for the place anew.
#![allow(unsafe_code)]

use super::Cq;
use super::open::{OpenCq, is_done_send};
use crate::mem::barrier;
use crate::mlx5::bus::Bus;
use crate::mlx5::completion::Cqe;
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::WcOpcode;
use std::mem::MaybeUninit;

impl<B: Bus> OpenCq<'_, B> {
    /// Writes the completions that are there to the start of `out`, as many as it has room for, and says how many.
    #[inline(always)]
    pub fn fill(&mut self, out: &mut [MaybeUninit<Wc>]) -> usize {
        let mut n = 0;
        while n < out.len() {
            n += self.cq.run(&mut out[n..]);
            self.place = self.cq.place;
            let Some(room) = out.get_mut(n) else { break };
            // Not of that run: of another queue, of another kind, in the other half of the ring; or there is none.
            let Some(completion) = self.next() else { break };
            room.write(completion.wc());
            n += 1;
        }
        n
    }
}

impl<B: Bus> Cq<B> {
    /// Completions of sends of one queue, as far as they follow each other in this half of the ring. By itself, so that all that it
    /// needs for each of them is in registers.
    #[inline(never)]
    #[allow(
        improper_ctypes_definitions,
        reason = "of Rust's own callers; the convention is there so that nothing unwinds"
    )]
    extern "C" fn run(&mut self, out: &mut [MaybeUninit<Wc>]) -> usize {
        let mut place = self.place;
        // SAFETY: see the module.
        let body = unsafe { place.body() };
        if !is_done_send(body.last().less(place.owner())) {
            return 0;
        }
        barrier::from_device_barrier();
        let uidx = body.uidx_be();
        let Some(queue) = self.routes.send_queue(body.uidx_word()) else { return 0 };
        let qpn = Cqe::qpn_of(body);
        let run = queue.run();
        let many = out.len().min(place.left());
        for room in &mut out[..many] {
            // SAFETY: as above.
            let body = unsafe { place.body() };
            let last = body.last().less(place.owner());
            if !is_done_send(last) {
                break;
            }
            barrier::from_device_barrier();
            if body.uidx_be() != uidx {
                break;
            }
            let Some(sent) = run.current(last.word()) else { break };
            // Of others the entry has more to tell.
            if sent.opcode().0 > WcOpcode::RDMA_WRITE.0 {
                break;
            }
            room.write(Wc::of_send(sent.wr_id(), sent.opcode(), 0, qpn));
            run.complete(sent);
            place.pass();
        }
        let n = place.beyond(&self.place);
        let ends = place.left() == 0;
        if ends {
            place.back();
        }
        self.place.follow(&place);
        if ends {
            self.turn();
        }
        n
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
