//! Why memory could not be registered, in words: what a bare `ENOMEM`, `EFAULT` or `EINVAL` stands for in this process.
//!
//! The facts are read once it has failed: limits, capabilities, and what kind of mapping the memory lies in.

use super::abi::verbs::access;
use super::errno::Errno;
use super::error::Error;
use crate::mem::map::page_bytes;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fmt::Write as _;
use std::fs;

/// `CAP_IPC_LOCK` (`include/uapi/linux/capability.h`): no limit of pinned memory.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// What decides how much memory a process may pin, and so register.
///
/// ```
/// let limits = ironverbs::PinLimits::now();
/// if let Some((soft, _hard)) = limits.memlock {
///     println!("{soft} bytes, unless the process has CAP_IPC_LOCK: {:?}", limits.ipc_lock);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinLimits {
    /// Soft and hard `RLIMIT_MEMLOCK`, bytes, the highest number for none; `None` if it cannot be read.
    pub memlock: Option<(u64, u64)>,
    /// Whether the process has `CAP_IPC_LOCK`, where that can be read. That of a container's root counts for nothing.
    pub ipc_lock: Option<bool>,
    /// What the process has pinned already (`VmPin`), bytes.
    pub pinned_bytes: Option<u64>,
}

/// A mapping that holds some of the memory (`/proc/self/smaps`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    pub writable: bool,
    /// Whether writes reach the file, or other processes.
    pub shared: bool,
    /// The file, or a name in brackets; empty for anonymous memory.
    pub name: String,
    pub page_bytes: u64,
    /// A device's memory: there are no pages behind it that could be pinned.
    pub io: bool,
}

/// What was to be registered.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub addr: u64,
    pub len_bytes: u64,
    pub access: u32,
}

impl PinLimits {
    /// Those of this process now.
    pub fn now() -> Self {
        let [status, uid_map] =
            ["status", "uid_map"].map(|file| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default());
        Self { memlock: getrlimit(Resource::RLIMIT_MEMLOCK).ok(), ..Self::of(&status, &uid_map) }
    }

    fn of(status: &str, uid_map: &str) -> Self {
        let mut limits = Self::parse(status);
        if is_container(uid_map) {
            limits.ipc_lock = limits.ipc_lock.map(|_| false);
        }
        limits
    }

    fn parse(status: &str) -> Self {
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = value("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        Self {
            memlock: None,
            ipc_lock: capabilities.map(|set| set & CAP_IPC_LOCK != 0),
            pinned_bytes: value("VmPin:").and_then(kib),
        }
    }

    fn is_limited(&self) -> bool {
        self.ipc_lock != Some(true) && !matches!(self.memlock, Some((RLIM_INFINITY, _)))
    }

    /// The limits, and how to raise them.
    fn describe(&self) -> String {
        let Some((soft, hard)) = self.memlock else {
            return "is RLIMIT_MEMLOCK (ulimit -l) high enough?".to_owned();
        };
        let bytes = |n| match n {
            RLIM_INFINITY => number(n),
            n => format!("{n} bytes"),
        };
        let mut text = format!("RLIMIT_MEMLOCK is {} (hard limit {})", bytes(soft), bytes(hard));
        if let Some(pinned) = self.pinned_bytes {
            let _ = write!(text, ", {pinned} bytes are pinned already");
        }
        match self.ipc_lock {
            Some(true) => text.push_str(", but the process has CAP_IPC_LOCK and may exceed it"),
            _ if soft == RLIM_INFINITY => {}
            _ => text.push_str(
                ", and the process has no CAP_IPC_LOCK: raise the limit (ulimit -l, or LimitMEMLOCK= of the service), or \
                 give the process CAP_IPC_LOCK",
            ),
        }
        text
    }
}

/// Whether the process is in a user namespace of its own: the kernel asks for capabilities in the initial one.
fn is_container(uid_map: &str) -> bool {
    !uid_map.is_empty() && !uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// A number of kB.
fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The mappings that overlap a range, from the text of `/proc/self/smaps`.
fn mapped(smaps: &str, addr: u64, end: u64) -> Vec<Mapped> {
    let mut found: Vec<Mapped> = vec![];
    let mut inside = false;
    for line in smaps.lines() {
        if let Some(head) = heading(line) {
            inside = head.start < end && addr < head.end;
            if inside {
                found.push(head);
            }
        } else if let (true, Some(last)) = (inside, found.last_mut()) {
            if let Some(size) = line.strip_prefix("KernelPageSize:").and_then(kib) {
                last.page_bytes = size;
            } else if let Some(flags) = line.strip_prefix("VmFlags:") {
                last.io = flags.split_whitespace().any(|flag| flag == "io" || flag == "pf");
            }
        }
    }
    found
}

/// `START-END PERMISSIONS OFFSET DEVICE INODE [NAME]`
fn heading(line: &str) -> Option<Mapped> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |hex| u64::from_str_radix(hex, 16).ok();
    let mut words = rest.split_whitespace();
    let permissions = words.next()?.as_bytes();
    let (writable, shared) = (permissions.get(1) == Some(&b'w'), permissions.get(3) == Some(&b's'));
    let name = words.skip(3).collect::<Vec<_>>().join(" ");
    Some(Mapped { start: number(start)?, end: number(end)?, writable, shared, name, page_bytes: 0, io: false })
}

/// What some refusals mean whatever was asked for.
pub fn of_any_verb(errno: Errno) -> Option<String> {
    match errno {
        Errno::EMFILE => Some(match getrlimit(Resource::RLIMIT_NOFILE) {
            Ok((soft, hard)) => format!(
                "the process has too many open files: its limit is {} (RLIMIT_NOFILE, hard limit {}): close some, or raise \
                 it (ulimit -n, or LimitNOFILE= of the service)",
                number(soft),
                number(hard)
            ),
            Err(_) => "the process has too many open files: raise its limit (ulimit -n)".to_owned(),
        }),
        Errno::ENFILE => {
            Some("the host has too many open files: close some, or raise its limit (sysctl fs.file-max)".to_owned())
        }
        _ => None,
    }
}

/// A limit.
fn number(n: u64) -> String {
    match n {
        RLIM_INFINITY => "unlimited".to_owned(),
        n => n.to_string(),
    }
}

/// Why memory for `what` could not be mapped: the bytes wanted, and what limits them.
pub fn mapping(error: Error, what: &str, len_bytes: usize) -> Error {
    let wanted = format!("the {len_bytes} bytes of {what} cannot be mapped");
    let hint = match error.errno() {
        Some(Errno::ENOMEM) => {
            let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
            let why = no_address_space(len_bytes, getrlimit(Resource::RLIMIT_AS).ok(), &status);
            format!("{wanted}: {why}")
        }
        Some(Errno::EAGAIN) => {
            format!("{wanted}: the process locks all that it maps (mlockall); {}", PinLimits::now().describe())
        }
        _ => wanted,
    };
    error.with_hint(hint)
}

/// `limit` is the soft and hard `RLIMIT_AS`, `status` what `/proc/self/status` says.
fn no_address_space(len_bytes: usize, limit: Option<(u64, u64)>, status: &str) -> String {
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).and_then(kib).unwrap_or(0);
    match limit {
        Some((soft, _)) if used.saturating_add(len_bytes as u64) > soft => format!(
            "the process may have {soft} bytes of address space, of which {used} are used (RLIMIT_AS): ask for less, or raise \
             it (ulimit -v, or LimitAS= of the service)"
        ),
        _ => "the host is out of memory or does not overcommit it, or the process has too many mappings (sysctl \
              vm.max_map_count): ask for less, or raise what is short"
            .to_owned(),
    }
}

/// The error of a registration that the kernel refused, with what is known of why.
pub fn registration(error: Error, wanted: Wanted) -> Error {
    let Some(errno) = error.errno() else { return error };
    match errno {
        Errno::ENOMEM => {
            let limits = PinLimits::now();
            error.with_hint(no_memory(wanted, limits))
        }
        Errno::EFAULT | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPERM | Errno::EACCES => {
            let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
            let end = wanted.addr.saturating_add(wanted.len_bytes);
            error.with_hint(bad_memory(errno, wanted, &mapped(&smaps, wanted.addr, end)))
        }
        _ => error,
    }
}

fn no_memory(wanted: Wanted, limits: PinLimits) -> String {
    let pins = pins(wanted);
    if limits.is_limited() {
        format!("{pins}; all pinned memory of the process counts: {}", limits.describe())
    } else {
        format!("{pins}; {}: the host or the device is out of memory", limits.describe())
    }
}

/// Whole pages are pinned.
fn pins(wanted: Wanted) -> String {
    let page = page_bytes() as u64;
    let first = wanted.addr / page * page;
    let pinned = (wanted.addr.saturating_add(wanted.len_bytes) - first).next_multiple_of(page);
    if pinned == wanted.len_bytes {
        format!("it pins {pinned} bytes")
    } else {
        format!("it pins {pinned} bytes, the whole pages around {} bytes", wanted.len_bytes)
    }
}

/// What about the memory a device may not like.
fn bad_memory(errno: Errno, wanted: Wanted, mapped: &[Mapped]) -> String {
    let Wanted { addr, len_bytes, access } = wanted;
    let writes = access & access::WRITING != 0;
    let name = |map: &Mapped| match map.name.as_str() {
        "" => "anonymous memory".to_owned(),
        name => name.to_owned(),
    };
    let mut at = addr;
    for map in mapped {
        if map.start > at {
            break;
        }
        if map.io {
            return format!(
                "{} is an I/O mapping, a device's own memory: there are no pages to pin; if it can be had as a dma-buf, \
                 register that",
                name(map)
            );
        }
        if writes && !map.writable {
            return format!(
                "the mapping of {} is read-only, and the access {} writes: map it writable, or register it for reading \
                 only",
                name(map),
                access::names(access)
            );
        }
        if errno == Errno::EFAULT && !map.writable && map.shared {
            return format!(
                "kernels before Linux 6.2 pin memory for writing even if it is only to be read, and the mapping of {} is \
                 shared and read-only: map it privately (MAP_PRIVATE)",
                name(map)
            );
        }
        at = map.end;
    }
    let end = addr.saturating_add(len_bytes);
    if at < end {
        return format!("of the {len_bytes} bytes at {addr:#x}, those from {at:#x} on are not mapped");
    }
    if access & access::FLUSH_PERSISTENT != 0 {
        return "access FLUSH_PERSISTENT is for persistent memory, which not all of this is".to_owned();
    }
    let pages = mapped.iter().find(|map| map.page_bytes > 4096);
    let pages = pages.map_or(String::new(), |map| format!(", in huge pages of {} kB", map.page_bytes / 1024));
    let kind = mapped.first().map_or(String::new(), |map| format!(" ({}{pages})", name(map)));
    match errno {
        Errno::EFAULT => format!("the {len_bytes} bytes at {addr:#x}{kind} cannot be pinned"),
        _ => format!(
            "the device does not support access {} for this memory{kind}; pages of a file on a DAX file system cannot be \
             pinned either",
            access::names(access)
        ),
    }
}

/// Why a queue could not be made: `ENOMEM` has the same cause where a driver pins the program's memory for it.
pub fn queue_memory(error: Error) -> Error {
    let limits = PinLimits::now();
    let limited = if limits.is_limited() {
        format!("; drivers that pin a queue's memory count it against the limit: {}", limits.describe())
    } else {
        String::new()
    };
    error.with_hint(format!("the kernel or the device has no memory for it: a smaller queue may fit{limited}"))
}

#[cfg(test)]
mod tests;
