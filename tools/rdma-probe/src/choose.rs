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
    if let Some(device) = active.or_else(|| usable().next()) {
        return Ok(device);
    }
    let refused = devices.iter().find_map(|d| Some((d, d.usable.as_ref().err()?)));
    let Some((device, why)) = refused else { return Err(Failure::new(Kind::NoDevice, "this host has no RDMA device")) };
    let failure = Failure::from(why).during(format_args!("cannot use {}", device.name));
    Err(if devices.len() > 1 { failure.hint("rdma-probe list shows the others") } else { failure })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ironverbs::{DriverId, PortInfo, Unusable};

    fn device(name: &str, index: u32, state: u8) -> DeviceInfo {
        let mut port = PortInfo::default();
        port.state = Some(state);
        let mut device = DeviceInfo::new(name);
        device.index = Some(DeviceIndex(index));
        device.ports = vec![port];
        device
    }

    fn unusable(mut device: DeviceInfo, why: Unusable) -> DeviceInfo {
        device.usable = Err(why);
        device
    }

    #[test]
    fn a_device_is_named_by_its_name_or_its_index() {
        let devices =
            [device("rxe0", 3, ACTIVE), device("4", 9, ACTIVE), device("twin", 5, ACTIVE), device("twin", 6, ACTIVE)];
        let index = |wanted| named(&devices, wanted).map(|d| d.index.unwrap().0).map_err(|f| f.kind);
        assert_eq!(index("rxe0"), Ok(3));
        assert_eq!(index("3"), Ok(3));
        // A name comes before an index.
        assert_eq!(index("4"), Ok(9));
        assert_eq!(index("6"), Ok(6));
        assert_eq!(index("twin"), Err(Kind::NoDevice));
        assert_eq!(index("rxe"), Err(Kind::NoDevice));
        assert!(named(&devices, "twin").unwrap_err().to_string().contains("5 or 6"));
    }

    #[test]
    fn without_a_name_it_is_the_first_usable_one_that_is_active() {
        let mlx5 = unusable(device("mlx5_0", 0, ACTIVE), Unusable::NoProvider(DriverId::MLX5));
        let (down, up) = (device("rxe0", 1, 1), device("rxe1", 2, ACTIVE));
        let chosen = |devices: &[DeviceInfo]| usable(devices, None).map(|d| d.name.clone()).map_err(|f| f.kind);
        assert_eq!(chosen(&[mlx5.clone(), down.clone(), up]), Ok("rxe1".into()));
        assert_eq!(chosen(&[mlx5.clone(), down]), Ok("rxe0".into()));
        assert_eq!(chosen(&[mlx5]), Err(Kind::NoDevice));
        let forbidden = unusable(device("rxe0", 0, ACTIVE), Unusable::NoPermission("/dev/infiniband/uverbs0".into()));
        assert_eq!(chosen(&[forbidden]), Err(Kind::NotPermitted));
        assert_eq!(chosen(&[]), Err(Kind::NoDevice));
    }
}
