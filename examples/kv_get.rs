//! One-sided key-value get: the client READs entries out of the server's memory, while the server changes them and knows
//! nothing of it.
//!
//! An entry ends with a checksum of the rest. A reader that finds another one has caught the entry while it was being
//! written, and reads it again. That holds in whatever order processor and device write and read its bytes; versions
//! before and after the value would need a promise of both.
//!
//! Server: `cargo run --example kv_get -- rxe0`
//! Client: `cargo run --example kv_get -- rxe0 SERVER`

mod exchange;

use ironverbs::{AccessFlags, Context, Cq, Mr, Pool, Qp, QpBuilder, RemoteAddr, Rkey};
use std::error::Error;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of an entry: version, value, checksum.
const ENTRY: usize = 256;
const VALUE: usize = ENTRY - 16;
const KEYS: usize = 8;
const GETS: u32 = 1000;

fn main() -> std::process::ExitCode {
    exchange::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let (device, host) = exchange::arguments("kv_get")?;
    let context = Context::open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let mut cq = context.cq_builder(16).channel(&channel).build()?;
    let prepared = QpBuilder::rc(&pd, &cq, &cq).access(AccessFlags::REMOTE_READ).build()?;
    let peer = exchange::meet(host.as_deref())?;
    let remote = exchange::trade(&peer, &prepared.endpoint().to_string())?.parse()?;
    let mut qp = prepared.connect(&remote)?;
    match host {
        None => serve(pd.alloc_mr(KEYS * ENTRY, AccessFlags::REMOTE_READ)?, &peer),
        Some(_) => get(&mut qp, &mut cq, &Pool::new(&pd, 1, ENTRY)?, &peer),
    }
}

/// Changes entries until the client hangs up.
fn serve(mut table: Mr, mut peer: &TcpStream) -> Result<(), Box<dyn Error>> {
    for key in 0..KEYS {
        put(&mut table, key, 1)?;
    }
    let start = table.remote(0)?;
    exchange::trade(peer, &format!("{} {}", start.addr, start.rkey.0))?;
    peer.set_nonblocking(true)?;
    for version in 2.. {
        put(&mut table, version as usize % KEYS, version)?;
        match peer.read(&mut [0]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_micros(50)),
            _ => break,
        }
    }
    Ok(())
}

/// A new value, of which every byte follows from its version.
fn put(table: &mut Mr, key: usize, version: u64) -> Result<(), ironverbs::Error> {
    let mut entry = [version as u8; ENTRY];
    entry[..8].copy_from_slice(&version.to_le_bytes());
    let sum = checksum(&entry[..8 + VALUE]);
    entry[8 + VALUE..].copy_from_slice(&sum.to_le_bytes());
    table.write(key * ENTRY, &entry)
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn get(qp: &mut Qp, cq: &mut Cq, pool: &Pool, peer: &TcpStream) -> Result<(), Box<dyn Error>> {
    let table = exchange::trade(peer, "where is it?")?;
    let (addr, rkey) = table.split_once(' ').ok_or("not an address and a key")?;
    let start = RemoteAddr { addr: addr.parse()?, rkey: Rkey(rkey.parse()?) };
    let mut torn = 0;
    for n in 0..GETS {
        let key = n as usize % KEYS;
        let there = RemoteAddr { addr: start.addr + (key * ENTRY) as u64, ..start };
        loop {
            qp.read_slot(pool.take().ok_or("the slot is in use")?, ENTRY as u32, there)?;
            if !cq.spin_then_wait(1000, Duration::from_secs(10))? {
                return Err("no completion within 10 s".into());
            }
            let mut completions = cq.poll()?;
            let Some(completion) = completions.next() else { continue };
            let (slot, wc) = pool.reclaim(completion).map_err(|_| "a completion of something else")?;
            wc.outcome()?;
            let (whole, sum) = slot.split_at(8 + VALUE);
            if checksum(whole).to_le_bytes() == *sum {
                let (version, value) = whole.split_at(8);
                let version = u64::from_le_bytes(version.try_into()?);
                if value.iter().any(|byte| *byte != version as u8) {
                    return Err(format!("key {key}, version {version}: a value of another version").into());
                }
                break;
            }
            torn += 1;
        }
    }
    println!("{GETS} gets, {torn} entries caught in between and read again");
    Ok(())
}
