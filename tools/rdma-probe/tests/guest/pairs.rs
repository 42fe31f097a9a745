//! Two devices with a network between them: `IRONVERBS_TEST_PEER` names the second one.

use crate::Test;
use crate::itself::transports;
use crate::own_device::{must, sh};
use crate::support::{Device, Run, fresh_port, skip, until_listening};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

pub const TESTS: &[Test] = &[
    ("pairs::a_gid_that_does_not_answer", no_answer),
    ("pairs::a_gid_to_which_no_route_leads", no_route),
    ("pairs::links_with_different_mtus", different_mtus),
    ("pairs::a_link_that_loses_messages", lossy_link),
];

fn peer() -> String {
    match std::env::var("IRONVERBS_TEST_PEER") {
        Ok(peer) if !peer.is_empty() => peer,
        _ => skip("IRONVERBS_TEST_PEER names no second device"),
    }
}

/// Our server, told by a client that it is at that IPv4 address.
fn server_told(device: &Device, ip: [u8; 4]) -> crate::support::Ended {
    let port = fresh_port();
    let server = Run::start_probe(["ping", "-d", &device.name, "-p", &port, "--timeout", "2"]);
    until_listening(&port);
    let mut tcp = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let [a, b, c, d] = ip;
    let record = format!("0000:000011:000001:00000000000000000000ffff{a:02x}{b:02x}{c:02x}{d:02x}\0");
    tcp.write_all(record.as_bytes()).unwrap();
    let _ = tcp.read_to_end(&mut Vec::new());
    server.end()
}

/// The kernel asks for the link address while the queue pair is moved to RTR, and nobody answers.
fn no_answer(device: &Device) {
    peer();
    let ended = server_told(device, [10, 9, 9, 253]);
    let ended = ended.expect_failure(5, &["modify_qp", "::ffff:10.9.9.253", "::ffff:10.9.9.1", "GID index", "4791"]);
    assert!(ended.took < Duration::from_secs(60), "{ended:#?}");
}

fn no_route(device: &Device) {
    peer();
    must("ip route add unreachable 203.0.113.0/24");
    let ended = server_told(device, [203, 0, 113, 1]);
    let _ = sh("ip route del unreachable 203.0.113.0/24");
    ended.expect_failure(5, &["modify_qp", "::ffff:203.0.113.1", "::ffff:10.9.9.1", "GID index"]);
}

/// Puts the links' MTU back.
struct Mtu(&'static str);

impl Drop for Mtu {
    fn drop(&mut self) {
        let _ = sh(&format!("ip link set {} mtu 1500", self.0));
    }
}

/// One end could send packets that the other one's link cannot carry, and Soft-RoCE would.
fn different_mtus(device: &Device) {
    let peer = peer();
    let _back = Mtu("net1");
    must("ip link set net1 mtu 4200");
    let ping = |size: &str, timeout: &str, server: &[&str], client: &[&str]| {
        let port = fresh_port();
        let common = ["ping", "-p", &port, "-s", size, "-n", "4", "-c", "--timeout", timeout];
        let server = Run::start_probe([&common, server].concat());
        until_listening(&port);
        let client = Run::probe([&common, client, &["127.0.0.1"]].concat());
        (server.end(), client)
    };
    let (small, large) = (["-d", device.name.as_str()], ["-d", peer.as_str()]);
    for (server, client) in [(small, large), (large, small)] {
        let (server, client) = ping("1M", "20", &server, &client);
        server.expect(0);
        client.expect(0);
    }
    // Asking for more than the link has is refused here; the device would not.
    Run::probe(["ping", "--loopback", "-d", &device.name, "-m", "4096"]).expect_failure(2, &["--mtu", "4096", "1024"]);
    // The other end can do it, but the packets do not arrive: the failure says where to look.
    // A message of few packets: one that takes longer to send than the wait for an acknowledgement is begun anew before its end, again
    // and again, and in Linux 6.1 the processor never leaves the system call that posted it.
    let (server, client) = ping("16K", "5", &small, &[&large[..], &["-m", "4096"]].concat());
    let code = client.status.code().unwrap_or_default();
    assert!(code == 5 || code == 7, "{client:#?}");
    client.expect_failure(code, &["--mtu"]);
    server.expect(5);
}

/// A reliable connection gets over it; on the others one lost message ends the ping, in time and with the reason.
fn lossy_link(device: &Device) {
    struct Lossy;
    impl Drop for Lossy {
        fn drop(&mut self) {
            let _ = sh("tc qdisc del dev net0 root");
        }
    }
    let peer = peer();
    let _lossy = Lossy;
    must("tc qdisc add dev net0 root netem loss 20%");
    for transport in transports(device) {
        let port = fresh_port();
        let common = ["ping", "-p", &port, "-s", "64", "-n", "200", "-c", "--timeout", "10", "-t", transport];
        let server = Run::start_probe([&common[..], &["-d", &device.name]].concat());
        until_listening(&port);
        let client = Run::probe([&common[..], &["-d", &peer, "127.0.0.1"]].concat());
        let server = server.end();
        if ["rc", "srq", "xsrq"].contains(&transport) {
            client.expect(0);
            server.expect(0);
        } else {
            for end in [client, server] {
                let end = end.expect_failure(5, &["does not send again what is lost"]);
                assert!(end.took < Duration::from_secs(30), "{end:#?}");
            }
        }
    }
}
