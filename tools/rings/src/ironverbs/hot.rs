//! The measured code: each way to post and to poll as one function with a name of its own in the executable.
//!
//! `tests/hotpath.rs` disassembles these very functions. They are called through pointers, so that no knowledge of the
//! caller's arguments is compiled into them.
//!
//! # Safety argument
//!
//! `unsafe` is here for two things. The names of the functions in the executable begin with `hot_`, which no library
//! uses, so that none clashes. And raw batches are submitted: `main.rs`, the only caller, passes entries of a region that
//! outlives the queue pairs, and never makes a reference to its memory.
#![allow(unsafe_code)]

use ironverbs::{
    Any, Cq, Destination, FlushLevel, FlushPlacement, Inline, InlinePieces, Mlx5, Mw, MwBinding, PollError, Pool,
    PostError, Provider, Qp, QpType, RecvBatch, RemoteAddr, Rkey, Rxe, Sge, Slot, SlotError, Srq, Srqn, Uc, Ud, Wc,
    WcStatus, WrFlags, XrcSend,
};
use std::mem::MaybeUninit;

const SIGNALED: WrFlags = WrFlags::SIGNALED;

/// Declares the functions once and makes them for each provider, with `P` standing for each provider.
macro_rules! operations {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $of:ty),*) -> $returned:ty $body:block)*) => {
        /// The functions of one provider.
        #[allow(dead_code, reason = "some are there for the disassembly only")]
        pub struct Hot<P: Provider> {
            $($(#[$doc])* pub $name: fn($($of),*) -> $returned,)*
        }

        operations! { @provider rxe, Rxe, RXE; $(fn $name($($arg: $of),*) -> $returned $body)* }
        operations! { @provider mlx5, Mlx5, MLX5; $(fn $name($($arg: $of),*) -> $returned $body)* }
        operations! { @provider any, Any, ANY; $(fn $name($($arg: $of),*) -> $returned $body)* }
    };
    (@provider $module:ident, $provider:ident, $table:ident;
        $(fn $name:ident($($arg:ident: $of:ty),*) -> $returned:ty $body:block)*) => {
        /// Posts and polls through one provider.
        pub static $table: Hot<$provider> = Hot { $($name: $module::$name),* };

        mod $module {
            use super::*;
            type P = $provider;
            $(
                #[unsafe(export_name = concat!("hot_", stringify!($module), "_", stringify!($name)))]
                #[inline(never)]
                pub fn $name($($arg: $of),*) -> $returned $body
            )*
        }
    };
}

/// Submits a batch of [`operations`].
macro_rules! submit {
    ($batch:ident) => {{
        // SAFETY: see the module: the region outlives the queue pairs, and nothing refers to its memory.
        unsafe { $batch.submit() }
    }};
}

/// Submits receives that are not measured.
pub fn submit_recv<P: Provider, T: QpType>(batch: RecvBatch<'_, P, T>) -> Result<(), PostError> {
    submit!(batch)
}

operations! {
    /// SEND of one entry.
    fn send(qp: &mut Qp<P>, wr_id: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send(wr_id, SIGNALED, &[*sge])?;
        submit!(batch)
    }

    /// SEND of one entry on an unreliable connection.
    fn uc_send(qp: &mut Qp<P, Uc>, wr_id: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send(wr_id, SIGNALED, &[*sge])?;
        submit!(batch)
    }

    /// RDMA WRITE of one entry on an unreliable connection.
    fn uc_write(qp: &mut Qp<P, Uc>, wr_id: u64, sge: &Sge, remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.write(wr_id, SIGNALED, &[*sge], *remote)?;
        submit!(batch)
    }

    /// Datagram of one entry.
    fn ud_send(qp: &mut Qp<P, Ud>, wr_id: u64, sge: &Sge, to: &Destination<'_>) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send_to(wr_id, SIGNALED, &[*sge], *to)?;
        submit!(batch)
    }

    /// Datagram of one entry, with immediate data.
    fn ud_send_imm(qp: &mut Qp<P, Ud>, wr_id: u64, sge: &Sge, imm: u32, to: &Destination<'_>) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send_imm_to(wr_id, SIGNALED, &[*sge], imm, *to)?;
        submit!(batch)
    }

    /// Datagram of inline bytes.
    fn ud_send_inline(qp: &mut Qp<P, Ud>, wr_id: u64, bytes: &[u8], to: &Destination<'_>) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send_to(wr_id, SIGNALED, Inline(bytes), *to)?;
        submit!(batch)
    }

    /// Receive of a datagram, into one entry.
    fn ud_recv(qp: &mut Qp<P, Ud>, wr_id: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.recv_batch();
        batch.recv(wr_id, &[*sge])?;
        submit!(batch)
    }

    /// SENDs of one entry each, `count` of them with one doorbell.
    fn send_list(qp: &mut Qp<P>, count: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        for wr_id in 0..count {
            batch.send(wr_id, SIGNALED, &[*sge])?;
        }
        submit!(batch)
    }

    /// SEND of as many entries as the slice has.
    fn send_sges(qp: &mut Qp<P>, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send(wr_id, SIGNALED, sges)?;
        submit!(batch)
    }

    /// SEND with immediate data.
    fn send_imm(qp: &mut Qp<P>, wr_id: u64, sge: &Sge, imm: u32) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send_imm(wr_id, SIGNALED, &[*sge], imm)?;
        submit!(batch)
    }

    /// Inline SEND of as many bytes as the slice has.
    fn send_inline(qp: &mut Qp<P>, wr_id: u64, bytes: &[u8]) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send(wr_id, SIGNALED, Inline(bytes))?;
        submit!(batch)
    }

    /// Inline SEND of eight bytes, known to be so many.
    fn send_inline_word(qp: &mut Qp<P>, wr_id: u64, word: &[u8; 8]) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send(wr_id, SIGNALED, Inline(word))?;
        submit!(batch)
    }

    /// Inline SEND of several pieces.
    fn send_inline_pieces(qp: &mut Qp<P>, wr_id: u64, pieces: &[&[u8]]) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send(wr_id, SIGNALED, InlinePieces(pieces))?;
        submit!(batch)
    }

    /// RDMA WRITE of one entry.
    fn write(qp: &mut Qp<P>, wr_id: u64, sge: &Sge, remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.write(wr_id, SIGNALED, &[*sge], *remote)?;
        submit!(batch)
    }

    /// RDMA WRITE of as many entries as the slice has, with immediate data.
    fn write_imm(qp: &mut Qp<P>, wr_id: u64, sges: &[Sge], remote: &RemoteAddr, imm: u32) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.write_imm(wr_id, SIGNALED, sges, *remote, imm)?;
        submit!(batch)
    }

    /// Inline RDMA WRITE.
    fn write_inline(qp: &mut Qp<P>, wr_id: u64, bytes: &[u8], remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.write(wr_id, SIGNALED, Inline(bytes), *remote)?;
        submit!(batch)
    }

    /// Inline RDMA WRITE of eight bytes, known to be so many.
    fn write_inline_word(qp: &mut Qp<P>, wr_id: u64, word: &[u8; 8], remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.write(wr_id, SIGNALED, Inline(word), *remote)?;
        submit!(batch)
    }

    /// Inline RDMA WRITEs of eight bytes each, known to be so many, to as many places, with one doorbell.
    fn write_inline_list(qp: &mut Qp<P>, words: &[[u8; 8]], remotes: &[RemoteAddr]) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        for (wr_id, (word, remote)) in (0..).zip(words.iter().zip(remotes)) {
            batch.write(wr_id, SIGNALED, Inline(word), *remote)?;
        }
        submit!(batch)
    }

    /// RDMA READ into one entry.
    fn read(qp: &mut Qp<P>, wr_id: u64, sge: &Sge, remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.read(wr_id, SIGNALED, &[*sge], *remote)?;
        submit!(batch)
    }

    /// Compare and swap.
    fn compare_swap(qp: &mut Qp<P>, wr_id: u64, result: &Sge, remote: &RemoteAddr, words: &[u64; 2]) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.compare_swap(wr_id, SIGNALED, *result, *remote, words[0], words[1])?;
        submit!(batch)
    }

    /// Fetch and add.
    fn fetch_add(qp: &mut Qp<P>, wr_id: u64, result: &Sge, remote: &RemoteAddr, add: u64) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.fetch_add(wr_id, SIGNALED, *result, *remote, add)?;
        submit!(batch)
    }

    /// SEND with invalidate of one entry.
    fn send_inv(qp: &mut Qp<P>, wr_id: u64, sge: &Sge, rkey: &Rkey) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.send_inv(wr_id, SIGNALED, &[*sge], *rkey)?;
        submit!(batch)
    }

    /// Bind of a memory window.
    fn bind_mw(qp: &mut Qp<P>, wr_id: u64, window: &mut Mw, binding: &MwBinding) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.bind_mw(wr_id, WrFlags::NONE, window, *binding)?;
        submit!(batch)
    }

    /// Invalidate of a memory window.
    fn local_inv(qp: &mut Qp<P>, wr_id: u64, window: &mut Mw) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.local_inv(wr_id, WrFlags::NONE, window)?;
        submit!(batch)
    }

    /// SEND of one entry on an extended reliable connection.
    fn xrc_send(qp: &mut Qp<P, XrcSend>, wr_id: u64, srqn: Srqn, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.to_srq(srqn).send(wr_id, SIGNALED, &[*sge])?;
        submit!(batch)
    }

    /// Inline RDMA WRITE on an extended reliable connection.
    fn xrc_write_inline(qp: &mut Qp<P, XrcSend>, wr_id: u64, srqn: Srqn, bytes: &[u8], remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.to_srq(srqn).write(wr_id, SIGNALED, Inline(bytes), *remote)?;
        submit!(batch)
    }

    /// NOP.
    fn nop(qp: &mut Qp<P>, wr_id: u64) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.nop(wr_id, SIGNALED)?;
        submit!(batch)
    }

    /// ATOMIC_WRITE.
    fn atomic_write(qp: &mut Qp<P>, wr_id: u64, remote: &RemoteAddr, value: u64) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.atomic_write(wr_id, SIGNALED, *remote, value)?;
        submit!(batch)
    }

    /// FLUSH of a range, to a placement that the compiler does not know.
    fn flush(qp: &mut Qp<P>, wr_id: u64, remote: &RemoteAddr, placement: FlushPlacement, level: FlushLevel) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.flush(wr_id, SIGNALED, *remote, placement, level)?;
        submit!(batch)
    }

    /// SEND of a slot of a pool.
    fn send_slot(qp: &mut Qp<P>, slot: Slot, len: u32) -> Result<(), SlotError> {
        qp.send_slot(slot, len)
    }

    /// RDMA WRITE of a slot of a pool.
    fn write_slot(qp: &mut Qp<P>, slot: Slot, len: u32, remote: &RemoteAddr) -> Result<(), SlotError> {
        qp.write_slot(slot, len, *remote)
    }

    /// RDMA READ into a slot of a pool.
    fn read_slot(qp: &mut Qp<P>, slot: Slot, len: u32, remote: &RemoteAddr) -> Result<(), SlotError> {
        qp.read_slot(slot, len, *remote)
    }

    /// Datagram of a slot of a pool.
    fn ud_send_slot(qp: &mut Qp<P, Ud>, slot: Slot, len: u32, to: &Destination<'_>) -> Result<(), SlotError> {
        qp.send_slot_to(slot, len, *to)
    }

    /// A receive into a slot of a pool.
    fn recv_slot(qp: &mut Qp<P>, slot: Slot) -> Result<(), SlotError> {
        qp.recv_slot(slot)
    }

    /// A receive of a shared queue, into a slot of a pool.
    fn srq_recv_slot(srq: &mut Srq<P>, slot: Slot) -> Result<(), SlotError> {
        srq.recv_slot(slot)
    }

    /// A slot of a pool, to be filled.
    fn take_slot(pool: &Pool) -> Option<Slot> {
        pool.take()
    }

    /// One completion of a pool's work requests, and its slot.
    fn reclaim_slot(cq: &mut Cq<P>, pool: &Pool) -> Result<Option<Slot>, PollError> {
        let mut completions = cq.poll()?;
        let Some(completion) = completions.next() else { return Ok(None) };
        Ok(pool.reclaim(completion).ok().map(|(slot, _)| slot))
    }

    /// A batch with a request of each kind, which asks first whether they fit.
    fn send_mixed(qp: &mut Qp<P>, sges: &[Sge], bytes: &[u8], remote: &RemoteAddr) -> Result<(), PostError> {
        let mut batch = qp.send_batch();
        batch.reserve(3)?;
        batch.write(1, WrFlags::NONE, sges, *remote)?;
        batch.read(2, WrFlags::FENCE, sges, *remote)?;
        batch.send(3, SIGNALED | WrFlags::SOLICITED, Inline(bytes))?;
        submit!(batch)
    }

    /// A receive into one entry.
    fn recv(qp: &mut Qp<P>, wr_id: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.recv_batch();
        batch.recv(wr_id, &[*sge])?;
        submit!(batch)
    }

    /// Receives into one entry each, `count` of them.
    fn recv_list(qp: &mut Qp<P>, count: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = qp.recv_batch();
        for wr_id in 0..count {
            batch.recv(wr_id, &[*sge])?;
        }
        submit!(batch)
    }

    /// A receive of a shared queue, into one entry.
    fn srq_recv(srq: &mut Srq<P>, wr_id: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = srq.recv_batch();
        batch.recv(wr_id, &[*sge])?;
        submit!(batch)
    }

    /// Receives of a shared queue, into one entry each, `count` of them.
    fn srq_recv_list(srq: &mut Srq<P>, count: u64, sge: &Sge) -> Result<(), PostError> {
        let mut batch = srq.recv_batch();
        for wr_id in 0..count {
            batch.recv(wr_id, &[*sge])?;
        }
        submit!(batch)
    }

    /// A receive into as many entries as the slice has.
    fn recv_sges(qp: &mut Qp<P>, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut batch = qp.recv_batch();
        batch.recv(wr_id, sges)?;
        submit!(batch)
    }

    /// One completion as a value.
    fn poll(cq: &mut Cq<P>) -> Result<Option<Wc>, PollError> {
        cq.poll_one()
    }

    /// Number and status of one completion.
    fn poll_status(cq: &mut Cq<P>) -> Result<Option<(u64, WcStatus)>, PollError> {
        let mut completions = cq.poll()?;
        Ok(completions.next().map(|completion| (completion.wr_id(), completion.status())))
    }

    /// Completions as values, as many as there is room for.
    fn poll_many(cq: &mut Cq<P>, out: &mut [MaybeUninit<Wc>]) -> Result<usize, PollError> {
        cq.poll_into(out).map(|values| values.len())
    }

    /// The sum of the numbers of the completions that are there, up to the first that failed, used where they are.
    fn poll_in_place(cq: &mut Cq<P>) -> Result<u64, PollError> {
        let mut completions = cq.poll()?;
        let mut sum = 0_u64;
        while let Some(completion) = completions.next() {
            if completion.status() != WcStatus::SUCCESS {
                break;
            }
            sum = sum.wrapping_add(completion.wr_id());
        }
        Ok(sum)
    }

    /// Number and status of the completions that are there, as many as there is room for.
    fn poll_many_status(cq: &mut Cq<P>, out: &mut [(u64, WcStatus)]) -> Result<usize, PollError> {
        let mut completions = cq.poll()?;
        let mut n = 0;
        for place in out {
            let Some(completion) = completions.next() else { break };
            *place = (completion.wr_id(), completion.status());
            n += 1;
        }
        Ok(n)
    }
}
