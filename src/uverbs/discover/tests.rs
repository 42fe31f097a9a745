use super::super::device::{DeviceIndex, Unusable};
use super::super::netlink::NetlinkError;
use super::super::types::{Guid, LinkLayer};
use super::*;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

/// A sysfs and a folder of device files, built file by file. Device files are links to devices that every host has.
pub struct Tree {
    dir: TempDir,
}

/// Number of `/dev/null`.
const NULL: (u32, u32) = (1, 3);

impl Tree {
    pub fn new() -> Self {
        let tree = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir_all(tree.dir.path().join("sys/class")).unwrap();
        std::fs::create_dir_all(tree.dir.path().join("dev")).unwrap();
        tree
    }

    /// The tree as a host without netlink.
    pub fn linux(&self) -> Linux {
        Linux::with_roots(self.dir.path().join("sys"), self.dir.path().join("dev"), false)
    }

    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.linux().devices().unwrap()
    }

    pub fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    pub fn link(&self, path: &str, target: &str) -> &Self {
        let path = self.dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
        self
    }

    pub fn remove(&self, path: &str) -> &Self {
        let path = self.dir.path().join(path);
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap()
        } else {
            std::fs::remove_file(path).unwrap()
        }
        self
    }

    /// A character device `uverbsN` of the device `ibdev`, with the number of `/dev/null`.
    pub fn uverbs(&self, n: u32, ibdev: &str, abi: u32) -> &Self {
        let folder = format!("sys/class/infiniband_verbs/uverbs{n}");
        self.file("sys/class/infiniband_verbs/abi_version", "6")
            .file(&format!("{folder}/ibdev"), ibdev)
            .file(&format!("{folder}/abi_version"), &abi.to_string())
            .file(&format!("{folder}/dev"), "1:3")
            .link(&format!("dev/uverbs{n}"), "/dev/null")
    }

    pub fn device(&self, name: &str, attributes: &[(&str, &str)]) -> &Self {
        for (attribute, text) in attributes {
            self.file(&format!("sys/class/infiniband/{name}/{attribute}"), text);
        }
        self
    }

    /// What rxe shows in sysfs of kernel 6.12.
    pub fn rxe(&self, name: &str) -> &Self {
        self.device(
            name,
            &[
                ("node_type", "1: CA"),
                ("node_guid", "a4ce:0aff:fe0c:1967"),
                ("sys_image_guid", "a4ce:0aff:fe0c:1968"),
                ("node_desc", "rxe"),
                ("fw_ver", ""),
                ("parent", "d0"),
                ("ports/1/state", "4: ACTIVE"),
                ("ports/1/phys_state", "5: LinkUp"),
                ("ports/1/link_layer", "Ethernet"),
                ("ports/1/lid", "0x0"),
                ("ports/1/lid_mask_count", "0"),
                ("ports/1/sm_lid", "0x0"),
                ("ports/1/sm_sl", "0"),
                ("ports/1/cap_mask", "0x00010000"),
                ("ports/1/rate", "2.5 Gb/sec (1X SDR)"),
                ("ports/1/gids/0", "fe80:0000:0000:0000:a4ce:0aff:fe0c:1967"),
                ("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0901"),
                ("ports/1/gids/2", "0000:0000:0000:0000:0000:0000:0000:0000"),
                ("ports/1/gid_attrs/types/0", "RoCE v2"),
                ("ports/1/gid_attrs/types/1", "RoCE v2"),
                ("ports/1/gid_attrs/ndevs/0", "d0"),
                ("ports/1/gid_attrs/ndevs/1", "d0"),
                ("ports/1/pkeys/0", "0xffff"),
            ],
        )
    }

    /// A two-port InfiniBand card.
    pub fn mlx5(&self, name: &str) -> &Self {
        self.device(name, &[("node_type", "1: CA"), ("hca_type", "MT4129"), ("board_id", "MT_0000000838")])
            .device(name, &[("hw_rev", "0"), ("fw_ver", "28.39.1002"), ("node_guid", "0000:0000:0000:0000")])
            .device(name, &[("ports/1/state", "4: ACTIVE"), ("ports/2/state", "1: DOWN")])
            .device(name, &[("ports/1/link_layer", "InfiniBand"), ("ports/2/link_layer", "InfiniBand")])
            .device(name, &[("ports/1/lid", "0x1f"), ("ports/2/lid", "0xffff"), ("ports/1/sm_lid", "0x1")])
            .device(name, &[("ports/1/rate", "800 Gb/sec (4X XDR)"), ("ports/2/rate", "10 Gb/sec (4X SDR)")])
            .device(name, &[("ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001")])
            .device(name, &[("ports/2/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0002")])
            .device(name, &[("ports/2/gids/5", "fec0:0000:0000:0000:0002:c903:0000:0002")])
            .device(name, &[("ports/1/gid_attrs/types/0", "IB/RoCE v1"), ("ports/2/gid_attrs/types/0", "IB/RoCE v1")])
            .device(
                name,
                &[("ports/1/pkeys/0", "0xffff"), ("ports/1/pkeys/1", "0x0000"), ("ports/1/pkeys/2", "0x8001")],
            )
            .link(&format!("sys/class/infiniband/{name}/device"), "../../devices/0000:3b:00.0")
            .link("sys/devices/0000:3b:00.0/driver", "../../../bus/pci/drivers/mlx5_core")
            .link("sys/class/devices", "../devices")
    }
}

fn verdict(device: &DeviceInfo) -> String {
    device.usable.as_ref().map_or_else(ToString::to_string, |()| "usable".to_owned())
}

/// Sysfs, which is read when netlink does not answer, would seem empty: no device rather than no descriptor.
#[test]
fn want_of_descriptors_is_told() {
    let error = too_many_files(Verb::ListDevices, NetlinkError::Kernel(Errno::EMFILE)).unwrap();
    assert_eq!(error.errno(), Some(Errno::EMFILE));
    assert!(error.to_string().contains("too many open files") && error.to_string().contains("ulimit -n"), "{error}");
    assert!(too_many_files(Verb::OpenDevice, NetlinkError::Kernel(Errno::EPROTONOSUPPORT)).is_none());
}

#[test]
fn rxe_is_usable_from_sysfs_alone() {
    let tree = Tree::new();
    tree.rxe("anything").uverbs(4, "anything", 2);
    let [device] = &tree.devices()[..] else { panic!() };
    assert_eq!(device.usable, Ok(()));
    assert_eq!(device.name, "anything");
    assert_eq!(device.index, None);
    assert_eq!(device.driver, Some(DriverId::RXE));
    assert_eq!(device.abi_version, Some(2));
    assert!(device.node.as_ref().unwrap().ends_with("dev/uverbs4"));
    assert_eq!(device.dev, Some(NULL));
    assert_eq!(device.node_guid, Some(Guid(0xa4ce_0aff_fe0c_1967)));
    assert_eq!(device.sys_image_guid, Some(Guid(0xa4ce_0aff_fe0c_1968)));
    assert_eq!(device.fw_version.as_deref(), Some(""));
    assert_eq!(device.netdevs, [Some("d0".to_owned())]);
    assert_eq!(device.ports, [PortInfo { state: Some(4), link_layer: Some(LinkLayer::Ethernet) }]);
}

#[test]
fn abi_versions_through_sysfs() {
    for (abi, usable) in [(0, false), (1, true), (2, true), (3, false)] {
        let tree = Tree::new();
        tree.rxe("rxe0").uverbs(0, "rxe0", abi);
        let device = &tree.devices()[0];
        let as_expected = if usable {
            device.usable == Ok(())
        } else {
            device.usable == Err(Unusable::AbiVersion { driver: DriverId::RXE, found: abi, min: 1, max: 2 })
        };
        assert!(as_expected, "ABI {abi}: {:?}", device.usable);
    }
}

#[test]
fn the_driver_is_known_by_its_marks_only() {
    let tree = Tree::new();
    tree.mlx5("rxe0").uverbs(0, "rxe0", 1);
    // A device with a network card behind it and no hardware description: siw on old kernels.
    tree.device("mlx5_1", &[("node_type", "4: RNIC")]).uverbs(1, "mlx5_1", 1);
    tree.link("sys/class/infiniband/mlx5_1/device", "../../devices/0000:3b:00.0");
    // rxe on old kernels: the same, with the mark of rxe.
    tree.rxe("mlx5_2").uverbs(2, "mlx5_2", 2);
    tree.link("sys/class/infiniband/mlx5_2/device", "../../devices/0000:3b:00.0");
    // Hardware that nobody knows.
    tree.device("new0", &[("hca_type", "NEW1")]).uverbs(3, "new0", 1);
    tree.link("sys/class/infiniband/new0/device/driver", "../../bus/pci/drivers/new_core");

    let devices = tree.devices();
    assert_eq!(devices[0].driver, Some(DriverId::MLX5));
    assert_eq!(devices[0].usable, Ok(()));
    assert_eq!(devices[1].driver, None);
    assert_eq!(
        verdict(&devices[1]),
        "the kernel did not tell the driver of the device: netlink does not answer, and sysfs gives no sure sign of it \
         (hardware driver: mlx5_core)"
    );
    assert_eq!(devices[2].driver, Some(DriverId::RXE));
    assert_eq!(devices[3].driver, None);
    assert!(verdict(&devices[3]).contains("hardware driver: new_core"));
}

#[test]
fn device_files_that_do_not_fit() {
    let tree = Tree::new();
    tree.rxe("rxe0").uverbs(0, "rxe0", 2);
    let dev = tree.dir.path().join("dev");
    let only = |tree: &Tree| tree.devices().remove(0);
    let path = dev.join("uverbs0");

    tree.remove("dev/uverbs0");
    assert_eq!(only(&tree).usable, Err(Unusable::NoNode(path.clone())));
    assert_eq!(only(&tree).node, None);

    tree.link("dev/uverbs0", "/dev/zero");
    let wrong =
        Unusable::WrongNode { path: path.clone(), found_major: 1, found_minor: 5, need_major: 1, need_minor: 3 };
    assert_eq!(only(&tree).usable, Err(wrong));

    // The same device under another name, as a container may have it.
    tree.link("dev/uverbs9", "/dev/null");
    assert_eq!(only(&tree).usable, Ok(()));
    assert_eq!(only(&tree).node, Some(dev.join("uverbs9")));
    tree.remove("dev/uverbs9").remove("dev/uverbs0");

    tree.file("dev/uverbs0", "not a device");
    assert_eq!(only(&tree).usable, Err(Unusable::NotCharDevice(path.clone())));
    tree.remove("dev/uverbs0");

    tree.link("dev/uverbs0", "uverbs0");
    assert_eq!(only(&tree).usable, Err(Unusable::NodeError { path, errno: Errno::from_raw(libc::ELOOP) }));

    tree.remove("dev");
    assert!(matches!(only(&tree).usable, Err(Unusable::NoNode(_))));
}

#[test]
fn one_bad_entry_hides_no_other() {
    let tree = Tree::new();
    tree.rxe("rxe0").uverbs(10, "rxe0", 2);
    // Its folder is empty: it is going away.
    tree.link("sys/class/infiniband_verbs/uverbs0/power", "nowhere");
    // Garbage in every file.
    for attribute in ["node_guid", "sys_image_guid", "fw_ver", "ports/1/state", "ports/1/link_layer", "ports/1/gids/0"]
    {
        tree.device("junk0", &[(attribute, "\u{1}:::/../ 0x\u{fffd}")]);
    }
    tree.device("junk0", &[("ports/x/state", "4: ACTIVE"), ("ports/3/state", "4: ACTIVE"), ("ports/999/state", "")]);
    tree.uverbs(1, "junk0", 2);
    tree.file("sys/class/infiniband_verbs/uverbs1/abi_version", "two");
    tree.file("sys/class/infiniband_verbs/uverbs1/dev", "231:");
    // Names that lead elsewhere, or are no character device of this kind.
    tree.uverbs(2, "../../../etc", 2);
    tree.file("sys/class/infiniband_verbs/uverbs/ibdev", "rxe0");
    tree.file("sys/class/infiniband_verbs/uverbsX/ibdev", "rxe0");
    tree.file("sys/class/infiniband_verbs/issm0/ibdev", "rxe0");
    // A folder where a file should be, and the other way round.
    tree.rxe("odd0").uverbs(3, "odd0", 2);
    tree.remove("sys/class/infiniband/odd0/node_guid");
    tree.file("sys/class/infiniband/odd0/node_guid/inside", "x");
    tree.remove("sys/class/infiniband/odd0/ports").file("sys/class/infiniband/odd0/ports", "none");

    let devices = tree.devices();
    let names: Vec<_> = devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["junk0", "odd0", "rxe0"]);
    assert_eq!(devices[0].usable, Err(Unusable::BadEntry("the device number of uverbs1 cannot be read".to_owned())));
    assert_eq!(devices[0].node_guid, None);
    assert_eq!(devices[0].ports, [PortInfo::default()]);
    assert_eq!(devices[1].usable, Ok(()));
    assert_eq!((devices[1].node_guid, devices[1].ports.len()), (None, 0));
    assert_eq!(devices[2].usable, Ok(()));
}

#[test]
fn character_device_and_device_go_together() {
    let tree = Tree::new();
    // A device without character device.
    tree.rxe("lone");
    // A character device whose device this sysfs does not show: it is mounted for another network namespace.
    tree.uverbs(0, "elsewhere", 2);
    let devices = tree.devices();
    assert_eq!((devices[0].name.as_str(), &devices[0].usable), ("elsewhere", &Err(Unusable::OtherNamespace)));
    assert_eq!((devices[1].name.as_str(), &devices[1].usable), ("lone", &Err(Unusable::NoCharDevice)));
}

#[test]
fn two_hundred_and_fifty_five_ports() {
    let tree = Tree::new();
    tree.rxe("many").uverbs(0, "many", 2);
    for port in 2..=300 {
        tree.file(&format!("sys/class/infiniband/many/ports/{port}/state"), "1: DOWN");
    }
    let device = tree.devices().remove(0);
    assert_eq!((device.ports.len(), device.netdevs.len()), (255, 255));
    assert_eq!(device.ports[254].state, Some(1));
    assert_eq!(tree.linux().details(&device).ports.len(), 255);
}

#[test]
fn a_host_without_rdma() {
    let tree = Tree::new();
    assert!(tree.devices().is_empty());
    assert!(tree.linux().why_none().contains("is not loaded"), "{}", tree.linux().why_none());
    std::fs::create_dir_all(tree.dir.path().join("sys/class/infiniband")).unwrap();
    assert!(tree.linux().why_none().contains("no driver offers a device"), "{}", tree.linux().why_none());
    // Neither sysfs nor netlink: there is no way to tell.
    tree.remove("sys");
    let error = tree.linux().devices().unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }));
    assert!(error.to_string().contains("there is no sysfs at"), "{error}");
}

#[test]
fn every_list_looks_anew() {
    let tree = Tree::new();
    let linux = tree.linux();
    assert!(linux.devices().unwrap().is_empty());
    tree.rxe("rxe0").uverbs(0, "rxe0", 2);
    assert_eq!(linux.devices().unwrap().len(), 1);
    tree.remove("sys/class/infiniband/rxe0").remove("sys/class/infiniband_verbs/uverbs0");
    assert!(linux.devices().unwrap().is_empty());
}

/// What netlink tells of one device with one port.
fn told(index: u32, name: &str, chardev: Result<&str, Errno>, driver: Option<DriverId>) -> nldev::Found {
    nldev::Found {
        device: nldev::Device {
            index: DeviceIndex(index),
            name: name.to_owned(),
            port_count: 1,
            cap_flags: None,
            fw_version: String::new(),
            node_guid: Some(Guid(0)),
            sys_image_guid: None,
            node_type: Some(1),
            protocol: Some("roce".to_owned()),
        },
        chardev: match chardev {
            Ok(name) => Ok(nldev::Chardev { name: name.to_owned(), dev: NULL, abi: 2, driver }),
            Err(errno) => Err(NetlinkError::Kernel(errno)),
        },
        ports: vec![match chardev {
            Ok(_) | Err(Errno::EOPNOTSUPP) => Ok(nldev::Port { state: Some(4), ..nldev::Port::default() }),
            Err(errno) => Err(NetlinkError::Kernel(errno)),
        }],
    }
}

fn scan(shared_netns: Option<bool>, found: Vec<nldev::Found>) -> Scan {
    Scan { found, system: nldev::System { shared_netns, copy_on_fork: true } }
}

/// The list made of what netlink tells first and, if asked again, second.
fn merged(tree: &Tree, first: Scan, second: Result<Scan, NetlinkError>) -> Vec<DeviceInfo> {
    tree.linux().netlink_first(first, || second).into_iter().map(|facts| assess(facts, 64)).collect()
}

const NEVER: Result<Scan, NetlinkError> = Err(NetlinkError::TimedOut);

#[test]
fn netlink_alone_is_enough() {
    let tree = Tree::new();
    tree.link("dev/uverbs0", "/dev/null").remove("sys");
    let rxe = || told(0, "rxe0", Ok("uverbs0"), Some(DriverId::RXE));
    let devices = merged(&tree, scan(Some(true), vec![rxe()]), NEVER);
    assert_eq!(devices[0].usable, Ok(()));
    assert_eq!(devices[0].index, Some(DeviceIndex(0)));
    assert_eq!(devices[0].ports, [PortInfo { state: Some(4), link_layer: Some(LinkLayer::Ethernet) }]);

    // Not even the driver is told, and there is no sysfs to guess by.
    let devices = merged(&tree, scan(Some(true), vec![told(0, "rxe0", Ok("uverbs0"), None)]), NEVER);
    let text = verdict(&devices[0]);
    assert!(text.contains("netlink does not tell it for this device, and there is no sysfs at"), "{text}");
    // No character device.
    let devices = merged(&tree, scan(Some(true), vec![told(0, "rxe0", Err(Errno::EOPNOTSUPP), None), rxe()]), NEVER);
    assert_eq!(devices[0].usable, Err(Unusable::NoCharDevice));
    assert_eq!(devices[1].usable, Ok(()));
}

#[test]
fn a_kernel_that_cannot_tell_the_character_device() {
    let tree = Tree::new();
    tree.rxe("rxe0").uverbs(0, "rxe0", 1).rxe("rxe1").uverbs(1, "rxe1", 2);
    let old = || scan(None, vec![told(3, "rxe1", Err(Errno::EOPNOTSUPP), None)]);
    let devices = merged(&tree, old(), Ok(old()));
    assert_eq!((devices[0].index, devices[0].abi_version), (Some(DeviceIndex(3)), Some(2)));
    assert!(devices[0].node.as_ref().unwrap().ends_with("uverbs1"));
    assert_eq!((devices[0].driver, &devices[0].usable), (Some(DriverId::RXE), &Ok(())));
    // The one that netlink left out is listed all the same.
    assert_eq!((devices[1].name.as_str(), devices[1].index, &devices[1].usable), ("rxe0", None, &Ok(())));
}

#[test]
fn devices_of_other_namespaces() {
    let tree = Tree::new();
    // Both are called rxe0: names are free in each namespace. Only one is here.
    tree.uverbs(0, "rxe0", 2).uverbs(1, "rxe0", 2);
    let mine = || scan(Some(false), vec![told(7, "rxe0", Ok("uverbs1"), Some(DriverId::RXE))]);
    let devices = merged(&tree, mine(), Ok(mine()));
    assert_eq!((devices[0].index, &devices[0].usable), (Some(DeviceIndex(7)), &Ok(())));
    assert!(devices[0].node.as_ref().unwrap().ends_with("uverbs1"));
    assert_eq!((devices[1].name.as_str(), &devices[1].usable), ("rxe0", &Err(Unusable::OtherNamespace)));
    assert!(devices[1].node.as_ref().unwrap().ends_with("uverbs0"));

    // What sysfs shows under the name is the one that is here.
    tree.rxe("rxe0");
    let devices = merged(&tree, mine(), Ok(mine()));
    assert_eq!((devices[1].node_guid, devices[1].driver, devices[1].ports.len()), (None, None, 0));

    // One that came between the two looks is no stranger.
    let second = told(8, "rxe0", Ok("uverbs0"), Some(DriverId::RXE));
    let devices = merged(&tree, mine(), Ok(Scan { found: vec![mine().found.remove(0), second], ..mine() }));
    assert_eq!(devices.len(), 2);
    assert!(devices.iter().all(|d| d.usable == Ok(()) && d.index.is_some()));

    // Where all is shared, netlink knows all.
    let devices = merged(&tree, Scan { system: scan(Some(true), vec![]).system, ..mine() }, NEVER);
    assert_eq!(devices.len(), 1);
}

#[test]
fn a_device_that_goes_away_during_the_list_is_left_out() {
    let tree = Tree::new();
    let first = scan(
        Some(true),
        vec![told(0, "gone", Err(Errno::EINVAL), None), told(1, "rxe1", Ok("uverbs1"), Some(DriverId::RXE))],
    );
    let devices = merged(&tree, first, NEVER);
    assert_eq!(devices.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["rxe1"]);
}

/// The host itself, whatever it has: no error but the one that says that nothing can be told.
#[test]
fn the_host_can_be_listed() {
    match Linux::new().devices() {
        Ok(devices) if devices.is_empty() => assert!(!Linux::new().why_none().is_empty()),
        Ok(devices) => {
            for device in devices {
                let details = Linux::new().details(&device);
                assert_eq!(details.ports.len(), device.ports.len());
            }
        }
        Err(e) => assert!(matches!(e, Error::NoDevice { .. }), "{e}"),
    }
}
