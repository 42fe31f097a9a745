//! A bridge to the fabric of another process: packets that are for nobody here go over a socket.

use crate::frame::Frame;
use crate::packet::{Gid, Mac, Network, Packet};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Bytes of a frame at most: a packet of the largest MTU, and room for its head.
const MAX_FRAME_BYTES: usize = 1 << 16;
/// Bytes that may wait for a slow other end; then packets are lost, as on a congested network.
const MAX_BACKLOG_BYTES: usize = 1 << 22;

#[derive(Debug)]
pub(crate) struct Bridge {
    stream: Arc<UnixStream>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// What the other end said of its Ethernet addresses.
    pub addresses: Vec<(Gid, Network, Mac)>,
    announced: Option<Vec<(Gid, Network, Mac)>>,
    /// The other end is gone, or speaks another language.
    pub broken: bool,
}

impl Bridge {
    pub fn new(stream: UnixStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: Arc::new(stream),
            incoming: vec![],
            outgoing: vec![],
            addresses: vec![],
            announced: None,
            broken: false,
        })
    }

    /// Tells the other end of the addresses here, if they changed.
    pub fn announce(&mut self, addresses: &[(Gid, Network, Mac)]) {
        if self.announced.as_deref() != Some(addresses) {
            self.announced = Some(addresses.to_vec());
            self.put(&Frame::Addresses(addresses.to_vec()));
        }
    }

    /// Sends a packet. False if it is lost.
    pub fn send(&mut self, packet: &Packet) -> bool {
        if self.outgoing.len() > MAX_BACKLOG_BYTES {
            return false;
        }
        self.put(&Frame::Packet(packet.clone()));
        !self.broken
    }

    /// What to wait on for it: its socket, and whether room to write is waited for.
    pub fn waits_on(&self) -> (Arc<UnixStream>, bool) {
        (Arc::clone(&self.stream), !self.outgoing.is_empty())
    }

    fn put(&mut self, frame: &Frame) {
        let bytes = frame.encode();
        self.outgoing.extend((bytes.len() as u32).to_be_bytes());
        self.outgoing.extend(bytes);
        self.flush();
    }

    fn flush(&mut self) {
        while !self.outgoing.is_empty() && !self.broken {
            match (&*self.stream).write(&self.outgoing) {
                Ok(n) if n > 0 => drop(self.outgoing.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                _ => self.broken = true,
            }
        }
    }

    /// Packets that have come.
    pub fn receive(&mut self) -> Vec<Packet> {
        self.flush();
        let mut buffer = [0; MAX_FRAME_BYTES];
        match (&*self.stream).read(&mut buffer) {
            Ok(0) => self.broken = true,
            Ok(n) => self.incoming.extend(&buffer[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.broken = true,
        }
        let mut packets = vec![];
        let mut rest = self.incoming.as_slice();
        while let Some((head, tail)) = rest.split_at_checked(4) {
            let len = crate::bits::be32(head, 0) as usize;
            if len > MAX_FRAME_BYTES {
                self.broken = true;
                break;
            }
            let Some((frame, after)) = tail.split_at_checked(len) else { break };
            match Frame::decode(frame) {
                Some(Frame::Packet(packet)) => packets.push(packet),
                Some(Frame::Addresses(addresses)) => self.addresses = addresses,
                None => self.broken = true,
            }
            rest = after;
        }
        self.incoming = rest.to_vec();
        packets
    }
}
