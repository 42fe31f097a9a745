//! Whose turn it is: the accounts of one end of a ping-pong, without a device.
//!
//! An end sends when a message has arrived since its last send, as `ibv_rc_pingpong` does. That tool also waits for its
//! send's completion, which is known already: the peer answers only what it received. So not every send asks for one;
//! they are counted by the next one that does. Receives are posted in bulk, when at most one is left.

/// The accounts of one end.
#[derive(Clone, Debug)]
pub struct Turn {
    iterations: u64,
    /// Every so many sends, one asks for a completion. So does the last.
    signal_every: u64,
    sends_posted: u64,
    sends_completed: u64,
    received: u64,
    /// This end sends first, so that each message that arrives answers one of its own.
    first: bool,
    /// A message is due before the next send.
    awaiting: bool,
    receives_posted: u32,
    depth: u32,
}

impl Turn {
    /// `depth` receives are kept posted; none is yet. The end that sends `first` need not wait for a message.
    pub fn new(iterations: u64, depth: u32, signal_every: u32, first: bool) -> Self {
        Self {
            iterations,
            signal_every: signal_every.max(1).into(),
            sends_posted: 0,
            sends_completed: 0,
            received: 0,
            first,
            awaiting: !first,
            receives_posted: 0,
            depth,
        }
    }

    /// How many sends can be under way without a completion seen: the depth that the send queue needs.
    pub fn send_depth(signal_every: u32) -> u32 {
        if signal_every <= 1 { 1 } else { 2 * signal_every }
    }

    /// How many receives to post now, in one go: zero while two or more are left.
    #[inline]
    pub fn receives_due(&self) -> u32 {
        if self.receives_posted <= 1 { self.depth - self.receives_posted } else { 0 }
    }

    /// Whether the next message would find no receive.
    #[inline]
    pub fn is_out_of_receives(&self) -> bool {
        self.receives_posted == 0
    }

    /// Those receives were posted.
    #[inline]
    pub fn receives_posted(&mut self) {
        self.receives_posted = self.depth;
    }

    /// Whether to send now.
    #[inline]
    pub fn send_due(&self) -> bool {
        let room = u64::from(Self::send_depth(self.signal_every as u32));
        !self.awaiting && self.sends_posted < self.iterations && self.sends_posted - self.sends_completed < room
    }

    /// Whether that send asks for a completion.
    #[inline]
    pub fn send_is_signaled(&self) -> bool {
        let number = self.sends_posted + 1;
        number.is_multiple_of(self.signal_every) || number == self.iterations
    }

    /// That message was posted.
    #[inline]
    pub fn send_posted(&mut self) {
        self.sends_posted += 1;
        self.awaiting = true;
    }

    /// A send that asked for it completed, and with it all before it.
    #[inline]
    pub fn send_completed(&mut self) {
        let next_signaled = self.sends_completed - self.sends_completed % self.signal_every + self.signal_every;
        self.sends_completed = next_signaled.min(self.iterations);
    }

    /// A message arrived.
    #[inline]
    pub fn message_arrived(&mut self) {
        self.awaiting = false;
        self.receives_posted = self.receives_posted.saturating_sub(1);
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

    /// Messages that were posted.
    pub fn sends_posted(&self) -> u64 {
        self.sends_posted
    }

    /// Iterations that are complete: a message sent, and one received.
    pub fn completed(&self) -> u64 {
        self.sends_posted.min(self.received)
    }

    /// Whether there is nothing left to do. The last answer proves that the last message arrived: whoever sends first need not
    /// wait for that send's completion, which never comes if its acknowledgement is lost and the peer has ended.
    #[inline]
    pub fn done(&self) -> bool {
        self.received >= self.iterations && (self.first || self.sends_completed >= self.iterations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends and the wire between them, with completions delayed in every order that `choices` gives.
    fn play(iterations: u64, depth: u32, signal_every: u32, mut choices: u64) -> (Turn, Turn) {
        let end = |first| Turn::new(iterations, depth, signal_every, first);
        let mut ends = [end(true), end(false)];
        // Before either end is connected.
        ends.iter_mut().for_each(Turn::receives_posted);
        // Per end: send completions and messages not yet seen.
        let mut pending = [(0_u64, 0_u64); 2];
        for step in 0..20 * iterations + 20 {
            for me in 0..2 {
                if ends[me].receives_due() > 0 {
                    ends[me].receives_posted();
                }
                if ends[me].send_due() {
                    assert!(u64::from(ends[1 - me].receives_posted) > pending[1 - me].1, "a receiver was not ready");
                    pending[me].0 += u64::from(ends[me].send_is_signaled());
                    ends[me].send_posted();
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
        for seed in 0..100 {
            for (iterations, depth) in [(1, 1), (2, 1), (50, 1), (50, 2), (48, 7), (3, 500)] {
                for signal_every in [1, 2, 16] {
                    let (a, b) = play(iterations, depth, signal_every, seed);
                    for end in [a, b] {
                        assert!(end.done());
                        assert_eq!(
                            (end.sends_posted(), end.received(), end.completed()),
                            (iterations, iterations, iterations)
                        );
                        assert!(!end.send_due());
                    }
                }
            }
        }
    }

    /// Completions that never come stop an end before its queue overflows.
    #[test]
    fn sends_without_completion_are_bounded() {
        for signal_every in [1, 2, 16] {
            let mut t = Turn::new(1000, 4, signal_every, true);
            let mut posted = 0;
            while t.send_due() {
                t.send_posted();
                t.message_arrived();
                posted += 1;
            }
            assert_eq!(posted, Turn::send_depth(signal_every));
        }
    }

    #[test]
    fn receives_are_posted_in_bulk() {
        let mut t = Turn::new(100, 10, 1, false);
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
