//! Operations dropped at random points: no buffer is handed out while the device may write it, and none is lost.

use crate::fixture::{Pair, Setup, Side, receives_may_be_late};
use crate::harness::step;
use crate::target::Target;
use crate::{block_on, patiently, tests};
use fastrand::Rng;
use ironverbs::tokio::{Driver, Operation, Operations};
use ironverbs::{Pool, Qp, Slot, Wc};
use std::collections::VecDeque;
use std::env;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

tests! {
    operations_dropped_at_random_points,
    operations_flushed_after_they_were_dropped,
}

/// Bytes of a message: its number, repeated. Long enough for several packets.
const LEN: usize = 3000;
const SLOTS: u32 = 24;

fn setup() -> Setup {
    Setup { channel: true, send_wr: 32, recv_wr: 32, options: receives_may_be_late, ..Setup::default() }
}

/// A slot that this test holds is not the device's: what was written into it stays.
struct Canary {
    slot: Slot,
    byte: u8,
}

impl Canary {
    fn new(mut slot: Slot, byte: u8) -> Self {
        slot.fill(byte);
        Self { slot, byte }
    }

    fn check(self) -> Slot {
        assert!(self.slot.iter().all(|b| *b == self.byte), "slot {} was written while it was held", self.slot.index());
        self.slot
    }
}

/// One side's pool: slots come out of it with a canary's life before they are used.
struct Slots {
    pool: Pool,
    held: VecDeque<Canary>,
}

impl Slots {
    /// A slot that has been held for a while, and was not written meanwhile.
    async fn take(&mut self, rng: &mut Rng) -> Slot {
        loop {
            while self.held.len() < 4
                && let Some(slot) = self.pool.take()
            {
                self.held.push_back(Canary::new(slot, rng.u8(..)));
            }
            if self.held.len() > 1 {
                let which = rng.usize(..self.held.len());
                return self.held.swap_remove_back(which).unwrap().check();
            }
            patiently("a slot comes back", tokio::time::sleep(Duration::from_micros(50))).await;
        }
    }

    /// Every slot is back in the end.
    async fn finish(mut self) {
        self.held.drain(..).for_each(|canary| drop(canary.check()));
        let all = async {
            loop {
                let slots: Vec<_> = std::iter::from_fn(|| self.pool.take()).collect();
                if slots.len() == SLOTS as usize {
                    break;
                }
                drop(slots);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        patiently("every slot is back", all).await;
    }
}

fn fill(slot: &mut Slot, number: u64) {
    for piece in slot[..LEN].chunks_exact_mut(8) {
        piece.copy_from_slice(&number.to_ne_bytes());
    }
}

fn holds(slot: &Slot, number: u64) -> bool {
    slot[..LEN].chunks_exact(8).all(|piece| piece == number.to_ne_bytes())
}

/// What is done with an operation that was posted: given up at once, after one look, after some time, or not at all.
async fn treat(mut operation: Operation, kind: u32, patience: Duration) -> Option<(Slot, Wc)> {
    match kind {
        0 => None,
        1 => {
            poll_fn(|task| match Pin::new(&mut operation).poll(task) {
                Poll::Ready(done) => Poll::Ready(Some(done.unwrap())),
                Poll::Pending => Poll::Ready(None),
            })
            .await
        }
        2 => tokio::time::timeout(patience, operation).await.ok().map(Result::unwrap),
        _ => Some(patiently("an operation that is not given up", operation).await.unwrap()),
    }
}

/// `IRONVERBS_TEST_OPERATIONS` says how many (default 10000), `IRONVERBS_TEST_SEED` repeats a run.
fn operations_dropped_at_random_points(target: &Target) {
    let number = |name: &str, default| env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let (count, seed): (u64, u64) =
        (number("IRONVERBS_TEST_OPERATIONS", 10_000), number("IRONVERBS_TEST_SEED", fastrand::u64(..)));
    step(format!("IRONVERBS_TEST_SEED={seed}"));
    let mut rng = Rng::with_seed(seed);
    let Pair { a, b } = Pair::new(target, &setup());
    block_on(async {
        let Side { qp: mut a_qp, cq: a_cq, pd: a_pd, .. } = a;
        let Side { qp: mut b_qp, cq: b_cq, pd: b_pd, .. } = b;
        let pools = [&a_pd, &b_pd].map(|pd| Pool::new(pd, SLOTS, LEN).unwrap());
        let [mut from, mut to] = pools.clone().map(|pool| Slots { pool, held: VecDeque::new() });
        let (sends, a_driver) = Operations::new(&pools[0], a_cq).unwrap();
        let (receives, b_driver) = Operations::new(&pools[1], b_cq).unwrap();
        let drivers = [a_driver, b_driver].map(|mut driver: Driver| tokio::spawn(async move { driver.run().await }));
        let mut tasks = tokio::task::JoinSet::new();
        let (mut dropped, mut kept) = (0, 0);
        for id in 0..count / 2 {
            let slot = to.take(&mut rng).await;
            let operation = receives.recv(&mut b_qp, slot).unwrap();
            let (kind, patience) = (rng.u32(0..4), Duration::from_micros(rng.u64(0..400)));
            tasks.spawn(async move {
                let Some((slot, wc)) = treat(operation, kind, patience).await else { return false };
                assert_eq!(wc.outcome().unwrap().byte_len as usize, LEN);
                assert!(holds(&slot, id), "message {id} is not in the slot of its receive");
                true
            });
            let mut slot = from.take(&mut rng).await;
            fill(&mut slot, id);
            let operation = post_send(&sends, &mut a_qp, slot).await;
            let (kind, patience) = (rng.u32(0..4), Duration::from_micros(rng.u64(0..400)));
            tasks.spawn(async move {
                let Some((slot, wc)) = treat(operation, kind, patience).await else { return false };
                wc.outcome().unwrap();
                assert!(holds(&slot, id), "message {id} was changed while the device had it");
                true
            });
            while tasks.len() > 40 || rng.u8(..) == 0 {
                let Some(done) = patiently("a task", tasks.join_next()).await else { break };
                if done.unwrap() { kept += 1 } else { dropped += 1 }
            }
        }
        while let Some(done) = patiently("a task", tasks.join_next()).await {
            if done.unwrap() { kept += 1 } else { dropped += 1 }
        }
        assert_eq!(dropped + kept, count / 2 * 2);
        assert!(dropped > count / 4 && kept > count / 4, "{dropped} dropped, {kept} kept");
        from.finish().await;
        to.finish().await;
        for driver in drivers {
            driver.abort();
        }
    });
}

/// The pool limits how many are under way to less than the queue holds.
async fn post_send(sends: &Operations, qp: &mut Qp, slot: Slot) -> Operation {
    sends.send(qp, slot, LEN as u32).unwrap()
}

/// The device gives up its buffers one by one when the queue pair fails; nobody waits for them any more.
fn operations_flushed_after_they_were_dropped(target: &Target) {
    let Pair { a, b } = Pair::new(target, &setup());
    block_on(async {
        let Side { mut qp, cq, pd, .. } = a;
        let pool = Pool::new(&pd, SLOTS, LEN).unwrap();
        let (operations, mut driver) = Operations::new(&pool, cq).unwrap();
        let driver = tokio::spawn(async move { driver.run().await });
        let mut kept = vec![];
        for n in 0..SLOTS {
            let operation = operations.recv(&mut qp, pool.take().unwrap()).unwrap();
            if n % 3 == 0 {
                kept.push(operation);
            }
        }
        assert!(pool.take().is_none(), "a dropped operation gave its slot away");
        qp.to_error().unwrap();
        for operation in kept {
            let (_, wc) = patiently("a flushed operation", operation).await.unwrap();
            assert_eq!(wc.status(), ironverbs::WcStatus::WR_FLUSH_ERR);
        }
        Slots { pool, held: VecDeque::new() }.finish().await;
        driver.abort();
    });
    drop(b);
}
