//! Work requests on pool slots, awaited one by one.
//!
//! Each slot of the pool has a cell here that says what became of its work request. The future and the driver meet in
//! the cell: the driver puts the slot and its completion in, the future takes them out, or has left a note that nobody
//! will. No buffer is ever in a future, so that dropping one cannot free or hand out memory that the device may write;
//! and nothing is allocated for an operation.

use super::AsyncCq;
use crate::uverbs::error::Error;
use crate::uverbs::wc::Wc;
use crate::uverbs::wr::{PollError, PostError};
use crate::verbs::cq::Cq;
use crate::verbs::pool::{Pool, Slot, SlotError};
use crate::verbs::provider::{Any, Provider};
use crate::verbs::qp::Qp;
use crate::verbs::qp_type::{Connected, Receives};
use crate::verbs::wc::Completion;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Operations on the slots of a pool, whose completions come to one completion queue. Cheap to clone.
///
/// ```no_run
/// # async fn f(pool: ironverbs::Pool, cq: ironverbs::Cq, mut qp: ironverbs::Qp) -> Result<(), Box<dyn std::error::Error>> {
/// use ironverbs::tokio::Operations;
/// let (operations, mut driver) = Operations::new(&pool, cq)?;
/// tokio::spawn(async move { driver.run().await }); // takes completions to those who wait for them
///
/// let answer = operations.post(pool.take().ok_or("no slot")?, |slot| qp.recv_slot(slot))?;
/// let mut slot = pool.take().ok_or("no slot")?;
/// slot[..5].copy_from_slice(b"hello");
/// let (slot, wc) = operations.post(slot, |slot| qp.send_slot(slot, 5))?.await?;
/// wc.outcome()?;
/// drop(slot); // back to the pool
/// let (slot, wc) = answer.await?;
/// println!("{:?}", &slot[..wc.outcome()?.byte_len as usize]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Operations {
    shared: Arc<Shared>,
}

struct Shared {
    pool: Pool,
    cells: Box<[Mutex<Cell>]>,
    /// Zero, or why no completion comes any more: [`ended`].
    ended: AtomicU8,
}

/// What became of the work request on one slot.
#[derive(Default)]
struct Cell {
    /// Which of all operations there were on this slot.
    number: u64,
    state: State,
}

#[derive(Default)]
enum State {
    /// No operation.
    #[default]
    Idle,
    /// The device has the slot, and a future waits for it.
    Waiting(Option<Waker>),
    /// The device has the slot, and the future is gone.
    Abandoned,
    /// The slot is here until the future takes it.
    Done(Slot, Wc),
}

/// Why an operation's completion will not be told.
///
/// ```no_run
/// # async fn f(operation: ironverbs::tokio::Operation) {
/// if let Err(error) = operation.await {
///     println!("{error}");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The completion queue lost completions, or the device is gone.
    #[error("{0}")]
    Queue(#[source] PollError),
    /// The [`Driver`] was dropped.
    #[error("the driver of the operations was dropped: nobody takes completions any more")]
    NoDriver,
    /// The slot came back on another way than by its completion. Only a closure given to [`Operations::post`] that does not
    /// post the slot does that.
    #[error("the slot of this operation was not posted")]
    NotPosted,
}

mod ended {
    pub const OVERRUN: u8 = 1;
    pub const GONE: u8 = 2;
    pub const NO_DRIVER: u8 = 3;
}

impl Operations {
    /// Operations on the slots of `pool`, by queue pairs whose completions come to `cq`, and the driver that must run for
    /// them to end.
    ///
    /// The queue needs a channel of its own.
    ///
    /// # Panics
    ///
    /// In a runtime that was built without IO (`enable_io`, `enable_all`); outside of any runtime it is an error.
    pub fn new<P: Provider>(pool: &Pool, cq: Cq<P>) -> Result<(Self, Driver<P>), Error> {
        let cells = (0..pool.count()).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { pool: pool.clone(), cells, ended: AtomicU8::new(0) });
        let driver = Driver { cq: AsyncCq::new(cq)?, shared: shared.clone() };
        Ok((Self { shared }, driver))
    }

    /// Posts a slot at once, with `post`, and returns the future of its completion.
    ///
    /// `post` must post this very slot, to a queue whose completions come to the driver's completion queue:
    /// `|slot| qp.send_slot(slot, 5)`.
    pub fn post(&self, slot: Slot, post: impl FnOnce(Slot) -> Result<(), SlotError>) -> Result<Operation, SlotError> {
        if !self.shared.pool.owns(&slot) {
            return Err(SlotError { error: PostError::ForeignSlot, slot: Some(slot) });
        }
        let index = slot.index();
        // Before it is posted: its completion can be there at once.
        let number = self.shared.cell(index).begin();
        // And dropped even if `post` panics once it has posted, so that the slot comes back.
        let mut operation = Operation { shared: self.shared.clone(), index, number, done: false };
        match post(slot) {
            Ok(()) => Ok(operation),
            Err(error) => {
                // Without the slot: the device has it all the same.
                if error.slot.is_some() {
                    self.shared.cell(index).cancel(number);
                    operation.done = true;
                }
                Err(error)
            }
        }
    }

    /// Sends the first `len_bytes` of a slot.
    pub fn send<P: Provider, T: Connected>(
        &self,
        qp: &mut Qp<P, T>,
        slot: Slot,
        len_bytes: u32,
    ) -> Result<Operation, SlotError> {
        self.post(slot, |slot| qp.send_slot(slot, len_bytes))
    }

    /// Posts a receive into a slot.
    pub fn recv<P: Provider, T: Receives>(&self, qp: &mut Qp<P, T>, slot: Slot) -> Result<Operation, SlotError> {
        self.post(slot, |slot| qp.recv_slot(slot))
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }
}

impl Shared {
    fn cell(&self, index: u32) -> MutexGuard<'_, Cell> {
        self.cells[index as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> Option<OperationError> {
        match self.ended.load(Ordering::Acquire) {
            0 => None,
            ended::OVERRUN => Some(OperationError::Queue(PollError::Overrun)),
            ended::GONE => Some(OperationError::Queue(PollError::DeviceGone)),
            _ => Some(OperationError::NoDriver),
        }
    }

    /// Tells everyone who waits that no completion comes any more. The first reason stands.
    fn end(&self, why: u8) {
        let _ = self.ended.compare_exchange(0, why, Ordering::AcqRel, Ordering::Acquire);
        for index in 0..self.cells.len() as u32 {
            let mut cell = self.cell(index);
            let waker = if let State::Waiting(waker) = &mut cell.state { waker.take() } else { None };
            drop(cell);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Takes a completion to its operation; gives back one that belongs to none.
    fn complete<P: Provider>(&self, completion: Completion<'_, P>) -> Option<Wc> {
        let (slot, wc) = match self.pool.reclaim(completion) {
            Ok(ours) => ours,
            Err(wc) => return Some(wc),
        };
        let mut cell = self.cell(slot.index());
        match mem::take(&mut cell.state) {
            State::Waiting(waker) => {
                cell.state = State::Done(slot, wc);
                drop(cell);
                if let Some(waker) = waker {
                    waker.wake();
                }
                None
            }
            // The slot goes back to the pool, after the lock is released.
            State::Abandoned => {
                drop(cell);
                drop(slot);
                None
            }
            State::Idle | State::Done(..) => {
                drop(cell);
                drop(slot);
                Some(wc)
            }
        }
    }
}

impl Cell {
    fn begin(&mut self) -> u64 {
        self.number += 1;
        self.state = State::Waiting(None);
        self.number
    }

    /// The operation `number` was not posted.
    fn cancel(&mut self, number: u64) {
        if self.number == number {
            self.state = State::Idle;
        }
    }
}

/// The completion to come of one work request. See [`Operations::post`].
///
/// Dropping it gives up the answer, not the work request: the device goes on, and the slot goes back to the pool when it
/// is done.
///
/// ```no_run
/// # async fn f(operation: ironverbs::tokio::Operation) -> Result<(), Box<dyn std::error::Error>> {
/// let patience = std::time::Duration::from_secs(1);
/// match tokio::time::timeout(patience, operation).await {
///     Ok(done) => println!("{:?}", done?.1.outcome()?),
///     Err(_) => println!("given up; its slot goes back to the pool when the device is done"),
/// }
/// # Ok(()) }
/// ```
#[must_use = "the work request is posted; await this to get its slot back, or drop it to have the slot go back to the pool"]
pub struct Operation {
    shared: Arc<Shared>,
    index: u32,
    number: u64,
    done: bool,
}

impl Future for Operation {
    type Output = Result<(Slot, Wc), OperationError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut cell = this.shared.cell(this.index);
        if this.done || cell.number != this.number {
            return Poll::Ready(Err(OperationError::NotPosted));
        }
        let answer = match mem::take(&mut cell.state) {
            State::Done(slot, wc) => Ok((slot, wc)),
            State::Waiting(mut waker) => match this.shared.ended() {
                None => {
                    match &mut waker {
                        Some(waker) => waker.clone_from(task.waker()),
                        None => waker = Some(task.waker().clone()),
                    }
                    cell.state = State::Waiting(waker);
                    return Poll::Pending;
                }
                Some(why) => {
                    cell.state = State::Abandoned;
                    Err(why)
                }
            },
            State::Idle | State::Abandoned => Err(OperationError::NotPosted),
        };
        drop(cell);
        this.done = true;
        Poll::Ready(answer)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut cell = self.shared.cell(self.index);
        if cell.number != self.number {
            return;
        }
        let left = match mem::take(&mut cell.state) {
            State::Waiting(waker) => {
                cell.state = State::Abandoned;
                State::Waiting(waker)
            }
            other => other,
        };
        // What is dropped here is a slot that goes back to its pool, or a waker: neither under the lock.
        drop(cell);
        drop(left);
    }
}

/// Takes completions to the [`Operations`] that wait for them.
///
/// Dropping it ends them all with [`OperationError::NoDriver`]; slots that the device still has then stay with it until the
/// pool's memory is freed. So let operations end first: move the queue pairs to the error state, and run until every
/// slot is back.
///
/// ```no_run
/// # fn f(pool: &ironverbs::Pool, cq: ironverbs::Cq) -> Result<(), ironverbs::Error> {
/// let (operations, mut driver) = ironverbs::tokio::Operations::new(pool, cq)?;
/// tokio::spawn(async move { driver.run_with(|wc| println!("of no operation: {wc:?}")).await });
/// # drop(operations);
/// # Ok(()) }
/// ```
pub struct Driver<P: Provider = Any> {
    cq: AsyncCq<P>,
    shared: Arc<Shared>,
}

impl<P: Provider> Driver<P> {
    /// Runs until no completion comes any more, or waiting for one was refused, and returns why. Meant to be a task of its own.
    /// Can be dropped and called again: after an error that is neither an overrun nor the end of the device, operations wait
    /// for that, or for the driver to be dropped.
    pub async fn run(&mut self) -> Error {
        self.run_with(|_| ()).await
    }

    /// As [`run`](Self::run), and calls `other` with each completion that belongs to no operation. If it was of a slot of
    /// the pool, that has gone back.
    pub async fn run_with(&mut self, mut other: impl FnMut(Wc)) -> Error {
        loop {
            let error = match self.cq.completions().await {
                Ok(mut completions) => {
                    while let Some(completion) = completions.next() {
                        if let Some(wc) = self.shared.complete(completion) {
                            other(wc);
                        }
                    }
                    continue;
                }
                Err(error) => error,
            };
            match &error {
                Error::CqOverrun { .. } => self.shared.end(ended::OVERRUN),
                Error::DeviceGone { .. } => self.shared.end(ended::GONE),
                // Neither the queue nor the device: completions still come, and the next run finds them.
                _ => {}
            }
            return error;
        }
    }

    /// The completion queue, to make queue pairs with.
    pub fn cq(&self) -> &Cq<P> {
        self.cq.get_ref()
    }
}

impl<P: Provider> Drop for Driver<P> {
    fn drop(&mut self) {
        self.shared.end(ended::NO_DRIVER);
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operations").field("pool", &self.shared.pool).finish()
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("slot", &self.index).field("done", &self.done).finish()
    }
}

impl<P: Provider> fmt::Debug for Driver<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("cq", &self.cq).finish()
    }
}
