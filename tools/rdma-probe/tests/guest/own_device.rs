//! Soft-RoCE devices of a test's own, on dummy links: what happens to them disturbs no other test.

use crate::support::{Ended, Run, skip};
use std::process::Command;
use std::time::Duration;

/// A device `NAME` on a dummy link `NAME-net` with the address 10.77.N.1, gone at the end of the test.
pub struct OwnDevice {
    pub name: String,
    pub netdev: String,
}

impl OwnDevice {
    pub fn new(name: &str, subnet: u8) -> Self {
        Self::with_mac(name, subnet, &format!("02:00:00:77:{subnet:02x}:01"))
    }

    /// The device's GUID is made of the link's address.
    pub fn with_mac(name: &str, subnet: u8, mac: &str) -> Self {
        if !nix::unistd::geteuid().is_root() {
            skip("only root can make a device");
        }
        let own = Self { name: name.to_owned(), netdev: format!("{name}-net") };
        let netdev = own.netdev.as_str();
        own.tear_down();
        let made = sh(&format!(
            "ip link add {netdev} address {mac} type dummy && ip addr add 10.77.{subnet}.1/24 dev {netdev} && ip link set {netdev} up \
             && rdma link add {name} type rxe netdev {netdev}"
        ));
        if !made.status.success() {
            skip(format!("no Soft-RoCE device can be made here: {}", made.stderr.trim()));
        }
        own
    }

    fn tear_down(&self) {
        let _ = sh(&format!("rdma link del {} 2>&1; ip link del {} 2>&1", self.name, self.netdev));
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        self.tear_down();
    }
}

pub fn sh(script: &str) -> Ended {
    Run::start(Command::new("sh").args(["-c", script])).end()
}

/// What fails with that script's own words.
#[track_caller]
pub fn must(script: &str) {
    let ended = sh(script);
    assert!(ended.status.success(), "{ended:#?}");
}

/// Long enough for an event, in an emulated guest on a busy host.
pub const A_MOMENT: Duration = Duration::from_millis(300);
