//! Giving a completion queue another ring, with completions in flight.
//!
//! The kernel tells the device of the new ring; the device writes one last entry into the old one, which says so, and goes on
//! in the new one as if that entry had been a completion. What the poller had not read of the old ring is moved over, each
//! entry one place on, so that the places after the last entry's are where the device goes on.

use super::abi::ResizeCq;
use super::bus::Bus;
use super::compressed;
use super::cq::{Cq, disown};
use super::cq_memory::CqRing;
use super::cqe::{format, format_of, opcode, opcode_of};
use super::layout::CqLayout;
use super::mailbox::Filled;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::explain;
use std::mem::ManuallyDrop;
use std::sync::Arc;

impl<B: Bus> Cq<B> {
    /// Moves on to a ring for at least `cqe` completions. `command` is RESIZE_CQ with the number of entries and the driver's
    /// part, which names memory that stays until the queue is destroyed or resized again.
    ///
    /// If the command fails, the queue is as it was.
    pub fn resize(&mut self, cqe: u32, command: impl FnOnce(u32, &ResizeCq) -> Result<(), Error>) -> Result<(), Error> {
        let verb = Verb::ResizeCq;
        let layout = CqLayout::new(cqe, self.ring.entry_bytes())?;
        let holds = self.in_ring();
        if cqe < holds || layout.entries() <= holds {
            return Err(Error::invalid(
                verb,
                "cqe",
                cqe,
                format!("the queue holds {holds} completions: poll them first"),
            ));
        }
        if layout.entries() == self.ring.entries() {
            // The driver would leave everything as it is, too.
            return Ok(());
        }
        let new = CqRing::new(layout)
            .map_err(|errno| explain::mapping(Error::kernel(verb, errno), "the new completion ring", layout.bytes()))?;
        self.give_back();
        let request =
            ResizeCq { buf_addr: new.addr(), cqe_size: self.ring.entry_bytes() as u16, reserved0: 0, reserved1: 0 };
        let (old, ci, compressed) = (&self.ring, self.ci(), self.compressed);
        let mailbox = Arc::clone(self.routes.mailbox());
        // All of it while no note can be written: a note says how far the ring is filled, and must not look at the old one when
        // the device is in the new one already, or at the new one from a place where nothing was moved to.
        let moved = self.routes.take_mail_and(
            |pasts| disown(old, ci, pasts),
            |shown| {
                command(layout.capacity(), &request)?;
                let moved = move_over(old, &new, ci, compressed);
                *shown = new.clone();
                mailbox.turned();
                if moved.is_some() {
                    mailbox.give_back(ci.wrapping_add(1));
                }
                Ok::<_, Error>(moved)
            },
        )?;
        let old = std::mem::replace(&mut self.ring, new);
        self.set_ci(ci);
        // There are no blocks in the new ring yet, and what there is has other places.
        self.written = ci;
        match moved {
            // The last entry of the old ring counts as read.
            Some(()) => {
                self.set_ci(ci.wrapping_add(1));
                self.routes.moved_on();
                self.give_back();
                Ok(())
            }
            // The device did not say that it has left the old ring: it may still write there.
            None => {
                let _leaked = ManuallyDrop::new(old);
                Err(Error::Abi {
                    verb,
                    what: "resized completion queue".into(),
                    need: "an entry that ends the old ring".into(),
                    got: "none".into(),
                })
            }
        }
    }

    /// Completions that are in the ring and not read.
    fn in_ring(&self) -> u32 {
        let mut at = self.ci();
        while let Some(span) = self.ring.span(at) {
            at = at.wrapping_add(span);
        }
        at.wrapping_sub(self.ci())
    }
}

/// Moves what is in `old` from `ci` on to `new`, each entry one place on; blocks of compressed ones, if there may be any, are
/// unpacked before, since the places that they take hold no entries. `None` if the old ring has no end, or none in time: what
/// came since it was looked at may be more than the new ring holds.
fn move_over(old: &CqRing, new: &CqRing, ci: u32, compressed: bool) -> Option<()> {
    for n in 0..old.entries().min(new.entries()) {
        let at = ci.wrapping_add(n);
        let op_own = old.ready(at)?;
        crate::mem::barrier::from_device_barrier();
        if compressed && format_of(op_own) == format::COMPRESSED {
            compressed::unpack(old, at).ok()?;
        }
        if opcode_of(op_own) == opcode::RESIZE_CQ {
            return Some(());
        }
        new.adopt(at.wrapping_add(1), old, at);
    }
    None
}

#[cfg(all(test, loom))]
mod loom_model;
#[cfg(all(test, not(loom)))]
pub mod tests;
