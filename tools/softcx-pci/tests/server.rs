//! The server with a transport of the test's own, and QEMU's with a socket in QEMU's place.

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use softcx::pci::{Interrupt, Region};
use softcx::{DeviceSpec, Fabric, Misuse, Port, Punish};
use softcx_pci::qemu::{Interrupts, ProxyDevice};
use softcx_pci::{Request, Server, Transport};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A guest that asks for what is on its list, then goes.
struct Script {
    requests: VecDeque<Request>,
    /// What was done, in order: answers and interrupts.
    done: Arc<Mutex<Vec<String>>>,
    /// Always readable.
    ready: UnixStream,
    _other: UnixStream,
}

impl Script {
    fn new(requests: Vec<Request>) -> (Self, Arc<Mutex<Vec<String>>>) {
        let (ready, mut other) = UnixStream::pair().unwrap();
        other.write_all(&[0]).unwrap();
        let done = Arc::<Mutex<Vec<String>>>::default();
        (Self { requests: requests.into(), done: Arc::clone(&done), ready, _other: other }, done)
    }
}

impl Transport for Script {
    fn waits_on(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn request(&mut self) -> io::Result<Option<Request>> {
        Ok(self.requests.pop_front())
    }

    fn answer(&mut self, value: u64) -> io::Result<()> {
        self.done.lock().unwrap().push(format!("answer {value:#x}"));
        Ok(())
    }

    fn interrupt(&mut self, Interrupt { address, data }: Interrupt) -> io::Result<()> {
        self.done.lock().unwrap().push(format!("interrupt {address:#x} {data:#x}"));
        Ok(())
    }
}

fn spec(memory: Arc<softcx::pci::GuestMemory>) -> DeviceSpec {
    let punish = Punish::default();
    DeviceSpec { name: "cx".into(), memory, ports: vec![Port::infiniband(1, 1)], guid: 1, punish }
}

const BAR: u64 = 0xfa00_0000;
const BYTES: u64 = 0x10_0000;

fn memory() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES).unwrap();
    file
}

fn region(file: &File) -> Region {
    Region { address: 0, len: BYTES, file: file.try_clone().unwrap().into(), offset: 0 }
}

fn store(offset: u64, value: u64, len: usize) -> Request {
    Request::BarWrite { address: BAR + offset, value, len }
}

/// A store of a big-endian register.
fn register(offset: u64, value: u32) -> Request {
    store(offset, value.swap_bytes().into(), 4)
}

/// Memory with a command queue at 0x1000: CREATE_EQ for command events, whose pages are from 0x3000 on, then NOP; each on its own.
fn commands() -> File {
    let file = memory();
    let mut entry = [0_u8; 64];
    (entry[0], entry[7], entry[59], entry[63]) = (7, 16, 16, 1);
    let nop = |at: u64| {
        let mut nop = entry;
        nop[16..18].copy_from_slice(&0x80d_u16.to_be_bytes());
        file.write_at(&nop, at).unwrap();
    };
    let mut create = entry;
    create[6..8].copy_from_slice(&0x118_u16.to_be_bytes());
    create[8..16].copy_from_slice(&0x2000_u64.to_be_bytes());
    create[16..18].copy_from_slice(&0x301_u16.to_be_bytes());
    file.write_at(&create, 0x1000).unwrap();
    // Its mailbox: context, mask and page list from byte 16 of the input on.
    let mut block = [0_u8; 576];
    (block[12], block[15]) = (4, 3);
    block[0x48..0x50].copy_from_slice(&(1_u64 << 10).to_be_bytes());
    block[0x100..0x108].copy_from_slice(&0x3000_u64.to_be_bytes());
    file.write_at(&block, 0x2000).unwrap();
    nop(0x1040);
    file
}

#[test]
fn an_access_is_answered_before_what_it_sets_off_is_told() {
    let file = commands();
    let table = 2 << 20;
    let (script, done) = Script::new(vec![
        Request::Memory(vec![region(&file)]),
        Request::ConfigWrite { offset: 0x10, value: BAR as u32, len: 4 },
        Request::ConfigWrite { offset: 0x04, value: 2, len: 2 },
        Request::ConfigWrite { offset: 0x42, value: 0x8000, len: 2 },
        Request::ConfigRead { offset: 0, len: 4 },
        Request::BarRead { address: BAR + 4, len: 2 },
        store(table, 0xfee0_0000, 8),
        store(table + 8, 0x41, 4),
        store(table + 12, 0, 4),
        register(0x14, 0x1000),
        register(0x18, 1),
        // The event queue, 1, is armed.
        store(0x3040, (1_u32 << 24).swap_bytes().into(), 4),
        register(0x18, 2),
        Request::Other,
    ]);
    let fabric = Fabric::new(1);
    let mut server = Server::new(&fabric);
    server.add(script, spec);
    server.serve().unwrap();

    let done = done.lock().unwrap();
    assert_eq!(done[3..5], ["answer 0x101715b3", "answer 0x500"], "{done:?}");
    assert_eq!(done[done.len() - 2..], ["answer 0x0", "interrupt 0xfee00000 0x41"], "{done:?}");
    assert_eq!(done.iter().filter(|what| what.starts_with("answer")).count(), 12, "{done:?}");
    let mut eqe = [0; 64];
    file.read_exact_at(&mut eqe, 0x3000).unwrap();
    assert_eq!((eqe[1], eqe[35]), (0x0a, 2), "the second command, by its entry");
    let live = server.functions().next().unwrap().live();
    assert_eq!(live, [("event queues", 1)]);
}

/// A guest of either kind.
struct Any(Box<dyn Transport>);

impl Transport for Any {
    fn waits_on(&self) -> BorrowedFd<'_> {
        self.0.waits_on()
    }

    fn request(&mut self) -> io::Result<Option<Request>> {
        self.0.request()
    }

    fn answer(&mut self, value: u64) -> io::Result<()> {
        self.0.answer(value)
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> io::Result<()> {
        self.0.interrupt(interrupt)
    }
}

/// A guest that never stops asking, until it is told to, or for `LIMIT`.
struct Busy {
    begin: Instant,
    stop: Rc<Cell<bool>>,
    ready: UnixStream,
}

const LIMIT: Duration = Duration::from_secs(20);

impl Transport for Busy {
    fn waits_on(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn request(&mut self) -> io::Result<Option<Request>> {
        let goes_on = !self.stop.get() && self.begin.elapsed() < LIMIT;
        Ok(goes_on.then_some(Request::ConfigRead { offset: 0, len: 4 }))
    }

    fn answer(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn interrupt(&mut self, _: Interrupt) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_doorbell_is_not_held_for_longer_because_another_guest_is_busy() {
    // A store that may be the first of a copy, and nothing behind it.
    let (script, _) = Script::new(vec![
        Request::ConfigWrite { offset: 0x10, value: BAR as u32, len: 4 },
        Request::ConfigWrite { offset: 0x04, value: 2, len: 2 },
        store(0x3800, 0x1234_5601_u64.swap_bytes(), 8),
    ]);
    let (ready, mut other) = UnixStream::pair().unwrap();
    other.write_all(&[0]).unwrap();
    let stop = Rc::<Cell<bool>>::default();
    let busy = Busy { begin: Instant::now(), stop: Rc::clone(&stop), ready };
    let mut server = Server::new(&Fabric::new(1));
    server.add(Any(Box::new(script)), spec);
    server.add(Any(Box::new(busy)), spec);
    server.functions().for_each(|function| function.set_blue_flame(true));
    let heard = Rc::clone(&stop);
    server.set_reports(move |report| heard.set(matches!(report.misuse, Misuse::UnknownDoorbell { .. })));
    let begin = Instant::now();
    server.serve().unwrap();
    assert!(stop.get() && begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
}

/// QEMU's end of a proxy device.
struct Qemu(UnixStream);

impl Qemu {
    fn send(&mut self, command: i32, body: &[u8]) {
        self.0.write_all(&[&header(command, body.len())[..], body].concat()).unwrap();
    }

    /// Sends what is answered, and waits until it is.
    fn access(&mut self, command: i32, body: &[u8]) {
        self.send(command, body);
        self.answer();
    }

    fn answer(&mut self) -> u64 {
        let mut bytes = [0; 24];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes[..16], header(1, 8));
        u64::from_ne_bytes(bytes[16..].try_into().unwrap())
    }
}

fn header(command: i32, size: usize) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&command.to_ne_bytes());
    header[8..].copy_from_slice(&(size as u64).to_ne_bytes());
    header
}

fn config(address: u32, value: u32, len: u32) -> Vec<u8> {
    [address, value, len].iter().flat_map(|n| n.to_ne_bytes()).collect()
}

fn bar(address: u64, value: u64, len: u32) -> Vec<u8> {
    [&address.to_ne_bytes()[..], &value.to_ne_bytes(), &len.to_ne_bytes(), &[1, 0, 0, 0]].concat()
}

#[test]
fn the_messages_of_a_proxy_device_are_understood() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (test_interface, mut their_interface) = UnixStream::pair().unwrap();
    let mut device = ProxyDevice::new(ours, Interrupts::new(test_interface));
    let mut qemu = Qemu(theirs);

    // Memory, with two descriptors; the message comes in pieces.
    let mut body = [0_u64; 24];
    (body[0], body[8], body[16]) = (0x1000, 0x2000, 0x3000);
    (body[1], body[9], body[17]) = (1 << 32, 0x4000, 0);
    let bytes: Vec<u8> = body.iter().flat_map(|n| n.to_ne_bytes()).collect();
    let files = [memory(), memory()];
    let fds = files.each_ref().map(|file| file.as_raw_fd());
    let head = header(0, bytes.len());
    let control = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(qemu.0.as_raw_fd(), &[IoSlice::new(&head[..5])], &control, MsgFlags::empty(), None).unwrap();
    qemu.0.write_all(&[&head[5..], &bytes].concat()).unwrap();
    let Some(Request::Memory(regions)) = device.request().unwrap() else { panic!("no memory") };
    let seen: Vec<_> = regions.iter().map(|r| (r.address, r.len, r.offset)).collect();
    assert_eq!(seen, [(0x1000, 0x2000, 0x3000), (1 << 32, 0x4000, 0)]);
    files[1].write_all_at(b"x", 0).unwrap();
    let mut byte = [0];
    File::from(regions.into_iter().next_back().unwrap().file).read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(&byte, b"x", "it is the same file");

    let cases: [(i32, Vec<u8>, &str); 6] = [
        (3, config(0x10, 0, 4), "ConfigRead { offset: 16, len: 4 }"),
        (2, config(4, 6, 2), "ConfigWrite { offset: 4, value: 6, len: 2 }"),
        (5, bar(BAR, 0, 8), "BarRead { address: 4194304000, len: 8 }"),
        (
            4,
            bar(BAR + 8, 0x1122_3344_5566_7788, 8),
            "BarWrite { address: 4194304008, value: 1234605616436508552, len: 8 }",
        ),
        (7, vec![], "Reset"),
        (6, vec![], "Other"),
    ];
    for (command, body, expected) in cases {
        qemu.send(command, &body);
        assert_eq!(format!("{:?}", device.request().unwrap().unwrap()), expected);
        device.answer(0x1234).unwrap();
        assert_eq!(qemu.answer(), 0x1234);
    }
    device.interrupt(Interrupt { address: 0xfee0_1000, data: 0x4042 }).unwrap();
    let mut said = [0; 64];
    let n = their_interface.read(&mut said).unwrap();
    assert_eq!(&said[..n], b"writel 0xfee01000 0x4042\n");

    qemu.0.write_all(&header(4, 1 << 20)).unwrap();
    assert!(device.request().is_err(), "no message is that long");
    drop((qemu, their_interface));
    device.interrupt(Interrupt { address: 0, data: 0 }).unwrap();
}

#[test]
fn the_end_of_qemu_is_the_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (test_interface, _) = UnixStream::pair().unwrap();
    let fabric = Fabric::new(1);
    let mut server = Server::new(&fabric);
    server.add(ProxyDevice::new(ours, Interrupts::new(test_interface)), spec);
    drop(theirs);
    server.serve().unwrap();
}

/// The whole program, with a guest that does this and goes; its status, and what it said.
fn program(options: &[&str], guest: impl FnOnce(&mut Qemu)) -> (Option<i32>, String) {
    let (device, theirs) = UnixStream::pair().unwrap();
    let (interrupts, _test_interface) = UnixStream::pair().unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_softcx-pci"))
        .args(["--device", "0", "--interrupts", "1"])
        .args(options)
        .stdin(OwnedFd::from(device))
        .stdout(OwnedFd::from(interrupts))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut qemu = Qemu(theirs);
    qemu.access(2, &config(0x10, BAR as u32, 4));
    qemu.access(2, &config(0x04, 2, 2));
    guest(&mut qemu);
    drop(qemu);
    let output = process.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// A doorbell of a queue pair that there is not.
fn ring_for_nothing(qemu: &mut Qemu) {
    qemu.access(4, &bar(BAR + 0x3800, 0x1234_5601_u64.swap_bytes(), 8));
}

#[test]
fn misuse_gives_the_program_a_status_of_its_own() {
    let (status, said) = program(&[], ring_for_nothing);
    assert_eq!(status, Some(4), "{said}");
    assert!(said.contains("misuse at 0.") && said.contains("doorbell 0x0000000012345601 names nothing"), "{said}");
    let (status, said) = program(&["--allow-misuse", "names nothing of its page"], ring_for_nothing);
    assert_eq!((status, said.contains("misuse")), (Some(0), false), "{said}");
}

#[test]
fn what_is_left_behind_gives_the_program_a_status_of_its_own() {
    let leave_a_queue = |qemu: &mut Qemu| {
        let file = commands();
        let (mut region, fds) = ([0_u64; 24], [file.as_raw_fd()]);
        region[8] = BYTES;
        let bytes: Vec<u8> = region.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let message = [&header(0, bytes.len())[..], &bytes].concat();
        let control = [ControlMessage::ScmRights(&fds)];
        sendmsg::<()>(qemu.0.as_raw_fd(), &[IoSlice::new(&message)], &control, MsgFlags::empty(), None).unwrap();
        for (offset, value) in [(0x14, 0x1000_u32), (0x18, 1)] {
            qemu.access(4, &bar(BAR + offset, value.swap_bytes().into(), 4));
        }
    };
    let (status, said) = program(&[], leave_a_queue);
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("mlx5_0: 1 event queues left"), "{said}");
    let (status, said) = program(&[], |qemu| {
        leave_a_queue(qemu);
        ring_for_nothing(qemu);
    });
    assert_eq!(status, Some(5), "{said}");
}
