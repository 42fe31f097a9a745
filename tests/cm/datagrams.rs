//! Services of datagrams and multicast groups, with the library on every side.

use crate::scene::{Kit, Scene, WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::rdma_cm::{
    CmId, ConnParams, EventChannel, EventType, Membership, PortSpace, Reason, SendData, SidrStatus,
};
use ironverbs::{AddressHandle, Any, Datagram, Errno, GRH_BYTES, Lid, QKey, Qp, QpBuilder, Qpn, Ud};
use std::net::SocketAddr;

tests! {
    a_service_is_resolved_and_answers,
    a_service_that_is_not_there_or_turns_away,
    the_services_of_ip_over_infiniband_are_its_own,
    a_group_is_joined_by_all,
}

/// Longest message.
const ROOM: usize = 256;

/// An id of datagrams with a queue pair that has receives.
pub struct Port {
    pub id: CmId,
    pub qp: Qp<Any, Ud>,
    pub kit: Kit,
}

impl Port {
    pub fn of(scene: &Scene, id: CmId, n_receives: u32) -> Self {
        let kit = Kit::on(&scene.devices.context_of(&id).unwrap(), 2 * n_receives, ROOM + GRH_BYTES);
        let builder = QpBuilder::ud(&kit.pd, &kit.cq, &kit.cq).max_recv_wr(n_receives);
        let mut prepared = builder.on_id(&id).unwrap().build().unwrap();
        for _ in 0..n_receives {
            prepared.recv_slot(kit.pool.take().unwrap()).unwrap();
        }
        let qp = prepared.activate().unwrap();
        Self { id, qp, kit }
    }

    pub fn params(&self) -> ConnParams<'static> {
        ConnParams::new(self.qp.qpn())
    }

    pub fn send(&mut self, bytes: &[u8], ah: &AddressHandle, qpn: Qpn, qkey: QKey) {
        let mut slot = self.kit.pool.take().unwrap();
        slot[..bytes.len()].copy_from_slice(bytes);
        self.qp.send_slot_to(slot, bytes.len() as u32, ah.to(qpn, qkey)).unwrap();
    }
}

/// The next event of an id's channel, which must be that.
pub fn next(id: &CmId, wanted: EventType) -> ironverbs::rdma_cm::Event {
    let event = id.channel().next(WITHIN).unwrap().expect("an event comes in time");
    assert_eq!(event.event_type(), wanted, "{event:?}");
    event
}

/// An id, resolved to that address.
pub fn resolved(to: SocketAddr, space: PortSpace) -> CmId {
    let id = EventChannel::open().unwrap().create_id(space).unwrap();
    id.resolve_addr(None, to, WITHIN).unwrap();
    next(&id, EventType::ADDR_RESOLVED);
    id.resolve_route(WITHIN).unwrap();
    next(&id, EventType::ROUTE_RESOLVED);
    id
}

pub fn listening(at: SocketAddr, space: PortSpace) -> CmId {
    let id = EventChannel::open().unwrap().create_id(space).unwrap();
    id.bind(at).unwrap();
    id.listen(0).unwrap();
    id
}

fn a_service_is_resolved_and_answers(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    for (port, space) in [(7541, PortSpace::Udp), (7542, PortSpace::IbUd)] {
        let listener = listening(scene.at(port), space);
        let mut client = Port::of(&scene, resolved(scene.at(port), space), 4);
        let mut params = client.params();
        let most = [7; 180];
        params.private_data = SendData::raw(&most);
        client.id.connect(&params).unwrap();
        let mut event = next(&listener, EventType::CONNECT_REQUEST);
        assert_eq!(event.private_data().padded(), most);
        let server = Port::of(&scene, event.take_request().unwrap(), 4);
        let mut params = server.params();
        params.private_data = SendData::counted(b"welcome");
        server.id.accept(&params).unwrap();
        let event = next(&client.id, EventType::ESTABLISHED);
        let peer = event.datagram_peer().unwrap();
        assert_eq!(peer.private_data.counted(), Some(&b"welcome"[..]));
        assert_eq!((peer.qpn, peer.qkey), (server.qp.qpn().get(), QKey(0x0123_4567)));
        let ah = client.kit.pd.create_ah(&peer.path().unwrap()).unwrap();
        client.send(b"are you there?", &ah, server.qp.qpn(), peer.qkey);
        client.kit.completion();
        let mut server = server;
        let (slot, wc) = server.kit.completion();
        let datagram = Datagram::new(&slot, &wc).unwrap();
        assert_eq!(datagram.payload, b"are you there?");
        let back = server.qp.create_ah_from(&wc, &datagram).unwrap();
        server.send(b"yes", &back, client.qp.qpn(), peer.qkey);
        server.kit.completion();
        let (slot, wc) = client.kit.completion();
        assert_eq!(Datagram::new(&slot, &wc).unwrap().payload, b"yes");
    }
    nothing_is_left(target, &before);
}

fn a_service_that_is_not_there_or_turns_away(target: &Target) {
    let scene = scene(target);
    let client = Port::of(&scene, resolved(scene.at(7543), PortSpace::Udp), 1);
    client.id.connect(&client.params()).unwrap();
    let event = next(&client.id, EventType::UNREACHABLE);
    assert_eq!(event.reason(), Reason::Unresolved(SidrStatus::UNSUPPORTED));
    let listener = listening(scene.at(7543), PortSpace::Udp);
    let client = Port::of(&scene, resolved(scene.at(7543), PortSpace::Udp), 1);
    client.id.connect(&client.params()).unwrap();
    let request = next(&listener, EventType::CONNECT_REQUEST).take_request().unwrap();
    request.reject(SendData::counted(b"full")).unwrap();
    let event = next(&client.id, EventType::UNREACHABLE);
    assert_eq!(event.reason(), Reason::Unresolved(SidrStatus::REJECT));
    assert_eq!(event.private_data().counted(), Some(&b"full"[..]));
}

fn the_services_of_ip_over_infiniband_are_its_own(target: &Target) {
    let scene = scene(target);
    let id = EventChannel::open().unwrap().create_id(PortSpace::Ipoib).unwrap();
    let error = id.bind(scene.at(7545)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::EINVAL), "{error}");
}

/// Bound to the device's address, an id joins a group: the event tells where its datagrams go.
fn a_group_is_joined_by_all(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let group: SocketAddr = "239.77.1.2:0".parse().unwrap();
    let mut members: Vec<_> = [Membership::Full, Membership::Full, Membership::SendOnly]
        .into_iter()
        .map(|membership| {
            let id = EventChannel::open().unwrap().create_id(PortSpace::Udp).unwrap();
            id.bind(scene.at(0)).unwrap();
            let port = Port::of(&scene, id, 4);
            let joined = port.id.join_multicast(group, membership).unwrap();
            let event = next(&port.id, EventType::MULTICAST_JOIN);
            assert!(joined.is_of(&event));
            let peer = event.datagram_peer().unwrap().clone();
            assert_eq!(peer.qpn, Qpn::MULTICAST.get());
            if membership == Membership::Full {
                port.qp.attach_mcast(peer.address.dgid, Lid(0)).unwrap();
            }
            (port, joined, peer)
        })
        .collect();
    let (mut sender, joined, peer) = members.pop().unwrap();
    let ah = sender.kit.pd.create_ah(&peer.path().unwrap()).unwrap();
    sender.send(b"to all", &ah, Qpn::MULTICAST, peer.qkey);
    for (port, _, _) in &mut members {
        let (slot, wc) = port.kit.completion();
        assert_eq!(Datagram::new(&slot, &wc).unwrap().payload, b"to all");
    }
    sender.id.leave_multicast(joined).unwrap();
    drop((sender, members, ah));
    nothing_is_left(target, &before);
}
