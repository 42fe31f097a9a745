//! Raw entries name memory that only the caller knows to be free for the device.

fn submit(batch: ironverbs::SendBatch<'_>) {
    let _ = batch.submit();
}

fn main() {}
