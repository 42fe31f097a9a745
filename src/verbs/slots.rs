//! Posting slots of a [`Pool`](crate::Pool): a whole queue pair and its halves do so in the same way.

use super::ah::Destination;
use super::halves::{RecvHalf, SendHalf};
use super::pool::{Slot, SlotError};
use super::prepared::PreparedQp;
use super::provider::Provider;
use super::qp::Qp;
use super::qp_type::{Connected, Rc, Receives, Ud, XrcSend};
use super::way::Way;
use crate::uverbs::types::Srqn;
use crate::uverbs::wr::{RemoteAddr, SendOp};

macro_rules! sends {
    ($owner:ident, $($side:ident).+) => {
        impl<P: Provider, T: Connected> $owner<P, T> {
            /// Sends the first `len_bytes` of a slot. The completion, which is always given, brings the slot back.
            #[inline(always)]
            pub fn send_slot(&mut self, slot: Slot, len_bytes: u32) -> Result<(), SlotError> {
                self.$($side).+.post_slot(slot, len_bytes, SendOp::Send, Way::Peer)
            }

            /// Sends the first `len_bytes` of a slot, with immediate data in host order.
            #[inline(always)]
            pub fn send_imm_slot(&mut self, slot: Slot, len_bytes: u32, imm: u32) -> Result<(), SlotError> {
                self.$($side).+.post_slot(slot, len_bytes, SendOp::SendImm(imm), Way::Peer)
            }

            /// Writes the first `len_bytes` of a slot to the peer's memory.
            #[inline(always)]
            pub fn write_slot(&mut self, slot: Slot, len_bytes: u32, remote: RemoteAddr) -> Result<(), SlotError> {
                self.$($side).+.post_slot(slot, len_bytes, SendOp::Write(remote), Way::Peer)
            }
        }

        impl<P: Provider> $owner<P, Rc> {
            /// Reads the peer's memory into the first `len_bytes` of a slot.
            #[inline(always)]
            pub fn read_slot(&mut self, slot: Slot, len_bytes: u32, remote: RemoteAddr) -> Result<(), SlotError> {
                self.$($side).+.post_slot(slot, len_bytes, SendOp::Read(remote), Way::Peer)
            }
        }
    };
}

macro_rules! receives {
    ($owner:ident, $($side:ident).+) => {
        impl<P: Provider, T: Receives> $owner<P, T> {
            /// Posts a receive into a slot.
            #[inline(always)]
            pub fn recv_slot(&mut self, slot: Slot) -> Result<(), SlotError> {
                self.$($side).+.post_slot::<T>(slot)
            }
        }
    };
}

macro_rules! datagrams {
    ($owner:ident, $($side:ident).+) => {
        impl<P: Provider> $owner<P, Ud> {
            /// Sends the first `len_bytes` of a slot as a datagram. The completion brings the slot back.
            #[inline(always)]
            pub fn send_slot_to(&mut self, slot: Slot, len_bytes: u32, to: Destination<'_>) -> Result<(), SlotError> {
                self.$($side).+.post_slot(slot, len_bytes, SendOp::Send, Way::Datagram(to))
            }

            /// Sends the first `len_bytes` of a slot as a datagram, with immediate data in host order.
            #[inline(always)]
            pub fn send_imm_slot_to(
                &mut self,
                slot: Slot,
                len_bytes: u32,
                imm: u32,
                to: Destination<'_>,
            ) -> Result<(), SlotError> {
                self.$($side).+.post_slot(slot, len_bytes, SendOp::SendImm(imm), Way::Datagram(to))
            }
        }
    };
}

/// Slots of an extended reliable connection. Its queue pair has no halves.
impl<P: Provider> Qp<P, XrcSend> {
    /// Sends the first `len_bytes` of a slot into an XRC shared receive queue of the peer's. The completion brings the slot
    /// back.
    #[inline(always)]
    pub fn send_slot_to_srq(&mut self, slot: Slot, len_bytes: u32, srqn: Srqn) -> Result<(), SlotError> {
        self.core.send.post_slot(slot, len_bytes, SendOp::Send, Way::Srq(srqn))
    }

    /// As [`send_slot_to_srq`](Self::send_slot_to_srq), with immediate data in host order.
    #[inline(always)]
    pub fn send_imm_slot_to_srq(&mut self, slot: Slot, len_bytes: u32, imm: u32, srqn: Srqn) -> Result<(), SlotError> {
        self.core.send.post_slot(slot, len_bytes, SendOp::SendImm(imm), Way::Srq(srqn))
    }
}

sends!(Qp, core.send);
sends!(SendHalf, side);
datagrams!(Qp, core.send);
datagrams!(SendHalf, side);
receives!(Qp, core.recv);
receives!(RecvHalf, side);
receives!(PreparedQp, core.recv);
