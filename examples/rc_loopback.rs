//! Connects two queue pairs of one device with each other and moves bytes between them, three ways.
//!
//! `cargo run --example rc_loopback -- DEVICE`

#![allow(unsafe_code)]

use ironverbs::{AccessFlags, Context, Inline, QpBuilder, WrFlags};
use std::error::Error;
use std::time::Duration;

fn main() -> std::process::ExitCode {
    if let Err(error) = run() {
        eprintln!("error: {error}");
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}

fn run() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: rc_loopback DEVICE")?;
    let context = Context::open(&name)?;
    let pd = context.alloc_pd()?;
    let (mut cq_a, mut cq_b) = (context.create_cq(64)?, context.create_cq(64)?);

    let a = QpBuilder::rc(&pd, &cq_a, &cq_a).max_inline_bytes(64).build()?;
    let b = QpBuilder::rc(&pd, &cq_b, &cq_b).access(AccessFlags::REMOTE_WRITE).build()?;
    let (end_a, end_b) = (a.endpoint(), b.endpoint());
    let (mut a, mut b) = (a.connect(&end_b)?, b.connect(&end_a)?);

    // Raw memory: the peer's, written without its doing, then a message that says so.
    let mut target = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    target.write(0, b"before")?;
    let mut receives = b.recv_batch();
    receives.recv(7, &[])?;
    // SAFETY: the receive names no memory.
    unsafe { receives.submit()? };
    let mut batch = a.send_batch();
    batch.write(1, WrFlags::NONE, Inline(b"after!"), target.remote(0)?)?;
    batch.send_imm(2, WrFlags::SIGNALED, Inline(b""), 0x1122_3344)?;
    // SAFETY: inline payload is copied already.
    unsafe { batch.submit()? };
    let sent = wait(&mut cq_a)?;
    let received = wait(&mut cq_b)?;
    let mut bytes = [0; 6];
    target.read(0, &mut bytes)?;
    println!("sent {sent:?}\nreceived {received:?}\nmemory {:?}", String::from_utf8_lossy(&bytes));

    // Plain buffers, borrowed for as long as the device needs them. A scope that ends well has moved all of them.
    let (question, mut answer) = (vec![42_u8; 10_000], vec![0_u8; 10_000]);
    b.scope(&mut cq_b, Duration::from_secs(5), |b| {
        b.recv(&mut answer)?;
        a.scope(&mut cq_a, Duration::from_secs(5), |a| a.send(&question))
    })?;
    println!("scope: {}", if question == answer { "equal" } else { "different" });
    Ok(())
}

fn wait(cq: &mut ironverbs::Cq) -> Result<ironverbs::Wc, Box<dyn Error>> {
    for _ in 0..1_000_000 {
        if let Some(wc) = cq.poll_one()? {
            return Ok(wc);
        }
        std::thread::yield_now();
    }
    Err("no completion".into())
}
