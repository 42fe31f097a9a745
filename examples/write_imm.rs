//! RDMA WRITE with immediate: the client writes into the server's memory, and the server's completion says where.
//!
//! Server: `cargo run --example write_imm -- rxe0`
//! Client: `cargo run --example write_imm -- rxe0 SERVER`

#![allow(unsafe_code)]

mod exchange;

use ironverbs::{AccessFlags, Context, Cq, Inline, PreparedQp, QpBuilder, RemoteAddr, Rkey, WcOpcode, WrFlags};
use std::error::Error;
use std::net::TcpStream;
use std::time::Duration;

/// The server's memory is cut into pieces of this size; the immediate is the number of a piece.
const PIECE: usize = 64;
const WORDS: [&str; 6] = ["zero", "one", "two", "three", "four", "five"];

fn main() -> std::process::ExitCode {
    exchange::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let (device, host) = exchange::arguments("write_imm")?;
    let context = Context::open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let mut cq = context.cq_builder(64).channel(&channel).build()?;
    let builder = QpBuilder::rc(&pd, &cq, &cq).max_inline_bytes(PIECE as u32);
    let prepared = builder.access(AccessFlags::REMOTE_WRITE).build()?;
    let peer = exchange::meet(host.as_deref())?;
    match host {
        None => {
            let memory = pd.alloc_mr(WORDS.len() * PIECE, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
            serve(prepared, &mut cq, &memory, &peer)
        }
        Some(_) => write(prepared, &mut cq, &peer),
    }
}

fn serve(
    mut prepared: PreparedQp,
    cq: &mut Cq,
    memory: &ironverbs::Mr,
    peer: &TcpStream,
) -> Result<(), Box<dyn Error>> {
    // Each write with immediate uses one receive up; the bytes do not go there, so it needs no memory.
    let mut receives = prepared.recv_batch();
    for number in 0..WORDS.len() as u64 {
        receives.recv(number, &[])?;
    }
    // SAFETY: the receives name no memory.
    unsafe { receives.submit()? };
    let remote = exchange::trade(peer, &prepared.endpoint().to_string())?.parse()?;
    let _qp = prepared.connect(&remote)?;
    let start = memory.remote(0)?;
    exchange::trade(peer, &format!("{} {}", start.addr, start.rkey.0))?;

    for _ in WORDS {
        let wc = next(cq)?;
        let done = wc.outcome()?;
        let piece = done.imm.ok_or("a completion without immediate")? as usize;
        // Both numbers are the peer's word: `read` checks that they lie within the region.
        let mut bytes = vec![0; (done.byte_len as usize).min(PIECE)];
        memory.read(piece * PIECE, &mut bytes)?;
        println!("piece {piece}: {}", String::from_utf8_lossy(&bytes));
    }
    exchange::trade(peer, "done")?;
    Ok(())
}

fn write(prepared: PreparedQp, cq: &mut Cq, peer: &TcpStream) -> Result<(), Box<dyn Error>> {
    let remote = exchange::trade(peer, &prepared.endpoint().to_string())?.parse()?;
    let mut qp = prepared.connect(&remote)?;
    let memory = exchange::trade(peer, "connected")?;
    let (addr, rkey) = memory.split_once(' ').ok_or("not an address and a key")?;
    let start = RemoteAddr { addr: addr.parse()?, rkey: Rkey(rkey.parse()?) };

    let mut batch = qp.send_batch();
    for (number, word) in WORDS.iter().enumerate() {
        let there = RemoteAddr { addr: start.addr + (number * PIECE) as u64, ..start };
        // The last one's completion tells of all before it.
        let flags = if number + 1 == WORDS.len() { WrFlags::SIGNALED } else { WrFlags::NONE };
        batch.write_imm(number as u64, flags, Inline(word.as_bytes()), there, number as u32)?;
    }
    // SAFETY: inline payload is copied already; no other memory is named.
    unsafe { batch.submit()? };
    let wc = next(cq)?;
    assert_eq!(wc.outcome()?.opcode, WcOpcode::RDMA_WRITE);
    exchange::trade(peer, "done")?;
    Ok(())
}

fn next(cq: &mut Cq) -> Result<ironverbs::Wc, Box<dyn Error>> {
    while cq.spin_then_wait(1000, Duration::from_secs(10))? {
        if let Some(wc) = cq.poll_one()? {
            return Ok(wc);
        }
    }
    Err("no completion within 10 s".into())
}
