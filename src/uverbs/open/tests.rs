use super::super::discover::tests::Tree;
use super::super::sys::Sys;
use super::*;

#[test]
fn opening() {
    let tree = Tree::new();
    tree.rxe("rxe0").uverbs(0, "rxe0", 2);
    let linux = tree.linux();
    let device = tree.devices().remove(0);
    let error = |device: &DeviceInfo| match linux.open(device) {
        Ok(_) => panic!("opened"),
        Err(e) => e,
    };

    let cdev = linux.open(&device).unwrap();
    assert_eq!(cdev.driver_id(), 14);
    assert!(cdev.raw_fd().is_some());

    // What has changed since the list was made.
    tree.remove("dev/uverbs0");
    let e = error(&device);
    assert!(matches!(e, Error::NoDevice { .. }) && e.to_string().contains("does not exist"), "{e}");
    tree.link("dev/uverbs0", "/dev/zero");
    let e = error(&device);
    assert!(matches!(e, Error::NoDevice { .. }) && e.to_string().contains("is device 1:5, not 1:3"), "{e}");
    tree.remove("dev/uverbs0").file("dev/uverbs0", "x");
    let e = error(&device);
    assert!(matches!(e, Error::NoDevice { .. }) && e.to_string().contains("not a character device"), "{e}");
    // What was mended since: the verdict of the list does not matter.
    let stale = DeviceInfo { usable: Err(Unusable::NoPermission("x".into())), ..device.clone() };
    tree.remove("dev/uverbs0").link("dev/uverbs0", "/dev/null");
    assert!(linux.open(&stale).is_ok());

    // What no opening can mend.
    let path = || device.node.clone().unwrap();
    for (usable, expected) in [
        (
            Unusable::NoProvider(DriverId(17)),
            "open_device: rxe0 (driver efa has no provider in this library, which drives mlx5 and Soft-RoCE (rxe)) is not ",
        ),
        (Unusable::PointerWidth(DriverId::RXE), "open_device: rxe0 (driver rxe can be used by 64-bit programs only"),
        (Unusable::NoCharDevice, "no RDMA device rxe0: it has no uverbs character device"),
        (Unusable::OtherNamespace, "no RDMA device rxe0: it belongs to another network namespace"),
        (
            Unusable::AbiVersion { driver: DriverId::RXE, found: 3, min: 1, max: 2 },
            "open_device: provider ABI version of driver rxe: needs 1 to 2, found 3",
        ),
    ] {
        let e = error(&DeviceInfo { usable: Err(usable), ..device.clone() });
        assert!(e.to_string().starts_with(expected), "{e}");
    }
    let e = error(&DeviceInfo { node: None, usable: Err(Unusable::NoNode(path())), ..device.clone() });
    assert!(matches!(e, Error::NoDevice { .. }), "{e}");
}

#[test]
fn a_name_is_told_without_what_acts_on_a_terminal() {
    let device = DeviceInfo::new("rxe\u{1b}[2J\n0");
    let told = [
        gone(&device, "it went".into()),
        refusal(&device, &Unusable::NoProvider(DriverId(17))),
        open_error(&device, Path::new("/dev/x"), &std::io::Error::from_raw_os_error(libc::ENXIO)),
    ];
    for error in told {
        let text = error.to_string();
        assert!(text.contains(r"rxe\u{1b}[2J\n0") && !text.contains(char::is_control), "{text:?}");
    }
}

#[test]
fn what_the_kernel_means_by_refusing_to_open() {
    let device = DeviceInfo::new("rxe0");
    for (raw, hint) in [
        (libc::EACCES, "no permission for /dev/x"),
        (libc::EPERM, "another network namespace"),
        (libc::ENXIO, "going away"),
        (libc::ENODEV, "going away"),
    ] {
        let error = open_error(&device, Path::new("/dev/x"), &std::io::Error::from_raw_os_error(raw));
        assert_eq!(error.errno(), Some(Errno::from_raw(raw)));
        assert!(error.to_string().contains(hint), "{error}");
    }
    let gone = open_error(&device, Path::new("/dev/x"), &std::io::Error::from_raw_os_error(libc::EIO));
    assert!(matches!(gone, Error::DeviceGone { verb: Verb::OpenDevice }));
    let none = open_error(&device, Path::new("/dev/x"), &std::io::Error::from_raw_os_error(libc::ENOENT));
    assert!(matches!(none, Error::NoDevice { .. }));
    let many = open_error(&device, Path::new("/dev/x"), &std::io::Error::from_raw_os_error(libc::EMFILE));
    assert_eq!(many.errno(), Some(Errno::EMFILE));
}

/// What the kernel says when the device is opened counts, not what the caller says.
#[test]
fn a_description_is_not_believed() {
    let tree = Tree::new();
    tree.rxe("rxe0").uverbs(0, "rxe0", 2);
    let linux = tree.linux();
    let listed = tree.devices().remove(0);
    let error = |device: &DeviceInfo| linux.open(device).err().expect("refused").to_string();

    let wishful = DeviceInfo { driver: Some(DriverId::MLX5), abi_version: Some(99), ..listed.clone() };
    assert_eq!(linux.open(&wishful).unwrap().driver_id(), DriverId::RXE.0);
    // A file that is there, of the number given, but not of a verbs device.
    let null = Some("/dev/zero".into());
    let made_up = DeviceInfo { node: null, dev: Some((1, 5)), driver: Some(DriverId::RXE), ..DeviceInfo::new("zero") };
    assert_eq!(error(&made_up), "no RDMA device zero: the kernel knows no verbs device of number 1:5");
    assert_eq!(error(&DeviceInfo::new("rxe0")), "no RDMA device rxe0: it has no device file");

    // The module was replaced by one of another ABI.
    tree.file("sys/class/infiniband_verbs/uverbs0/abi_version", "3");
    assert_eq!(error(&listed), "open_device: provider ABI version of driver rxe: needs 1 to 2, found 3");
    tree.remove("sys/class/infiniband_verbs/uverbs0/abi_version");
    assert!(error(&listed).contains("ABI version cannot be read"), "{}", error(&listed));
    // The driver can no longer be told.
    tree.file("sys/class/infiniband_verbs/uverbs0/abi_version", "2").remove("sys/class/infiniband/rxe0/parent");
    assert!(error(&listed).contains("no sure sign"), "{}", error(&listed));
    // The device went away.
    tree.remove("sys/class/infiniband_verbs/uverbs0");
    assert!(error(&listed).contains("knows no verbs device"), "{}", error(&listed));
}
