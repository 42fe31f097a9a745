use crate::rxe::abi::RxeAv;
use crate::rxe::address::RxeAh;
use crate::rxe::sq::UdTo;
use crate::rxe::sq::tests::queue;
use crate::uverbs::wr::{Payload, PostError, SendOp, SendWr, WrFlags};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use zerocopy::FromZeros;

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Submit,
    Rollback,
    Take,
    Reset,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Push),
        4 => Just(Step::Submit),
        2 => Just(Step::Rollback),
        10 => Just(Step::Take),
        1 => Just(Step::Reset),
    ]
}

fn alive(address: &Weak<()>) -> bool {
    address.strong_count() > 0
}

proptest! {
    /// Nothing else holds the addresses: one lives until the kernel has taken its datagram, and no longer than until the
    /// next submit after that.
    #[test]
    fn addresses_live_as_long_as_their_datagrams(log2_slots in 1_u32..4, start: u32, steps in prop::collection::vec(step(), 0..200)) {
        let ah = RxeAh { number: 1, vector: RxeAv::new_zeroed() };
        let wr = SendWr { wr_id: 1, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Inline(b"x") };
        let mask = (1 << log2_slots) - 1;
        let (mut sq, kernel, _bell) = queue(8, mask, start, 1, 8);
        sq.set_max_datagram(1024);
        let (mut pushed, mut submitted) = (VecDeque::new(), VecDeque::new());
        let (mut taken, mut all) = (vec![], vec![]);
        for step in steps {
            match step {
                Step::Push => {
                    let address = Arc::new(());
                    all.push(Arc::downgrade(&address));
                    match sq.push_to(&wr, UdTo { ah: &ah, qpn: 1, qkey: 2 }, address) {
                        Ok(()) => pushed.push_back(all.last().unwrap().clone()),
                        Err(error) => {
                            prop_assert_eq!(error, PostError::QueueFull);
                            prop_assert!(!alive(all.last().unwrap()), "what was refused is not kept");
                        }
                    }
                }
                Step::Submit => {
                    sq.submit().unwrap();
                    submitted.append(&mut pushed);
                    prop_assert!(!taken.drain(..).any(|address| alive(&address)), "kept after its datagram was sent");
                }
                Step::Rollback => {
                    sq.rollback();
                    pushed.clear();
                }
                Step::Take => {
                    prop_assert_eq!(kernel.take().is_some(), !submitted.is_empty());
                    taken.extend(submitted.pop_front());
                }
                Step::Reset => {
                    kernel.reset();
                    sq.resync();
                    prop_assert!(!all.iter().any(alive), "kept in an empty queue");
                    for list in [&mut pushed, &mut submitted] {
                        list.clear();
                    }
                    taken.clear();
                }
            }
            prop_assert!(submitted.iter().chain(&pushed).all(alive), "gone before its datagram");
            prop_assert!(all.iter().filter(|address| alive(address)).count() <= mask as usize + 1);
        }
    }
}

/// Numbers in shared memory may be anything.
#[test]
fn a_wrong_index_of_the_kernel_does_no_harm() {
    let ah = RxeAh { number: 1, vector: RxeAv::new_zeroed() };
    let wr = SendWr { wr_id: 1, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Inline(b"x") };
    let (mut sq, kernel, _bell) = queue(8, 3, 0, 1, 8);
    sq.set_max_datagram(1024);
    for index in [u32::MAX, 3, 1 << 31, 2, 7] {
        kernel.scribble_consumer(index);
        let _ = sq.push_to(&wr, UdTo { ah: &ah, qpn: 1, qkey: 2 }, Arc::new(()));
        sq.submit().unwrap();
    }
}
