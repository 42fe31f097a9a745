//! What passes between a ping and the kernel's connection manager.
//!
//! # Safety argument
//!
//! Commands are handed on as they are, to a file that keeps the implementer's part of [`CmFile`], and the caller keeps its own. A response
//! is read only where the kernel has just written one: at the address and of the length that the command gives, which the
//! caller has promised to be valid until the call returns.
#![allow(unsafe_code)]

use super::Lines;
use ironverbs::Errno;
use ironverbs::rdma_cm::{Error, EventType};
use ironverbs::sys::{CmFile, CmSys};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

/// A connection manager whose commands and events are written to `lines`.
pub struct TracedCm {
    inner: Arc<dyn CmSys>,
    lines: Lines,
}

impl TracedCm {
    /// That of `inner`.
    pub fn new(inner: Arc<dyn CmSys>, lines: Lines) -> Self {
        Self { inner, lines }
    }
}

impl CmSys for TracedCm {
    fn open(&self) -> Result<Arc<dyn CmFile>, Error> {
        let begin = Instant::now();
        let opened = self.inner.open();
        let outcome = opened.as_ref().map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        self.lines.put(format_args!("rdma_cm open = {outcome} ({} µs)", begin.elapsed().as_micros()));
        Ok(Arc::new(TracedFile { inner: opened?, lines: self.lines.clone() }))
    }
}

struct TracedFile {
    inner: Arc<dyn CmFile>,
    lines: Lines,
}

// SAFETY: what the implementer owes, `inner` does, for every call is handed on as it is.
unsafe impl CmFile for TracedFile {
    unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
        let begin = Instant::now();
        // SAFETY: the caller's part is passed on.
        let result = unsafe { self.inner.write(command) };
        let took = begin.elapsed().as_micros();
        let number = word(command, 0);
        let outcome = match result {
            // A look whether there is an event, which there is not.
            Err(Errno::EAGAIN) if number == GET_EVENT => return result,
            Ok(()) if number == GET_EVENT => match room(command, EVENT_BYTES) {
                // SAFETY: the command succeeded, so the kernel has written its response there, which is long enough; the
                // caller's promise holds until this function returns.
                Some(at) => event(unsafe { std::slice::from_raw_parts(at, EVENT_BYTES) }),
                None => "ok".to_owned(),
            },
            Ok(()) => "ok".to_owned(),
            Err(errno) => errno.to_string(),
        };
        let name = NAMES.get(number as usize).copied().unwrap_or("unknown command");
        self.lines.put(format_args!("rdma_cm {name} = {outcome} ({took} µs)"));
        result
    }

    fn let_wait(&self, wait: bool) -> Result<(), Errno> {
        self.inner.let_wait(wait)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// Commands by their numbers (`rdma_user_cm.h`).
const NAMES: [&str; 23] = [
    "CREATE_ID",
    "DESTROY_ID",
    "BIND_IP",
    "RESOLVE_IP",
    "RESOLVE_ROUTE",
    "QUERY_ROUTE",
    "CONNECT",
    "LISTEN",
    "ACCEPT",
    "REJECT",
    "DISCONNECT",
    "INIT_QP_ATTR",
    "GET_EVENT",
    "GET_OPTION",
    "SET_OPTION",
    "NOTIFY",
    "JOIN_IP_MCAST",
    "LEAVE_MCAST",
    "MIGRATE_ID",
    "QUERY",
    "BIND",
    "RESOLVE_ADDR",
    "JOIN_MCAST",
];

const GET_EVENT: u32 = 12;

/// Of an event's response: the id's own word (8 bytes), its number, the event, its status.
const EVENT_BYTES: usize = 20;

/// Where a command's response goes, if there is room for that many bytes: the command's header says how many, and its first word
/// where.
fn room(command: &[u8], bytes: usize) -> Option<*const u8> {
    let has = u16::from_ne_bytes(command.get(6..8)?.try_into().ok()?);
    let at = u64::from_ne_bytes(command.get(8..16)?.try_into().ok()?);
    (usize::from(has) >= bytes && at != 0).then(|| std::ptr::with_exposed_provenance(at as usize))
}

fn event(response: &[u8]) -> String {
    let (id, event, status) = (word(response, 8), EventType(word(response, 12)), word(response, 16) as i32);
    match status {
        0 => format!("event {event}, id {id}"),
        _ => format!("event {event}, id {id}, status {status}"),
    }
}

/// The 32 bits there; zero where there are none.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    /// Answers a look for events with one, and everything else as if it were done; refuses BIND, and not to wait.
    struct Fake(UnixStream);

    // SAFETY: a response is written only where the command has room for it.
    unsafe impl CmFile for Fake {
        unsafe fn write(&self, command: &[u8]) -> Result<(), Errno> {
            match word(command, 0) {
                GET_EVENT => {
                    let Some(at) = room(command, EVENT_BYTES) else { return Err(Errno::EAGAIN) };
                    let mut response = [0; EVENT_BYTES];
                    response[8] = 7;
                    response[12] = 8;
                    response[16] = 28;
                    // SAFETY: the caller's promise; there is room for it.
                    unsafe { at.cast_mut().copy_from(response.as_ptr(), EVENT_BYTES) };
                    Ok(())
                }
                20 => Err(Errno::EADDRNOTAVAIL),
                _ => Ok(()),
            }
        }

        fn let_wait(&self, wait: bool) -> Result<(), Errno> {
            if wait { Ok(()) } else { Err(Errno::EPERM) }
        }

        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl CmSys for Fake {
        fn open(&self) -> Result<Arc<dyn CmFile>, Error> {
            Ok(Arc::new(Self(UnixStream::pair().unwrap().0)))
        }
    }

    #[test]
    fn commands_and_events_are_shown_with_what_came_of_them() {
        let path = std::env::temp_dir().join(format!("rdma-probe-cm-{}", std::process::id()));
        let lines = Lines::open(&path).unwrap();
        let traced = TracedCm::new(Arc::new(Fake(UnixStream::pair().unwrap().0)), lines);
        let file = traced.open().unwrap();
        // Else a wait without end would poll, where without the trace the kernel waits.
        assert_eq!([file.let_wait(true), file.let_wait(false)], [Ok(()), Err(Errno::EPERM)]);
        let mut response = [0_u8; 336];
        let at = response.as_mut_ptr().expose_provenance() as u64;
        let command = |number: u32, has: u16, at: u64| {
            [&number.to_ne_bytes()[..], &8_u16.to_ne_bytes(), &has.to_ne_bytes(), &at.to_ne_bytes()].concat()
        };
        for (number, has, at) in [(GET_EVENT, 0, 0), (20, 0, 0), (7, 0, 0), (GET_EVENT, 336, at)] {
            // SAFETY: the only address is that of `response`, with its own length.
            let _ = unsafe { file.write(&command(number, has, at)) };
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let shown: Vec<_> = text.lines().filter_map(|l| l.trim_start().split_once(' ')?.1.rsplit_once(" (")).collect();
        let shown: Vec<_> = shown.into_iter().map(|(line, _)| line).collect();
        let expected = [
            "rdma_cm open = ok",
            "rdma_cm BIND = EADDRNOTAVAIL (Cannot assign requested address)",
            "rdma_cm LISTEN = ok",
            "rdma_cm GET_EVENT = event REJECTED, id 7, status 28",
        ];
        assert_eq!(shown, expected);
    }
}
