use super::super::netlink::tests::{Script, done, message, refusal};
use super::*;
use proptest::prelude::*;

/// Attributes one after another.
#[derive(Default)]
struct Attrs(Vec<u8>);

impl Attrs {
    fn add(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend((4 + value.len() as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
    fn u32(self, kind: u16, value: u32) -> Self {
        self.add(kind, &value.to_ne_bytes())
    }
    fn u64(self, kind: u16, value: u64) -> Self {
        self.add(kind, &value.to_ne_bytes())
    }
}

fn device(index: u32, name: &str, ports: u32) -> Vec<u8> {
    Attrs::default().u32(attr::DEV_INDEX, index).add(attr::DEV_NAME, name.as_bytes()).u32(attr::PORT_INDEX, ports).0
}

fn chardev(name: &str, dev: u64, driver: u32) -> Vec<u8> {
    Attrs::default()
        .u32(attr::UVERBS_DRIVER_ID, driver)
        .u64(attr::CHARDEV, dev)
        .u64(attr::CHARDEV_ABI, 2)
        .add(attr::CHARDEV_NAME, name.as_bytes())
        .0
}

fn ask(answers: Vec<Vec<u8>>) -> Nldev<Script> {
    Nldev::new(Script::new(answers.into_iter().map(Ok)))
}

/// What kernel 6.12 answered for rxe0 on d0 (and 6.1, but for what newer attributes add).
#[test]
#[cfg(target_endian = "little")]
fn answers_of_real_kernels() {
    let device_6_12 = b"\
        \x08\0\x01\0\0\0\0\0\x09\0\x02\0rxe0\0\0\0\0\x08\0\x03\0\x01\0\0\0\x0c\0\x04\0\x76\x3c\x22\x01\xc0\x01\0\0\
        \x0c\0\x06\0\x5e\x5e\xa7\xfe\xff\xd2\x05\xd4\x0c\0\x07\0\x5e\x5e\xa7\xfe\xff\xd2\x05\xd4\x05\0\x0e\0\x01\0\0\0\
        \x05\0\x54\0\0\0\0\0\x05\0\x65\0\x01\0\0\0\x09\0\x43\0roce\0\0\0\0";
    let device_6_1 = b"\
        \x08\0\x01\0\0\0\0\0\x09\0\x02\0rxe0\0\0\0\0\x08\0\x03\0\x01\0\0\0\x0c\0\x04\0\x76\x3c\x22\x01\0\0\0\0\
        \x0c\0\x06\0\xe6\x19\xdb\xfe\xff\xc1\x59\xe8\x0c\0\x07\0\xe6\x19\xdb\xfe\xff\xc1\x59\xe8\x05\0\x0e\0\x01\0\0\0\
        \x05\0\x54\0\0\0\0\0\x09\0\x43\0roce\0\0\0\0";
    for (bytes, guid, cap_flags) in [
        (&device_6_12[..], 0xd405_d2ff_fea7_5e5e, 0x1c0_0122_3c76),
        (&device_6_1[..], 0xe859_c1ff_fedb_19e6, 0x122_3c76),
    ] {
        assert_eq!(
            Device::parse(bytes),
            Some(Device {
                index: DeviceIndex(0),
                name: "rxe0".to_owned(),
                port_count: 1,
                cap_flags: Some(cap_flags),
                fw_version: String::new(),
                node_guid: Some(Guid(guid)),
                sys_image_guid: Some(Guid(guid)),
                node_type: Some(1),
                protocol: Some("roce".to_owned()),
            })
        );
    }
    let chardev = b"\x08\0\x49\0\x0e\0\0\0\x0c\0\x48\0\xc1\xe7\0\0\0\0\0\0\x0c\0\x47\0\x02\0\0\0\0\0\0\0\
        \x0c\0\x46\0uverbs1\0";
    assert_eq!(
        Chardev::parse(chardev),
        Ok(Chardev { name: "uverbs1".to_owned(), dev: (231, 193), abi: 2, driver: Some(DriverId::RXE) })
    );
    let port = b"\x08\0\x01\0\0\0\0\0\x09\0\x02\0rxe0\0\0\0\0\x08\0\x03\0\x01\0\0\0\x05\0\x0c\0\x04\0\0\0\
        \x05\0\x0d\0\x05\0\0\0\x08\0\x32\0\x02\0\0\0\x07\0\x33\0d0\0\0";
    let port = Port::parse(port).unwrap();
    assert_eq!((port.state, port.phys_state, port.netdev.clone()), (Some(4), Some(5), Some((2, "d0".to_owned()))));
    assert_eq!((port.lid, port.link_layer()), (None, LinkLayer::Ethernet));
}

#[test]
fn an_infiniband_port_has_a_lid() {
    let bytes = Attrs::default()
        .u64(attr::CAP_FLAGS, 0x2_0259_486a)
        .u64(attr::SUBNET_PREFIX, 0xfe80 << 48)
        .u32(attr::LID, 5)
        .u32(attr::SM_LID, 1)
        .add(attr::LMC, &[3])
        .add(attr::PORT_STATE, &[4])
        .0;
    let port = Port::parse(&bytes).unwrap();
    assert_eq!(port.link_layer(), LinkLayer::InfiniBand);
    assert_eq!((port.lid, port.sm_lid, port.lmc, port.subnet_prefix), (Some(5), Some(1), Some(3), Some(0xfe80 << 48)));
    assert_eq!(port.netdev, None);
}

#[test]
fn device_numbers_are_decoded_as_the_kernel_encodes_them() {
    assert_eq!(decode_dev(0xe7c0), (231, 192));
    assert_eq!(decode_dev(0x10_0a04), (10, 260));
    assert_eq!(decode_dev(0xffff_ffff), (0xfff, 0xf_ffff));
}

/// Two devices, of one name and without GUIDs; two ports on the second.
#[test]
fn a_scan_asks_about_every_device_and_port() {
    let shared = Attrs::default().add(attr::NETNS_MODE, &[1]).add(attr::COPY_ON_FORK, &[1]).0;
    let port = |state| Attrs::default().add(attr::PORT_STATE, &[state]).0;
    let mut nldev = ask(vec![
        message(command::GET, 2, 1, &device(9, "same", 2)),
        [message(command::GET, 2, 1, &device(3, "same", 1)), done(1)].concat(),
        message(command::GET_CHARDEV, 0, 2, &chardev("uverbs0", 0xe7c0, 14)),
        message(command::GET, 0, 3, &port(4)),
        message(command::GET_CHARDEV, 0, 4, &chardev("uverbs7", 0xe7c7, 1)),
        message(command::GET, 0, 5, &port(1)),
        refusal(Errno::EIO, 6),
        message(command::SYS_GET, 0, 7, &shared),
    ]);
    let scan = nldev.scan().unwrap();
    assert_eq!(scan.system, System { shared_netns: Some(true), copy_on_fork: true });
    let [first, second] = &scan.found[..] else { panic!("{scan:?}") };
    assert_eq!((first.device.index, first.device.name.as_str()), (DeviceIndex(3), "same"));
    assert_eq!(first.chardev.as_ref().unwrap().name, "uverbs0");
    assert_eq!(first.ports.len(), 1);
    assert_eq!((second.device.index, second.device.name.as_str()), (DeviceIndex(9), "same"));
    assert_eq!(second.chardev.as_ref().unwrap().dev, (231, 199));
    assert_eq!(second.ports[0].as_ref().unwrap().state, Some(1));
    assert_eq!(second.ports[1], Err(NetlinkError::Kernel(Errno::EIO)));
    assert!(!first.is_gone() && !second.is_gone());
}

#[test]
fn a_device_that_makes_no_sense_hides_no_other() {
    let nameless = Attrs::default().u32(attr::DEV_INDEX, 1).0;
    let short_index = Attrs::default().add(attr::DEV_INDEX, &[1, 2]).add(attr::DEV_NAME, b"x\0").0;
    let broken = [device(2, "broken", 0), vec![3, 0, 0, 0]].concat();
    let mut nldev = ask(vec![
        message(command::GET, 2, 1, &nameless),
        message(command::GET, 2, 1, &short_index),
        message(command::GET, 2, 1, &broken),
        message(command::GET, 2, 1, b""),
        [message(command::GET, 2, 1, &device(5, "good", 0)), done(1)].concat(),
        message(command::GET_CHARDEV, 0, 2, &chardev("../../etc/passwd", 0xe7c0, 14)),
    ]);
    let scan = nldev.scan().unwrap();
    let names: Vec<_> = scan.found.iter().map(|f| f.device.name.as_str()).collect();
    assert_eq!(names, ["good"]);
    assert_eq!(scan.found[0].chardev, Err(NetlinkError::Malformed));
    assert_eq!(scan.system, System::default());
}

#[test]
fn a_device_that_goes_away_during_a_scan_hides_no_other() {
    // "goes" was told and went; the kernel then took "stays" for the one it had told.
    let mut nldev = ask(vec![
        [message(command::GET, 2, 1, &device(0, "goes", 1)), done(1)].concat(),
        refusal(Errno::EINVAL, 2),
        refusal(Errno::EINVAL, 3),
        message(command::SYS_GET, 0, 4, b""),
        [message(command::GET, 2, 5, &device(1, "stays", 0)), done(5)].concat(),
        message(command::GET_CHARDEV, 0, 6, &chardev("uverbs1", 0xe7c1, 14)),
        message(command::SYS_GET, 0, 7, b""),
    ]);
    let scan = nldev.scan().unwrap();
    let names: Vec<_> = scan.found.iter().map(|f| f.device.name.as_str()).collect();
    assert_eq!(names, ["stays"]);
}

#[test]
fn a_device_with_more_ports_than_verbs_can_count_shows_255() {
    let mut answers = Vec::new();
    for round in 0..SCAN_TRIES as u32 {
        // The dump, one character device, 255 ports, the system.
        let seq = 1 + round * 258;
        answers.push([message(command::GET, 2, seq, &device(0, "switch", 1000)), done(seq)].concat());
        answers.extend((1..=257).map(|i| refusal(Errno::EINVAL, seq + i)));
    }
    let scan = ask(answers).scan().unwrap();
    assert_eq!(scan.found[0].ports.len(), 255);
    // Neither its character device nor any port is there any more, however often one asks.
    assert!(scan.found[0].is_gone());
}

#[test]
fn one_device_is_found_by_index() {
    let mut nldev = ask(vec![
        message(command::GET, 0, 1, &device(4, "now", 1)),
        message(command::GET_CHARDEV, 0, 2, &chardev("uverbs3", 0xe7c3, 14)),
        message(command::GET, 0, 3, &Attrs::default().add(attr::PORT_STATE, &[4]).0),
        refusal(Errno::EINVAL, 4),
        refusal(Errno::EINVAL, 5),
    ]);
    let found = nldev.find(DeviceIndex(4)).unwrap();
    assert_eq!((found.device.name.as_str(), found.ports.len()), ("now", 1));
    assert_eq!(nldev.find(DeviceIndex(8)), Err(NetlinkError::Kernel(Errno::EINVAL)));
    assert_eq!(nldev.chardev(DeviceIndex(8)), Err(NetlinkError::Kernel(Errno::EINVAL)));
}

#[test]
fn file_names() {
    for good in ["uverbs0", "a b", "..."] {
        assert!(is_file_name(good), "{good}");
    }
    for bad in ["", ".", "..", "a/b", "/", "a\0b"] {
        assert!(!is_file_name(bad), "{bad}");
    }
}

/// The numbers used here are those of the kernel's header.
#[test]
fn numbers_are_those_of_the_header() {
    const HEADER: &str = "/usr/include/rdma/rdma_netlink.h";
    let Ok(text) = std::fs::read_to_string(HEADER) else {
        eprintln!("skipped: {HEADER} is not installed (linux-libc-dev)");
        return;
    };
    let numbers = enumerators(&text);
    for (name, ours) in [
        ("RDMA_NLDEV_CMD_GET", command::GET & 0x3ff),
        ("RDMA_NLDEV_CMD_PORT_GET", command::PORT_GET & 0x3ff),
        ("RDMA_NLDEV_CMD_SYS_GET", command::SYS_GET & 0x3ff),
        ("RDMA_NLDEV_CMD_GET_CHARDEV", command::GET_CHARDEV & 0x3ff),
        ("RDMA_NL_NLDEV", command::GET >> 10),
        ("RDMA_NLDEV_ATTR_DEV_INDEX", attr::DEV_INDEX),
        ("RDMA_NLDEV_ATTR_DEV_NAME", attr::DEV_NAME),
        ("RDMA_NLDEV_ATTR_PORT_INDEX", attr::PORT_INDEX),
        ("RDMA_NLDEV_ATTR_CAP_FLAGS", attr::CAP_FLAGS),
        ("RDMA_NLDEV_ATTR_FW_VERSION", attr::FW_VERSION),
        ("RDMA_NLDEV_ATTR_NODE_GUID", attr::NODE_GUID),
        ("RDMA_NLDEV_ATTR_SYS_IMAGE_GUID", attr::SYS_IMAGE_GUID),
        ("RDMA_NLDEV_ATTR_SUBNET_PREFIX", attr::SUBNET_PREFIX),
        ("RDMA_NLDEV_ATTR_LID", attr::LID),
        ("RDMA_NLDEV_ATTR_SM_LID", attr::SM_LID),
        ("RDMA_NLDEV_ATTR_LMC", attr::LMC),
        ("RDMA_NLDEV_ATTR_PORT_STATE", attr::PORT_STATE),
        ("RDMA_NLDEV_ATTR_PORT_PHYS_STATE", attr::PORT_PHYS_STATE),
        ("RDMA_NLDEV_ATTR_DEV_NODE_TYPE", attr::DEV_NODE_TYPE),
        ("RDMA_NLDEV_ATTR_NDEV_INDEX", attr::NDEV_INDEX),
        ("RDMA_NLDEV_ATTR_NDEV_NAME", attr::NDEV_NAME),
        ("RDMA_NLDEV_SYS_ATTR_NETNS_MODE", attr::NETNS_MODE),
        ("RDMA_NLDEV_ATTR_DEV_PROTOCOL", attr::DEV_PROTOCOL),
        ("RDMA_NLDEV_ATTR_CHARDEV_TYPE", attr::CHARDEV_TYPE),
        ("RDMA_NLDEV_ATTR_CHARDEV_NAME", attr::CHARDEV_NAME),
        ("RDMA_NLDEV_ATTR_CHARDEV_ABI", attr::CHARDEV_ABI),
        ("RDMA_NLDEV_ATTR_CHARDEV", attr::CHARDEV),
        ("RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID", attr::UVERBS_DRIVER_ID),
        ("RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK", attr::COPY_ON_FORK),
    ] {
        assert_eq!(numbers.iter().find(|(n, _)| n == name).map(|n| n.1), Some(u32::from(ours)), "{name}");
    }
}

/// Names and values of all enumerators of a C header: each one more than the one before, unless it says otherwise.
pub fn enumerators(header: &str) -> Vec<(String, u32)> {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, after)) = rest.split_once("/*") {
        code.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);

    let mut all: Vec<(String, u32)> = Vec::new();
    for body in code.split("enum ").skip(1).filter_map(|e| e.split_once('{')?.1.split_once('}')).map(|(body, _)| body) {
        let mut next = 0;
        for item in body.split(',').map(str::trim).filter(|item| !item.is_empty() && !item.starts_with('#')) {
            let (name, value) = item.split_once('=').map_or((item, None), |(n, v)| (n.trim(), Some(v.trim())));
            let value = match value {
                None => Some(next),
                Some(text) => text.parse().ok().or_else(|| all.iter().find(|(n, _)| n == text).map(|n| n.1)),
            };
            let Some(value) = value else { break };
            all.push((name.to_owned(), value));
            next = value + 1;
        }
    }
    all
}

#[test]
fn enumerators_of_a_header() {
    let header =
        "enum { A, /* comment, with = and } in it */ B = 5, C, D = B, E, }; struct s { int x; }; enum e { F };";
    let expected = [("A", 0), ("B", 5), ("C", 6), ("D", 5), ("E", 6), ("F", 0)];
    assert_eq!(enumerators(header), expected.map(|(n, v)| (n.to_owned(), v)));
}

proptest! {
    #[test]
    fn arbitrary_payloads_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = (Device::parse(&bytes), Chardev::parse(&bytes), Port::parse(&bytes), System::parse(&bytes));
    }

    /// Arbitrary values in well-formed attributes.
    #[test]
    fn arbitrary_attributes_do_no_harm(
        attributes in proptest::collection::vec((0u16..100, proptest::collection::vec(any::<u8>(), 0..12)), 0..16),
    ) {
        let bytes = attributes.iter().fold(Attrs::default(), |attrs, (kind, value)| attrs.add(*kind, value)).0;
        if let Some(device) = Device::parse(&bytes) {
            prop_assert!(device.port_count <= MAX_PORTS);
            prop_assert_eq!(device.questions().count(), device.port_count as usize + 1);
        }
        if let Ok(chardev) = Chardev::parse(&bytes) {
            prop_assert!(is_file_name(&chardev.name));
        }
        let _ = (Port::parse(&bytes), System::parse(&bytes));
    }
}
