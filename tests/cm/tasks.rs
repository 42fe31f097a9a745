//! The same for tasks of tokio, on one thread.

use crate::scene::{Kit, WITHIN, nothing_is_left, objects, scene};
use crate::target::Target;
use crate::tests;
use ironverbs::Qpn;
use ironverbs::rdma_cm::{
    ConnParams, Connector, Error, EventChannel, EventType, Handshake, Listener, PortSpace, Reason, SendData,
};
use ironverbs::tokio::AsyncEventChannel;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

tests! {
    both_sides_on_one_thread,
    everybody_who_waits_is_told,
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

/// Tasks and a thread that wait for the end of one connection, or ask for it.
fn everybody_who_waits_is_told(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    for _ in 0..10 {
        let (client, server) = scene.pair(7594);
        let [client, server] = [&client, &server].map(|end| end.connection.link());
        std::thread::scope(|scope| {
            let threads = [client, server].map(|link| scope.spawn(move || link.wait_end(Duration::MAX).unwrap()));
            let (a, b, c, d, e) = on_one_thread(async {
                tokio::join!(client.ended(), server.ended(), client.ended(), server.ended(), client.disconnect_async())
            });
            let tasks = [a, b, c, d, e].map(Result::unwrap);
            assert_eq!(tasks, [Reason::None; 5]);
            assert_eq!(threads.map(|thread| thread.join().unwrap()), [Some(Reason::None); 2]);
        });
        for link in [client, server] {
            let told = format!("{:?}", link.id());
            assert!(told.contains("EventType(DISCONNECTED)"), "somebody has waited for what comes later: {told}");
        }
    }
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

/// Polls a future so many times and then drops it, at whatever it waits for.
async fn polled<T>(mut times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|task| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        match future.as_mut().poll(task) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if times == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Polls of a side from its beginning to its end, and some more for those that come too early.
const POLLS: usize = 10;
/// For one side to hear of the other's drop. Where it hears nothing, as of a peer that nobody reads, it is dropped, too.
const HEARD: Duration = Duration::from_millis(200);

/// Both sides of a connection, each dropped after any number of polls: nothing is left, and the listener goes on.
fn a_future_can_be_dropped_anywhere(target: &Target) {
    let scene = scene(target);
    let before = objects(target);
    let listener = Listener::bind(scene.at(7592)).unwrap();
    let mut dropped = BTreeSet::new();
    let mut ended = [0; 2];
    let dropped_at = (0..=POLLS).flat_map(|asks| (0..=POLLS).map(move |answers| (asks, answers)));
    // At last, neither is dropped, and however slow the machine is, both come to their end.
    for (asks, answers) in dropped_at.chain([(usize::MAX, usize::MAX)]) {
        let whole = asks == usize::MAX;
        let stages = [Cell::new("resolve_async"), Cell::new("request_async")];
        let client = async {
            let route = Connector::to(scene.at(7592)).resolve_async().await?;
            let kit = Kit::on(&scene.devices.context_of(route.id())?, 4, 64);
            let prepared = route.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
            stages[0].set("connect_async");
            let mut connection = route.connect_async(prepared, &Handshake::default()).await?;
            stages[0].set("connected");
            // For the other side to be so, too.
            loop {
                tokio::time::sleep(Duration::from_millis(30)).await;
                if !whole || stages[1].get() == "ended" {
                    break;
                }
            }
            stages[0].set("disconnect_async");
            connection.disconnect_async().await
        };
        let server = async {
            let request = listener.request_async().await?;
            let kit = Kit::on(&scene.devices.context_of(request.id())?, 4, 64);
            let prepared = request.qp_builder(&kit.pd, &kit.cq, &kit.cq)?.build().unwrap();
            stages[1].set("accept_async");
            let connection = request.accept_async(prepared, &Handshake::default()).await?;
            stages[1].set("ended");
            connection.link().ended().await
        };
        let heard = if whole { WITHIN } else { HEARD };
        let outcomes = on_one_thread(async {
            let (mut client, mut server) = (pin!(polled(asks, client)), pin!(polled(answers, server)));
            tokio::select! {
                client = &mut client => [client, timeout(heard, server).await.unwrap_or_default()],
                server = &mut server => [timeout(heard, client).await.unwrap_or_default(), server],
            }
        });
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                None => drop(dropped.insert(stages[n].get())),
                Some(Ok(_)) => ended[n] += 1,
                // The other side was dropped.
                Some(Err(error)) => assert!(!matches!(error, Error::Invalid { .. }), "{error}"),
            }
        }
        // Who asked and was dropped before it was heard is turned away here.
        while listener.request(Duration::ZERO).unwrap().is_some() {}
    }
    let all =
        ["accept_async", "connect_async", "connected", "disconnect_async", "ended", "request_async", "resolve_async"];
    assert!(dropped.iter().eq(&all), "dropped at {dropped:?} only");
    assert!(ended.iter().all(|n| *n > 0), "{ended:?} have come to their end");
    drop(listener);
    nothing_is_left(target, &before);
}
