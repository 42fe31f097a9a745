//! What a refusal or a failure means for its step, and what to do.

use super::error::{About, Error, Step};
use super::event::{Event, EventType};
use super::interface::is_own;
use super::reason::{Reason, RejectReason, SidrStatus};
use super::state::State;
use crate::uverbs::errno::Errno;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The kernel refused the step at once.
pub fn refused(step: Step, errno: Errno, about: About) -> Error {
    let about = match step {
        Step::Bind | Step::Listen => About { to: None, ..about }.with_interface(),
        Step::ResolveAddr | Step::ResolveRoute | Step::Connect | Step::JoinMulticast => about.with_interface(),
        _ => about,
    };
    let hint = of_errno(step, errno, &about).or_else(|| of_state(step, errno, &about));
    Error::Kernel { step, errno, about: Box::new(about), hint }
}

/// An event that is not the one the step waits for.
pub fn ended(step: Step, event: Event, about: About) -> Error {
    let event_type = event.event_type();
    let failed = matches!(
        event_type,
        EventType::ADDR_ERROR
            | EventType::ROUTE_ERROR
            | EventType::CONNECT_ERROR
            | EventType::UNREACHABLE
            | EventType::REJECTED
            | EventType::MULTICAST_ERROR
    );
    let reason = event.reason();
    let about = about.with_interface();
    if !failed && reason == Reason::None {
        let hint = of_event(step, event_type);
        return Error::Unexpected { step, event: event_type, about: Box::new(about), hint };
    }
    let hint = of_reason(step, event_type, reason, &about);
    let private_data = Box::new(event.into_private_data());
    Error::Failed { step, event: event_type, reason, about: Box::new(about), hint, private_data }
}

/// The id's device is gone, which an event has told already.
pub fn removed(step: Step, about: About) -> Error {
    let event = EventType::DEVICE_REMOVAL;
    Error::Unexpected { step, event, about: Box::new(about.with_interface()), hint: of_event(step, event) }
}

/// Nothing came in time.
pub fn timed_out(step: Step, waited: Duration, about: About) -> Error {
    let about = about.with_interface();
    // Where there was no time, nothing is the matter.
    let hint = if waited.is_zero() { None } else { of_silence(step, &about) };
    Error::Timeout { step, waited, about: Box::new(about), hint }
}

/// Only on InfiniBand is anybody asked.
const NO_ROUTE_IN_TIME: &str = "the time was too short, or, on InfiniBand, no subnet manager runs";

/// The kernel tries for longer than most programs wait, more than a minute for a peer and its packets that are lost: so it is mostly the
/// program's own time that ends.
fn of_silence(step: Step, about: &About) -> Option<Cow<'static, str>> {
    let to = ip(about.to);
    let passes = "does UDP port 4791 pass both ways?";
    Some(match step {
        Step::ResolveAddr => format!("{to} has not answered yet (ip neigh shows who does)").into(),
        Step::ResolveRoute => NO_ROUTE_IN_TIME.into(),
        Step::Connect => {
            format!("{to} has not answered yet: is the host up, does its program accept, and {passes}").into()
        }
        Step::Accept => format!("{to} has not said its last word: has it gone meanwhile, and {passes}").into(),
        Step::Disconnect => format!(
            "{to} has not confirmed the end: does its program look for events of the connection manager, and {passes} Drop the \
             connection, which ends it all the same"
        )
        .into(),
        _ => return None,
    })
}

fn of_event(step: Step, event: EventType) -> Option<Cow<'static, str>> {
    match (step, event) {
        (_, EventType::DEVICE_REMOVAL) => Some(
            "the device goes away: drop the id and what was made on the device, and let Devices forget it (Devices::forget)"
                .into(),
        ),
        (Step::Accept, EventType::DISCONNECTED) => Some("the peer has ended it as soon as it had begun".into()),
        _ => None,
    }
}

fn of_reason(step: Step, event: EventType, reason: Reason, about: &About) -> Option<Cow<'static, str>> {
    let to = || about.to.map_or("the peer".to_owned(), |to| to.to_string());
    match reason {
        Reason::Rejected(RejectReason::INVALID_SERVICE_ID) | Reason::Unresolved(SidrStatus::UNSUPPORTED) => {
            Some(format!("start the server, or look at its address, port and port space ({})", to()).into())
        }
        Reason::Rejected(RejectReason::STALE_CONN) => Some("try again, with a new queue pair".into()),
        Reason::Rejected(RejectReason::TIMEOUT) => {
            Some("the peer gave up: the answer to it was late or lost; try again".into())
        }
        Reason::Errno(Errno::ETIMEDOUT) if event == EventType::UNREACHABLE => Some(
            format!(
                "{} did not answer: is the host up, its connection manager loaded, and does UDP port 4791 pass both ways?",
                to()
            )
            .into(),
        ),
        // So the kernel calls each answer of the subnet manager's that is no path (`drivers/infiniband/core/sa_query.c`).
        Reason::Errno(Errno::EINVAL) if event == EventType::ROUTE_ERROR => {
            Some(format!("the InfiniBand subnet manager gives no path to {}", ip(about.to)).into())
        }
        Reason::Errno(errno) => of_errno(step, errno, about),
        _ => None,
    }
}

fn of_errno(step: Step, errno: Errno, about: &About) -> Option<Cow<'static, str>> {
    let via = about.interface.as_ref().map_or(String::new(), |interface| format!(" (via {interface})"));
    match (step, errno) {
        // Which of many errors a mapped address gives depends on the routes that there are.
        (Step::ResolveAddr, errno) if errno != Errno::EACCES && is_mapped(about.to) => Some(give_ipv4(about.to)),
        (Step::Bind | Step::ResolveAddr, Errno::EADDRNOTAVAIL) if is_mapped(about.from) => Some(give_ipv4(about.from)),
        (Step::Bind | Step::ResolveAddr | Step::ResolveRoute | Step::Listen, Errno::ENODEV) => {
            // It is the own address that is to be a device's, if there is one.
            let own = about.from.filter(|from| !from.ip().is_unspecified()).or(about.to).or(about.from);
            let address = own.map_or("that address".to_owned(), |address| address.ip().to_string());
            let lo = about.interface.as_deref() == Some("lo");
            let advice = match lo {
                true => {
                    "RDMA does not go over the loopback interface; use an address of the RDMA device's own network interface"
                }
                false => "that interface carries none that is active (rdma link shows which do)",
            };
            Some(format!("no RDMA device for {address}{via}: {advice}").into())
        }
        (Step::ResolveAddr, Errno::EINVAL) if are_of_two_families(about) => {
            Some("one is an IPv4 address and the other an IPv6 one: give both ends addresses of one kind".into())
        }
        // The kernel takes some interface, or none.
        (Step::Bind, Errno::EINVAL) if about.from.is_some_and(lacks_scope) => Some(give_scope(about.from)),
        (
            Step::ResolveAddr,
            Errno::EINVAL | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::ETIMEDOUT | Errno::ENODATA,
        ) if about.to.is_some_and(lacks_scope) => Some(give_scope(about.to)),
        (Step::ResolveAddr, Errno::EINVAL) if about.from.is_some_and(lacks_scope) => Some(give_scope(about.from)),
        (Step::ResolveAddr, Errno::ENETUNREACH | Errno::ENETDOWN) => {
            Some(format!("no route to {} (ip route get)", ip(about.to)).into())
        }
        (Step::ResolveAddr, Errno::EHOSTUNREACH | Errno::ETIMEDOUT | Errno::ENODATA) => Some(
            format!("{} is nobody's address on its network{via} (ip neigh shows who answers)", ip(about.to)).into(),
        ),
        // So it answers, too, if the port is taken at the wildcard address, or if the wildcard's is asked for.
        (Step::Bind | Step::ResolveAddr | Step::Listen, Errno::EADDRNOTAVAIL)
            if about.from.is_some_and(|from| is_own(from.ip())) =>
        {
            Some(taken(about).into())
        }
        (Step::Bind | Step::ResolveAddr, Errno::EADDRNOTAVAIL) => {
            Some(format!("this host has no address {}", ip(about.from.or(about.to))).into())
        }
        (Step::Bind | Step::Listen | Step::ResolveAddr, Errno::EADDRINUSE) => Some(taken(about).into()),
        (Step::Bind | Step::ResolveAddr, Errno::EACCES) => {
            let port = about.from.map_or(0, |from| from.port());
            Some(format!("port {port} is a privileged one: give the process CAP_NET_BIND_SERVICE").into())
        }
        (Step::ResolveRoute, Errno::ETIMEDOUT) => Some(NO_ROUTE_IN_TIME.into()),
        _ => None,
    }
}

/// What a refusal says of the id. An event that tells the same number means something else.
fn of_state(step: Step, errno: Errno, about: &About) -> Option<Cow<'static, str>> {
    match (step, errno) {
        // The kernel has no event for a request whose peer has gone: the next step is the first to find out.
        (Step::InitQpAttr | Step::Accept | Step::Reject, Errno::EINVAL) if about.state == Some(State::Requested) => {
            Some("it seems that the peer has given up meanwhile: drop the request".into())
        }
        (_, Errno::EINVAL | Errno::ENOENT) if about.state != Some(State::DeviceRemoved) => {
            about.state.map(|_| gone_on(about))
        }
        (_, Errno::EINVAL | Errno::ENOENT | Errno::ENXIO | Errno::EIO) => {
            Some("the device has been removed: drop the id".into())
        }
        _ => None,
    }
}

/// Whether it is a link-local IPv6 address that does not say on which link.
fn lacks_scope(address: SocketAddr) -> bool {
    matches!(address, SocketAddr::V6(address) if address.ip().is_unicast_link_local() && address.scope_id() == 0)
}

fn give_scope(address: Option<SocketAddr>) -> Cow<'static, str> {
    let ip = ip(address);
    format!(
        "{ip} is a link-local address: say on which link, as its scope: the link's number (ip link), as [{ip}%2]:PORT"
    )
    .into()
}

/// Whether it is an IPv4 address in the form of an IPv6 one, as a TCP socket for both tells its peer's.
fn is_mapped(address: Option<SocketAddr>) -> bool {
    matches!(address, Some(SocketAddr::V6(address)) if address.ip().to_ipv4_mapped().is_some())
}

fn give_ipv4(address: Option<SocketAddr>) -> Cow<'static, str> {
    let ipv4 = address.map_or("the peer".to_owned(), |address| address.ip().to_canonical().to_string());
    format!("{} is an IPv4 address in the form of an IPv6 one: give it as {ipv4}", ip(address)).into()
}

fn are_of_two_families(about: &About) -> bool {
    about.from.zip(about.to).is_some_and(|(from, to)| from.is_ipv4() != to.is_ipv4())
}

/// The kernel says the same of a port that is taken and of an IPv6 address that it still looks for others to have.
fn taken(about: &About) -> String {
    let port = match about.from.map_or(0, |from| from.port()) {
        0 => "every port is taken in this port space (rdma resource show cm_id)".to_owned(),
        port => format!("port {port} is taken in this port space (rdma resource show cm_id)"),
    };
    match about.from.map(|from| from.ip()) {
        Some(IpAddr::V6(own)) if !own.is_unspecified() && !own.is_loopback() => {
            format!("{port}, or {own} is tentative yet, for a second or two from when it is given (ip -6 address)")
        }
        _ => port,
    }
}

/// A step in a state that does not take it is answered with a bare `EINVAL`; often the peer has gone, and its event waits.
fn gone_on(about: &About) -> Cow<'static, str> {
    let state = about.state.map_or(String::new(), |state| format!("the id is {state}"));
    let last = match about.last_event {
        Some(event) => format!(", its last event was {event}"),
        None => String::new(),
    };
    format!("{state}{last}; if it has gone on since, the channel has an event that says so").into()
}

fn ip(address: Option<SocketAddr>) -> String {
    address.map_or("the peer".to_owned(), |address| address.ip().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(from: Option<&str>, to: Option<&str>) -> About {
        let parse = |text: &str| text.parse().unwrap();
        About { from: from.map(parse), to: to.map(parse), ..About::default() }
    }

    #[test]
    fn an_id_whose_device_is_gone_says_so_whatever_the_kernel_answers() {
        for errno in [Errno::EINVAL, Errno::ENOENT, Errno::EIO] {
            let error = refused(Step::Listen, errno, About { state: Some(State::DeviceRemoved), ..About::default() });
            assert!(error.to_string().contains("the device has been removed: drop the id"), "{error}");
        }
    }

    #[test]
    fn loopback_has_no_device() {
        let error = refused(Step::ResolveAddr, Errno::ENODEV, about(None, Some("127.0.0.1:7471")));
        assert_eq!(
            error.to_string(),
            "rdma_resolve_addr to 127.0.0.1:7471 (via lo): ENODEV (No such device): no RDMA device for 127.0.0.1 (via lo): \
             RDMA does not go over the loopback interface; use an address of the RDMA device's own network interface"
        );
    }

    #[test]
    fn what_has_no_device_no_route_or_no_owner_is_told_apart() {
        let text = |step, errno, from, to| refused(step, errno, about(from, to)).to_string();
        let to = Some("203.0.113.9:1");
        assert!(
            text(Step::ResolveAddr, Errno::ENETUNREACH, None, to).ends_with("no route to 203.0.113.9 (ip route get)")
        );
        assert!(text(Step::ResolveAddr, Errno::ETIMEDOUT, None, to).contains("is nobody's address on its network"));
        let bind = text(Step::Bind, Errno::EADDRNOTAVAIL, Some("203.0.113.9:1"), None);
        assert!(bind.ends_with("this host has no address 203.0.113.9"), "{bind}");
        for own in ["0.0.0.0:7", "[::]:7", "127.0.0.1:7"] {
            let bind = text(Step::Bind, Errno::EADDRNOTAVAIL, Some(own), None);
            assert!(bind.contains("port 7 is taken") && !bind.contains("has no address"), "{bind}");
        }
        assert!(text(Step::Bind, Errno::EADDRINUSE, Some("10.9.9.1:7"), None).contains("port 7 is taken"));
        assert!(text(Step::Bind, Errno::EACCES, Some("10.9.9.1:7"), None).contains("CAP_NET_BIND_SERVICE"));
    }

    /// Nobody can tell the two apart by the kernel's answer.
    #[test]
    fn an_own_ipv6_address_may_be_tentative() {
        let own = about(Some("[fd00:9:9::1]:7"), None);
        let both = taken(&own);
        assert!(both.starts_with("port 7 is taken in this port space"), "{both}");
        assert!(both.contains("or fd00:9:9::1 is tentative yet") && both.contains("ip -6 address"), "{both}");
        assert!(!taken(&about(Some("10.9.9.1:7"), None)).contains("tentative"));
        assert!(!taken(&about(Some("[::]:7"), None)).contains("tentative"));
    }

    #[test]
    fn the_own_address_of_a_way_to_a_peer_is_what_has_no_device_or_port() {
        let text = |errno, from| refused(Step::ResolveAddr, errno, about(Some(from), Some("10.9.9.2:9"))).to_string();
        let device = text(Errno::ENODEV, "127.0.0.1:0");
        assert!(device.contains("no RDMA device for 127.0.0.1 (via lo)"), "{device}");
        let any = text(Errno::ENODEV, "0.0.0.0:7");
        assert!(any.contains("no RDMA device for 10.9.9.2"), "{any}");
        assert!(text(Errno::EADDRINUSE, "10.9.9.1:7").contains("port 7 is taken in this port space"));
        let none = refused(Step::ResolveAddr, Errno::EADDRINUSE, about(None, Some("10.9.9.2:9"))).to_string();
        assert!(none.contains("every port is taken"), "{none}");
    }

    /// An event has been read; there is none to look for that says why.
    #[test]
    fn an_event_that_tells_of_einval_is_no_step_in_the_wrong_state() {
        let mut about = about(None, Some("10.9.9.2:9"));
        about.state = Some(State::Failed);
        let of = |step, event| of_reason(step, event, Reason::Errno(Errno::EINVAL), &about);
        assert_eq!(of(Step::Connect, EventType::CONNECT_ERROR), None);
        let route = of(Step::ResolveRoute, EventType::ROUTE_ERROR).unwrap();
        assert_eq!(route, "the InfiniBand subnet manager gives no path to 10.9.9.2");
    }

    #[test]
    fn a_link_local_address_without_a_link_is_what_is_wrong() {
        let local = Some("[fe80::1]:7");
        let hint = "say on which link, as its scope: the link's number (ip link), as [fe80::1%2]:PORT";
        assert!("[fe80::1%2]:9".parse::<SocketAddr>().is_ok(), "what the hint says is what is taken");
        let bind = refused(Step::Bind, Errno::EINVAL, about(local, None)).to_string();
        assert!(bind.ends_with(hint), "{bind}");
        let resolve = refused(Step::ResolveAddr, Errno::ETIMEDOUT, about(None, local)).to_string();
        assert!(resolve.ends_with(hint), "{resolve}");
        let way = refused(Step::ResolveAddr, Errno::EINVAL, about(local, Some("[fe80::2%2]:9"))).to_string();
        assert!(way.ends_with(hint), "{way}");
        let scoped = refused(Step::ResolveAddr, Errno::ETIMEDOUT, about(None, Some("[fe80::1%2]:7"))).to_string();
        assert!(scoped.contains("is nobody's address"), "{scoped}");
    }

    #[test]
    fn addresses_of_two_kinds_are_what_is_wrong() {
        let text = |step, errno, from, to| refused(step, errno, about(from, to)).to_string();
        let (v4, v6, mapped) = (Some("10.9.9.1:7"), Some("[fd00::1]:7"), Some("[::ffff:10.9.9.1]:7"));
        for (from, to) in [(v4, v6), (v6, v4)] {
            let both = text(Step::ResolveAddr, Errno::EINVAL, from, to);
            assert!(both.ends_with("give both ends addresses of one kind"), "{both}");
        }
        let same = text(Step::ResolveAddr, Errno::EINVAL, v4, v4);
        assert!(!same.contains("of one kind"), "{same}");
        for errno in [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::ETIMEDOUT, Errno::ENODEV] {
            let to = text(Step::ResolveAddr, errno, None, mapped);
            assert!(
                to.ends_with("::ffff:10.9.9.1 is an IPv4 address in the form of an IPv6 one: give it as 10.9.9.1"),
                "{to}"
            );
        }
        for step in [Step::Bind, Step::ResolveAddr] {
            let own = text(step, Errno::EADDRNOTAVAIL, mapped, v6);
            assert!(own.ends_with("give it as 10.9.9.1"), "{own}");
        }
    }

    /// The kernel tells a request's end to nobody, so there is no event to look for.
    #[test]
    fn a_request_that_takes_no_step_is_one_whose_peer_has_given_up() {
        for step in [Step::InitQpAttr, Step::Accept, Step::Reject] {
            let request = About { state: Some(State::Requested), ..About::default() };
            let error = refused(step, Errno::EINVAL, request).to_string();
            assert!(error.ends_with("it seems that the peer has given up meanwhile: drop the request"), "{error}");
        }
    }

    #[test]
    fn a_wait_of_no_time_does_not_blame_the_peer_for_its_silence() {
        let timeout = |waited| timed_out(Step::Migrate, waited, About::default()).to_string();
        assert_eq!(timeout(Duration::from_secs(2)), "rdma_migrate_id: nothing came within 2 s");
        assert_eq!(timeout(Duration::from_millis(29_987)), "rdma_migrate_id: nothing came within 30 s");
        assert_eq!(timeout(Duration::from_millis(1540)), "rdma_migrate_id: nothing came within 1.5 s");
        let connect = timed_out(Step::Connect, Duration::ZERO, About::default()).to_string();
        assert_eq!(connect, "rdma_connect: there was no time left to wait for it");
    }

    /// Packets that are lost are mostly seen so: the program's time is over long before the kernel gives up.
    #[test]
    fn a_silent_peer_is_told_with_the_way_to_it_and_what_to_look_at() {
        let text = |step| timed_out(step, Duration::from_secs(5), about(None, Some("127.0.0.1:7"))).to_string();
        assert_eq!(
            text(Step::Connect),
            "rdma_connect to 127.0.0.1:7 (via lo): nothing came within 5 s: 127.0.0.1 has not answered yet: is the host up, does \
             its program accept, and does UDP port 4791 pass both ways?"
        );
        assert!(text(Step::Accept).contains("127.0.0.1 has not said its last word"));
        assert!(text(Step::Accept).contains("UDP port 4791"));
        let disconnect = text(Step::Disconnect);
        assert!(
            disconnect.contains("has not confirmed the end") && disconnect.contains("UDP port 4791"),
            "{disconnect}"
        );
        assert!(disconnect.contains("Drop the connection"), "{disconnect}");
    }

    /// On RoCE no subnet manager is asked: there it is the time that was short.
    #[test]
    fn a_route_that_is_late_is_not_blamed_on_a_subnet_manager_alone() {
        let late = timed_out(Step::ResolveRoute, Duration::from_millis(2), About::default()).to_string();
        let refused = refused(Step::ResolveRoute, Errno::ETIMEDOUT, About::default()).to_string();
        for text in [late, refused] {
            assert!(text.ends_with(": the time was too short, or, on InfiniBand, no subnet manager runs"), "{text}");
        }
    }

    #[test]
    fn a_device_that_goes_is_to_be_forgotten() {
        let text = removed(Step::GetRequest, about(Some("127.0.0.1:7"), None)).to_string();
        assert!(
            text.starts_with("rdma_get_request from 127.0.0.1:7 (via lo): DEVICE_REMOVAL came instead: "),
            "{text}"
        );
        assert!(text.contains("drop the id") && text.contains("Devices::forget"), "{text}");
    }

    /// Random EINVAL where the peer had given up already.
    #[test]
    fn a_refusal_names_state_and_last_event() {
        let mut about = about(None, None);
        (about.state, about.last_event) = (Some(State::Failed), Some(EventType::UNREACHABLE));
        let text = refused(Step::InitQpAttr, Errno::EINVAL, about).to_string();
        assert!(text.contains("the id is one that failed, its last event was UNREACHABLE"), "{text}");
    }
}
