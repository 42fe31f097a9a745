//! Work requests as each transport's batches take them.

use ironverbs::{
    Any, Connected, Destination, Inline, InlinePieces, Payload, PostError, Rc, RemoteAddr, SendBatch, Sge, Srqn, Uc,
    Ud, WrFlags, XrcSend,
};

/// A work request, ready to be posted.
pub struct Ready {
    pub wr_id: u64,
    pub flags: WrFlags,
    pub op: ReadyOp,
    pub payload: Bytes,
    pub expect: Result<(), PostError>,
}

pub enum ReadyOp {
    Send(Option<u32>),
    Write(RemoteAddr, Option<u32>),
    Read(RemoteAddr),
    Add(RemoteAddr, u64),
    Swap(RemoteAddr, u64, u64),
}

pub enum Bytes {
    Entries(Vec<Sge>),
    Inline(Vec<u8>),
    Pieces(Vec<Vec<u8>>),
}

/// Calls `f` with the payload in the form that verbs take.
fn with_payload<R>(payload: &Bytes, f: impl FnOnce(Payload<'_>) -> R) -> R {
    match payload {
        Bytes::Entries(entries) => f(Payload::Sges(entries)),
        Bytes::Inline(bytes) => f(Inline(bytes).into()),
        Bytes::Pieces(pieces) => {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            f(InlinePieces(&pieces).into())
        }
    }
}

pub fn push_reliable(batch: &mut SendBatch<'_, Any, Rc>, one: &Ready) -> Result<(), PostError> {
    let Ready { wr_id, flags, op, payload, expect: _ } = one;
    let (wr_id, flags) = (*wr_id, *flags);
    let Bytes::Entries(entries) = payload else { return push_connected(batch, one) };
    match op {
        ReadyOp::Read(remote) => batch.read(wr_id, flags, entries, *remote),
        ReadyOp::Add(remote, by) => batch.fetch_add(wr_id, flags, entries[0], *remote, *by),
        ReadyOp::Swap(remote, compare, with) => batch.compare_swap(wr_id, flags, entries[0], *remote, *compare, *with),
        _ => push_connected(batch, one),
    }
}

pub fn push_unreliable(batch: &mut SendBatch<'_, Any, Uc>, one: &Ready) -> Result<(), PostError> {
    push_connected(batch, one)
}

fn push_connected<T: Connected>(batch: &mut SendBatch<'_, Any, T>, one: &Ready) -> Result<(), PostError> {
    let Ready { wr_id, flags, op, payload, expect: _ } = one;
    let (wr_id, flags) = (*wr_id, *flags);
    with_payload(payload, |payload| match op {
        ReadyOp::Send(None) => batch.send(wr_id, flags, payload),
        ReadyOp::Send(Some(imm)) => batch.send_imm(wr_id, flags, payload, *imm),
        ReadyOp::Write(remote, None) => batch.write(wr_id, flags, payload, *remote),
        ReadyOp::Write(remote, Some(imm)) => batch.write_imm(wr_id, flags, payload, *remote, *imm),
        ReadyOp::Read(_) | ReadyOp::Add(..) | ReadyOp::Swap(..) => unreachable!("planned for reliable transports only"),
    })
}

pub fn push_datagram(batch: &mut SendBatch<'_, Any, Ud>, one: &Ready, to: Destination<'_>) -> Result<(), PostError> {
    let Ready { wr_id, flags, op, payload, expect: _ } = one;
    with_payload(payload, |payload| match op {
        ReadyOp::Send(None) => batch.send_to(*wr_id, *flags, payload, to),
        ReadyOp::Send(Some(imm)) => batch.send_imm_to(*wr_id, *flags, payload, *imm, to),
        _ => unreachable!("planned for connected transports only"),
    })
}

pub fn push_xrc(batch: &mut SendBatch<'_, Any, XrcSend>, one: &Ready, srqn: Srqn) -> Result<(), PostError> {
    let Ready { wr_id, flags, op, payload, expect: _ } = one;
    let (wr_id, flags, mut to) = (*wr_id, *flags, batch.to_srq(srqn));
    let entries = if let Bytes::Entries(entries) = payload { entries.as_slice() } else { &[] };
    match op {
        ReadyOp::Read(remote) => to.read(wr_id, flags, entries, *remote),
        ReadyOp::Add(remote, by) => to.fetch_add(wr_id, flags, entries[0], *remote, *by),
        ReadyOp::Swap(remote, compare, with) => to.compare_swap(wr_id, flags, entries[0], *remote, *compare, *with),
        ReadyOp::Send(None) => with_payload(payload, |payload| to.send(wr_id, flags, payload)),
        ReadyOp::Send(Some(imm)) => with_payload(payload, |payload| to.send_imm(wr_id, flags, payload, *imm)),
        ReadyOp::Write(remote, None) => with_payload(payload, |payload| to.write(wr_id, flags, payload, *remote)),
        ReadyOp::Write(remote, Some(imm)) => {
            with_payload(payload, |payload| to.write_imm(wr_id, flags, payload, *remote, *imm))
        }
    }
}
