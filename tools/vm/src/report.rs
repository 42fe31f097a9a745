//! What a guest reports of itself: see `guest/init.sh`.

/// What became of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ended with this status.
    Exited(u8),
    /// The guest could not be set up, for this reason.
    Failed(String),
    /// The deadline came first.
    TimedOut,
    /// This process was told to stop.
    Interrupted(u8),
    /// The other one of its pair failed, and it went on for too long after that.
    Stopped,
    /// The guest ended and left no word.
    Vanished,
    /// The process that was its adapters ended.
    Unplugged,
}

/// A guest's report, as far as it has come.
#[derive(Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// One of a pair is set up, and waits for a line.
    pub ready: bool,
    /// The command has been started.
    pub begun: bool,
    /// It listens on a TCP port: one of a pair only.
    pub listening: bool,
    /// What comes after that.
    rest: &'a [u8],
}

impl<'a> Report<'a> {
    /// Reads what has come.
    pub fn read(bytes: &'a [u8]) -> Self {
        let mut report = Report { ready: false, begun: false, listening: false, rest: bytes };
        report.ready = report.take(b"ready\n");
        report.begun = report.take(b"begin\n");
        report.listening = report.take(b"listening\n");
        report
    }

    fn take(&mut self, line: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(line);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// What became of the command, if the report is complete. `open`: more may come.
    pub fn outcome(&self, open: bool) -> Option<Outcome> {
        let text = String::from_utf8_lossy(self.rest);
        if let Some(status) = text.strip_prefix("exit ").and_then(|rest| rest.strip_suffix('\n')) {
            return Some(status.parse().map_or(Outcome::Vanished, Outcome::Exited));
        }
        match text.strip_prefix("fail\n") {
            _ if open => None,
            Some(reason) => Some(Outcome::Failed(reason.trim_end().to_owned())),
            None => Some(Outcome::Vanished),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_when_it_is_complete() {
        let outcome_of = |bytes: &[u8], open| Report::read(bytes).outcome(open);
        assert_eq!(outcome_of(b"", true), None);
        assert_eq!(outcome_of(b"exit 1", true), None);
        assert_eq!(outcome_of(b"begin\nexit 12\n", true), Some(Outcome::Exited(12)));
        assert_eq!(outcome_of(b"begin\n", true), None);
        assert_eq!(outcome_of(b"begin\n", false), Some(Outcome::Vanished));
        assert_eq!(outcome_of(b"begin\nfail\nit hangs\n", false), Some(Outcome::Failed("it hangs".to_owned())));
        assert_eq!(outcome_of(b"fail\nno link", true), None);
        assert_eq!(outcome_of(b"fail\nno link\n", false), Some(Outcome::Failed("no link".to_owned())));
        assert_eq!(outcome_of(b"", false), Some(Outcome::Vanished));
        assert_eq!(outcome_of(b"exit 1", false), Some(Outcome::Vanished));
    }

    #[test]
    fn one_of_a_pair_reports_more() {
        let steps = |bytes: &[u8]| {
            let Report { ready, begun, listening, .. } = Report::read(bytes);
            (ready, begun, listening)
        };
        assert_eq!(steps(b"rea"), (false, false, false));
        assert_eq!(steps(b"ready\n"), (true, false, false));
        assert_eq!(steps(b"ready\nbegin\nlisten"), (true, true, false));
        assert_eq!(steps(b"ready\nbegin\nlistening\n"), (true, true, true));
        let ended = Report::read(b"ready\nbegin\nlistening\nexit 3\n").outcome(true);
        assert_eq!(ended, Some(Outcome::Exited(3)));
        assert_eq!(Report::read(b"ready\nfail\nno\n").outcome(false), Some(Outcome::Failed("no".to_owned())));
    }
}
