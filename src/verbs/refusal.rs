//! Why a work request was not posted, with the limits of the queue pair that it was meant for.
//!
//! What posting itself returns is a small number, since it is returned in the hot path: the rest is added when asked for.

use super::halves::{RecvHalf, SendHalf};
use super::provider::Provider;
use super::qp::Qp;
use super::qp_type::QpType;
use super::srq::{Srq, SrqKind};
use crate::uverbs::attr::QpCap;
use crate::uverbs::error::{Error, Verb};
use crate::uverbs::types::Mtu;
use crate::uverbs::wr::PostError;

impl<P: Provider, T: QpType> Qp<P, T> {
    /// Why this queue pair refused a work request, as an error that names the verb and the queue pair's limit.
    ///
    /// ```no_run
    /// # fn f(qp: &mut ironverbs::Qp, long: &[u8]) -> Result<(), ironverbs::Error> {
    /// use ironverbs::{Inline, Verb, WrFlags};
    /// let posted = qp.send_batch().send(1, WrFlags::SIGNALED, Inline(long));
    /// // As `post_send: inline payload is longer than 64 bytes; …`
    /// posted.map_err(|error| qp.explain(Verb::PostSend, error))?;
    /// # Ok(()) }
    /// ```
    pub fn explain(&self, verb: Verb, refused: PostError) -> Error {
        explain(verb, refused, &self.cap(), self.local.endpoint.mtu)
    }
}

impl<P: Provider, T: QpType> SendHalf<P, T> {
    /// As [`Qp::explain`], of a send.
    pub fn explain(&self, refused: PostError) -> Error {
        explain(Verb::PostSend, refused, &self.cap(), self.local.endpoint.mtu)
    }
}

impl<P: Provider, T: QpType> RecvHalf<P, T> {
    /// As [`Qp::explain`], of a receive.
    pub fn explain(&self, refused: PostError) -> Error {
        explain(Verb::PostRecv, refused, &self.cap(), self.local.endpoint.mtu)
    }
}

impl<P: Provider, K: SrqKind> Srq<P, K> {
    /// As [`Qp::explain`], of a receive.
    pub fn explain(&self, refused: PostError) -> Error {
        let cap = QpCap { max_recv_wr: self.capacity(), max_recv_sge: self.max_sge(), ..QpCap::default() };
        explain(Verb::PostRecv, refused, &cap, None)
    }
}

fn explain(verb: Verb, refused: PostError, cap: &QpCap, mtu: Option<Mtu>) -> Error {
    let is_recv = verb == Verb::PostRecv;
    let (wrs, sges) = if is_recv { (cap.max_recv_wr, cap.max_recv_sge) } else { (cap.max_send_wr, cap.max_send_sge) };
    let mtu = mtu.map_or(0, Mtu::bytes);
    let (what, value) = match refused {
        // The kernel's own answer.
        PostError::Doorbell(errno) => return Error::kernel(verb, errno).with_hint(refused.to_string()),
        PostError::QueueFull => ("queue", format!("full with {wrs} work requests")),
        PostError::TooManySges => ("list", format!("longer than {sges} scatter/gather entries")),
        PostError::InlineTooLong => ("inline payload", format!("longer than {} bytes", cap.max_inline_data)),
        PostError::DatagramTooLong if mtu != 0 => ("datagram", format!("longer than {mtu} bytes")),
        PostError::MessageTooLong => ("message", format!("longer than {} bytes", 1_u64 << 31)),
        _ => ("work request", "refused".to_owned()),
    };
    Error::invalid(verb, what, value, refused.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uverbs::errno::Errno;

    #[test]
    fn verb_and_limit_are_named() {
        let cap = QpCap { max_send_wr: 128, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 2, max_inline_data: 48 };
        for (verb, refused, text) in [
            (Verb::PostSend, PostError::QueueFull, "post_send: queue is full with 128 work requests; "),
            (Verb::PostRecv, PostError::QueueFull, "post_recv: queue is full with 64 work requests; "),
            (Verb::PostSend, PostError::TooManySges, "post_send: list is longer than 4 scatter/gather entries; "),
            (Verb::PostRecv, PostError::TooManySges, "post_recv: list is longer than 2 scatter/gather entries; "),
            (Verb::PostSend, PostError::InlineTooLong, "post_send: inline payload is longer than 48 bytes; "),
            (Verb::PostSend, PostError::MessageTooLong, "post_send: message is longer than 2147483648 bytes; "),
            (Verb::PostSend, PostError::DatagramTooLong, "post_send: datagram is longer than 1024 bytes; "),
            (Verb::PostSend, PostError::BadState, "post_send: work request is refused; the queue pair is in a state"),
        ] {
            let error = explain(verb, refused, &cap, Some(Mtu::B1024)).to_string();
            assert!(error.starts_with(text) && error.ends_with(&refused.to_string()), "{error}");
        }
        let error = explain(Verb::PostSend, PostError::Doorbell(Errno::EAGAIN), &cap, None);
        assert_eq!(error.errno(), Some(Errno::EAGAIN));
    }
}
