//! Channels and ids over a model of the kernel.

use super::abi::{ConnParam, Ece as RawEce, EventResp, UdParam};
use super::channel::EventChannel;
use super::data::SendData;
use super::error::{Error, Step};
use super::event::{Ece, EventType};
use super::fake::FakeCm;
use super::id::{CmId, ConnParams, PortSpace};
use super::multicast::Membership;
use super::reason::Reason;
use super::state::State;
use crate::uverbs::attr::QpState;
use crate::uverbs::device::DeviceIndex;
use crate::uverbs::errno::Errno;
use crate::uverbs::types::{PortNum, Qpn};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

fn channel() -> (FakeCm, EventChannel) {
    let cm = FakeCm::default();
    let channel = EventChannel::open_on(&cm).unwrap();
    (cm, channel)
}

fn id() -> (FakeCm, EventChannel, CmId) {
    let (cm, channel) = channel();
    let id = channel.create_id(PortSpace::Tcp).unwrap();
    cm.take_log();
    (cm, channel, id)
}

fn event(event: EventType, status: i32) -> EventResp {
    EventResp { event: event.0, status: status as u32, ..EventResp::default() }
}

fn params() -> ConnParams<'static> {
    ConnParams::new(Qpn::new(17).unwrap())
}

#[test]
fn every_port_space_is_created_and_dropped() {
    let (cm, channel) = channel();
    for (space, made) in [
        (PortSpace::Tcp, "create 0 space 0x106 type 2"),
        (PortSpace::Udp, "create 1 space 0x111 type 4"),
        (PortSpace::Ipoib, "create 2 space 0x2 type 4"),
        (PortSpace::IbRc, "create 3 space 0x13f type 2"),
        (PortSpace::IbUd, "create 4 space 0x13f type 4"),
    ] {
        let id = channel.create_id(space).unwrap();
        assert_eq!((id.state(), id.port_space()), (State::Idle, space));
        drop(id);
        assert_eq!(cm.take_log(), [made.to_owned(), made.replace("create", "destroy")[..9].to_owned()]);
    }
    assert!(cm.ids().is_empty());
}

#[test]
fn the_steps_of_a_connection_are_written() {
    let (cm, channel, id) = id();
    id.set_type_of_service(32).unwrap();
    id.set_reuse_addr(true).unwrap();
    id.set_ipv6_only(false).unwrap();
    id.set_ack_timeout(17).unwrap();
    id.bind("10.9.9.1:7471".parse().unwrap()).unwrap();
    assert_eq!(id.state(), State::Bound);
    id.resolve_addr(None, "10.9.9.2:7471".parse().unwrap(), Duration::from_millis(1500)).unwrap();
    cm.tell(0, event(EventType::ADDR_RESOLVED, 0));
    channel.drain(|_| ()).unwrap();
    id.resolve_route(Duration::ZERO).unwrap();
    cm.tell(0, event(EventType::ROUTE_RESOLVED, 0));
    channel.drain(|_| ()).unwrap();
    assert_eq!(id.state(), State::RouteResolved);
    let mut connect = params();
    connect.private_data = SendData::raw(b"hi");
    connect.ece = Ece { vendor_id: 0x15b3, attr_mod: 3 };
    id.connect(&connect).unwrap();
    cm.tell(0, event(EventType::CONNECT_RESPONSE, 0));
    channel.drain(|_| ()).unwrap();
    assert_eq!(id.state(), State::Answered);
    id.establish().unwrap();
    assert_eq!(id.state(), State::Established);
    id.notify(crate::AsyncEventType::COMM_EST).unwrap();
    id.disconnect().unwrap();
    assert_eq!(
        cm.take_log(),
        [
            "set_option 0 0.0 [32]",
            "set_option 0 0.1 [1, 0, 0, 0]",
            "set_option 0 0.2 [0, 0, 0, 0]",
            "set_option 0 0.3 [17]",
            "bind 0 [2, 0, 29, 47, 10, 9, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0]",
            "resolve_addr 0 ([], [2, 0, 29, 47, 10, 9, 9, 2, 0, 0, 0, 0, 0, 0, 0, 0]) 1500 ms",
            "resolve_route 0",
            "connect 0 [17, 5555, 3] [0, 1, 1, 1, 6, 6] [104, 105]",
            "establish 0",
            "notify 0 4",
            "disconnect 0",
        ]
    );
}

#[test]
fn what_the_kernel_knows_is_told() {
    let (cm, _channel, id) = id();
    let addresses = id.addresses().unwrap();
    assert_eq!(addresses.local, Some("10.9.9.1:7471".parse().unwrap()));
    assert_eq!((addresses.peer, addresses.device), (None, Some(DeviceIndex(7))));
    assert_eq!((addresses.port, addresses.pkey), (Some(PortNum::ONE), 0xffff));
    assert_eq!(addresses.node_guid.0, 0x0200_00ff_fe09_0901);
    assert_eq!(id.gids().unwrap().local.gid.0, [3; 16]);
    assert_eq!(id.paths().unwrap(), [[5; 64]]);
    assert_eq!(id.qp_attributes(QpState::RTR).unwrap().attr_mask, 0x0302_0100);
    assert_eq!(cm.take_log(), ["query 0 0", "query 0 2", "query 0 1", "init_qp_attr 0 state 2"]);
}

/// A kernel without the commands for addresses of any family has those for IP.
#[test]
fn an_older_kernel_is_asked_in_its_own_words() {
    let (cm, _channel, id) = id();
    cm.knows_below(19);
    let address = "10.9.9.1:7471".parse().unwrap();
    id.bind(address).unwrap();
    id.resolve_addr(Some(address), "10.9.9.2:9".parse().unwrap(), Duration::from_secs(1)).unwrap();
    let addresses = id.addresses().unwrap();
    assert_eq!((addresses.local, addresses.device), (Some(address), Some(DeviceIndex(7))));
    assert_eq!(
        cm.take_log(),
        ["bind_ip 0 [2, 0, 29, 47, 10, 9, 9, 1]", "resolve_ip 0 [2, 0, 0, 9, 10, 9, 9, 2] 1000 ms", "query_route 0",]
    );
}

/// Index 0 is a device's.
#[test]
fn a_device_that_is_not_told_is_none() {
    for older in [false, true] {
        let (cm, _channel, id) = id();
        cm.tells_no_device();
        if older {
            cm.knows_below(19);
        }
        let addresses = id.addresses().unwrap();
        assert_eq!((addresses.port, addresses.device), (Some(PortNum::ONE), None));
        assert_eq!(id.place().unwrap(), None);
    }
}

#[test]
fn a_channel_is_drained_and_then_is_not_readable() {
    let (cm, channel, id) = id();
    let readable = |timeout| {
        let deadline = Instant::now() + Duration::from_millis(timeout);
        crate::uverbs::event::wait_readable(channel.as_fd(), Some(deadline), crate::Verb::GetCmEvent).unwrap()
            == crate::uverbs::event::Wait::Ready
    };
    assert!(!readable(0));
    for _ in 0..3 {
        cm.tell(0, event(EventType::ADDR_CHANGE, 0));
    }
    assert!(readable(0));
    let mut seen = vec![];
    assert_eq!(channel.drain(|event| seen.push((event.id(), event.event_type()))).unwrap(), 3);
    assert_eq!(seen, [(id.key(), EventType::ADDR_CHANGE); 3]);
    assert!(!readable(0));
    assert_eq!(channel.drain(|_| ()).unwrap(), 0);
}

#[test]
fn a_wait_ends_with_the_event_or_the_deadline() {
    let (cm, channel, _id) = id();
    let start = Instant::now();
    assert!(channel.next(Duration::from_millis(20)).unwrap().is_none());
    assert!(start.elapsed() >= Duration::from_millis(20));
    let waiter = std::thread::spawn(move || channel.next(Duration::from_secs(60)).unwrap());
    std::thread::sleep(Duration::from_millis(20));
    cm.tell(0, event(EventType::UNREACHABLE, -110));
    let event = waiter.join().unwrap().unwrap();
    assert_eq!((event.event_type(), event.reason()), (EventType::UNREACHABLE, Reason::Errno(Errno::ETIMEDOUT)));
}

/// Who waits without end has the file wait, and holds up nobody who only looks.
#[test]
fn a_wait_without_end_holds_nobody_up() {
    let (cm, channel, id) = id();
    cm.take_log();
    let wait = |channel: &EventChannel| {
        let channel = channel.clone();
        std::thread::spawn(move || channel.next(Duration::MAX).unwrap().unwrap().event_type())
    };
    for round in 0..20 {
        let waiters = [wait(&channel), wait(&channel)];
        while !cm.take_log().contains(&"waits true".to_owned()) {
            std::thread::yield_now();
        }
        assert!(channel.try_next().unwrap().is_none(), "round {round}");
        assert!(channel.next(Duration::from_millis(1)).unwrap().is_none());
        for _ in 0..3 {
            cm.tell(0, event(EventType::ADDR_CHANGE, 0));
        }
        // One is left by both, and is not overlooked.
        let left = channel.next(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(left.id(), id.key());
        assert_eq!(waiters.map(|waiter| waiter.join().unwrap()), [EventType::ADDR_CHANGE; 2]);
        assert!(channel.try_next().unwrap().is_none(), "the file does not wait any more");
    }
}

#[test]
fn a_wait_without_end_polls_a_file_that_cannot_wait() {
    let (cm, channel, _id) = id();
    cm.never_wait();
    let waiter = std::thread::spawn(move || channel.next(Duration::MAX).unwrap());
    std::thread::sleep(Duration::from_millis(5));
    cm.tell(0, event(EventType::UNREACHABLE, -110));
    assert_eq!(waiter.join().unwrap().unwrap().event_type(), EventType::UNREACHABLE);
}

#[test]
fn a_request_owns_its_id() {
    let (cm, channel, listener) = id();
    listener.bind("0.0.0.0:7471".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let mut asked = EventResp { ece: RawEce { vendor_id: 1, attr_mod: 2 }, ..EventResp::default() };
    let mut conn = ConnParam { private_data_len: 56, responder_resources: 4, qp_num: 0x1234, ..ConnParam::default() };
    conn.private_data[..3].copy_from_slice(&[2, 8, 9]);
    asked.param = conn.into();
    for _ in 0..2 {
        cm.ask(0, asked);
    }
    // Dropped with the event, the first is turned away.
    let first = channel.try_next().unwrap().unwrap();
    assert_eq!((first.id(), first.event_type()), (listener.key(), EventType::CONNECT_REQUEST));
    drop(first);
    assert_eq!(cm.ids(), [0, 2]);
    let mut second = channel.try_next().unwrap().unwrap();
    assert_eq!(second.ece(), Ece { vendor_id: 1, attr_mod: 2 });
    let request = second.take_request().unwrap();
    assert!(second.take_request().is_none());
    let peer = second.peer().unwrap();
    assert_eq!((peer.qpn, peer.responder_resources, peer.private_data.padded().len()), (0x1234, 4, 56));
    assert_eq!(peer.private_data.counted(), Some(&[8, 9][..]));
    assert!(second.datagram_peer().is_none());
    // Events of the new id before it is accepted are not told.
    cm.tell(2, event(EventType::DISCONNECTED, 0));
    assert!(channel.try_next().unwrap().is_none());
    assert_eq!(request.state(), State::Requested);
    request.accept(&params()).unwrap();
    assert_eq!((request.state(), cm.uid(2) == 0), (State::Accepted, false));
    cm.tell(2, event(EventType::ESTABLISHED, 0));
    assert_eq!(channel.try_next().unwrap().unwrap().id(), request.key());
    assert_eq!(request.state(), State::Established);
    assert_eq!(listener.state(), State::Listening);
}

#[test]
fn datagrams_tell_where_they_go() {
    let (cm, channel) = channel();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    let mut ud = UdParam { qp_num: 0x77, qkey: 0x0123_4567, private_data_len: 136, ..UdParam::default() };
    (ud.ah_attr.is_global, ud.ah_attr.port_num, ud.ah_attr.grh.dgid) = (1, 1, [9; 16]);
    cm.tell(0, EventResp { param: ud.into(), ..event(EventType::ESTABLISHED, 0) });
    let told = channel.try_next().unwrap().unwrap();
    let peer = told.datagram_peer().unwrap();
    assert_eq!((peer.qpn, peer.qkey.0, peer.private_data.padded().len()), (0x77, 0x0123_4567, 136));
    assert_eq!((peer.address.dgid.0, peer.address.is_global, peer.address.port_num), ([9; 16], true, 1));
    assert!(told.peer().is_none());
    assert_eq!(id.state(), State::Established);
}

/// A listener that goes before its requests are read, and one that goes while another thread reads one.
#[test]
fn a_request_for_nobody_is_turned_away() {
    let (cm, channel, listener) = id();
    let unread = cm.ask(0, EventResp::default());
    let uid = cm.uid(0);
    drop(listener);
    assert!(!cm.ids().contains(&unread), "the kernel turns away what was not read");
    let orphan = cm.orphan();
    cm.tell_raw(EventResp { uid, id: orphan, ..event(EventType::CONNECT_REQUEST, 0) });
    assert!(channel.try_next().unwrap().is_none());
    assert!(cm.ids().is_empty());
}

#[test]
fn an_id_may_be_dropped_while_its_event_is_handled() {
    let (cm, channel, id) = id();
    for _ in 0..3 {
        cm.tell(0, event(EventType::DISCONNECTED, 0));
    }
    let mut id = Some(id);
    let mut n_events = 0;
    channel
        .drain(|event| {
            n_events += 1;
            assert_eq!(event.event_type(), EventType::DISCONNECTED);
            drop(id.take());
        })
        .unwrap();
    assert_eq!(n_events, 1, "what was not read yet is gone with it");
    assert!(cm.ids().is_empty());
}

/// What another thread read before an id was dropped finds nobody.
#[test]
fn an_event_of_nobody_is_passed_over() {
    let (cm, channel, id) = id();
    let uid = cm.uid(0);
    drop(id);
    let other = channel.create_id(PortSpace::Tcp).unwrap();
    cm.tell_raw(EventResp { uid, ..event(EventType::ESTABLISHED, 0) });
    cm.tell(1, event(EventType::ADDR_RESOLVED, 0));
    let told = channel.try_next().unwrap().unwrap();
    assert_eq!((told.id(), told.event_type()), (other.key(), EventType::ADDR_RESOLVED));
    assert!(channel.try_next().unwrap().is_none());
}

#[test]
fn a_group_is_joined_and_left() {
    let (cm, channel) = channel();
    let id = channel.create_id(PortSpace::Udp).unwrap();
    cm.take_log();
    let address = "239.1.2.3:0".parse().unwrap();
    let group = id.join_multicast(address, Membership::SendOnly).unwrap();
    cm.tell_raw(EventResp { uid: cm.uid(0), id: 70, ..event(EventType::MULTICAST_JOIN, 0) });
    let told = channel.try_next().unwrap().unwrap();
    assert!(group.is_of(&told) && told.id() == id.key());
    cm.tell(0, event(EventType::ADDR_CHANGE, 0));
    assert!(!group.is_of(&channel.try_next().unwrap().unwrap()));
    id.leave_multicast(group).unwrap();
    cm.knows_below(19);
    id.join_multicast(address, Membership::Full).unwrap();
    assert_eq!(id.join_multicast(address, Membership::SendOnly).unwrap_err().errno(), Some(Errno::EINVAL));
    assert_eq!(
        cm.take_log(),
        [
            "join 0 flags 1 [2, 0, 0, 0, 239, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0]",
            "leave 70",
            "join_ip 0 [2, 0, 0, 0, 239, 1, 2, 3]",
        ]
    );
}

#[test]
fn an_id_moves_with_its_events() {
    let (cm, old, id) = id();
    let new = EventChannel::open_on(&cm).unwrap();
    cm.tell(0, event(EventType::ADDR_RESOLVED, 0));
    id.migrate(&new).unwrap();
    id.migrate(&new).unwrap();
    assert_eq!(cm.take_log(), ["migrate 0"], "it is there already");
    assert!(old.try_next().unwrap().is_none());
    let told = crate::uverbs::event::wait_readable(new.as_fd(), Some(Instant::now()), crate::Verb::GetCmEvent).unwrap();
    assert_eq!(told, crate::uverbs::event::Wait::Ready, "who polls now finds it");
    assert_eq!(new.try_next().unwrap().unwrap().id(), id.key());
    drop(old);
    id.resolve_route(Duration::from_secs(1)).unwrap();
    drop(new);
    drop(id);
    assert_eq!(cm.take_log(), ["resolve_route 0", "destroy 0"]);
}

/// Who sleeps in the kernel is not woken by it, and does not keep it from others either; the next event that is told is his.
#[test]
fn what_an_id_brings_is_there_for_who_looks_though_another_waits() {
    let (cm, old, id) = id();
    let new = EventChannel::open_on(&cm).unwrap();
    let resident = new.create_id(PortSpace::Tcp).unwrap();
    let looks: [fn(&EventChannel) -> usize; 3] = [
        |channel| channel.drain(drop).unwrap(),
        |channel| channel.next(Duration::from_secs(60)).unwrap().into_iter().count(),
        |channel| channel.next(Duration::ZERO).unwrap().into_iter().count(),
    ];
    for look in looks {
        id.migrate(&old).unwrap();
        cm.tell(0, event(EventType::ADDR_RESOLVED, 0));
        let waiter = {
            let new = new.clone();
            std::thread::spawn(move || new.next(Duration::MAX).unwrap().unwrap().id())
        };
        cm.until_sleeping(1);
        id.migrate(&new).unwrap();
        assert_eq!(look(&new), 1);
        assert_eq!(id.state(), State::AddrResolved);
        cm.until_sleeping(1);
        cm.tell(1, event(EventType::ADDR_CHANGE, 0));
        assert_eq!(waiter.join().unwrap(), resident.key());
    }
}

/// Where no file is left for a bell.
#[test]
fn a_wait_for_an_id_that_nobody_can_wake_ends_all_the_same() {
    let (cm, channel, id) = id();
    let soon = |time| Some(Instant::now() + Duration::from_millis(time));
    assert!(channel.next_in_slices(soon(50), &id, State::is_over).unwrap().is_none(), "the deadline");
    cm.tell(0, event(EventType::ADDR_CHANGE, 0));
    let told = channel.next_in_slices(soon(60_000), &id, State::is_over).unwrap().unwrap();
    assert_eq!(told.event_type(), EventType::ADDR_CHANGE);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| channel.next_in_slices(None, &id, State::is_over).unwrap());
        std::thread::sleep(Duration::from_millis(5));
        // As if another had read it on its way here.
        let other = EventChannel::open_on(&cm).unwrap();
        id.migrate(&other).unwrap();
        cm.tell(0, event(EventType::DISCONNECTED, 0));
        assert_eq!(other.drain(drop).unwrap(), 1);
        assert!(waits.join().unwrap().is_none(), "it is over");
    });
}

/// Of a queue pair on RoCE, the GID is where the kernel has the id, and not where the program would have had it.
#[test]
fn an_address_that_the_kernel_refuses_is_not_taken_for_the_ids_own() {
    let (cm, _channel, id) = id();
    assert_eq!(id.gid_ip(), None);
    id.place().unwrap();
    let own = Some("10.9.9.1".parse().unwrap());
    assert_eq!(id.gid_ip(), own);
    let other = "10.9.9.9:7".parse().unwrap();
    cm.refuse(20, Errno::EADDRNOTAVAIL);
    id.bind(other).unwrap_err();
    cm.refuse(21, Errno::EADDRNOTAVAIL);
    id.resolve_addr(Some(other), other, Duration::from_secs(1)).unwrap_err();
    assert_eq!(id.gid_ip(), own);
}

/// Reject with none, one and the most; more never reaches the kernel.
#[test]
fn private_data_has_a_limit_for_each_message() {
    for (space, request, reply, reject) in [(PortSpace::Tcp, 56, 196, 148), (PortSpace::Udp, 180, 136, 136)] {
        let (cm, channel) = channel();
        let id = channel.create_id(space).unwrap();
        type Send<'a> = &'a dyn Fn(SendData<'_>) -> Result<(), Error>;
        let steps: [(usize, Send<'_>); 3] = [
            (request, &|private_data| id.connect(&ConnParams { private_data, ..params() })),
            (reply, &|private_data| id.accept(&ConnParams { private_data, ..params() })),
            (reject, &|private_data| id.reject(private_data)),
        ];
        for (limit, send) in steps {
            let bytes = vec![0x5a; limit + 1];
            for len in [0, 1, limit] {
                cm.take_log();
                send(SendData::raw(&bytes[..len])).unwrap();
                assert!(cm.take_log()[0].ends_with(&format!("{:?}", &bytes[..len])));
            }
            let error = send(SendData::raw(&bytes)).unwrap_err();
            assert!(matches!(error, Error::Invalid { what: "private data", .. }), "{error}");
            assert!(error.to_string().contains(&format!("has room for {limit} bytes")), "{error}");
            assert!(cm.take_log().is_empty());
        }
    }
}

#[test]
fn counts_beyond_their_field_are_refused() {
    let (cm, _channel, id) = id();
    for params in [ConnParams { retry_count: 8, ..params() }, ConnParams { rnr_retry_count: 8, ..params() }] {
        assert!(id.connect(&params).unwrap_err().to_string().contains("is 8; at most 7"));
    }
    assert!(id.set_ack_timeout(32).unwrap_err().to_string().contains("codes 0 to 31"));
    assert!(cm.take_log().is_empty());
}

#[test]
fn every_refusal_keeps_its_errno_and_names_its_step() {
    let address = "10.9.9.1:7471".parse().unwrap();
    let timeout = Duration::from_secs(1);
    type Run = fn(&CmId, std::net::SocketAddr, Duration) -> Result<(), Error>;
    let steps: [(Step, u32, Run); 13] = [
        (Step::Bind, 20, |id, address, _| id.bind(address)),
        (Step::ResolveAddr, 21, |id, address, timeout| id.resolve_addr(None, address, timeout)),
        (Step::ResolveRoute, 4, |id, _, timeout| id.resolve_route(timeout)),
        (Step::Listen, 7, |id, _, _| id.listen(1)),
        (Step::Connect, 6, |id, _, _| id.connect(&params())),
        (Step::Accept, 8, |id, _, _| id.accept(&params())),
        (Step::Establish, 8, |id, _, _| id.establish()),
        (Step::Reject, 9, |id, _, _| id.reject(SendData::NONE)),
        (Step::Disconnect, 10, |id, _, _| id.disconnect()),
        (Step::Notify, 15, |id, _, _| id.notify(crate::AsyncEventType::COMM_EST)),
        (Step::SetOption, 14, |id, _, _| id.set_type_of_service(0)),
        (Step::Query, 19, |id, _, _| id.addresses().map(drop)),
        (Step::InitQpAttr, 11, |id, _, _| id.qp_attributes(QpState::INIT).map(drop)),
    ];
    for (step, command, run) in steps {
        for errno in [Errno::EPERM, Errno::ENOMEM, Errno::EISCONN, Errno::ENOBUFS] {
            let (cm, _channel, id) = id();
            cm.refuse(command, errno);
            let error = run(&id, address, timeout).unwrap_err();
            assert_eq!((error.errno(), error.step()), (Some(errno), Some(step)), "{error}");
            assert_eq!(id.state(), State::Idle, "a step that was refused changes nothing");
            assert!(error.to_string().starts_with(step.name()), "{error}");
        }
    }
}

/// The same number stands for two things: a privileged port, and a process that is another user's by now.
#[test]
fn other_credentials_are_told_from_a_privileged_port() {
    let (cm, channel, id) = id();
    cm.refuse(20, Errno::EACCES);
    let error = id.bind("10.9.9.1:7".parse().unwrap()).unwrap_err();
    assert!(error.to_string().contains("port 7 is a privileged one"), "{error}");
    cm.lock_out(true);
    let error = id.bind("10.9.9.1:7".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::OtherCredentials { step: Step::Bind }), "{error}");
    assert_eq!(error.errno(), Some(Errno::EACCES));
    assert!(matches!(channel.try_next(), Err(Error::OtherCredentials { step: Step::GetEvent })));
    assert!(matches!(channel.create_id(PortSpace::Tcp), Err(Error::OtherCredentials { .. })));
    let (error, id) = id.close().unwrap_err();
    assert!(matches!(error, Error::OtherCredentials { step: Step::DestroyId }), "{error}");
    drop(id);
    assert_eq!(cm.ids(), [0], "what cannot be destroyed lasts until the file is closed");
    cm.lock_out(false);
    drop(channel);
    assert!(cm.ids().is_empty());
}

/// Every order of events, commands, moves and drops is survived, and leaves nothing behind.
#[test]
fn any_order_of_events_is_survived() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let cm = FakeCm::default();
        let channels = [(); 2].map(|()| EventChannel::open_on(&cm).unwrap());
        let mut ids: Vec<CmId> = vec![];
        let mut over = std::collections::BTreeMap::new();
        for _ in 0..200 {
            let channel = &channels[random.usize(..2)];
            let number = random.choice(cm.ids());
            match random.u32(..10) {
                0 => ids.push(channel.create_id(random.choice([PortSpace::Tcp, PortSpace::Udp]).unwrap()).unwrap()),
                1 if !ids.is_empty() => drop(ids.swap_remove(random.usize(..ids.len()))),
                2 if !ids.is_empty() => {
                    // Requests that wait stay with the channel that they came on.
                    for channel in &channels {
                        channel.drain(drop).unwrap();
                    }
                    ids[random.usize(..ids.len())].migrate(channel).unwrap();
                }
                3 if let Some(number) = number => drop(cm.ask(number, EventResp::default())),
                4 if !ids.is_empty() => {
                    let id = &ids[random.usize(..ids.len())];
                    let _ = match random.u32(..5) {
                        0 => id.accept(&params()),
                        1 => id.establish(),
                        2 => id.reject(SendData::NONE),
                        3 => id.disconnect(),
                        _ => id.connect(&params()),
                    };
                }
                5..8 => {
                    if let Some(number) = number {
                        // Requests come by `ask`, since each brings a new id.
                        let told = if random.bool() { random.u32(..4) } else { random.u32(5..17) };
                        cm.tell(number, event(EventType(told), random.i32(-120..40)));
                    }
                }
                _ => {
                    channel
                        .drain(|mut event| {
                            let _ = event.reason().to_string();
                            if random.bool() {
                                ids.extend(event.take_request());
                            }
                        })
                        .unwrap();
                }
            }
            for id in &ids {
                let gone = id.state() == State::DeviceRemoved;
                let before = over.insert(id.key(), gone);
                assert!(gone || before != Some(true), "seed {seed}: a device came back");
            }
        }
        drop(ids);
        for channel in &channels {
            channel.drain(drop).unwrap();
        }
        assert!(cm.ids().is_empty(), "seed {seed}: {:?}", cm.ids());
    }
}
