//! Whose turn it is: the accounts of one end of a ping-pong, without a device.
//!
//! Both ends follow the rule of `ibv_rc_pingpong`: send once the last send has completed and a message has arrived since.
//! Receives are posted in bulk, when at most one is left.

/// The accounts of one end.
#[derive(Clone, Debug)]
pub struct Turn {
    iterations: u64,
    sent: u64,
    received: u64,
    /// A send is on its way.
    sending: bool,
    /// A message is due before the next send.
    awaiting: bool,
    posted: u32,
    depth: u32,
}

impl Turn {
    /// `depth` receives are kept posted; none is yet. The end that sends `first` need not wait for a message.
    pub fn new(iterations: u64, depth: u32, first: bool) -> Self {
        Self { iterations, sent: 0, received: 0, sending: false, awaiting: !first, posted: 0, depth }
    }

    /// How many receives to post now, in one go: zero while two or more are left.
    #[inline]
    pub fn receives_due(&self) -> u32 {
        if self.posted <= 1 { self.depth - self.posted } else { 0 }
    }

    /// Whether the next message would find no receive.
    #[inline]
    pub fn is_out_of_receives(&self) -> bool {
        self.posted == 0
    }

    /// Those receives were posted.
    #[inline]
    pub fn receives_posted(&mut self) {
        self.posted = self.depth;
    }

    /// Whether to send now.
    #[inline]
    pub fn send_due(&self) -> bool {
        !self.sending && !self.awaiting && self.sent < self.iterations
    }

    /// That message was posted.
    #[inline]
    pub fn send_posted(&mut self) {
        self.sending = true;
        self.awaiting = true;
    }

    /// A send completed.
    #[inline]
    pub fn send_completed(&mut self) {
        self.sending = false;
        self.sent += 1;
    }

    /// A message arrived.
    #[inline]
    pub fn message_arrived(&mut self) {
        self.awaiting = false;
        self.posted = self.posted.saturating_sub(1);
        self.received += 1;
    }

    /// Messages to send, and to receive.
    pub fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Messages that arrived.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Messages whose send completed.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Iterations that are complete: sent, and received.
    pub fn completed(&self) -> u64 {
        self.sent.min(self.received)
    }

    /// Whether there is nothing left to do.
    #[inline]
    pub fn done(&self) -> bool {
        self.sent >= self.iterations && self.received >= self.iterations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends and the wire between them, with completions delayed in every order that `choices` gives.
    fn play(iterations: u64, depth: u32, mut choices: u64) -> (Turn, Turn) {
        let mut ends = [Turn::new(iterations, depth, true), Turn::new(iterations, depth, false)];
        // Before either end is connected.
        ends.iter_mut().for_each(Turn::receives_posted);
        // Per end: send completions and messages not yet seen.
        let mut pending = [(0, 0); 2];
        for step in 0..20 * iterations + 20 {
            for me in 0..2 {
                if ends[me].receives_due() > 0 {
                    ends[me].receives_posted();
                }
                if ends[me].send_due() {
                    assert!(ends[1 - me].posted > pending[1 - me].1, "a receiver was not ready");
                    ends[me].send_posted();
                    pending[me].0 += 1;
                    pending[1 - me].1 += 1;
                }
            }
            if ends.iter().all(Turn::done) {
                break;
            }
            assert!(pending.iter().any(|p| p.0 + p.1 > 0), "stuck at step {step}");
            choices = choices.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let me = (choices >> 40 & 1) as usize;
            if choices >> 41 & 1 == 0 && pending[me].0 > 0 {
                pending[me].0 -= 1;
                ends[me].send_completed();
            } else if pending[me].1 > 0 {
                pending[me].1 -= 1;
                ends[me].message_arrived();
            }
        }
        let [a, b] = ends;
        (a, b)
    }

    #[test]
    fn both_ends_finish_whatever_the_order_of_completions() {
        for seed in 0..200 {
            for (iterations, depth) in [(1, 1), (2, 1), (50, 1), (50, 2), (50, 7), (3, 500)] {
                let (a, b) = play(iterations, depth, seed);
                for end in [a, b] {
                    assert!(end.done());
                    assert_eq!((end.sent(), end.received(), end.completed()), (iterations, iterations, iterations));
                    assert!(!end.send_due());
                }
            }
        }
    }

    #[test]
    fn receives_are_posted_in_bulk() {
        let mut t = Turn::new(100, 10, false);
        assert_eq!(t.receives_due(), 10);
        t.receives_posted();
        for _ in 0..8 {
            t.message_arrived();
            assert_eq!(t.receives_due(), 0);
        }
        t.message_arrived();
        assert_eq!(t.receives_due(), 9);
    }
}
