//! Every kind of completion, decoded from `tests/golden/mlx5/cqe.txt`.

use super::tests::{Fixture, UIDX};
use super::*;
use crate::mlx5::completion::Cqe;
use crate::mlx5::sq::WC_NOP;
use crate::mlx5::testing::Golden;
use crate::uverbs::wr::WcStatus;

/// Writes one vector as the queue's first entry, and decodes it.
#[track_caller]
fn decode(golden: &Golden, name: &str, entry_bytes: u32, posted: WcOpcode, check: impl FnOnce(Cqe<'_>)) {
    let mut cq = Fixture::new(8, entry_bytes);
    cq.inline_data();
    cq.attach(UIDX);
    cq.sends.note(3, 0xaaaa, 1, posted);
    cq.receives.note(0, 0xbbbb);
    cq.ring.write(0, golden.get(name));
    let mut open = cq.cq.open();
    let cqe = open.next().unwrap_or_else(|| panic!("{name}: no completion"));
    assert_eq!(cqe.qpn(), 0x12_3456, "{name}");
    check(cqe);
    assert!(open.next().is_none(), "{name}: a second completion");
    cq.cq.end();
    assert_eq!(cq.record.load(Word::CONSUMED), 1);
}

/// What a send work queue element's opcode completes as. A UMR is told apart by the poster's own notes alone.
fn send_opcode(sop: u8) -> Option<WcOpcode> {
    use crate::mlx5::wqe::opcode as sent;
    Some(match sop {
        sent::SEND | sent::SEND_IMM | sent::SEND_INVAL => WcOpcode::SEND,
        sent::RDMA_WRITE | sent::RDMA_WRITE_IMM => WcOpcode::RDMA_WRITE,
        sent::RDMA_READ => WcOpcode::RDMA_READ,
        sent::ATOMIC_CS => WcOpcode::COMP_SWAP,
        sent::ATOMIC_FA => WcOpcode::FETCH_ADD,
        _ => return None,
    })
}

#[test]
fn sends_that_are_done() {
    let golden = Golden::read("cqe.txt");
    for (name, posted, byte_len) in [
        ("done: SEND", WcOpcode::SEND, 0),
        ("done: SEND with immediate", WcOpcode::SEND, 0),
        ("done: SEND with invalidate", WcOpcode::SEND, 0),
        ("done: RDMA WRITE", WcOpcode::RDMA_WRITE, 0),
        ("done: RDMA WRITE with immediate", WcOpcode::RDMA_WRITE, 0),
        ("done: RDMA READ", WcOpcode::RDMA_READ, 0x1000),
        ("done: compare and swap", WcOpcode::COMP_SWAP, 8),
        ("done: fetch and add", WcOpcode::FETCH_ADD, 8),
        ("done: UMR", WcOpcode::BIND_MW, 0),
        ("done: UMR", WcOpcode::LOCAL_INV, 0),
        ("done: NOP", WC_NOP, 0),
    ] {
        for entry_bytes in [64, 128] {
            decode(&golden, name, entry_bytes, posted, |cqe| {
                assert_eq!((cqe.wr_id(), cqe.status(), cqe.vendor_err()), (0xaaaa, WcStatus::SUCCESS, 0), "{name}");
                assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (posted, byte_len, None), "{name}");
                assert_eq!(cqe.timestamp(), 1_000_000_000_000);
            });
        }
        // What the element says itself agrees with what the poster noted.
        let sop = golden.get(name)[56];
        assert_eq!(send_opcode(sop).unwrap_or(posted), posted, "{name}");
    }
    for (name, posted, len) in [
        ("done: RDMA READ of 20 bytes, inside the element", WcOpcode::RDMA_READ, 20),
        ("done: fetch and add, its 8 bytes inside the element", WcOpcode::FETCH_ADD, 8),
    ] {
        for entry_bytes in [64, 128] {
            decode(&golden, name, entry_bytes, posted, |cqe| {
                assert_eq!((cqe.wr_id(), cqe.status(), cqe.opcode()), (0xaaaa, WcStatus::SUCCESS, posted), "{name}");
                assert_eq!(cqe.byte_len(), len, "{name}");
                assert_eq!(cqe.inline_data().unwrap()[..], (0..len as u8).collect::<Vec<_>>(), "{name}");
            });
        }
    }
    golden.all_used(&["done"]);
}

#[test]
fn messages_received() {
    let golden = Golden::read("cqe.txt");
    let recv = |name, check: &dyn Fn(Cqe<'_>)| {
        for entry_bytes in [64, 128] {
            decode(&golden, name, entry_bytes, WcOpcode::SEND, |cqe| {
                assert_eq!((cqe.wr_id(), cqe.status(), cqe.vendor_err()), (0xbbbb, WcStatus::SUCCESS, 0), "{name}");
                check(cqe);
            });
        }
    };
    recv("received: SEND", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (WcOpcode::RECV, 0x400, None));
        assert!(!cqe.has_grh() && !cqe.is_solicited() && cqe.invalidated_rkey().is_none());
    });
    recv("received: SEND with immediate, solicited", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (WcOpcode::RECV, 0x400, Some(0x1122_3344)));
        assert!(cqe.is_solicited() && cqe.pkey_index().is_none());
    });
    recv("received: SEND with invalidate", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (WcOpcode::RECV, 0, None));
        assert_eq!(cqe.invalidated_rkey(), Some(0x1a2b));
    });
    recv("received: RDMA WRITE with immediate", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len()), (WcOpcode::RECV_RDMA_WITH_IMM, 0x2000));
        assert_eq!(cqe.imm(), Some(0x1122_3344));
    });
    recv("received: datagram on InfiniBand", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (WcOpcode::RECV, 0x428, None));
        assert_eq!((cqe.src_qp(), cqe.sl(), cqe.has_grh()), (0x65_4321, 9, true));
        assert_eq!((cqe.slid(), cqe.dlid_path_bits(), cqe.pkey_index()), (0x1234, 5, Some(7)));
    });
    recv("received: datagram on RoCE v2", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (WcOpcode::RECV, 0x68, None));
        assert_eq!((cqe.src_qp(), cqe.has_grh(), cqe.is_solicited()), (0x65_4321, true, true));
        assert_eq!((cqe.slid(), cqe.dlid_path_bits(), cqe.pkey_index()), (0, 0, Some(0)));
    });
    let message: Vec<u8> = (0..64).collect();
    recv("received: SEND with immediate, 8 bytes inside the element", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len(), cqe.imm()), (WcOpcode::RECV, 8, Some(0x1122_3344)));
        assert_eq!(cqe.inline_data().unwrap()[..], message[..8]);
    });
    recv("received: 20 bytes inside the element", &|cqe| {
        assert_eq!((cqe.opcode(), cqe.byte_len()), (WcOpcode::RECV, 20));
        assert_eq!(cqe.inline_data().unwrap()[..], message[..20]);
        // Its bytes are where an entry that carries nothing tells of the sender.
        assert_eq!((cqe.src_qp(), cqe.slid(), cqe.dlid_path_bits(), cqe.has_grh()), (0, 0, 0, false));
    });
    let name = "received: 50 bytes before the element, of 128";
    decode(&golden, name, 128, WcOpcode::SEND, |cqe| {
        assert_eq!((cqe.byte_len(), &cqe.inline_data().unwrap()[..]), (50, &message[..50]));
    });
    golden.all_used(&["received"]);
}

#[test]
fn failures() {
    let golden = Golden::read("cqe.txt");
    let statuses = [
        ("local length error", WcStatus::LOC_LEN_ERR),
        ("local queue pair operation error", WcStatus::LOC_QP_OP_ERR),
        ("local protection error", WcStatus::LOC_PROT_ERR),
        ("flushed", WcStatus::WR_FLUSH_ERR),
        ("memory window bind error", WcStatus::MW_BIND_ERR),
        ("bad response", WcStatus::BAD_RESP_ERR),
        ("local access error", WcStatus::LOC_ACCESS_ERR),
        ("remote invalid request", WcStatus::REM_INV_REQ_ERR),
        ("remote access error", WcStatus::REM_ACCESS_ERR),
        ("remote operation error", WcStatus::REM_OP_ERR),
        ("transport retries exceeded", WcStatus::RETRY_EXC_ERR),
        ("receiver not ready retries exceeded", WcStatus::RNR_RETRY_EXC_ERR),
        ("remote aborted", WcStatus::REM_ABORT_ERR),
        ("not known: general error", WcStatus::GENERAL_ERR),
    ];
    for (i, (what, status)) in statuses.iter().enumerate() {
        decode(&golden, &format!("failed send: {what}"), 64, WcOpcode::RDMA_WRITE, |cqe| {
            assert_eq!((cqe.wr_id(), cqe.status(), cqe.vendor_err()), (0xaaaa, *status, 0x80 + i as u32), "{what}");
            assert_eq!(cqe.opcode(), WcOpcode::RDMA_WRITE, "what was posted");
        });
    }
    for (what, status) in statuses {
        let vendor = match status {
            WcStatus::WR_FLUSH_ERR => 0xf9,
            WcStatus::REM_ABORT_ERR => 0x93,
            _ => 0x33,
        };
        for entry_bytes in [64, 128] {
            decode(&golden, &format!("failed receive: {what}"), entry_bytes, WcOpcode::SEND, |cqe| {
                assert_eq!((cqe.wr_id(), cqe.status(), cqe.vendor_err()), (0xbbbb, status, vendor), "{what}");
                assert_eq!((cqe.opcode(), cqe.imm()), (WcOpcode::RECV, None));
            });
        }
    }
    golden.all_used(&["failed"]);
}

#[test]
fn blocks_of_packed_completions() {
    let golden = Golden::read("cqe_packed.txt");
    let mut cq = Fixture::new(8, 64);
    cq.compressed();
    cq.attach(UIDX);
    for n in 0..3 {
        cq.receives.note(n, 100 + u64::from(n));
    }
    let block = golden.get("three receives");
    cq.ring.write(1, &block[64..]);
    cq.ring.write(0, &block[..64]);
    let mut open = cq.cq.open();
    for (n, bytes) in [0x400, 0, 0x10].into_iter().enumerate() {
        let cqe = open.next().unwrap();
        assert_eq!((cqe.wr_id(), cqe.byte_len(), cqe.opcode()), (100 + n as u64, bytes, WcOpcode::RECV));
        assert_eq!((cqe.qpn(), cqe.timestamp()), (0x12_3456, 1_000_000_000_000));
    }
    assert!(open.next().is_none());
    cq.cq.end();
    let mut cq = Fixture::new(8, 64);
    cq.compressed();
    cq.attach(UIDX);
    cq.sends.note(3, 10, 1, WcOpcode::RDMA_WRITE);
    cq.sends.note(5, 11, 2, WcOpcode::RDMA_READ);
    let block = golden.get("two sends");
    cq.ring.write(1, &block[64..]);
    cq.ring.write(0, &block[..64]);
    let mut open = cq.cq.open();
    for (wr_id, opcode, bytes) in [(10, WcOpcode::RDMA_WRITE, 0), (11, WcOpcode::RDMA_READ, 0x1000)] {
        let cqe = open.next().unwrap();
        assert_eq!((cqe.wr_id(), cqe.opcode(), cqe.byte_len()), (wr_id, opcode, bytes));
    }
    assert!(open.next().is_none());
    cq.cq.end();
    let mut cq = Fixture::new(16, 64);
    cq.compressed();
    cq.attach(UIDX);
    let shared = std::sync::Arc::new(crate::mlx5::shadow::SrqShared::new(16));
    cq.cq.mailbox().put(
        UIDX,
        crate::mlx5::mailbox::Change::Receives(Some(crate::mlx5::mailbox::Receives::Shared(shared.clone()))),
    );
    for index in 0..16 {
        shared.note(index, 100 + u64::from(index));
    }
    for (place, entry) in golden.get("ten receives").chunks_exact(64).enumerate().rev() {
        cq.ring.write(place as u32, entry);
    }
    let mut open = cq.cq.open();
    // The elements' indices count on from 0xffff, the last one.
    for (n, element) in (0..10).zip([15, 0, 1, 2, 3, 4, 5, 6, 7, 8]) {
        let cqe = open.next().unwrap();
        assert_eq!((cqe.wr_id(), cqe.byte_len(), cqe.opcode()), (100 + element, n + 1, WcOpcode::RECV));
    }
    assert!(open.next().is_none());
    cq.cq.end();
    golden.all_used(&["t"]);
}
