//! How events are taken from a file: those that are there, or the next one however long it takes.
//!
//! A wait without end is one command: the file is [let wait](CmFile::let_wait), and asked for an event. A `poll` that finds none
//! takes longer than the event itself. Others may look for events meanwhile, and must not be made to wait: while somebody waits so,
//! only whether the file is readable is looked at.

use super::abi::{EventResp, GetEvent};
use super::command::send;
use super::sys::CmFile;
use crate::uverbs::errno::Errno;
use crate::uverbs::error::Verb;
use crate::uverbs::event::{Wait, wait_readable};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Instant;

/// Enough for who has been woken to take his event.
const LOOKS: usize = 1000;

/// Shared by all who take events from one file.
#[derive(Default)]
pub struct Taking {
    /// Whether the file waits where it has no event. Who waits so has it to himself until he has one.
    waits: RwLock<bool>,
}

impl Taking {
    /// Takes an event that is there. Never blocks; `EAGAIN` if there was none at some time during the call, or none but what
    /// [an id brought](super::id::CmId::migrate) to whom it does not wake.
    pub fn take(&self, file: &dyn CmFile) -> Result<EventResp, Errno> {
        for _ in 0..LOOKS {
            match self.waits.try_read().map_or_else(unless_held::<RwLockReadGuard<'_, bool>>, Some) {
                Some(waits) if !*waits => return send(file, GetEvent::default()),
                Some(waits) => {
                    drop(waits);
                    self.let_nobody_wait(file)?;
                }
                // The event that is there is taken by who has waited for it. There may be another one.
                None if is_readable(file) => std::thread::yield_now(),
                None => break,
            }
        }
        Err(Errno::EAGAIN)
    }

    /// Takes the next event. `EOPNOTSUPP` where the file cannot wait by itself.
    pub fn wait(&self, file: &dyn CmFile) -> Result<EventResp, Errno> {
        let mut waits = self.waits.write().unwrap_or_else(PoisonError::into_inner);
        if !*waits {
            file.let_wait(true)?;
            *waits = true;
        }
        send(file, GetEvent::default())
    }

    fn let_nobody_wait(&self, file: &dyn CmFile) -> Result<(), Errno> {
        let held = self.waits.try_write().map_or_else(unless_held::<RwLockWriteGuard<'_, bool>>, Some);
        if let Some(mut waits) = held
            && *waits
        {
            file.let_wait(false)?;
            *waits = false;
        }
        Ok(())
    }
}

/// The guard of a lock that a panic has poisoned, which is of no consequence here; `None` if somebody has it.
fn unless_held<G>(error: TryLockError<G>) -> Option<G> {
    match error {
        TryLockError::Poisoned(poisoned) => Some(poisoned.into_inner()),
        TryLockError::WouldBlock => None,
    }
}

fn is_readable(file: &dyn CmFile) -> bool {
    matches!(wait_readable(file.as_fd(), Some(Instant::now()), Verb::GetCmEvent), Ok(Wait::Ready))
}
