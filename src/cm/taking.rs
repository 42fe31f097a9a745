//! How events are taken from a file: those that are there, or the next one however long it takes.
//!
//! A wait without end is one command: the file is [let wait](CmFile::let_wait), and asked for an event. A `poll` that finds none
//! takes longer than the event itself. The kernel looks whether a file waits only where it finds no event (`ucma_get_event` in
//! `drivers/infiniband/core/ucma.c`): others may take events meanwhile and have the file not wait, and who sleeps in the kernel
//! sleeps on.

use super::abi::{EventResp, GetEvent};
use super::command::send;
use super::sys::CmFile;
use crate::uverbs::errno::Errno;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared by all who take events from one file.
#[derive(Default)]
pub struct Taking {
    /// Whether the file waits where it has no event.
    waits: Mutex<bool>,
}

impl Taking {
    /// Takes an event that is there, whoever waits for one. Never blocks; `EAGAIN` if there is none.
    pub fn take(&self, file: &dyn CmFile) -> Result<EventResp, Errno> {
        let mut waits = self.waits();
        if *waits {
            file.let_wait(false)?;
            *waits = false;
        }
        // With the lock: nobody has the file wait meanwhile.
        send(file, GetEvent::default())
    }

    /// Takes the next event. `EOPNOTSUPP` where the file cannot wait by itself.
    pub fn wait(&self, file: &dyn CmFile) -> Result<EventResp, Errno> {
        loop {
            let mut waits = self.waits();
            if !*waits {
                file.let_wait(true)?;
                *waits = true;
            }
            drop(waits);
            match send(file, GetEvent::default()) {
                // Another has had the file not wait, and there was no event, or somebody else took it.
                Err(Errno::EAGAIN) => {}
                answer => return answer,
            }
        }
    }

    fn waits(&self) -> MutexGuard<'_, bool> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
