use super::*;
use crate::uverbs::wr::WcOpcode;

/// Whose all completions are.
const OWN: u32 = 7;
const OTHERS: u32 = 100;

/// A ring that is filled to a place, with completions of one send queue.
#[derive(Default)]
struct Ring {
    filled_to: u32,
}

impl Filled for Ring {
    fn span(&self, ci: u32) -> Option<u32> {
        (ci.wrapping_sub(self.filled_to) as i32).is_negative().then_some(1)
    }

    fn names(&self, _ci: u32) -> Named {
        (OWN, true)
    }
}

#[test]
fn a_note_says_how_far_the_ring_was_filled() {
    for start in [0, 5, u32::MAX - 1] {
        let mailbox = Arc::new(Mailbox::new(Ring { filled_to: start.wrapping_add(3) }));
        mailbox.give_back(start);
        let mut routes = Routes::new(mailbox.clone());
        assert!(!routes.has_mail());
        mailbox.put(7, Change::Sends(None));
        assert!(routes.has_mail());
        let mut told = vec![];
        routes.take_mail(|pasts| told = pasts.all());
        assert_eq!(told, [Past { uidx: 7, sends: true, filled_to: start.wrapping_add(3), name: uidx::NONE }]);
        assert!(!routes.has_mail());
    }
}

/// An entry that is overwritten while the ring is looked through does not end it.
#[test]
fn looking_goes_on_where_the_poller_is_by_then() {
    struct Moving<'a>(&'a AtomicU32);
    impl Filled for Moving<'_> {
        /// When place 2 is looked at, the poller has given back all up to 6, and the device has written place 2 anew.
        fn span(&self, ci: u32) -> Option<u32> {
            if ci == 2 {
                self.0.store(6, Ordering::Relaxed);
                return None;
            }
            (ci < 8).then_some(1)
        }

        fn names(&self, _ci: u32) -> Named {
            (OWN, true)
        }
    }
    let consumed = AtomicU32::new(0);
    assert_eq!(Moving(&consumed).filled_to(0, &consumed, |_, _| ()), 8);
}

#[test]
fn blocks_are_passed_whole() {
    struct Blocks;
    impl Filled for Blocks {
        fn span(&self, ci: u32) -> Option<u32> {
            [Some(1), Some(5), None, None, None, None, Some(1), None].get(ci as usize).copied().flatten()
        }

        fn names(&self, _ci: u32) -> Named {
            (OWN, true)
        }
    }
    assert_eq!(Blocks.filled_to(0, &AtomicU32::new(0), |_, _| ()), 7);
}

#[test]
fn the_table_follows_the_notes_in_their_order() {
    let mailbox = Arc::new(Mailbox::new(Ring::default()));
    let mut routes = Routes::new(mailbox.clone());
    let (a, b) = (Arc::new(SqShared::new(1)), Arc::new(SqShared::new(1)));
    a.note(0, 1, 1, WcOpcode::SEND);
    b.note(0, 2, 1, WcOpcode::SEND);
    assert!(routes.sends(0).is_none() && routes.sends(u32::MAX).is_none() && routes.receives(0).is_none());
    mailbox.put(3, Change::Sends(Some(a.clone())));
    mailbox.put(3, Change::Sends(None));
    mailbox.put(3, Change::Sends(Some(b.clone())));
    mailbox.put(1000, Change::Receives(Some(Receives::Own(Arc::new(RqShared::new(1))))));
    routes.take_mail(|_| ());
    assert_eq!(routes.sends(3).unwrap().complete(0).0, 2);
    assert!(routes.receives(1000).is_some() && routes.receives(3).is_none());
    assert_eq!((Arc::strong_count(&a), Arc::strong_count(&b)), (1, 3), "the mailbox remembers the last one");
}

/// However many queues come and go while a completion of another waits, or one of the first that had the index.
#[test]
fn queues_that_complete_nothing_leave_one_note() {
    for uidx in [OWN, OTHERS] {
        let mailbox = Arc::new(Mailbox::new(Ring::default()));
        let mut routes = Routes::new(mailbox.clone());
        let first = Arc::new(SqShared::new(1));
        mailbox.put(uidx, Change::Sends(Some(first.clone())));
        routes.take_mail(|pasts| assert_eq!(pasts.all(), []));
        mailbox.with(|inner| inner.ring.filled_to = 3);
        for _ in 0..1000 {
            mailbox.put(uidx, Change::Sends(None));
            mailbox.put(uidx, Change::Sends(Some(Arc::new(SqShared::new(1)))));
        }
        let notes = mailbox.with(|inner| inner.notes.all.len());
        assert_eq!(notes, if uidx < OTHERS { 2 } else { 1 }, "the first goes, and the last comes");
        let mut told = vec![];
        routes.take_mail(|pasts| told = pasts.all());
        let named = Past { uidx, sends: true, filled_to: 3, name: uidx::FIRST_NAME };
        assert_eq!(told, if uidx < OTHERS { vec![named] } else { vec![] });
        assert_eq!(Arc::strong_count(&first), if uidx < OTHERS { 2 } else { 1 }, "it stays while it can complete");
    }
}

/// Each of the queues that had an index stays known, of which there is a completion to read.
#[test]
fn each_queue_with_a_completion_gets_a_name() {
    struct Growing<'a>(&'a AtomicU32);
    impl Filled for Growing<'_> {
        fn span(&self, ci: u32) -> Option<u32> {
            (ci < self.0.load(Ordering::Relaxed)).then_some(1)
        }

        fn names(&self, _ci: u32) -> Named {
            (OWN, true)
        }
    }
    let filled_to = AtomicU32::new(0);
    let mailbox = Arc::new(Mailbox::new(Growing(&filled_to)));
    let mut routes = Routes::new(mailbox.clone());
    for round in 0..3 {
        let queue = Arc::new(SqShared::new(1));
        queue.note(0, u64::from(round), 1, WcOpcode::SEND);
        mailbox.put(7, Change::Sends(Some(queue)));
        // One that posts nothing has the other direction.
        mailbox.put(7, Change::Receives(Some(Receives::Own(Arc::new(RqShared::new(1))))));
        filled_to.store(round + 1, Ordering::Relaxed);
        mailbox.put(7, Change::Sends(None));
    }
    let mut names = vec![];
    routes.take_mail(|pasts| names.extend(pasts.all().iter().map(|past| (past.filled_to, past.name))));
    let first = uidx::FIRST_NAME;
    assert_eq!(names, [(1, first), (2, first + 1), (3, first + 2)]);
    for round in 0..3 {
        assert_eq!(routes.sends(first + round).unwrap().complete(0).0, u64::from(round));
    }
}

/// Queues that all go at once, with completions of each in a full ring: nobody looks at an answer again for each of them.
#[test]
fn many_that_go_look_at_the_ring_once() {
    const QUEUES: u32 = 500;
    const ANSWERS: u32 = 4 * QUEUES;
    struct Counting(AtomicU32);
    impl Filled for &Counting {
        fn span(&self, ci: u32) -> Option<u32> {
            self.0.fetch_add(1, Ordering::Relaxed);
            (ci < ANSWERS).then_some(1)
        }

        fn names(&self, ci: u32) -> Named {
            (ci % QUEUES, true)
        }
    }
    let ring = Counting(AtomicU32::new(0));
    let mailbox = Arc::new(Mailbox::new(&ring));
    let mut routes = Routes::new(mailbox.clone());
    (0..QUEUES).for_each(|uidx| mailbox.put(uidx, Change::Sends(Some(Arc::new(SqShared::new(1))))));
    // What is there is older than all of these, so that nobody wants it.
    (0..QUEUES).for_each(|uidx| mailbox.put(uidx, Change::Sends(None)));
    let looks = ring.0.load(Ordering::Relaxed);
    assert!(looks <= ANSWERS + 2 * QUEUES, "{looks} looks at {ANSWERS} answers for {QUEUES} queues");
    routes.take_mail(|mut pasts| {
        for at in 0..ANSWERS {
            assert_eq!(pasts.new_name(at, (at % QUEUES, true)), Some(uidx::NONE));
        }
        assert!(pasts.go_beyond(ANSWERS - 1) && !pasts.go_beyond(ANSWERS));
    });
}

/// Numbers of answers come again after 2^32 of them: what was seen before counts no more.
#[test]
fn what_was_seen_long_ago_counts_no_more() {
    let mailbox = Mailbox::new(Ring { filled_to: 5 });
    mailbox.put(OWN, Change::Sends(Some(Arc::new(SqShared::new(1)))));
    // The poller went round, and stands where the ring is empty.
    mailbox.with(|inner| inner.ring.filled_to = 2);
    mailbox.give_back(2);
    mailbox.turned();
    mailbox.put(OTHERS, Change::Sends(None));
    let last = mailbox.with(|inner| inner.notes.last_about((OTHERS, true)).map(|note| note.filled_to));
    assert_eq!(last, Some(2));
}
