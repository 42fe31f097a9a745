//! A resize under loom: every interleaving of the poller that moves on to another ring with a thread whose queue pair goes, and
//! another takes its index.
//!
//! The queue, the notes and the shadows are the product's code. The rings are memory, of which loom knows nothing: it lets one thread
//! run at a time, so what is tried are the orders of whole steps. What orders the accesses to entries is the matter of the model of the
//! mailbox.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ironverbs --lib loom`.

use super::*;
use crate::mlx5::bus::Cpu;
use crate::mlx5::cq::CqParts;
use crate::mlx5::cqe;
use crate::mlx5::dbrec::DoorbellPages;
use crate::mlx5::mailbox::{Change, Mailbox};
use crate::mlx5::memory::pages;
use crate::mlx5::shadow::SqShared;
use crate::mlx5::uar::{Caching, UAR_BYTES, UarPage};
use crate::uverbs::wr::WcOpcode;
use loom::thread;

const UIDX: u32 = 5;

/// The device writes answer number `at`, on the first pass.
fn answer(ring: &CqRing, at: u32, kind: u8) {
    let mut bytes = [0_u8; 64];
    bytes[32..36].copy_from_slice(&UIDX.to_be_bytes());
    bytes[63] = kind << 4 | cqe::owner_of_pass(at, ring.log2_entries());
    ring.write(at, &bytes);
}

fn posted(number: u64) -> Change {
    let queue = Arc::new(SqShared::new(1));
    queue.note(0, number, 1, WcOpcode::SEND);
    Change::Sends(Some(queue))
}

/// What was completed in the old ring, and moved on by one place in the new one, is the first queue pair's, whenever its index goes to
/// the second: so where the new ring is to be looked at from is told before a note can be written.
#[test]
fn loom_an_index_that_changes_hands_during_a_resize() {
    loom::model(|| {
        let old = CqRing::new(CqLayout { log2_entries: 2, log2_entry_bytes: 6 }).unwrap();
        let parts = CqParts {
            ring: old.clone(),
            cqn: 1,
            record: DoorbellPages::default().alloc().unwrap(),
            uar: UarPage::new(pages(UAR_BYTES).unwrap(), 0, 3, Caching::Uncached, Box::new(())).unwrap(),
            compressed: false,
            mailbox: Arc::new(Mailbox::new(old.clone())),
        };
        let mut cq = Cq::with_bus(parts, Cpu);
        let mailbox = cq.mailbox().clone();
        mailbox.put(UIDX, posted(7));
        answer(&old, 0, opcode::REQ);
        let peer = thread::spawn(move || {
            mailbox.put(UIDX, Change::Sends(None));
            mailbox.put(UIDX, posted(77));
        });
        cq.resize(7, |_, _| {
            answer(&old, 1, opcode::RESIZE_CQ);
            Ok(())
        })
        .unwrap();
        peer.join().unwrap();
        let (mut open, mut got) = (cq.open(), vec![]);
        while let Some(cqe) = open.next() {
            got.push(cqe.wr_id());
        }
        assert_eq!((got, cq.disowned()), (vec![7], 0), "a completion was lost or went to another queue pair");
    });
}
