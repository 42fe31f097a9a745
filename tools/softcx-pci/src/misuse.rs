//! What the adapters found wrong with how they were used, where nothing but a report tells: a run with such misuse fails.

use softcx::Report;
use std::time::Duration;

/// Reports that are printed; later ones are counted only.
const SHOWN: usize = 20;

/// What was reported so far.
#[derive(Debug, Default)]
pub(crate) struct Misuses {
    /// Reports that hold one of these texts do not count.
    allowed: Vec<String>,
    count: usize,
    first: Vec<String>,
}

impl Misuses {
    /// Nothing yet. What holds one of the texts in `allowed` will not count.
    pub fn new(allowed: Vec<String>) -> Self {
        Self { allowed, ..Self::default() }
    }

    /// Takes a report of that time. What programs hear of by themselves does not count: tests provoke it.
    pub fn take(&mut self, now: Duration, report: &Report) {
        let text = report.to_string();
        if report.misuse.is_told() || self.allowed.iter().any(|allowed| text.contains(allowed)) {
            return;
        }
        self.count += 1;
        if self.first.len() < SHOWN {
            self.first.push(format!("{:.6} {text}", now.as_secs_f64()));
        }
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What to print at the end, a line each.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = self.count - self.first.len();
        let rest = (more > 0).then(|| format!("misuse: {more} more reports"));
        self.first.iter().map(|report| format!("misuse at {report}")).chain(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use softcx::{Misuse, Syndrome};

    fn report(misuse: Misuse) -> Report {
        Report { device: "mlx5_0".into(), number: 0x12, wqe: None, misuse }
    }

    #[test]
    fn only_what_nobody_else_tells_and_nobody_allowed_counts() {
        let mut misuses = Misuses::new(vec!["carries no small fence".into()]);
        for misuse in [Misuse::Refused(Syndrome::REMOTE_ACCESS), Misuse::CqOverrun, Misuse::UmrNotFenced] {
            misuses.take(Duration::ZERO, &report(misuse));
        }
        assert!(misuses.is_empty() && misuses.lines().next().is_none());
        for found in 0..SHOWN as u16 + 3 {
            misuses.take(Duration::from_millis(1), &report(Misuse::WqeIndex { found, expected: 7 }));
        }
        let lines: Vec<_> = misuses.lines().collect();
        assert!(!misuses.is_empty());
        assert_eq!(lines.len(), SHOWN + 1);
        assert_eq!(lines[1], "misuse at 0.001000 mlx5_0: 0x12: WQE index 1 where 7 should be");
        assert_eq!(lines[SHOWN], "misuse: 3 more reports");
    }
}
