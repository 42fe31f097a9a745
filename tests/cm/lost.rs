//! Packets of UDP port 4791 that are dropped, in one direction or both, during a handshake and during the end: each side is told
//! by its deadline, and nothing is left.

use crate::harness::step;
use crate::scene::{
    End, Scene, WITHIN, change_network, from_the_other_device, not_installed, nothing_is_left, objects, scene,
};
use crate::target::Target;
use crate::tests;
use ironverbs::Errno;
use ironverbs::rdma_cm::{Error, EventType, Handshake, Listener, Reason, Step};
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

tests! {
    nothing_passes_to_one_side_or_both,
}

const DEADLINE: Duration = Duration::from_millis(1000);

/// Drops the packets, until it is dropped itself.
struct Dropping;

impl Dropping {
    /// All, or those to one address.
    fn to(address: Option<IpAddr>) -> Self {
        change_network("nft", "add table ip lost");
        let dropping = Self;
        // Where they come in: a packet that is refused where it goes out puts Soft-RoCE's queue pair 1 into the error state.
        change_network("nft", "add chain ip lost in { type filter hook input priority 0 ; }");
        let to = address.map_or(String::new(), |address| format!("ip daddr {address} "));
        change_network("nft", &format!("add rule ip lost in {to}udp dport 4791 counter drop"));
        dropping
    }

    /// There were any.
    fn has_dropped(&self) -> bool {
        let listed = Command::new("nft").args(["list", "table", "ip", "lost"]).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        assert!(text.contains("counter packets "), "{text}");
        !text.contains("counter packets 0 ")
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        let _ = Command::new("nft").args(["delete", "table", "ip", "lost"]).status();
    }
}

/// The wait ended at its deadline, and says what it was for.
fn timed_out<T>(result: Result<T, Error>, wanted: Step, deadline: Duration, since: Instant) {
    let error = result.err().expect("nothing passes");
    assert!(matches!(&error, Error::Timeout { step, .. } if *step == wanted), "{error}");
    let text = error.to_string();
    assert!(
        text.contains(" (via net") && text.contains(&format!("nothing came within {} s: ", deadline.as_secs())),
        "{text}"
    );
    assert!(text.contains("does UDP port 4791 pass both ways?"), "{text}");
    let took = since.elapsed();
    assert!(took >= deadline && took < deadline + Duration::from_secs(10), "{took:?}");
}

/// A connection from the other device to this one.
fn pair(target: &Target, scene: &Scene, listener: &Listener) -> (ironverbs::rdma_cm::Connection, End) {
    let (route, prepared) = from_the_other_device(target, scene, 7536);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| scene.accept(listener, (1, 64), &Handshake::default()).unwrap());
        let client = route.connect(prepared, &Handshake::default(), WITHIN).unwrap();
        (client, server.join().unwrap())
    })
}

/// A client that is heard and does not hear gives up, which is heard. False if it did so before it was answered.
fn an_answer_is_lost(target: &Target, scene: &Scene, listener: &Listener, deadline: Duration) -> bool {
    let (route, prepared) = from_the_other_device(target, scene, 7536);
    let start = Instant::now();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            timed_out(route.connect(prepared, &Handshake::default(), deadline), Step::Connect, deadline, start)
        });
        let request = listener.request(WITHIN).unwrap().expect("it asks");
        let context = scene.devices.context_of(request.id()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
        let prepared = request.qp_builder(&pd, &cq, &cq).map(|builder| builder.build().unwrap());
        prepared.and_then(|prepared| request.accept(prepared, &Handshake::default(), WITHIN).map(drop)).unwrap_err()
    });
    if matches!(error, Error::Kernel { errno: Errno::EINVAL, .. }) && start.elapsed() >= deadline {
        return false;
    }
    assert!(matches!(error, Error::Failed { step: Step::Accept, event: EventType::REJECTED, .. }), "{error}");
    true
}

fn nothing_passes_to_one_side_or_both(target: &Target) {
    let here = scene(target);
    if Command::new("nft").arg("--version").output().is_err() {
        not_installed("nft", "nftables");
    }
    let before = objects(target);
    let listener = Listener::bind(here.at(7536)).unwrap();
    let (mut ending, mut told) = pair(target, &here, &listener);
    let (mut untold, mut ends) = pair(target, &here, &listener);
    let client = ending.link().addresses().local.unwrap().ip();

    step("what goes to the client is dropped");
    let dropping = Dropping::to(Some(client));
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| timed_out(ending.disconnect(DEADLINE), Step::Disconnect, DEADLINE, start));
        scope.spawn(|| timed_out(ends.connection.disconnect(DEADLINE), Step::Disconnect, DEADLINE, start));
        scope.spawn(|| assert_eq!(untold.link().wait_end(DEADLINE).unwrap(), None));
        // On a busy machine, who asks may have given up before the answer: then another one waits for longer.
        let lost = [DEADLINE, 20 * DEADLINE].into_iter().any(|time| an_answer_is_lost(target, &here, &listener, time));
        assert!(lost, "no answer in time");
        assert_eq!(told.connection.link().wait_end(WITHIN).unwrap(), Some(Reason::None));
    });
    assert!(dropping.has_dropped());
    drop(dropping);
    told.connection.disconnect(WITHIN).unwrap();
    // That side was never told; that the other one has gone is nothing that a program learns of, so it ends by itself.
    untold.disconnect(Duration::ZERO).err();

    step("everything is dropped");
    let (mut left, mut right) = pair(target, &here, &listener);
    let (route, prepared) = from_the_other_device(target, &here, 7536);
    let dropping = Dropping::to(None);
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| timed_out(left.disconnect(DEADLINE), Step::Disconnect, DEADLINE, start));
        scope.spawn(|| timed_out(right.connection.disconnect(DEADLINE), Step::Disconnect, DEADLINE, start));
        scope.spawn(|| {
            timed_out(route.connect(prepared, &Handshake::default(), DEADLINE), Step::Connect, DEADLINE, start)
        });
        assert!(listener.request(DEADLINE).unwrap().is_none(), "nobody is heard");
    });
    assert!(dropping.has_dropped());
    // Nor does anything stay that is dropped meanwhile.
    drop((ending, told, untold, ends, left, right, listener));
    nothing_is_left(target, &before);
}
