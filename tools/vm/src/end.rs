//! How the processes of a run ended, in words: QEMU, and the one that is the adapters.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use nix::sys::signal::Signal;
use softcx_pci::Verdict;

/// How the adapters' process ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Adapters {
    /// Because QEMU was gone; or there were none.
    Ended(Verdict),
    /// By itself, or by a signal, and not because QEMU was gone: in words.
    Died(String),
}

impl Adapters {
    /// `log`: where it wrote what happened.
    pub fn of(status: ExitStatus, log: Option<&Path>) -> Self {
        match status.code().and_then(Verdict::of_status) {
            Some(verdict) => Self::Ended(verdict),
            None => Self::died(&words(status), log),
        }
    }

    /// One that did not end though its guests had, and had to be killed.
    pub fn stuck(limit: Duration, log: Option<&Path>) -> Self {
        Self::died(&format!("went on for {} s after its guests, and was killed", limit.as_secs_f32()), log)
    }

    fn died(how: &str, log: Option<&Path>) -> Self {
        let log = log.map_or("it kept no log: --device-log FILE makes it".to_owned(), |path| {
            format!("its log is {}", path.display())
        });
        Self::Died(format!("the adapters' process, softcx, {how}; what it said is above, and {log}"))
    }
}

/// How a guest ended of which no report came, from how QEMU did; `None` if that went on.
pub fn of_guest(whose: &str, qemu: Option<ExitStatus>) -> String {
    match qemu {
        Some(status) if !status.success() => {
            format!("{whose}QEMU {}; what it said is above, and its guest's console", words(status))
        }
        _ => format!("the {whose}guest stopped without an answer (a kernel panic, or the command powered it off)"),
    }
}

/// What befell a process.
pub fn words(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return status.code().map_or_else(|| "ended".into(), |code| format!("ended with status {code}"));
    };
    let name = Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.to_string());
    let more = match Signal::try_from(signal) {
        Ok(Signal::SIGKILL) => " (somebody's kill, or the kernel's where memory ran out: dmesg tells)",
        _ if status.core_dumped() => " (core dumped)",
        _ => "",
    };
    format!("was killed by {name}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_name_who_ended_and_how_and_where_its_log_is() {
        let (killed, crashed, exited) = (9, 11 | 0x80, 1 << 8);
        let status = ExitStatus::from_raw;
        let text = of_guest("server's ", Some(status(killed)));
        assert!(text.starts_with("server's QEMU was killed by SIGKILL (") && text.contains("memory ran out"), "{text}");
        let text = of_guest("", Some(status(crashed)));
        assert!(text.starts_with("QEMU was killed by SIGSEGV (core dumped); what it said is above"), "{text}");
        let text = of_guest("", Some(status(exited)));
        assert!(text.starts_with("QEMU ended with status 1; "), "{text}");
        for by_itself in [None, Some(status(0))] {
            assert!(of_guest("", by_itself).starts_with("the guest stopped without an answer ("));
        }
        let died = |status, log| match Adapters::of(status, log) {
            Adapters::Died(text) => text,
            other => panic!("{other:?}"),
        };
        let text = died(status(6), Some(Path::new("/tmp/log")));
        assert_eq!(
            text,
            "the adapters' process, softcx, was killed by SIGABRT; what it said is above, and its log is /tmp/log"
        );
        let text = died(status(101 << 8), None);
        assert!(
            text.contains("softcx, ended with status 101;") && text.ends_with("--device-log FILE makes it"),
            "{text}"
        );
        assert_eq!(Adapters::of(status(0), None), Adapters::Ended(Verdict::default()));
        let left = Verdict { left_behind: true, misused: false };
        assert_eq!(Adapters::of(status(3 << 8), None), Adapters::Ended(left));
    }
}
