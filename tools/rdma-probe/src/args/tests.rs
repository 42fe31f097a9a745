//! The command line is read as documented.

use super::*;
use clap::CommandFactory;
use clap::error::ErrorKind;
use std::net::SocketAddrV6;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

fn ping(line: &str) -> Ping {
    match parse(line).unwrap().command {
        Command::Ping(ping) => ping,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_those_of_ibv_rc_pingpong() {
    let p = ping("rdma-probe ping");
    assert_eq!((p.port, p.size(), p.iters(), p.rx_depth, p.sl), (18515, 4096, 1000, 500, 0));
    assert_eq!((p.ib_port, p.events, p.check, p.host), (PortNum::ONE, false, false, None));
}

/// What they are started with unless told otherwise; both ends need the same.
#[test]
fn each_transport_has_the_defaults_of_its_c_tool() {
    for (transport, size, iters) in [("uc", 4096, 1000), ("ud", 1024, 1000), ("srq", 4096, 1000), ("xsrq", 4096, 5)] {
        let p = ping(&format!("rdma-probe ping -t {transport}"));
        assert_eq!((p.transport.to_string().as_str(), p.size(), p.iters()), (transport, size, iters));
        assert_eq!(ping(&format!("rdma-probe ping -t {transport} -n 7")).iters(), 7);
    }
}

#[test]
fn options_of_ibv_rc_pingpong_are_understood() {
    let short = ping("rdma-probe ping -d rxe0 -p 99 -i 2 -g 1 -s 64 -n 7 -r 3 -m 2048 -l 4 -e -c host");
    let long = ping(
        "rdma-probe ping --ib-dev=rxe0 --port=99 --ib-port=2 --gid-idx=1 --size=64 --iters=7 --rx-depth=3 --mtu=2048 \
         --sl=4 --events --chk host",
    );
    assert_eq!(format!("{short:?}"), format!("{long:?}"));
    assert_eq!((short.gid_index, short.mtu), (Some(1), Some(Mtu::B2048)));
    assert_eq!(short.host.as_deref(), Some("host"));
}

/// A shell gives one for a variable that is not set.
#[test]
fn an_empty_host_is_no_host() {
    let error = Cli::try_parse_from(["rdma-probe", "ping", ""]).unwrap_err();
    assert!(error.to_string().contains("[HOST]"), "{error}");
    assert_eq!(error.kind(), ErrorKind::InvalidValue);
}

#[test]
fn sizes() {
    for (text, bytes) in [("1", 1), ("64", 64), ("4k", 4096), ("1M", 1 << 20), ("2G", 1 << 31)] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for text in ["0", "", "k", "-1", "0x40", "2147483649", "3G", "18446744073709551615G", "ü"] {
        assert!(size(text).is_err(), "{text}");
    }
}

#[test]
fn deadlines_are_finite_and_positive() {
    assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
    for text in ["0", "-1", "nan", "inf", "1e9", "x"] {
        assert!(seconds(text).is_err(), "{text}");
    }
}

#[test]
fn wrong_values_are_usage_errors() {
    for line in [
        "rdma-probe",
        "rdma-probe frobnicate",
        "rdma-probe ping -i 0",
        "rdma-probe ping -m 1500",
        "rdma-probe ping -n 0",
        "rdma-probe ping -r 0",
        "rdma-probe ping -l 16",
        "rdma-probe ping -g 256",
        "rdma-probe ping -p 0",
        "rdma-probe ping host --loopback",
        "rdma-probe ping host --bind 0.0.0.0",
        "rdma-probe ping --bind fe80::1%no-such-link",
        "rdma-probe ping --bind localhost",
        "rdma-probe list extra",
    ] {
        let e = parse(line).unwrap_err();
        assert_eq!(e.exit_code(), 2, "{line}: {e}");
    }
    assert_eq!(parse("rdma-probe --help").unwrap_err().kind(), ErrorKind::DisplayHelp);
}

/// A link-local address says nothing without its link, which has a name and a number; `lo` is number 1 of any namespace.
#[test]
fn an_address_to_listen_on_may_have_a_link() {
    let bind = |address| ping(&format!("rdma-probe ping --bind {address}")).bind.unwrap();
    for text in ["fe80::1%lo", "fe80::1%1"] {
        assert_eq!(bind(text), SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, 1).into());
    }
    assert_eq!(bind("127.0.0.1"), "127.0.0.1:0".parse().unwrap());
    assert_eq!(bind("::"), "[::]:0".parse().unwrap());
    // What would have to be asked for elsewhere.
    for text in ["10.9.9.l", "localhost", "fe80::x%lo", "%lo", ""] {
        assert!(bind_address(text).is_err_and(|error| error.starts_with("no IP address")), "{text}");
    }
}

#[test]
fn a_simulated_link_is_roce_unless_said_otherwise() {
    let sim = |line| parse(line).unwrap().global.sim;
    assert_eq!(sim("rdma-probe list"), None);
    assert_eq!(sim("rdma-probe list --sim"), Some(SimLink::Roce));
    assert_eq!(sim("rdma-probe --sim=ib list"), Some(SimLink::Ib));
    // Without the equals sign, the next word is the host.
    assert_eq!(ping("rdma-probe ping --sim host").host.as_deref(), Some("host"));
    assert_eq!(ping("rdma-probe ping --trace host").host.as_deref(), Some("host"));
    assert_eq!(parse("rdma-probe list --sim=opa").unwrap_err().exit_code(), 2);
}

#[test]
fn json_goes_to_standard_output_or_a_file() {
    let json = |line| parse(line).unwrap().global.json;
    assert_eq!(json("rdma-probe list"), None);
    assert_eq!(json("rdma-probe list --json"), Some("-".into()));
    assert_eq!(json("rdma-probe --json list"), Some("-".into()));
    assert_eq!(json("rdma-probe info --json=out.json rxe0"), Some("out.json".into()));
    // The value needs the equals sign, so a device's name is never taken for a file.
    assert_eq!(json("rdma-probe info --json rxe0"), Some("-".into()));
}
