//! One shared receive queue for many clients: the server posts buffers once, and whoever sends uses up the next one.
//!
//! Server: `cargo run --example srq_server -- rxe0`
//! Clients, once for all four of them: `cargo run --example srq_server -- rxe0 SERVER`

mod exchange;

use ironverbs::{Context, Pool, QpBuilder};
use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

const CLIENTS: usize = 4;
const MESSAGES: u32 = 100;
const BUFFERS: u32 = 32;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> std::process::ExitCode {
    exchange::exit(run().map_err(|error| error as Box<dyn Error>))
}

fn run() -> Outcome {
    let (device, host) = exchange::arguments("srq_server")?;
    let Some(host) = host else { return serve(&device) };
    std::thread::scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                threads.spawn({
                    let (device, host) = (&device, &host);
                    move || send(device, host, number)
                })
            })
            .collect();
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| "a client panicked")?)
    })
}

fn serve(device: &str) -> Outcome {
    let context = Context::open(device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let mut cq = context.cq_builder(2 * BUFFERS).channel(&channel).build()?;
    let pool = Pool::new(&pd, BUFFERS, 256)?;
    let mut srq = context.create_srq(&pd, BUFFERS)?;
    while let Some(slot) = pool.take() {
        srq.recv_slot(slot)?;
    }
    // One queue pair for each client; they share the buffers and the completion queue.
    let (mut clients, mut peers) = (HashMap::new(), vec![]);
    let listener = exchange::listen()?;
    for number in 0..CLIENTS {
        let prepared = QpBuilder::rc(&pd, &cq, &cq).srq(&srq).build()?;
        let (peer, _) = listener.accept()?;
        let remote = exchange::trade(&peer, &prepared.endpoint().to_string())?.parse()?;
        let qp = prepared.connect(&remote)?;
        clients.insert(qp.qpn().get(), (number, 0, qp));
        peers.push(peer);
    }
    // Not before all are there: nobody posts buffers anew until then.
    for peer in &peers {
        exchange::trade(peer, "connected")?;
    }
    let mut left = CLIENTS;
    while left > 0 {
        if !cq.spin_then_wait(1000, Duration::from_secs(10))? {
            return Err("nothing came for 10 s".into());
        }
        let mut completions = cq.poll()?;
        while let Some(completion) = completions.next() {
            let Ok((slot, wc)) = pool.reclaim(completion) else { continue };
            let len_bytes = wc.outcome()?.byte_len as usize;
            let (_, received, _) = clients.get_mut(&wc.qpn()).ok_or("a completion of no client")?;
            if &slot[..len_bytes] == b"bye" {
                left -= 1;
            } else {
                *received += 1;
            }
            srq.recv_slot(slot)?;
        }
    }
    for (number, received, _) in clients.values() {
        println!("client {number}: {received} messages");
        if *received != MESSAGES {
            return Err("messages were lost or doubled".into());
        }
    }
    Ok(())
}

fn send(device: &str, host: &str, number: usize) -> Outcome {
    let context = Context::open(device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let mut cq = context.cq_builder(16).channel(&channel).build()?;
    let pool = Pool::new(&pd, 1, 256)?;
    let prepared = QpBuilder::rc(&pd, &cq, &cq).build()?;
    let peer = exchange::meet(Some(host))?;
    let remote = exchange::trade(&peer, &prepared.endpoint().to_string())?.parse()?;
    let mut qp = prepared.connect(&remote)?;
    exchange::trade(&peer, "connected")?;
    for n in 0..=MESSAGES {
        let text = if n < MESSAGES { format!("message {n} of client {number}") } else { "bye".to_owned() };
        let mut slot = pool.take().ok_or("the slot is in use")?;
        slot[..text.len()].copy_from_slice(text.as_bytes());
        qp.send_slot(slot, text.len() as u32)?;
        if !cq.spin_then_wait(1000, Duration::from_secs(10))? {
            return Err("the message was not sent within 10 s".into());
        }
        while let Some(completion) = cq.poll()?.next() {
            completion.outcome()?;
            drop(pool.reclaim(completion)); // the slot goes back to the pool
        }
    }
    Ok(())
}
