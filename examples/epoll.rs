//! An event loop: `epoll`, edge-triggered, over a completion channel and the device's asynchronous events.
//!
//! Server: `cargo run --example epoll -- rxe0`
//! Client: `cargo run --example epoll -- rxe0 SERVER`

mod exchange;

use ironverbs::{AsyncEvents, CompChannel, Context, Cq, Notify, Pool, Qp, QpBuilder};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::error::Error;
use std::time::Duration;

const COMPLETIONS: u64 = 0;
const EVENTS: u64 = 1;

fn main() -> std::process::ExitCode {
    exchange::exit(run())
}

fn run() -> Result<(), Box<dyn Error>> {
    let (device, host) = exchange::arguments("epoll")?;
    let context = Context::open(&device)?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let cq = context.cq_builder(64).channel(&channel).build()?;
    let pool = Pool::new(&pd, 16, 1024)?;
    let mut prepared = QpBuilder::rc(&pd, &cq, &cq).build()?;
    while let Some(slot) = pool.take().filter(|slot| slot.index() < 8) {
        prepared.recv_slot(slot)?; // before the peer knows of us
    }
    let peer = exchange::meet(host.as_deref())?;
    let remote = exchange::trade(&peer, &prepared.endpoint().to_string())?.parse()?;
    let qp = prepared.connect(&remote)?;
    exchange::trade(&peer, "connected")?;
    match host {
        None => serve(&context.async_events(), &channel, cq, &pool, qp),
        Some(_) => send(cq, &pool, qp),
    }
}

/// Prints what comes until the peer says "bye".
fn serve(
    events: &AsyncEvents,
    channel: &CompChannel,
    mut cq: Cq,
    pool: &Pool,
    mut qp: Qp,
) -> Result<(), Box<dyn Error>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    epoll.add(channel, EpollEvent::new(edge, COMPLETIONS))?;
    epoll.add(events, EpollEvent::new(edge, EVENTS))?;
    loop {
        // Look, arm, look again: a completion that came before the arm raises no event.
        let mut found = take(&mut cq, pool, &mut qp)?;
        if found == Found::Nothing {
            cq.arm(Notify::Any)?;
            found = take(&mut cq, pool, &mut qp)?;
        }
        while let Some(event) = events.try_next()? {
            println!("event {}: {:?}", event.kind, event.subject);
        }
        match found {
            Found::Bye => return Ok(()),
            Found::Something => continue,
            Found::Nothing => {}
        }
        let mut woken = [EpollEvent::empty(); 2];
        let n = epoll.wait(&mut woken, EpollTimeout::try_from(Duration::from_secs(30))?)?;
        if n == 0 {
            return Err("nothing came for 30 s".into());
        }
        if woken[..n].iter().any(|event| event.data() == COMPLETIONS) {
            // Until it would block: what is left in an edge-triggered descriptor wakes nobody again.
            channel.drain(|_| ())?;
        }
    }
}

#[derive(PartialEq)]
enum Found {
    Nothing,
    Something,
    Bye,
}

/// Takes every message that is there.
fn take(cq: &mut Cq, pool: &Pool, qp: &mut Qp) -> Result<Found, Box<dyn Error>> {
    let mut found = Found::Nothing;
    let mut completions = cq.poll()?;
    while let Some(completion) = completions.next() {
        let Ok((slot, wc)) = pool.reclaim(completion) else { continue };
        let text = String::from_utf8_lossy(&slot[..wc.outcome()?.byte_len as usize]).into_owned();
        println!("{text}");
        if text == "bye" {
            return Ok(Found::Bye);
        }
        found = Found::Something;
        qp.recv_slot(slot)?;
    }
    Ok(found)
}

/// Sends some messages, slowly, and then "bye".
fn send(mut cq: Cq, pool: &Pool, mut qp: Qp) -> Result<(), Box<dyn Error>> {
    for n in 0..=20 {
        let text = if n < 20 { format!("message {n}") } else { "bye".to_owned() };
        let mut slot = pool.take().ok_or("every slot is in use")?;
        slot[..text.len()].copy_from_slice(text.as_bytes());
        qp.send_slot(slot, text.len() as u32)?;
        if !cq.spin_then_wait(1000, Duration::from_secs(10))? {
            return Err("the message was not sent within 10 s".into());
        }
        while let Some(completion) = cq.poll()?.next() {
            completion.outcome()?;
            drop(pool.reclaim(completion)); // the slot goes back to the pool
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
