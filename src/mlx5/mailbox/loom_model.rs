//! Notes, tables and shadows under loom: every interleaving of the threads that make queue pairs with the one that polls.
//!
//! The notes, the table and the shadows are the product's code, on loom's atomics. The ring is a model: an entry's last byte
//! is an atomic, the rest a cell of loom's, so that an access which nothing orders is a failure whatever the values. The
//! device's part is written from what it does: it writes an entry's last byte last, and writes an entry again only after the
//! poller told that it is done with it.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ironverbs --lib loom`.
//!
//! # Safety argument
//!
//! The unsafe code reads and writes the model's cells, which loom watches.
#![allow(unsafe_code)]

use super::*;
use crate::mlx5::shadow::ONE;
use crate::uverbs::wr::WcOpcode;
use loom::cell::UnsafeCell;
use loom::thread;

const UIDX: u32 = 1;

/// A completion ring.
struct Ring {
    log2: u32,
    entries: Vec<Entry>,
}

struct Entry {
    /// Pass and owner, as the last byte of an entry tells: 0 invalid, else the answer's number plus one. Whole numbers, since
    /// that passes are told apart by one bit is another test's matter.
    last: AtomicU32,
    /// User index and index of the element.
    body: UnsafeCell<(u32, u32)>,
}

#[derive(Clone)]
struct Shared(Arc<Ring>, Of);

impl Shared {
    fn new(log2: u32, of: Of) -> Self {
        let entry = |_| Entry { last: AtomicU32::new(0), body: UnsafeCell::new((0, 0)) };
        Self(Arc::new(Ring { log2, entries: (0..1 << log2).map(entry).collect() }), of)
    }

    fn entry(&self, ci: u32) -> &Entry {
        &self.0.entries[(ci & ((1 << self.0.log2) - 1)) as usize]
    }

    /// Device: answer number `ci`.
    fn write(&self, ci: u32, uidx: u32, element: u32) {
        // SAFETY: loom fails the test if another thread may touch the entry meanwhile.
        self.entry(ci).body.with_mut(|body| unsafe { *body = (uidx, element) });
        self.entry(ci).last.store(ci + 1, Ordering::Release);
    }
}

impl Filled for Shared {
    fn span(&self, ci: u32) -> Option<u32> {
        (self.entry(ci).last.load(Ordering::Acquire) == ci + 1).then_some(1)
    }

    /// Maybe: what it names may be written meanwhile, which would be an access too many here, and counts for nothing there.
    fn names(&self, _ci: u32) -> Named {
        (UIDX, self.1 == Of::Sends)
    }
}

/// What the ring's completions are of.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Sends,
    Receives,
}

/// The poller, as the completion queue has it.
struct Poller {
    ring: Shared,
    routes: Routes<Shared>,
    ci: u32,
    of: Of,
    /// Looks for notes for each completion, as it should, and not only at the start of a batch.
    for_each: bool,
}

impl Poller {
    fn new(ring: &Shared, mailbox: &Arc<Mailbox<Shared>>, of: Of) -> Self {
        Self { ring: ring.clone(), routes: Routes::new(mailbox.clone()), ci: 0, of, for_each: true }
    }

    fn look_for_mail(&mut self) {
        let (ring, ci, of) = (&self.ring, self.ci, self.of);
        if self.routes.has_mail() {
            self.routes.take_mail(|mut pasts| {
                let mut at = ci;
                while pasts.go_beyond(at) && ring.span(at).is_some() {
                    // SAFETY: loom fails the test if another thread may touch the entry meanwhile.
                    ring.entry(at).body.with_mut(|body| unsafe {
                        if let Some(name) = pasts.new_name(at, ((*body).0, of == Of::Sends)) {
                            (*body).0 = name;
                        }
                    });
                    at += 1;
                }
            });
        }
    }

    /// User index and index of the element at the place that the poller has come to.
    fn body(&self) -> (u32, u32) {
        // SAFETY: loom fails the test if another thread may touch the entry meanwhile.
        self.ring.entry(self.ci).body.with(|body| unsafe { *body })
    }

    /// A send is done: looks it up, and only where that fails looks for notes.
    fn done(&mut self) -> Option<u64> {
        let (uidx, element) = self.body();
        if let Some((wr_id, _)) = self.routes.send_queue(uidx).and_then(|queue| queue.complete_current(element << 16)) {
            return Some(wr_id);
        }
        if self.for_each {
            self.look_for_mail();
        }
        // It may have another name now.
        let (uidx, element) = self.body();
        self.routes.sends(uidx).map(|queue| queue.complete(element).0)
    }

    /// Something was received: looks for notes, and then looks it up.
    fn received(&mut self) -> Option<u64> {
        if self.for_each {
            self.look_for_mail();
        }
        let (uidx, element) = self.body();
        self.routes.receives(uidx).map(|queue| queue.complete(element))
    }

    /// One batch: the numbers that came.
    fn poll(&mut self) -> Vec<u64> {
        let mut got = vec![];
        if !self.for_each {
            self.look_for_mail();
        }
        while self.ring.span(self.ci).is_some() {
            got.extend(match self.of {
                Of::Sends => self.done(),
                Of::Receives => self.received(),
            });
            self.ci += 1;
            // Loom goes by the last access to a word alone when it looks for orders to try; note writers look at the words that
            // the device then writes, and hide the poller's looks. So the poller stands back by itself.
            thread::yield_now();
        }
        self.routes.mailbox().give_back(self.ci);
        got
    }
}

/// A queue of one element, which is posted with that number.
fn posted(of: Of, number: u64) -> Change {
    match of {
        Of::Sends => {
            let queue = Arc::new(SqShared::new(1));
            queue.note(0, number, 1, WcOpcode::SEND);
            Change::Sends(Some(queue))
        }
        Of::Receives => {
            let queue = Arc::new(RqShared::new(1));
            queue.note(0, number);
            Change::Receives(Some(Receives::Own(queue)))
        }
    }
}

fn nobody(of: Of) -> Change {
    match of {
        Of::Sends => Change::Sends(None),
        Of::Receives => Change::Receives(None),
    }
}

/// A queue pair works, goes, and its index goes to another that works, while completions are polled: each number comes, and
/// once. `early`: the first had worked before that.
fn index_reused(of: Of, for_each: bool, early: bool) {
    loom::model(move || {
        let ring = Shared::new(2, of);
        let mailbox = Arc::new(Mailbox::new(ring.clone()));
        let mut poller = Poller { for_each, ..Poller::new(&ring, &mailbox, of) };
        let work = move |mailbox: &Mailbox<Shared>, ring: &Shared| {
            mailbox.put(UIDX, posted(of, 1));
            ring.write(0, UIDX, 0);
        };
        if early {
            work(&mailbox, &ring);
        }
        let peer = thread::spawn(move || {
            if !early {
                work(&mailbox, &ring);
            }
            mailbox.put(UIDX, nobody(of));
            mailbox.put(UIDX, posted(of, 2));
            ring.write(1, UIDX, 0);
        });
        let mut got = poller.poll();
        peer.join().unwrap();
        got.extend(poller.poll());
        assert!(got == [1, 2], "a completion was lost or went to another queue pair: {got:?}");
    });
}

#[test]
fn loom_an_index_that_is_used_again() {
    for of in [Of::Sends, Of::Receives] {
        index_reused(of, true, true);
    }
}

#[test]
fn loom_an_index_that_is_used_and_used_again() {
    for of in [Of::Sends, Of::Receives] {
        index_reused(of, true, false);
    }
}

/// Why notes are looked for with each completion: a batch that began before the second queue pair was made would take its
/// completion for the first's.
#[test]
#[should_panic(expected = "went to another queue pair")]
fn loom_notices_a_look_for_notes_once_a_batch() {
    index_reused(Of::Sends, false, true);
}

/// As above.
#[test]
#[should_panic(expected = "went to another queue pair")]
fn loom_notices_a_look_for_notes_of_receives_once_a_batch() {
    index_reused(Of::Receives, false, true);
}

/// The ring is looked through for a note while the poller gives entries back and the device writes them again: nothing
/// of the queue pair that stays is lost, whatever place the look came to.
#[test]
fn loom_a_ring_that_moves_while_it_is_looked_through() {
    loom::model(|| {
        let ring = Shared::new(1, Of::Sends);
        let mailbox = Arc::new(Mailbox::new(ring.clone()));
        let stays = Arc::new(SqShared::new(4));
        mailbox.put(UIDX, Change::Sends(Some(Arc::new(SqShared::new(1)))));
        mailbox.put(2, Change::Sends(Some(stays.clone())));
        for n in 0..2 {
            stays.note(n, 10 + u64::from(n), n + 1, WcOpcode::SEND);
        }
        ring.write(0, UIDX, 0);
        ring.write(1, 2, 0);
        let mut poller = Poller::new(&ring, &mailbox, Of::Sends);
        let leaving = mailbox.clone();
        let peer = thread::spawn(move || leaving.put(UIDX, Change::Sends(None)));
        let mut got = poller.poll();
        // The device has seen that both entries were given back.
        ring.write(2, 2, 1);
        got.extend(poller.poll());
        peer.join().unwrap();
        got.extend(poller.poll());
        got.retain(|n| *n >= 10);
        assert_eq!(got, [10, 11]);
    });
}

/// Elements of a send queue are used again as soon as their completion was polled, and the number that comes back is always
/// the right one. The device is the word that tells how many were posted.
#[test]
fn loom_send_shadow() {
    loom::model(|| {
        let shared = Arc::new(SqShared::new(1));
        let device = Arc::new(AtomicU32::new(0));
        let (queue, posted) = (shared.clone(), device.clone());
        let poster = thread::spawn(move || {
            for n in 0..2_u32 {
                while queue.outstanding(n * ONE) >= 1 {
                    thread::yield_now();
                }
                queue.note(n, 100 + u64::from(n), n + 1, WcOpcode::SEND);
                posted.store(n + 1, Ordering::Release);
            }
        });
        for n in 0..2_u32 {
            while device.load(Ordering::Acquire) <= n {
                thread::yield_now();
            }
            assert_eq!(shared.complete(n).0, 100 + u64::from(n));
        }
        poster.join().unwrap();
        assert_eq!(shared.outstanding(2 * ONE), 0);
    });
}

/// The same of a receive queue, which counts for itself.
#[test]
fn loom_receive_shadow() {
    loom::model(|| {
        let shared = Arc::new(RqShared::new(1));
        let device = Arc::new(AtomicU32::new(0));
        let (queue, posted) = (shared.clone(), device.clone());
        let poster = thread::spawn(move || {
            for n in 0..2_u32 {
                while n - queue.done() >= 1 {
                    thread::yield_now();
                }
                queue.note(n, 100 + u64::from(n));
                posted.store(n + 1, Ordering::Release);
            }
        });
        for n in 0..2_u32 {
            while device.load(Ordering::Acquire) <= n {
                thread::yield_now();
            }
            assert_eq!(shared.complete(), 100 + u64::from(n));
        }
        poster.join().unwrap();
    });
}

/// Two completion queues give elements of one shared receive queue back while its poster collects: each comes back once, and
/// is used again only after its number was read.
#[test]
fn loom_shared_receive_shadow() {
    loom::model(|| {
        let shared = Arc::new(SrqShared::new(4));
        shared.note(0, 100);
        shared.note(1, 101);
        let pollers: Vec<_> = (0..2)
            .map(|index| {
                let queue = shared.clone();
                thread::spawn(move || assert_eq!(queue.complete(index), 100 + u64::from(index)))
            })
            .collect();
        let mut back = vec![];
        let mut collect = || {
            for index in shared.take() {
                shared.note(index, 999);
                back.push(index);
            }
        };
        collect();
        for poller in pollers {
            poller.join().unwrap();
        }
        collect();
        back.sort_unstable();
        assert_eq!(back, [0, 1]);
    });
}
