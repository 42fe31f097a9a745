//! How far a long run is, on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// A run shorter than this shows nothing.
const SHORT: Duration = Duration::from_secs(1);

/// Between two updates. The drawing itself is limited further by the bar.
const PAUSE: Duration = Duration::from_millis(100);

/// Shows how far a run is. Costs one comparison while there is nothing to show.
pub struct Progress {
    next: Option<Instant>,
    bar: Option<ProgressBar>,
    total: u64,
}

impl Progress {
    /// For a run of `total` steps that begins now.
    pub fn new(total: u64) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { next: shown.then(|| Instant::now() + SHORT), bar: None, total }
    }

    /// `done` steps are done, at `now`.
    #[inline]
    pub fn update(&mut self, now: Instant, done: u64) {
        if let Some(next) = self.next
            && now >= next
        {
            self.draw(now, done);
        }
    }

    #[cold]
    fn draw(&mut self, now: Instant, done: u64) {
        self.next = Some(now + PAUSE);
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(self.total), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} ({per_sec}, {eta} left)");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
