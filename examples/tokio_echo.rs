//! Echo over RDMA SENDs with tokio: every message comes back, many under way at once.
//!
//! Server: `cargo run --features tokio --example tokio_echo -- rxe0`
//! Client: `cargo run --features tokio --example tokio_echo -- rxe0 SERVER`

mod exchange;

use ironverbs::tokio::{EventStream, Operation, Operations};
use ironverbs::{Context, Pool, Qp, QpBuilder};
use std::collections::VecDeque;
use std::error::Error;
use std::net::TcpStream;

const MESSAGES: u32 = 1000;
const DEPTH: u32 = 16;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    exchange::exit(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let (device, host) = exchange::arguments("tokio_echo")?;
    let context = Context::open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let cq = context.cq_builder(4 * DEPTH).channel(&channel).build()?;
    let pool = Pool::new(&pd, 2 * DEPTH, 1024)?;
    let builder = QpBuilder::rc(&pd, &cq, &cq).max_send_wr(DEPTH).max_recv_wr(DEPTH);
    let prepared = builder.build()?;
    let peer = exchange::meet(host.as_deref())?; // blocks, as nothing else runs yet
    let remote = exchange::trade(&peer, &prepared.endpoint().to_string())?.parse()?;
    let qp = prepared.connect(&remote)?;

    let (operations, mut driver) = Operations::new(&pool, cq)?;
    let mut events = EventStream::new(context.async_events())?;
    let work = async {
        match host {
            None => serve(&operations, qp, &peer).await,
            Some(_) => ask(&operations, qp, &peer).await,
        }
    };
    tokio::select! {
        done = work => done,
        error = driver.run() => Err(error.into()),
        event = events.next() => Err(format!("an event: {:?}", event?).into()),
    }
}

/// Receives a message and sends it back in the same buffer.
async fn serve(operations: &Operations, mut qp: Qp, peer: &TcpStream) -> Result<(), Box<dyn Error>> {
    let mut receives = VecDeque::new();
    for _ in 0..DEPTH {
        let slot = operations.pool().take().ok_or("every slot is in use")?;
        receives.push_back(operations.recv(&mut qp, slot)?);
    }
    exchange::trade(peer, "ready")?;
    for _ in 0..MESSAGES {
        let next = receives.pop_front().ok_or("no receive is posted")?;
        let (slot, wc) = next.await?;
        let len_bytes = wc.outcome()?.byte_len;
        // The answer's own completion is waited for before its buffer is used again; other messages come meanwhile.
        let (slot, wc) = operations.send(&mut qp, slot, len_bytes)?.await?;
        wc.outcome()?;
        receives.push_back(operations.recv(&mut qp, slot)?);
    }
    exchange::trade(peer, "done")?;
    Ok(())
}

/// Keeps several messages under way, and checks what comes back.
async fn ask(operations: &Operations, mut qp: Qp, peer: &TcpStream) -> Result<(), Box<dyn Error>> {
    exchange::trade(peer, "ready")?;
    let mut answers: VecDeque<Operation> = VecDeque::new();
    for n in 0..MESSAGES + DEPTH {
        if n >= DEPTH {
            let (slot, wc) = answers.pop_front().ok_or("nothing is under way")?.await?;
            let expected = format!("message {}", n - DEPTH);
            if slot[..wc.outcome()?.byte_len as usize] != *expected.as_bytes() {
                return Err(format!("something else came back than {expected:?}").into());
            }
        }
        if n < MESSAGES {
            let text = format!("message {n}");
            let (into, mut from) = (operations.pool().take(), operations.pool().take().ok_or("every slot is in use")?);
            answers.push_back(operations.recv(&mut qp, into.ok_or("every slot is in use")?)?);
            from[..text.len()].copy_from_slice(text.as_bytes());
            // Nobody waits for this one: dropped, it gives its slot back to the pool once the message is sent.
            drop(operations.send(&mut qp, from, text.len() as u32)?);
        }
        // An answer can overtake the completion of its own message.
        while operations.pool().take().is_none() {
            tokio::task::yield_now().await;
        }
    }
    exchange::trade(peer, "done")?;
    println!("{MESSAGES} messages came back");
    Ok(())
}
