//! Says hello to a peer, and prints what the peer says.
//!
//! Server: `cargo run --example hello -- rxe0`
//! Client: `cargo run --example hello -- rxe0 SERVER`

mod exchange;

use ironverbs::{Context, Pool, QpBuilder};
use std::error::Error;
use std::time::Duration;

fn main() -> std::process::ExitCode {
    exchange::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let (device, host) = exchange::arguments("hello")?;
    let context = Context::open(&device)?; // before anybody is waited for
    let peer = exchange::meet(host.as_deref())?;
    hello(&context, |line| exchange::trade(&peer, line))
}

/// `trade` gives the peer a line of text and returns the peer's: over TCP, say.
fn hello(context: &Context, trade: impl Fn(&str) -> std::io::Result<String>) -> Result<(), Box<dyn Error>> {
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let mut cq = context.cq_builder(8).channel(&channel).build()?;
    let pool = Pool::new(&pd, 2, 4096)?; // two registered buffers

    let mut prepared = QpBuilder::rc(&pd, &cq, &cq).build()?;
    prepared.recv_slot(pool.take().ok_or("no free slot")?)?; // before the peer knows of us
    let remote = trade(&prepared.endpoint().to_string())?.parse()?;
    let mut qp = prepared.connect(&remote)?;

    let mut slot = pool.take().ok_or("no free slot")?;
    slot[..5].copy_from_slice(b"hello");
    qp.send_slot(slot, 5)?;
    let mut under_way = 2; // a receive and a send
    while under_way > 0 {
        if !cq.wait(Duration::from_secs(10))? {
            return Err("nothing came for 10 s".into());
        }
        while let Some(completion) = cq.poll()?.next() {
            let Ok((slot, wc)) = pool.reclaim(completion) else { continue };
            let done = wc.outcome()?;
            if done.opcode.is_recv() {
                println!("{}", String::from_utf8_lossy(&slot[..done.byte_len as usize]));
            }
            under_way -= 1;
        }
    }
    Ok(trade("done").map(drop)?) // a queue pair that is dropped answers no more
}
