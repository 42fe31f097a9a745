//! Shows every command as a line of text.

use super::{Exchange, Observer, observe_cdev, observe_sys};
use crate::uverbs::sys::{Cdev, Sys};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Shows every command that passes as one line: name, inputs, then the outputs or the error, and how long it took.
///
/// ```text
/// CQ.CREATE cqe=64 user_handle=1 comp_vector=0 = ok handle=1 resp_cqe=127 uhw_out=00100000... (41 µs)
/// ```
///
/// Doorbells that are system calls are commands too and are shown; they are slower than without the wrapper.
#[derive(Clone)]
pub struct Trace(Arc<Sink>);

struct Sink(Box<dyn Fn(&str) + Send + Sync>);

impl Trace {
    /// Gives each line, without its end, to `line`. Threads that issue commands at once call it at once.
    pub fn new(line: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Sink(Box::new(line))))
    }

    /// Writes the lines to `to`, each at once. What cannot be written is dropped.
    pub fn to_writer(to: impl Write + Send + 'static) -> Self {
        let to = Mutex::new(to);
        Self::new(move |line| {
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            // There is nobody to tell, and a trace must not fail the command.
            let _ = writeln!(to, "{line}").and_then(|()| to.flush());
        })
    }

    /// The same file, with its commands shown.
    pub fn wrap(&self, cdev: Arc<dyn Cdev>) -> Arc<dyn Cdev> {
        observe_cdev(&self.0, cdev)
    }

    /// The same devices, with the commands of every file opened from here on shown.
    pub fn wrap_sys(&self, sys: Arc<dyn Sys>) -> Arc<dyn Sys> {
        observe_sys(&self.0, sys)
    }
}

impl Observer for Sink {
    fn after(&self, exchange: &Exchange<'_>) {
        let outcome = match exchange.result {
            Ok(()) => format!("ok{}", exchange.answered.outputs()),
            Err(errno) => format!("{errno:?} ({errno})"),
        };
        (self.0)(&format!("{} = {outcome} ({} µs)", exchange.sent, exchange.took.as_micros()));
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trace")
    }
}
