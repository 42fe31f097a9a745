//! The same for tasks of tokio, on one thread.

use crate::scene::{Kit, WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::Qpn;
use ironverbs::rdma_cm::{
    ConnParams, Connector, EventChannel, EventType, Handshake, Listener, PortSpace, Reason, SendData,
};
use ironverbs::tokio::AsyncEventChannel;
use std::time::Duration;
use tokio::time::timeout;

tests! {
    both_sides_on_one_thread,
    an_event_loop_is_a_task,
    a_future_can_be_dropped_anywhere,
}

fn on_one_thread<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { timeout(WITHIN, future).await.expect("it ends in time") })
}

/// On any thread of a runtime.
fn can_be_spawned(_: &impl Send) {}

fn both_sides_on_one_thread(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7591)).unwrap();
    on_one_thread(async {
        let mut handshake = Handshake::default();
        handshake.private_data = SendData::counted(b"task");
        let server = async {
            let request = listener.request_async().await.unwrap();
            let kit = Kit::on(&scene.devices.context_of(request.id()).unwrap(), 4, 64);
            let prepared = request.qp_builder(&kit.pd, &kit.cq, &kit.cq).unwrap().build().unwrap();
            let connection = request.accept_async(prepared, &handshake).await.unwrap();
            let end = connection.link().ended().await.unwrap();
            (connection, end)
        };
        let client = async {
            let connector = Connector::to(scene.at(7591));
            let resolve = connector.resolve_async();
            can_be_spawned(&resolve);
            let route = resolve.await.unwrap();
            let kit = Kit::on(&scene.devices.context_of(route.id()).unwrap(), 4, 64);
            let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq).unwrap().build().unwrap();
            let connect = route.connect_async(prepared, &handshake);
            can_be_spawned(&connect);
            let mut connection = connect.await.unwrap();
            let end = connection.disconnect_async().await.unwrap();
            (connection, end)
        };
        let ((server, server_end), (client, client_end)) = tokio::join!(server, client);
        assert_eq!((server_end, client_end), (Reason::None, Reason::None));
        for connection in [&server, &client] {
            assert_eq!(connection.peer_data().counted(), Some(&b"task"[..]));
        }
    });
    drop(listener);
    nothing_is_left(target, &before);
}

/// Ids of both sides on one channel, by hand.
fn an_event_loop_is_a_task(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    on_one_thread(async {
        let events = AsyncEventChannel::new(EventChannel::open().unwrap()).unwrap();
        let [listener, client] = [(); 2].map(|()| events.get_ref().create_id(PortSpace::Tcp).unwrap());
        listener.bind(scene.at(7593)).unwrap();
        listener.listen(1).unwrap();
        client.resolve_addr(None, scene.at(7593), WITHIN).unwrap();
        let mut kinds = vec![];
        while kinds.last() != Some(&EventType::REJECTED) {
            let mut event = events.next().await.unwrap();
            kinds.push(event.event_type());
            match event.event_type() {
                EventType::ADDR_RESOLVED => client.resolve_route(WITHIN).unwrap(),
                EventType::ROUTE_RESOLVED => client.connect(&ConnParams::new(Qpn::new(17).unwrap())).unwrap(),
                EventType::CONNECT_REQUEST => event.take_request().unwrap().reject(SendData::NONE).unwrap(),
                _ => assert_eq!(event.id(), client.key()),
            }
        }
        let wanted =
            [EventType::ADDR_RESOLVED, EventType::ROUTE_RESOLVED, EventType::CONNECT_REQUEST, EventType::REJECTED];
        assert_eq!(kinds, wanted);
    });
    nothing_is_left(target, &before);
}

/// After so many microseconds, whatever it is at: nothing is left, and the listener goes on.
fn a_future_can_be_dropped_anywhere(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7592)).unwrap();
    on_one_thread(async {
        for n in 0..40_u64 {
            let pause = Duration::from_micros(n * 250);
            let client = async {
                let route = Connector::to(scene.at(7592)).resolve_async().await?;
                let kit = Kit::on(&scene.devices.context_of(route.id())?, 4, 64);
                let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
                route.connect_async(prepared, &Handshake::default()).await.map(drop)
            };
            let _ = tokio::join!(timeout(pause, client), timeout(pause, listener.request_async()));
        }
        // Those that asked and were dropped before they were heard are turned away here.
        while timeout(Duration::from_millis(200), listener.request_async()).await.is_ok() {}
    });
    drop(listener);
    nothing_is_left(target, &before);
}
