//! Chat over unreliable datagrams: each line of the terminal goes to the peer as one datagram. Ends when both sides have
//! ended their input (Ctrl-D).
//!
//! One side: `cargo run --example ud_chat -- rxe0`
//! The other: `cargo run --example ud_chat -- rxe0 HOST`

mod exchange;

use ironverbs::{Context, Datagram, Endpoint, Pool, QKey, QpBuilder};
use std::error::Error;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

const QKEY: QKey = QKey(0x1122_3344);
/// Bytes of a line. A datagram is one packet.
const LINE: usize = 900;
/// Before the payload comes the header, wherever the datagram comes from.
const HEADER: usize = 40;

fn main() -> std::process::ExitCode {
    exchange::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let (device, host) = exchange::arguments("ud_chat")?;
    let context = Context::open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let mut cq = context.cq_builder(64).channel(&channel).build()?;
    let pool = Pool::new(&pd, 24, HEADER + LINE)?;
    let mut prepared = QpBuilder::ud(&pd, &cq, &cq).qkey(QKEY).build()?;
    while let Some(slot) = pool.take().filter(|slot| slot.index() < 16) {
        prepared.recv_slot(slot)?; // a datagram that finds no receive is lost
    }
    let mut qp = prepared.activate()?;
    let stream = exchange::meet(host.as_deref())?;
    let peer: Endpoint = exchange::trade(&stream, &qp.endpoint().to_string())?.parse()?;
    let ah = qp.create_ah(&peer)?; // kept until every send to it has completed

    let typed = lines();
    let (mut ours_ended, mut theirs_ended, mut sending) = (false, false, 0);
    let mut heard = Instant::now();
    while !(ours_ended && theirs_ended && sending == 0) {
        while !ours_ended && let Some(mut slot) = pool.take() {
            let line = match typed.try_recv() {
                Ok(line) => line,
                Err(TryRecvError::Empty) => break,
                // An empty datagram says that no more lines come.
                Err(TryRecvError::Disconnected) => {
                    ours_ended = true;
                    String::new()
                }
            };
            let bytes = &line.as_bytes()[..line.len().min(LINE)];
            slot[..bytes.len()].copy_from_slice(bytes);
            qp.send_slot_to(slot, bytes.len() as u32, ah.to(peer.qpn, QKEY))?;
            sending += 1;
        }
        cq.wait(Duration::from_millis(50))?;
        let mut completions = cq.poll()?;
        while let Some(completion) = completions.next() {
            let Ok((slot, wc)) = pool.reclaim(completion) else { continue };
            if wc.source().is_none() {
                wc.outcome()?;
                sending -= 1; // the slot goes back to the pool
                continue;
            }
            let datagram = Datagram::new(&slot, &wc)?;
            match datagram.payload {
                [] => theirs_ended = true,
                line => println!("> {}", String::from_utf8_lossy(line)),
            }
            heard = Instant::now();
            qp.recv_slot(slot)?;
        }
        if ours_ended && heard.elapsed() > Duration::from_secs(10) {
            return Err("nothing heard for 10 s: datagrams can be lost, also the last one".into());
        }
    }
    Ok(())
}

/// Lines of the terminal, read by a thread of their own.
fn lines() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok).filter(|line| !line.is_empty()) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
