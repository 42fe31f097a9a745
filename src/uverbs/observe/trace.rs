//! Shows every command as a line of text.

use super::{Exchange, Observer, observe_cdev, observe_sys};
use crate::uverbs::sys::{Cdev, Sys};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Shows every command that passes as one line: name, inputs, `=`, `ok` and the outputs or the error, and how long it
/// took. Structures are shown by their fields that are not zero.
///
/// ```text
/// CQ.CREATE cqe=64 user_handle=1 comp_vector=0 = ok handle=2 resp_cqe=127 uhw_out=0010000000000000... (41 µs)
/// INVOKE_WRITE REG_MR start=0x7f0012345008 length=8192 ... access_flags=0xf = EFAULT (Bad address) (12 µs)
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
            Err(errno) => errno.to_string(),
        };
        (self.0)(&format!("{} = {outcome} ({} µs)", exchange.sent, exchange.took.as_micros()));
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trace")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::fake::{FakeKernel, Knows};
    use crate::uverbs::scenario;

    /// The lines of a walk, without the times.
    fn lines(knows: Knows) -> Vec<String> {
        let lines = Arc::new(Mutex::new(vec![]));
        let trace = Trace::new({
            let lines = Arc::clone(&lines);
            move |line| lines.lock().unwrap().push(line.rsplit_once(" (").unwrap().0.to_owned())
        });
        scenario::walk(trace.wrap(FakeKernel::new(knows)));
        drop(trace);
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    /// Asserts that the lines hold these, in this order.
    fn assert_in_order(lines: &[String], expected: &[&str]) {
        let mut rest = lines.iter();
        for expected in expected {
            assert!(rest.any(|line| line == expected), "no line (any more)\n{expected}\nin\n{}", lines.join("\n"));
        }
    }

    #[test]
    fn native_commands_are_named_with_their_attributes() {
        let driver_out: String = crate::uverbs::fake::pattern(16).iter().map(|b| format!("{b:02x}")).collect();
        let lines = lines(Knows::ALL);
        assert_in_order(
            &lines,
            &[
                "DEVICE.GET_CONTEXT = ok num_comp_vectors=2 core_support=1",
                "INVOKE_WRITE ALLOC_PD = ok pd_handle=0",
                "INVOKE_WRITE REG_MR start=0x7f0012345008 length=8192 hca_va=0x7f0012345008 pd_handle=0 access_flags=0xf \
                 = ok mr_handle=1 lkey=0x1234567 rkey=0x89abcdef",
                "INVOKE_WRITE MODIFY_QP qp_handle=3 attr_mask=0x39 qp_access_flags=0xe qp_state=1 port_num=1 = ok",
                "QP.DESTROY handle=3 = ok resp={events_reported=7}",
                "MR.DESTROY handle=1 = ok",
            ],
        );
        let cq =
            lines.iter().find(|line| line.starts_with("CQ.CREATE cqe=100 user_handle=1 comp_channel=fd ")).unwrap();
        let end = format!(" comp_vector=0 = ok handle=2 resp_cqe=127 uhw_out={driver_out}");
        assert!(cq.ends_with(&end), "{cq}");
    }

    #[test]
    fn refused_forms_are_shown_with_the_answer() {
        assert_in_order(
            &lines(Knows::INVOKE_WRITE),
            &[
                "DEVICE.QUERY_PORT port_num=1 = EPROTONOSUPPORT (Protocol not supported)",
                "QP.DESTROY handle=3 = EPROTONOSUPPORT (Protocol not supported)",
                "INVOKE_WRITE DESTROY_QP qp_handle=3 = ok events_reported=7",
            ],
        );
    }

    #[test]
    fn written_commands_are_shown_with_their_response() {
        let lines = lines(Knows::WRITE);
        assert_in_order(&lines, &["write DEREG_MR mr_handle=1 = ok", "write DEALLOC_PD pd_handle=0 = ok"]);
        let reg_mr = lines.iter().find(|line| line.starts_with("write REG_MR ")).unwrap();
        assert!(reg_mr.ends_with(" = ok mr_handle=1 lkey=0x1234567 rkey=0x89abcdef"), "{reg_mr}");
    }

    #[test]
    fn a_writer_gets_whole_lines() {
        #[derive(Clone, Default)]
        struct Shared(Arc<Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let written = Shared::default();
        let trace = Trace::to_writer(written.clone());
        scenario::walk(trace.wrap(FakeKernel::new(Knows::ALL)));
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with("DEVICE.GET_CONTEXT = ok num_comp_vectors=2 core_support=1 ("), "{text}");
        assert!(text.ends_with(" µs)\n"), "{text}");
    }
}
