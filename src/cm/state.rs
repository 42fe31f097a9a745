//! The states of an id: what was done with it, and what came of it.
//!
//! They say what an id is good for and serve error texts; whether a step is allowed is the kernel's to decide, because what
//! happened there may not have been read here yet. So no order of events is wrong: each leads to some state.

use super::error::Step;
use super::event::EventType;
use std::fmt;

/// What an id is at.
///
/// ```no_run
/// # fn f(id: &ironverbs::rdma_cm::CmId) {
/// if id.state() == ironverbs::rdma_cm::State::Established {
///     println!("{:?} to {:?}", id.local_addr(), id.peer_addr());
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Nothing was done with it.
    Idle,
    /// It has an address of its own.
    Bound,
    /// It listens.
    Listening,
    /// The peer's address is being resolved.
    ResolvingAddr,
    /// The device that leads to the peer is known.
    AddrResolved,
    /// The route to the peer is being resolved.
    ResolvingRoute,
    /// It can be connected.
    RouteResolved,
    /// The peer was asked.
    Connecting,
    /// The peer has answered, and waits for the last word.
    Answered,
    /// A peer asks; accept or reject it.
    Requested,
    /// It was accepted, and the peer's last word is still to come.
    Accepted,
    /// Both sides can send.
    Established,
    /// This side has asked to end it.
    Disconnecting,
    /// It has ended.
    Disconnected,
    /// It was rejected, by either side.
    Rejected,
    /// A step failed.
    Failed,
    /// Its device is gone; all there is to do is to drop it.
    DeviceRemoved,
}

impl State {
    /// Whether nothing will come of it any more.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Disconnected | Self::Rejected | Self::Failed | Self::DeviceRemoved)
    }

    /// After a step that the kernel took.
    pub(super) fn after_step(self, step: Step) -> Self {
        if self == Self::DeviceRemoved {
            return self;
        }
        match step {
            Step::Bind => Self::Bound,
            Step::ResolveAddr => Self::ResolvingAddr,
            Step::ResolveRoute => Self::ResolvingRoute,
            Step::Listen => Self::Listening,
            Step::Connect => Self::Connecting,
            Step::Accept if self == Self::Requested => Self::Accepted,
            Step::Establish if self == Self::Answered => Self::Established,
            Step::Reject => Self::Rejected,
            // Before both sides can send, the kernel takes the step and does nothing.
            Step::Disconnect if self == Self::Established => Self::Disconnecting,
            _ => self,
        }
    }

    /// After an event, in whatever order events come.
    pub(super) fn after_event(self, event: EventType) -> Self {
        match event {
            _ if self == Self::DeviceRemoved => self,
            EventType::DEVICE_REMOVAL => Self::DeviceRemoved,
            // Of another id, or of no consequence to this one.
            EventType::CONNECT_REQUEST
            | EventType::MULTICAST_JOIN
            | EventType::MULTICAST_ERROR
            | EventType::ADDR_CHANGE => self,
            EventType::TIMEWAIT_EXIT | EventType::DISCONNECTED => Self::Disconnected,
            // What comes late changes nothing.
            _ if self.is_over() => self,
            EventType::ADDR_RESOLVED => Self::AddrResolved,
            EventType::ROUTE_RESOLVED => Self::RouteResolved,
            EventType::CONNECT_RESPONSE => Self::Answered,
            EventType::ESTABLISHED => match self {
                Self::Disconnecting => self,
                _ => Self::Established,
            },
            EventType::REJECTED => Self::Rejected,
            EventType::ADDR_ERROR | EventType::ROUTE_ERROR | EventType::CONNECT_ERROR | EventType::UNREACHABLE => {
                Self::Failed
            }
            _ => self,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Bound => "bound",
            Self::Listening => "listening",
            Self::ResolvingAddr => "resolving its peer's address",
            Self::AddrResolved => "resolved to an address",
            Self::ResolvingRoute => "resolving its route",
            Self::RouteResolved => "resolved to a route",
            Self::Connecting => "connecting",
            Self::Answered => "answered by its peer",
            Self::Requested => "a request",
            Self::Accepted => "accepted, but not established",
            Self::Established => "established",
            Self::Disconnecting => "disconnecting",
            Self::Disconnected => "disconnected",
            Self::Rejected => "rejected",
            Self::Failed => "one that failed",
            Self::DeviceRemoved => "one whose device is gone",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 17] = [
        State::Idle,
        State::Bound,
        State::Listening,
        State::ResolvingAddr,
        State::AddrResolved,
        State::ResolvingRoute,
        State::RouteResolved,
        State::Connecting,
        State::Answered,
        State::Requested,
        State::Accepted,
        State::Established,
        State::Disconnecting,
        State::Disconnected,
        State::Rejected,
        State::Failed,
        State::DeviceRemoved,
    ];

    const STEPS: [Step; 10] = [
        Step::Bind,
        Step::ResolveAddr,
        Step::ResolveRoute,
        Step::Listen,
        Step::Connect,
        Step::Accept,
        Step::Establish,
        Step::Reject,
        Step::Disconnect,
        Step::Migrate,
    ];

    fn walk(from: State, events: &[EventType]) -> State {
        events.iter().fold(from, |state, event| state.after_event(*event))
    }

    #[test]
    fn the_ordinary_ways() {
        let client = [Step::ResolveAddr, Step::ResolveRoute, Step::Connect, Step::Establish];
        let answers = [EventType::ADDR_RESOLVED, EventType::ROUTE_RESOLVED, EventType::CONNECT_RESPONSE];
        let mut state = State::Idle;
        for (n, step) in client.into_iter().enumerate() {
            state = state.after_step(step);
            if let Some(answer) = answers.get(n) {
                state = state.after_event(*answer);
            }
        }
        assert_eq!(state, State::Established);
        let server = State::Requested.after_step(Step::Accept);
        assert_eq!(server, State::Accepted);
        assert_eq!(walk(server, &[EventType::ESTABLISHED, EventType::DISCONNECTED]), State::Disconnected);
        assert_eq!(State::Established.after_step(Step::Disconnect), State::Disconnecting);
        for early in [State::Requested, State::Accepted, State::Connecting, State::Answered] {
            assert_eq!(early.after_step(Step::Disconnect), early, "there is nothing to end yet");
        }
    }

    /// The peer's word to end may overtake its last word to begin, and a rejection may come after the own acceptance.
    #[test]
    fn odd_orders_are_states() {
        let ends = [EventType::DISCONNECTED, EventType::ESTABLISHED, EventType::TIMEWAIT_EXIT];
        assert_eq!(walk(State::Accepted, &ends), State::Disconnected);
        assert_eq!(walk(State::Accepted, &[EventType::REJECTED, EventType::ESTABLISHED]), State::Rejected);
        assert_eq!(walk(State::Disconnecting, &[EventType::ESTABLISHED]), State::Disconnecting);
        assert_eq!(walk(State::Connecting, &[EventType::UNREACHABLE, EventType::CONNECT_RESPONSE]), State::Failed);
        assert_eq!(State::Disconnected.after_step(Step::Disconnect), State::Disconnected);
    }

    /// Every order of any three events and steps is survived, and a device that is gone stays gone.
    #[test]
    fn no_order_is_wrong() {
        let moves = |state: State| {
            let events = (0..20).map(move |raw| state.after_event(EventType(raw)));
            events.chain(STEPS.map(move |step| state.after_step(step)))
        };
        for first in STATES {
            for second in moves(first) {
                for third in moves(second) {
                    let gone = [first, second, third].map(|state| state == State::DeviceRemoved);
                    assert!(gone.is_sorted(), "{first:?} {second:?} {third:?}");
                    if first.is_over() {
                        let events = (0..20).map(|raw| first.after_event(EventType(raw)));
                        assert!(events.into_iter().all(State::is_over), "{first:?} came to life by an event");
                    }
                }
            }
        }
        for state in STATES {
            assert_eq!(state.after_event(EventType(99)), state, "an unknown event says nothing");
        }
    }
}
