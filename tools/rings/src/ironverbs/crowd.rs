//! How post and poll grow with the number of queue pairs on one completion queue.

use crate::device::Device;
use crate::hot::Hot;
use crate::mark::counted;
use crate::{LIST, ROUNDS, Result, must};
use ironverbs::{AccessFlags, Context, Provider, QpBuilder, WcStatus};
use std::hint::black_box;
use std::time::Duration;

/// Counts with `count` queue pairs, each connected to itself. Batches go to one of them; the completions that are polled are of
/// as many of them as there are completions, spread over all.
pub fn run<P: Provider>(device: &Device, context: &Context<P>, hot: &Hot<P>, count: usize) -> Result<()> {
    const N: usize = LIST as usize;
    let pd = context.alloc_pd()?;
    let mr = pd.alloc_mr(4096, AccessFlags::ALL)?;
    let mut cq = context.create_cq(4 * LIST as u32)?;
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        let builder = QpBuilder::rc(&pd, &cq, &cq).access(AccessFlags::ALL).max_inline_bytes(8);
        let prepared = builder.max_send_wr(LIST as u32).max_recv_wr(1).build()?;
        let itself = prepared.endpoint();
        all.push(prepared.connect(&itself)?);
    }
    let remote = mr.remote(0)?;
    let (words, remotes) = ([[7; 8]; N], [remote; N]);
    let (words, remotes) = black_box((&words[..], &remotes[..]));
    let mut out = [(0, WcStatus::SUCCESS); N];
    let mut poll = |cq: &mut _, name| {
        device.work(Duration::from_millis(100));
        let out = black_box(&mut out[..]);
        let polled = match name {
            Some(name) => counted(name, || (hot.poll_many_status)(cq, out)),
            None => (hot.poll_many_status)(cq, out),
        };
        match polled {
            Ok(N) if out.iter().all(|(_, status)| *status == WcStatus::SUCCESS) => Ok(()),
            other => Err(format!("poll of {N}: {other:?}")),
        }
    };
    for round in 0..=ROUNDS {
        let qp = &mut all[round * (count - 1) / ROUNDS];
        // In the first round the poller meets new queue pairs.
        let (post_name, poll_name) = match round {
            0 => (c"first", None),
            _ => (c"many_write_inline_8_list", Some(c"many_poll_status_32")),
        };
        counted(post_name, || must((hot.write_inline_list)(qp, words, remotes)));
        poll(&mut cq, None)?;
        for n in 0..N {
            must((hot.write_inline)(&mut all[n * (count - 1) / (N - 1)], 0, &words[n], &remote));
        }
        poll(&mut cq, poll_name)?;
    }
    Ok(())
}
