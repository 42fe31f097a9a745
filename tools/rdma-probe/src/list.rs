//! `rdma-probe list`: every device, and why an unusable one is unusable.

use crate::shown;
use crate::table::{Table, or_dash};
use ironverbs::{DeviceInfo, DriverId, PortState};
use serde::Serialize;
use std::fmt;

/// Result of `rdma-probe list`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ListReport {
    /// Every device, usable or not, in the order of the kernel's index.
    pub devices: Vec<DeviceSummary>,
}

/// What is known of a device without opening it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceSummary {
    /// Name.
    pub name: String,
    /// The kernel's index, unique among the devices that exist now.
    pub index: Option<u32>,
    /// The kernel driver's short name, if it is a known one.
    pub driver: Option<String>,
    /// The kernel driver's number (`enum rdma_driver_id`).
    pub driver_id: Option<u32>,
    /// Version of the driver's interface to its user-space provider.
    pub provider_abi: Option<u32>,
    /// The device file.
    pub node: Option<String>,
    /// Node GUID, four groups of four hexadecimal digits. Zero is legal.
    pub node_guid: Option<String>,
    /// System image GUID.
    pub sys_image_guid: Option<String>,
    /// Firmware version; none if the driver tells none, as Soft-RoCE, for which `ibv_devinfo` prints 0.0.0.
    pub fw_version: Option<String>,
    /// Whether rdma-probe can use the device.
    pub usable: bool,
    /// Why not.
    pub unusable_because: Option<String>,
    /// Its ports, port 1 first.
    pub ports: Vec<PortSummary>,
}

/// What is known of a port without opening the device.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PortSummary {
    /// The port's number, from 1.
    pub port: u32,
    /// Logical state, as ACTIVE.
    pub state: Option<String>,
    /// InfiniBand or Ethernet.
    pub link_layer: Option<String>,
    /// The network device behind it.
    pub netdev: Option<String>,
}

impl ListReport {
    /// Of these devices.
    pub fn of(devices: &[DeviceInfo]) -> Self {
        Self { devices: devices.iter().map(DeviceSummary::of).collect() }
    }
}

impl DeviceSummary {
    /// Of this device.
    pub fn of(device: &DeviceInfo) -> Self {
        let ports = device.ports.iter().enumerate().map(|(i, port)| PortSummary {
            port: i as u32 + 1,
            state: port.state.map(|state| PortState(state).to_string()),
            link_layer: port.link_layer.map(|layer| layer.to_string()),
            netdev: device.netdevs.get(i).cloned().flatten(),
        });
        Self {
            name: device.name.clone(),
            index: device.index.map(|index| index.0),
            driver: device.driver.and_then(DriverId::name).map(str::to_owned),
            driver_id: device.driver.map(|driver| driver.0),
            provider_abi: device.abi_version,
            node: device.node.as_ref().map(|node| node.display().to_string()),
            node_guid: device.node_guid.map(|guid| guid.to_string()),
            sys_image_guid: device.sys_image_guid.map(|guid| guid.to_string()),
            fw_version: device.fw_version.clone().filter(|version| !version.is_empty()),
            usable: device.usable.is_ok(),
            unusable_because: device.usable.as_ref().err().map(|why| why.to_string()),
            ports: ports.collect(),
        }
    }

    /// The driver, as a person would name it.
    pub fn driver_text(&self) -> Option<String> {
        self.driver.clone().or_else(|| self.driver_id.map(|id| format!("number {id}")))
    }
}

impl fmt::Display for ListReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            Table::new(["DEVICE", "INDEX", "DRIVER", "ABI", "NODE", "GUID", "PORT", "STATE", "LINK", "NETDEV"]);
        for device in &self.devices {
            let known = |port: Option<&PortSummary>| {
                [
                    device.name.clone(),
                    or_dash(device.index),
                    or_dash(device.driver_text()),
                    or_dash(device.provider_abi),
                    or_dash(device.node.as_ref()),
                    or_dash(device.node_guid.as_ref()),
                    or_dash(port.map(|p| p.port)),
                    or_dash(port.and_then(|p| p.state.as_ref())),
                    or_dash(port.and_then(|p| p.link_layer.as_ref())),
                    or_dash(port.and_then(|p| p.netdev.as_ref())),
                ]
            };
            if device.ports.is_empty() {
                table.row(known(None));
            }
            for port in &device.ports {
                table.row(known(Some(port)));
            }
        }
        table.fmt(f)?;
        for device in &self.devices {
            if let Some(why) = &device.unusable_because {
                writeln!(f, "{} cannot be used: {}", shown::line(&device.name), shown::line(why))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironverbs::{DeviceIndex, Guid, LinkLayer, PortInfo, Unusable};

    fn port(state: u8, layer: LinkLayer) -> PortInfo {
        let mut port = PortInfo::default();
        port.state = Some(state);
        port.link_layer = Some(layer);
        port
    }

    #[test]
    fn usable_and_unusable_devices_side_by_side() {
        let mut rxe = DeviceInfo::new("rxe0");
        rxe.index = Some(DeviceIndex(0));
        rxe.driver = Some(DriverId::RXE);
        rxe.abi_version = Some(2);
        rxe.node = Some("/dev/infiniband/uverbs0".into());
        rxe.node_guid = Some(Guid(0xff_fe09_0901));
        rxe.netdevs = vec![Some("net0".into())];
        rxe.ports = vec![port(4, LinkLayer::Ethernet)];
        let mut odd = DeviceInfo::new("odd7");
        odd.driver = Some(DriverId(77));
        odd.usable = Err(Unusable::NoProvider(DriverId(77)));
        let report = ListReport::of(&[rxe, odd]);
        let expected = "\
DEVICE  INDEX  DRIVER     ABI  NODE                     GUID                 PORT  STATE   LINK      NETDEV
rxe0    0      rxe        2    /dev/infiniband/uverbs0  0000:00ff:fe09:0901  1     ACTIVE  Ethernet  net0
odd7    -      number 77  -    -                        -                    -     -       -         -
odd7 cannot be used: driver number 77 has no provider in this library, which drives mlx5 and Soft-RoCE (rxe)
";
        assert_eq!(report.to_string(), expected);
    }
}
