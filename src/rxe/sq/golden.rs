//! Every byte of the send work queue element, per opcode, in a ring full of `ff` bytes.
//!
//! Offsets and values are from `rdma_user_rxe.h` and the opcode numbers of `ib_user_verbs.h`. Bytes left `ff` are those
//! that the kernel does not read for the opcode: the rest of the union, and what follows the payload.
//!
//! The rxe provider of rdma-core 44 was made to post the same work requests into such a ring on Linux 6.12. Wherever it
//! writes a byte, it writes the same, with three exceptions: `ssn`, which it counts and the kernel does not look at,
//! `num_sge` of inline data, where it leaves the caller's number, and the address of a datagram, which it names by number.
//! It does not write `status`, `mask` to `ack_length`, `has_rd_atomic` and `dma.reserved`.

use super::UdTo;
use super::tests::{queue, sge};
use crate::rxe::abi::RxeAv;
use crate::rxe::address::RxeAh;
use crate::rxe::testing::hex;
use crate::uverbs::memory_wr::{FlushLevel, FlushPlacement, MwBinding};
use crate::uverbs::types::{Lkey, Rkey};
use crate::uverbs::wr::{Payload, PostError, RemoteAddr, SendOp, SendWr, WrFlags};

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x7f12_3456_7890_abc8, rkey: Rkey(0x0000_1a2b) };

/// Posts one work request on a queue of 4 SGEs and 64 inline bytes (slots of 512 bytes) and compares the slot.
#[track_caller]
fn check(wr: SendWr<'_>, golden: &str) {
    check_to(wr, None, golden);
}

/// As [`check`], on a datagram queue pair.
#[track_caller]
fn check_to(wr: SendWr<'_>, to: Option<UdTo<'_>>, golden: &str) {
    let mut golden = hex(golden);
    golden.resize(512, 0xff);
    let (mut sq, kernel, _bell) = queue(9, 3, 2, 4, 64);
    sq.set_device_caps(1 << 38 | 1 << 39 | 1 << 40);
    match to {
        Some(to) => sq.push_to(&wr, to).unwrap(),
        None => sq.push(&wr).unwrap(),
    }
    sq.submit().unwrap();
    let slot = kernel.take().unwrap();
    for (offset, (got, want)) in slot.iter().zip(&golden).enumerate() {
        assert_eq!(got, want, "offset {offset} is {got:#04x}, not {want:#04x}\n{slot:02x?}");
    }
}

#[test]
fn send_of_one_entry() {
    check(
        SendWr {
            wr_id: 0x1122_3344_5566_7788,
            flags: WrFlags::SIGNALED,
            op: SendOp::Send,
            payload: Payload::Sges(&[sge(0x7f00_dead_beef_0010, 0x1234, 0x0000_5c01)]),
        },
        "
        8877665544332211        #   0 wr_id
        00000000                #   8 reserved
        02000000                #  12 opcode: SEND
        02000000                #  16 send_flags: SIGNALED
        00000000                #  20 ex
        ff*120                  #  24 union: not read for a SEND on a connected queue pair
        00000000                # 144 status
        00000000                # 148 state: posted
        0000000000000000        # 152 iova
        00000000                # 160 mask
        00000000                # 164 first_psn
        00000000                # 168 last_psn
        00000000                # 172 ack_length
        00000000                # 176 ssn
        00000000                # 180 has_rd_atomic
        34120000                # 184 dma.length
        34120000                # 188 dma.resid
        00000000                # 192 dma.cur_sge
        01000000                # 196 dma.num_sge
        00000000                # 200 dma.sge_offset
        00000000                # 204 dma.reserved
        1000efbeadde007f        # 208 sge[0].addr
        34120000                # 216 sge[0].length
        015c0000                # 220 sge[0].lkey
        ",
    );
}

#[test]
fn send_of_no_entry_with_every_flag() {
    check(
        SendWr {
            wr_id: 0,
            flags: WrFlags::FENCE | WrFlags::SIGNALED | WrFlags::SOLICITED,
            op: SendOp::Send,
            payload: Payload::Sges(&[]),
        },
        "
        0000000000000000        #   0 wr_id
        00000000                #   8 reserved
        02000000                #  12 opcode: SEND
        07000000                #  16 send_flags: FENCE, SIGNALED, SOLICITED
        00000000                #  20 ex
        ff*120                  #  24 union
        00*8                    # 144 status, state
        00*8                    # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        00000000 00000000       # 184 dma.length, resid
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        ",
    );
}

#[test]
fn send_with_immediate_inline() {
    check(
        SendWr {
            wr_id: 0xffff_ffff_ffff_ffff,
            flags: WrFlags::NONE,
            op: SendOp::SendImm(0x1122_3344),
            payload: Payload::Inline(b"thirteen byte"),
        },
        "
        ffffffffffffffff        #   0 wr_id
        00000000                #   8 reserved
        03000000                #  12 opcode: SEND_WITH_IMM
        08000000                #  16 send_flags: INLINE
        11223344                #  20 ex.imm_data, big endian
        ff*120                  #  24 union
        00*8                    # 144 status, state
        00*8                    # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        0d000000 0d000000       # 184 dma.length, resid
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        746869727465656e20627974 65 # 208 inline data
        ",
    );
}

#[test]
fn write_of_the_most_entries() {
    check(
        SendWr {
            wr_id: 7,
            flags: WrFlags::NONE,
            op: SendOp::Write(REMOTE),
            payload: Payload::Sges(&[
                sge(0x1000, 1, 0x10),
                sge(0x2000, 0, 0x20),
                sge(0x3001, 0x0001_0000, 0x30),
                sge(0xffff_ffff_ffff_f000, 0x0fff, 0x40),
            ]),
        },
        "
        0700000000000000        #   0 wr_id
        00000000                #   8 reserved
        00000000                #  12 opcode: RDMA_WRITE
        00000000                #  16 send_flags
        00000000                #  20 ex
        c8ab90785634127f        #  24 rdma.remote_addr
        2b1a0000                #  32 rdma.rkey
        00000000                #  36 rdma.reserved
        ff*104                  #  40 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova: the remote address again
        00*24                   # 160 mask to has_rd_atomic
        00100100 00100100       # 184 dma.length, resid: 1 + 0 + 0x10000 + 0xfff
        00000000 04000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        0010000000000000 01000000 10000000 # 208 sge[0]
        0020000000000000 00000000 20000000 # 224 sge[1]: empty
        0130000000000000 00000100 30000000 # 240 sge[2]
        00f0ffffffffffff ff0f0000 40000000 # 256 sge[3]
        ",
    );
}

#[test]
fn write_with_immediate_of_inline_pieces() {
    check(
        SendWr {
            wr_id: 0x0100,
            flags: WrFlags::SIGNALED | WrFlags::SOLICITED,
            op: SendOp::WriteImm(REMOTE, 0x8000_0001),
            payload: Payload::InlinePieces(&[&[0x01; 3], &[], &[0x02; 17], &[0x03; 8], &[0x04; 1]]),
        },
        "
        0001000000000000        #   0 wr_id
        00000000                #   8 reserved
        01000000                #  12 opcode: RDMA_WRITE_WITH_IMM
        0e000000                #  16 send_flags: SIGNALED, SOLICITED, INLINE
        80000001                #  20 ex.imm_data, big endian
        c8ab90785634127f        #  24 rdma.remote_addr
        2b1a0000                #  32 rdma.rkey
        00000000                #  36 rdma.reserved
        ff*104                  #  40 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        1d000000 1d000000       # 184 dma.length, resid: 3 + 0 + 17 + 8 + 1
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        01*3 02*17 03*8 04      # 208 inline data
        ",
    );
}

#[test]
fn read() {
    check(
        SendWr {
            wr_id: 9,
            flags: WrFlags::FENCE | WrFlags::SIGNALED,
            op: SendOp::Read(REMOTE),
            payload: Payload::Sges(&[sge(0x5000, 0x8000_0000, 0x50)]),
        },
        "
        0900000000000000        #   0 wr_id
        00000000                #   8 reserved
        04000000                #  12 opcode: RDMA_READ
        03000000                #  16 send_flags: FENCE, SIGNALED
        00000000                #  20 ex
        c8ab90785634127f        #  24 rdma.remote_addr
        2b1a0000                #  32 rdma.rkey
        00000000                #  36 rdma.reserved
        ff*104                  #  40 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        00000080 00000080       # 184 dma.length, resid: the longest message
        00000000 01000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        0050000000000000 00000080 50000000 # 208 sge[0]
        ",
    );
}

#[test]
fn compare_and_swap() {
    check(
        SendWr {
            wr_id: 10,
            flags: WrFlags::SIGNALED,
            op: SendOp::CompareSwap { remote: REMOTE, compare: 0x0102_0304_0506_0708, swap: 0x1112_1314_1516_1718 },
            payload: Payload::Sges(&[sge(0x6000, 8, 0x60)]),
        },
        "
        0a00000000000000        #   0 wr_id
        00000000                #   8 reserved
        05000000                #  12 opcode: ATOMIC_CMP_AND_SWP
        02000000                #  16 send_flags: SIGNALED
        00000000                #  20 ex
        c8ab90785634127f        #  24 atomic.remote_addr
        0807060504030201        #  32 atomic.compare_add: what to compare with
        1817161514131211        #  40 atomic.swap
        2b1a0000                #  48 atomic.rkey
        00000000                #  52 atomic.reserved
        ff*88                   #  56 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        08000000 08000000       # 184 dma.length, resid
        00000000 01000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        0060000000000000 08000000 60000000 # 208 sge[0]
        ",
    );
}

#[test]
fn fetch_and_add() {
    check(
        SendWr {
            wr_id: 11,
            flags: WrFlags::NONE,
            op: SendOp::FetchAdd { remote: REMOTE, add: 0xffff_ffff_ffff_fffe },
            payload: Payload::Sges(&[sge(0x6000, 3, 0x60), sge(0x7000, 5, 0x70)]),
        },
        "
        0b00000000000000        #   0 wr_id
        00000000                #   8 reserved
        06000000                #  12 opcode: ATOMIC_FETCH_AND_ADD
        00000000                #  16 send_flags
        00000000                #  20 ex
        c8ab90785634127f        #  24 atomic.remote_addr
        feffffffffffffff        #  32 atomic.compare_add: what to add
        0000000000000000        #  40 atomic.swap: not used
        2b1a0000                #  48 atomic.rkey
        00000000                #  52 atomic.reserved
        ff*88                   #  56 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        08000000 08000000       # 184 dma.length, resid
        00000000 02000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        0060000000000000 03000000 60000000 # 208 sge[0]
        0070000000000000 05000000 70000000 # 224 sge[1]
        ",
    );
}

/// An address whose every field tells where it is.
fn address() -> RxeAh {
    let vector = RxeAv {
        port_num: 1,
        network_type: 2,
        dmac: [0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5],
        dgid: [0x77; 16],
        flow_label: 0x000a_bcde,
        sgid_index: 3,
        hop_limit: 64,
        traffic_class: 0x28,
        padding: 0,
        sgid_addr: [0x55; 28],
        dgid_addr: [0x99; 28],
    };
    RxeAh { vector }
}

#[test]
fn datagram() {
    check_to(
        SendWr {
            wr_id: 13,
            flags: WrFlags::SOLICITED,
            op: SendOp::SendImm(0x0102_0304),
            payload: Payload::Inline(b"abc"),
        },
        Some(UdTo { ah: &address(), qpn: 0x00ff_ffff, qkey: 0x8000_0001 }),
        "
        0d00000000000000        #   0 wr_id
        00000000                #   8 reserved
        03000000                #  12 opcode: SEND_WITH_IMM
        0c000000                #  16 send_flags: SOLICITED, INLINE
        01020304                #  20 ex: immediate, big endian
        ffffff00                #  24 ud.remote_qpn: multicast
        01000080                #  28 ud.remote_qkey
        0000 0000               #  32 ud.pkey_index, reserved
        00000000                #  36 ud.ah_num: the vector counts
        00*16                   #  40 ud.pad
        01 02 d0d1d2d3d4d5      #  56 ud.av.port_num, network_type, dmac
        77*16                   #  64 ud.av.grh.dgid
        debc0a00 03 40 28 00    #  80 ud.av.grh.flow_label, sgid_index, hop_limit, traffic_class
        55*28                   #  88 ud.av.sgid_addr
        99*28                   # 116 ud.av.dgid_addr
        00*8                    # 144 status, state
        00*8                    # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        03000000 03000000       # 184 dma.length, resid
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        616263                  # 208 inline data
        ",
    );
}

/// The kernel calls a datagram that does not fit a packet a success, and drops it.
#[test]
fn datagram_of_more_than_a_packet() {
    let (mut sq, kernel, _bell) = queue(9, 3, 2, 4, 64);
    sq.set_max_datagram(1024);
    let (address, entries) = (address(), [sge(0x6000, 1000, 1), sge(0x7000, 24, 1), sge(0x8000, 1, 1)]);
    let to = UdTo { ah: &address, qpn: 1, qkey: 2 };
    let wr = |n| SendWr { wr_id: 1, flags: WrFlags::NONE, op: SendOp::Send, payload: Payload::Sges(&entries[..n]) };
    assert_eq!(sq.push_to(&wr(3), to), Err(PostError::DatagramTooLong));
    sq.push_to(&wr(2), to).unwrap();
    sq.submit().unwrap();
    assert!(kernel.take().is_some());
    assert!(kernel.take().is_none(), "what was refused is not in the queue");
}

#[test]
fn send_with_invalidate() {
    check(
        SendWr {
            wr_id: 12,
            flags: WrFlags::SIGNALED | WrFlags::SOLICITED,
            op: SendOp::SendInvalidate(Rkey(0x1122_3344)),
            payload: Payload::Inline(b"gone"),
        },
        "
        0c00000000000000        #   0 wr_id
        00000000                #   8 reserved
        09000000                #  12 opcode: SEND_WITH_INV
        0e000000                #  16 send_flags: SIGNALED, SOLICITED, INLINE
        44332211                #  20 ex.invalidate_rkey, native
        ff*120                  #  24 union
        00*8                    # 144 status, state
        00*8                    # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        04000000 04000000       # 184 dma.length, resid
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        676f6e65                # 208 inline data
        ",
    );
}

#[test]
fn local_invalidate() {
    check(
        SendWr {
            wr_id: 13,
            flags: WrFlags::SIGNALED,
            op: SendOp::LocalInvalidate(Rkey(0x8000_0102)),
            payload: Payload::Sges(&[]),
        },
        "
        0d00000000000000        #   0 wr_id
        00000000                #   8 reserved
        07000000                #  12 opcode: LOCAL_INV
        02000000                #  16 send_flags: SIGNALED
        02010080                #  20 ex.invalidate_rkey, native
        ff*120                  #  24 union
        00*8                    # 144 status, state
        00*8                    # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        00*24                   # 184 dma: nothing
        ",
    );
}

#[test]
fn bind_of_a_window() {
    check(
        SendWr {
            wr_id: 14,
            flags: WrFlags::SIGNALED | WrFlags::FENCE,
            op: SendOp::Bind(MwBinding {
                old_rkey: Rkey(0x0800_01ff),
                new_rkey: Rkey(0x0800_0100),
                lkey: Lkey(0x0000_5c01),
                addr: 0x1_0000_0678,
                length: 0x1_0000_0001,
                access: 0x27,
                type_2: true,
            }),
            payload: Payload::Sges(&[]),
        },
        "
        0e00000000000000        #   0 wr_id
        00000000                #   8 reserved
        08000000                #  12 opcode: BIND_MW
        03000000                #  16 send_flags: FENCE, SIGNALED
        00000000                #  20 ex
        7806000001000000        #  24 mw.addr
        0100000001000000        #  32 mw.length
        015c0000                #  40 mw.mr_lkey
        ff010008                #  44 mw.mw_rkey: the key until now
        00010008                #  48 mw.rkey: the key from then on
        27000000                #  52 mw.access
        ff*88                   #  56 rest of the union
        00*8                    # 144 status, state
        00*8                    # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        00*24                   # 184 dma: nothing
        ",
    );
}

#[test]
fn atomic_write() {
    check(
        SendWr {
            wr_id: 15,
            flags: WrFlags::SIGNALED,
            op: SendOp::AtomicWrite(REMOTE, 0x0102_0304_0506_0708),
            payload: Payload::Sges(&[]),
        },
        "
        0f00000000000000        #   0 wr_id
        00000000                #   8 reserved
        0f000000                #  12 opcode: ATOMIC_WRITE
        02000000                #  16 send_flags: SIGNALED, not INLINE
        00000000                #  20 ex
        c8ab90785634127f        #  24 rdma.remote_addr
        2b1a0000                #  32 rdma.rkey
        00000000                #  36 rdma.reserved
        ff*104                  #  40 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        08000000 08000000       # 184 dma.length, resid
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        0807060504030201        # 208 dma.atomic_wr
        ",
    );
}

#[test]
fn flush_of_a_range() {
    check(
        SendWr {
            wr_id: 16,
            flags: WrFlags::SIGNALED,
            op: SendOp::Flush(
                REMOTE,
                FlushPlacement::GLOBAL_VISIBILITY | FlushPlacement::PERSISTENCE,
                FlushLevel::Range(0x1234),
            ),
            payload: Payload::Sges(&[]),
        },
        "
        1000000000000000        #   0 wr_id
        00000000                #   8 reserved
        0e000000                #  12 opcode: FLUSH
        02000000                #  16 send_flags: SIGNALED
        00000000                #  20 ex
        c8ab90785634127f        #  24 flush.remote_addr
        34120000                #  32 flush.length
        2b1a0000                #  36 flush.rkey
        03                      #  40 flush.type: global visibility and persistence
        00                      #  41 flush.level: range
        00*6                    #  42 padding
        ff*96                   #  48 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        34120000 34120000       # 184 dma.length, resid: the length that goes into the packet
        00000000 00000000       # 192 dma.cur_sge, num_sge
        00000000 00000000       # 200 dma.sge_offset, reserved
        ",
    );
}

#[test]
fn flush_of_a_region() {
    check(
        SendWr {
            wr_id: 17,
            flags: WrFlags::NONE,
            op: SendOp::Flush(REMOTE, FlushPlacement::GLOBAL_VISIBILITY, FlushLevel::Region),
            payload: Payload::Sges(&[]),
        },
        "
        1100000000000000        #   0 wr_id
        00000000                #   8 reserved
        0e000000                #  12 opcode: FLUSH
        00000000                #  16 send_flags
        00000000                #  20 ex
        c8ab90785634127f        #  24 flush.remote_addr
        00000000                #  32 flush.length
        2b1a0000                #  36 flush.rkey
        01                      #  40 flush.type: global visibility
        01                      #  41 flush.level: region
        00*6                    #  42 padding
        ff*96                   #  48 rest of the union
        00*8                    # 144 status, state
        c8ab90785634127f        # 152 iova
        00*24                   # 160 mask to has_rd_atomic
        00*24                   # 184 dma: nothing
        ",
    );
}
