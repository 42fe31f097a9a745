//! QEMU's proxy device (`-device x-pci-proxy-dev,fd=N`), whose accesses come as messages over a socket, and interrupts through its
//! test interface (`-object qtest`).
//!
//! The proxy device itself forwards the one interrupt of old PCI only. A message-signalled interrupt is a store into the guest's
//! bus, and the test interface can make one. Three things follow from how QEMU 7.2 does it: the guest's memory must be
//! shareable (`memory-backend-memfd,share=on`); an interrupt is raised after the access that caused it was answered; and the guest has
//! one processor, for QEMU refuses an access while another to the same device waits for its answer, and loses it.

use crate::inherited;
use crate::transport::{Request, Transport};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recv, recvmsg};
use softcx::pci::{Interrupt, Region};
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

/// Commands, and the layout of their messages in the host's byte order: header {command: i32, 4 bytes, size: u64}, then `size` bytes.
mod message {
    pub const HEADER_BYTES: usize = 16;
    pub const SYNC_MEMORY: i32 = 0;
    pub const ANSWER: i32 = 1;
    pub const CONFIG_WRITE: i32 = 2;
    pub const CONFIG_READ: i32 = 3;
    pub const BAR_WRITE: i32 = 4;
    pub const BAR_READ: i32 = 5;
    pub const RESET: i32 = 7;
    /// Regions in one message, and so the descriptors that come with it.
    pub const REGIONS: usize = 8;
    /// Bytes of the longest message.
    pub const MAX_BYTES: u64 = 4096;
}

/// The test interface of one QEMU, shared by its adapters.
#[derive(Clone, Debug)]
pub struct Interrupts(Arc<Mutex<UnixStream>>);

impl Interrupts {
    /// Interrupts go through `stream`, the other end of which is QEMU's test interface.
    pub fn new(stream: UnixStream) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    fn raise(&self, Interrupt { address, data }: Interrupt) -> io::Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It acknowledges each command, which says nothing here; but what it says must not pile up.
        let mut said = [0; 4096];
        while recv(stream.as_raw_fd(), &mut said, MsgFlags::MSG_DONTWAIT).is_ok_and(|n| n == said.len()) {}
        match stream.write_all(format!("writel {address:#x} {data:#x}\n").as_bytes()) {
            // QEMU is going: the adapters hear of it by themselves.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }
}

/// The remote end of one proxy device.
#[derive(Debug)]
pub struct ProxyDevice {
    stream: UnixStream,
    interrupts: Interrupts,
}

impl ProxyDevice {
    /// The device whose other end has `stream`'s.
    pub fn new(stream: UnixStream, interrupts: Interrupts) -> Self {
        Self { stream, interrupts }
    }

    /// The header of a message, and the descriptors that come with it. `None` at the end of the stream.
    fn header(&mut self) -> io::Result<Option<(i32, u64, Vec<OwnedFd>)>> {
        let mut header = [0; message::HEADER_BYTES];
        let mut space = nix::cmsg_space!([i32; message::REGIONS]);
        let (got, fds) = {
            let mut parts = [IoSliceMut::new(&mut header)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let received = loop {
                match recvmsg::<()>(self.stream.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                    Err(nix::Error::EINTR) => {}
                    Err(nix::Error::ECONNRESET) => return Ok(None),
                    received => break received?,
                }
            };
            let mut fds = vec![];
            for control in received.cmsgs()? {
                if let ControlMessageOwned::ScmRights(numbers) = control {
                    fds.extend(numbers.into_iter().map(inherited::received));
                }
            }
            (received.bytes, fds)
        };
        if got == 0 {
            return Ok(None);
        }
        self.stream.read_exact(&mut header[got..])?;
        let command = i32::from_ne_bytes(part(&header, 0));
        Ok(Some((command, u64::from_ne_bytes(part(&header, 8)), fds)))
    }
}

/// The bytes at `at`; past the end they are zero.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
    out
}

fn regions(body: &[u8], fds: Vec<OwnedFd>) -> Vec<Region> {
    let word = |group: usize, i: usize| u64::from_ne_bytes(part(body, 8 * (group * message::REGIONS + i)));
    let all = fds.into_iter().enumerate();
    all.map(|(i, file)| Region { address: word(0, i), len: word(1, i), offset: word(2, i), file })
        .filter(|region| region.len != 0)
        .collect()
}

impl Transport for ProxyDevice {
    fn waits_on(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn request(&mut self) -> io::Result<Option<Request>> {
        let Some((command, size, fds)) = self.header()? else { return Ok(None) };
        if size > message::MAX_BYTES {
            return Err(io::Error::other(format!("QEMU sends a message of {size} bytes: not the protocol of 7.2")));
        }
        let mut body = vec![0; size as usize];
        self.stream.read_exact(&mut body)?;
        let word = |at| u32::from_ne_bytes(part(&body, at));
        let long = |at| u64::from_ne_bytes(part(&body, at));
        Ok(Some(match command {
            message::SYNC_MEMORY => Request::Memory(regions(&body, fds)),
            message::CONFIG_READ => Request::ConfigRead { offset: word(0) as usize, len: word(8) as usize },
            message::CONFIG_WRITE => {
                Request::ConfigWrite { offset: word(0) as usize, value: word(4), len: word(8) as usize }
            }
            message::BAR_READ => Request::BarRead { address: long(0), len: word(16) as usize },
            message::BAR_WRITE => Request::BarWrite { address: long(0), value: long(8), len: word(16) as usize },
            message::RESET => Request::Reset,
            _ => Request::Other,
        }))
    }

    fn answer(&mut self, value: u64) -> io::Result<()> {
        let mut bytes = [0; message::HEADER_BYTES + 8];
        bytes[..4].copy_from_slice(&message::ANSWER.to_ne_bytes());
        bytes[8..16].copy_from_slice(&8_u64.to_ne_bytes());
        bytes[16..].copy_from_slice(&value.to_ne_bytes());
        match self.stream.write_all(&bytes) {
            // The next request says that QEMU is gone.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            result => result,
        }
    }

    fn interrupt(&mut self, interrupt: Interrupt) -> io::Result<()> {
        self.interrupts.raise(interrupt)
    }
}
