//! What of the host decides whether its devices can be used.

use crate::machine::Machine;
use ironverbs::{DeviceInfo, NetnsMode, PinLimits};
use nix::sys::resource::RLIM_INFINITY;
use serde::Serialize;

/// Less locked memory than this is too little for a program of any size. Usual defaults are 64 KiB and 8 MiB.
const LITTLE_MEMLOCK: u64 = 64 << 20;

/// What of the host decides whether its devices can be used.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostReport {
    /// exclusive: a device can be used in its own network namespace only; shared: in all of them.
    pub netns_mode: Option<String>,
    /// How many bytes this process may register in all; none if there is no limit.
    pub memlock_soft_bytes: Option<u64>,
    /// Up to which it may raise that limit by itself; none if there is no limit.
    pub memlock_hard_bytes: Option<u64>,
    /// Whether the limit does not count for this process, which has CAP_IPC_LOCK.
    pub memlock_exempt: bool,
    /// What to look out for, for people.
    pub notes: Vec<String>,
}

impl HostReport {
    /// Of this host and this process.
    pub fn of(machine: &Machine, devices: &[DeviceInfo]) -> Self {
        let netns_mode = devices.first().and_then(|device| machine.sys().details(device).netns_mode);
        let limits = PinLimits::now();
        let (soft, hard) = limits.memlock.unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
        let limit = |bytes| (bytes != RLIM_INFINITY).then_some(bytes);
        let mut host = Self {
            netns_mode: netns_mode.map(|mode| mode.to_string()),
            memlock_soft_bytes: limit(soft),
            memlock_hard_bytes: limit(hard),
            memlock_exempt: limits.ipc_lock == Some(true),
            notes: Vec::new(),
        };
        // Nothing is pinned for a simulated device.
        host.notes.extend(host.memlock_note().filter(|_| !machine.is_simulated()));
        if netns_mode == Some(NetnsMode::Exclusive) {
            host.notes.push(
                "network namespaces are exclusive: other devices of this host may be in other ones (rdma system show)"
                    .into(),
            );
        }
        host
    }

    /// A warning if there is little memory to register.
    fn memlock_note(&self) -> Option<String> {
        let soft = self.memlock_soft_bytes.filter(|&soft| !self.memlock_exempt && soft < LITTLE_MEMLOCK)?;
        let hard = self.memlock_hard_bytes.map_or_else(|| "none".to_owned(), amount);
        Some(format!(
            "this process may register {} of memory in all (RLIMIT_MEMLOCK; hard limit {hard}): raise it with ulimit -l, \
             LimitMEMLOCK= of systemd or limits.conf, or give CAP_IPC_LOCK",
            amount(soft)
        ))
    }

    /// The limit, for people.
    pub fn memlock_text(&self) -> String {
        match (self.memlock_soft_bytes, self.memlock_exempt) {
            (None, _) => "unlimited".to_owned(),
            (Some(soft), true) => {
                format!("{}, which does not count for this process: it has CAP_IPC_LOCK", amount(soft))
            }
            (Some(soft), false) => amount(soft),
        }
    }
}

/// In the largest unit that leaves a whole number.
fn amount(bytes: u64) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b > 0 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(soft: Option<u64>, exempt: bool) -> HostReport {
        HostReport {
            netns_mode: None,
            memlock_soft_bytes: soft,
            memlock_hard_bytes: Some(8 << 20),
            memlock_exempt: exempt,
            notes: Vec::new(),
        }
    }

    #[test]
    fn little_locked_memory_is_told_up_front() {
        let note = host(Some(64 << 10), false).memlock_note().unwrap();
        assert!(note.contains("64 KiB") && note.contains("8 MiB") && note.contains("CAP_IPC_LOCK"), "{note}");
        for enough in [host(Some(64 << 10), true), host(None, false), host(Some(1 << 30), false)] {
            assert_eq!(enough.memlock_note(), None);
        }
    }

    #[test]
    fn amounts() {
        let texts = [0, 1000, 65536, 8 << 20, 3 << 30].map(amount);
        assert_eq!(texts, ["0 bytes", "1000 bytes", "64 KiB", "8 MiB", "3 GiB"]);
    }
}
