//! Which device a command is about.

use crate::failure::{Failure, Kind};
use ironverbs::{DeviceIndex, DeviceInfo};

/// `enum ib_port_state`: the port carries traffic.
const ACTIVE: u8 = 4;

/// The device that `wanted` names: by its name, or by its kernel index.
pub fn named<'a>(devices: &'a [DeviceInfo], wanted: &str) -> Result<&'a DeviceInfo, Failure> {
    let mut by_name = devices.iter().filter(|d| d.name == wanted);
    match (by_name.next(), by_name.next()) {
        (Some(one), None) => Ok(one),
        (Some(a), Some(b)) => {
            let index = |d: &DeviceInfo| d.index.map_or_else(|| "unknown".to_owned(), |i| i.0.to_string());
            Err(Failure::new(Kind::NoDevice, format!("two devices have the name {wanted}")).hint(format!(
                "name one by its index: {} or {}",
                index(a),
                index(b)
            )))
        }
        (None, _) => by_index(devices, wanted).ok_or_else(|| not_there(devices, wanted)),
    }
}

fn by_index<'a>(devices: &'a [DeviceInfo], wanted: &str) -> Option<&'a DeviceInfo> {
    let index = DeviceIndex(wanted.parse().ok()?);
    devices.iter().find(|d| d.index == Some(index))
}

fn not_there(devices: &[DeviceInfo], wanted: &str) -> Failure {
    let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    let failure = Failure::new(Kind::NoDevice, format!("there is no RDMA device {wanted}"));
    if names.is_empty() {
        failure.hint("this host has none")
    } else {
        failure.hint(format!("there is {}", names.join(", ")))
    }
}

/// The device to ping through: the one that `wanted` names, or the first usable one, with an active port if there is one.
pub fn usable<'a>(devices: &'a [DeviceInfo], wanted: Option<&str>) -> Result<&'a DeviceInfo, Failure> {
    if let Some(wanted) = wanted {
        let device = named(devices, wanted)?;
        return match &device.usable {
            Ok(()) => Ok(device),
            Err(why) => Err(Failure::from(why).during(format_args!("cannot use {}", device.name))),
        };
    }
    let usable = || devices.iter().filter(|d| d.usable.is_ok());
    let active = usable().find(|d| d.ports.iter().any(|p| p.state == Some(ACTIVE)));
    match (active.or_else(|| usable().next()), devices) {
        (Some(device), _) => Ok(device),
        (None, []) => Err(none()),
        (None, [first, ..]) => {
            let failure = match &first.usable {
                Err(why) => Failure::from(why).during(format_args!("cannot use {}", first.name)),
                Ok(()) => none(),
            };
            Err(if devices.len() > 1 { failure.hint("rdma-probe list shows the others") } else { failure })
        }
    }
}

/// The failure of a host without any device.
pub fn none() -> Failure {
    Failure::new(Kind::NoDevice, "this host has no RDMA device").hint(
        "is the driver loaded? Soft-RoCE on a network device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
    )
}
