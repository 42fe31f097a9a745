use super::super::nldev::tests::enumerators;
use super::super::types::LinkLayer;
use super::*;

const PATH: &str = "/dev/infiniband/uverbs0";
const DEV: (u32, u32) = (231, 192);

/// A device that can be used.
fn good() -> Facts {
    Facts {
        index: Some(DeviceIndex(0)),
        name: "rxe0".to_owned(),
        driver: Driver::Known(DriverId::RXE),
        abi: Some(2),
        chardev: at(Node::Ready),
        ..Facts::default()
    }
}

fn at(node: Node) -> Chardev {
    Chardev::At { dev: DEV, path: PATH.into(), node }
}

fn verdict(facts: Facts) -> Result<(), Unusable> {
    assess(facts, 64).usable
}

#[test]
fn rxe_abi_versions() {
    for (abi, expected) in [
        (0, Err("driver rxe speaks provider ABI 0; this library speaks 1 to 2")),
        (1, Ok(())),
        (2, Ok(())),
        (3, Err("driver rxe speaks provider ABI 3; this library speaks 1 to 2")),
        (u32::MAX, Err("driver rxe speaks provider ABI 4294967295; this library speaks 1 to 2")),
    ] {
        let info = assess(Facts { abi: Some(abi), ..good() }, 64);
        assert_eq!(info.abi_version, Some(abi));
        assert_eq!(info.usable.map_err(|e| e.to_string()), expected.map_err(str::to_owned), "ABI {abi}");
        // Not on 32 bits, whatever the version.
        let info = assess(Facts { abi: Some(abi), ..good() }, 32);
        assert_eq!(info.usable, Err(Unusable::PointerWidth(DriverId::RXE)));
    }
    assert!(matches!(verdict(Facts { abi: None, ..good() }), Err(Unusable::BadEntry(_))));
}

#[test]
fn every_reason() {
    let path = || PathBuf::from(PATH);
    let unknown = Driver::Unknown("who knows".to_owned());
    for (facts, expected) in [
        (good(), Ok(())),
        (Facts { other_namespace: true, ..good() }, Err(Unusable::OtherNamespace)),
        (Facts { chardev: Chardev::None, ..good() }, Err(Unusable::NoCharDevice)),
        (Facts { chardev: Chardev::Bad("odd".to_owned()), ..good() }, Err(Unusable::BadEntry("odd".to_owned()))),
        (Facts { chardev: at(Node::Missing), ..good() }, Err(Unusable::NoNode(path()))),
        (Facts { chardev: at(Node::NotCharDevice), ..good() }, Err(Unusable::NotCharDevice(path()))),
        (
            Facts { chardev: at(Node::Wrong((1, 3))), ..good() },
            Err(Unusable::WrongNode { path: path(), found_major: 1, found_minor: 3, need_major: 231, need_minor: 192 }),
        ),
        (Facts { chardev: at(Node::Denied(Errno::EACCES)), ..good() }, Err(Unusable::NoPermission(path()))),
        (Facts { chardev: at(Node::Denied(Errno::EPERM)), ..good() }, Err(Unusable::Forbidden(path()))),
        (
            Facts { chardev: at(Node::Denied(Errno::EIO)), ..good() },
            Err(Unusable::NodeError { path: path(), errno: Errno::EIO }),
        ),
        (Facts { driver: unknown.clone(), ..good() }, Err(Unusable::UnknownDriver("who knows".to_owned()))),
        (Facts { driver: Driver::Known(DriverId(17)), ..good() }, Err(Unusable::NoProvider(DriverId(17)))),
        (Facts { driver: Driver::Known(DriverId(999)), ..good() }, Err(Unusable::NoProvider(DriverId(999)))),
        // Of two reasons, the one that no device file mends.
        (
            Facts { driver: Driver::Known(DriverId(17)), chardev: at(Node::Missing), ..good() },
            Err(Unusable::NoProvider(DriverId(17))),
        ),
        (Facts { driver: unknown, chardev: Chardev::None, ..good() }, Err(Unusable::NoCharDevice)),
        (Facts { other_namespace: true, chardev: Chardev::None, ..good() }, Err(Unusable::OtherNamespace)),
    ] {
        let text = format!("{facts:?}");
        let info = assess(facts, 64);
        assert_eq!(info.usable, expected, "{text}");
        if let Err(why) = info.usable {
            assert!(why.to_string().len() > 15, "says why: {why}");
        }
    }
}

#[test]
fn a_device_without_provider_keeps_all_that_is_known() {
    let facts = Facts {
        driver: Driver::Known(DriverId(999)),
        node_guid: Some(Guid(0)),
        sys_image_guid: Some(Guid(0)),
        fw_version: Some("1.2".to_owned()),
        ports: vec![PortInfo { state: Some(4), link_layer: Some(LinkLayer::InfiniBand) }; 255],
        netdevs: vec![None; 255],
        ..good()
    };
    let info = assess(facts, 64);
    assert_eq!(info.driver, Some(DriverId(999)));
    assert_eq!(info.driver.unwrap().to_string(), "number 999");
    assert_eq!(info.usable, Err(Unusable::NoProvider(DriverId(999))));
    assert_eq!((info.node, info.dev), (Some(PATH.into()), Some(DEV)));
    assert_eq!((info.node_guid, info.sys_image_guid), (Some(Guid(0)), Some(Guid(0))));
    assert_eq!((info.ports.len(), info.netdevs.len()), (255, 255));
    assert_eq!(info.fw_version.as_deref(), Some("1.2"));
    // No file, no path; but the number is known.
    let info = assess(Facts { chardev: at(Node::Missing), ..good() }, 64);
    assert_eq!((info.node, info.dev), (None, Some(DEV)));
}

#[test]
fn devices_of_one_name_and_guid_stay_apart() {
    let facts = |index| Facts { index: Some(DeviceIndex(index)), node_guid: Some(Guid(0)), ..good() };
    let infos: Vec<_> = [facts(4), facts(5)].into_iter().map(|f| assess(f, 64)).collect();
    assert_eq!(infos[0].name, infos[1].name);
    assert_ne!(infos[0].index, infos[1].index);
    assert!(infos.iter().all(|i| i.usable.is_ok()));
}

/// Every driver of the kernel's header has its number here, and the name is the header's in lower case.
#[test]
fn drivers_are_those_of_the_header() {
    const HEADER: &str = "/usr/include/rdma/ib_user_ioctl_verbs.h";
    let Ok(text) = std::fs::read_to_string(HEADER) else {
        eprintln!("skipped: {HEADER} is not installed (linux-libc-dev)");
        return;
    };
    let drivers: Vec<(String, u32)> = enumerators(&text)
        .into_iter()
        .filter_map(|(name, number)| Some((name.strip_prefix("RDMA_DRIVER_")?.to_lowercase(), number)))
        // The old name of number 9.
        .filter(|(name, _)| name != "i40iw")
        .collect();
    assert!(drivers.len() > 15, "{drivers:?}");
    for (name, number) in drivers {
        assert_eq!(DriverId(number).name(), Some(name.as_str()), "number {number}");
    }
    assert_eq!(DriverId::RXE.name(), Some("rxe"));
    assert_eq!(DriverId::MLX5.name(), Some("mlx5"));
    assert_eq!(DriverId(0xdead).name(), None);
}
