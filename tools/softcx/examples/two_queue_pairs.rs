//! Two queue pairs on two simulated adapters: a lost packet costs nothing but a retry, a forbidden write tells its reason.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks, reason = "the safety arguments stand behind the blocks")]

use ironverbs::{AccessFlags, Context, Inline, QpBuilder, WcStatus, WrFlags, sys::Sys};
use softcx::{Body, SimDevice, SimHost, Verdict};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let host = SimHost::new(1);
    host.add(SimDevice::roce("mlx5_0"));
    host.add(SimDevice::roce("mlx5_1"));
    let devices = host.devices()?;
    let (a, b) = (Context::open_on(&host, &devices[0])?, Context::open_on(&host, &devices[1])?);
    let (pd_a, pd_b) = (a.alloc_pd()?, b.alloc_pd()?);
    let (mut cq_a, mut cq_b) = (a.create_cq(16)?, b.create_cq(16)?);
    let mr = pd_b.alloc_mr(4096, AccessFlags::LOCAL_WRITE)?; // peers may not write here
    let qp_a = QpBuilder::rc(&pd_a, &cq_a, &cq_a).max_inline_bytes(64).build()?;
    let mut qp_b = QpBuilder::rc(&pd_b, &cq_b, &cq_b).access(AccessFlags::REMOTE_WRITE).build()?;
    let mut receives = qp_b.recv_batch();
    receives.recv(1, &[mr.sge(..)?])?;
    unsafe { receives.submit()? }; // SAFETY: the region stays registered, and nothing else uses its memory meanwhile.
    let (end_a, end_b) = (qp_a.endpoint(), qp_b.endpoint());
    let (mut qp_a, _qp_b) = (qp_a.connect(&end_b)?, qp_b.connect(&end_a)?);

    let mut first = true; // the first packet of a SEND is lost
    host.fabric().filter(move |packet| match &packet.body {
        Body::Send { .. } if std::mem::take(&mut first) => Verdict::Drop,
        _ => Verdict::Pass,
    });
    let mut batch = qp_a.send_batch();
    batch.send(2, WrFlags::SIGNALED, Inline(b"hello"))?;
    unsafe { batch.submit()? }; // SAFETY: inline payload was copied.
    host.fabric().settle(Duration::from_secs(1)); // of simulated time
    println!("{:?} after {} lost packet", cq_b.poll_one()?.expect("a message"), host.fabric().lost());
    assert_eq!(cq_a.poll_one()?.expect("it was sent").status(), WcStatus::SUCCESS);

    let mut batch = qp_a.send_batch();
    batch.write(3, WrFlags::SIGNALED, Inline(b"mine"), mr.remote(0)?)?;
    unsafe { batch.submit()? }; // SAFETY: as above.
    host.fabric().settle(Duration::from_secs(1));
    println!("{}", cq_a.poll_one()?.expect("it failed").outcome().unwrap_err());
    host.fabric().take_reports().iter().for_each(|report| println!("{report}"));
    Ok(())
}
