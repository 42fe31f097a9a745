//! What the cases that fail are near to: batches one after the other, completions one by one, a slot posted and taken
//! back, borrowed buffers used after their scope, a queue pair moved to another thread.

use ironverbs::*;
use std::time::Duration;

fn batches(qp: &mut Qp, sge: Sge, remote: RemoteAddr) -> Result<(), PostError> {
    for wr_id in 0..2 {
        let mut batch = qp.send_batch();
        batch.write(wr_id, WrFlags::SIGNALED, &[sge], remote)?;
        unsafe { batch.submit()? };
    }
    Ok(())
}

fn completions(cq: &mut Cq) -> Result<Vec<Wc>, PollError> {
    let mut kept = vec![];
    let mut completions = cq.poll()?;
    while let Some(completion) = completions.next() {
        kept.push(completion.wc());
    }
    Ok(kept)
}

fn slots(qp: &mut Qp, cq: &mut Cq, pool: &Pool) -> Result<(), Box<dyn std::error::Error>> {
    let mut slot = pool.take().ok_or("no slot")?;
    slot[0] = 1;
    qp.send_slot(slot, 1)?;
    while let Some(completion) = cq.poll()?.next() {
        if let Ok((mut slot, _)) = pool.reclaim(completion) {
            slot[0] = 2;
        }
    }
    Ok(())
}

fn scopes(qp: &mut Qp, cq: &mut Cq) -> Result<u8, Error> {
    let mut buffer = [0; 4];
    qp.scope(cq, Duration::from_secs(1), |scope| scope.recv(&mut buffer))?;
    Ok(buffer[0])
}

fn threads(mut qp: Qp, cq: &mut Cq) {
    std::thread::scope(|scope| {
        scope.spawn(move || qp.send_batch().remaining());
        scope.spawn(|| cq.poll_one());
    });
}

fn providers(context: Context) -> Option<(Context<Rxe>, Cq<Rxe>)> {
    let context = context.into_provider::<Rxe>().ok()?;
    let cq = context.create_cq(1).ok()?;
    Some((context, cq))
}

fn main() {
    let _ = (batches, completions, slots, scopes, threads, providers);
}
