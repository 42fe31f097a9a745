//! Takes work queue entries apart.

use crate::bits::wqe::{self, ctrl, data, opcode};
use crate::bits::{array, be16, be32, be64};
use crate::mkey::Access;
use crate::qp::QpKind;
use crate::recv::Sge;

/// A send WQE, taken apart.
///
/// ```
/// use softcx::{QpKind, SendWqe, Work};
/// // Control segment: index 5, NOP; QP 0x123, one unit; completion always.
/// let bytes = [0, 0, 5, 0, 0, 1, 0x23, 1, 0, 0, 0, 8, 0, 0, 0, 0];
/// let wqe = SendWqe::decode(&bytes, QpKind::Rc)?;
/// assert_eq!((wqe.index, wqe.signaled, wqe.work), (5, true, Work::Nop));
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// BBs since the queue was reset.
    pub index: u16,
    /// Units of 16 bytes.
    pub ds: u8,
    /// What to do.
    pub work: Work,
    /// Address and key at the other side.
    pub remote: Option<(u64, u32)>,
    /// The data, in order.
    pub data: Vec<Segment>,
    /// UD: where to.
    pub av: Option<Av>,
    /// XRC: the SRQ at the other side.
    pub xrc_srqn: Option<u32>,
    /// Write a completion also if nothing fails.
    pub signaled: bool,
    /// Solicited event at the responder.
    pub solicited: bool,
    /// Fence bits of the control segment.
    pub fence: u8,
}

/// What a send WQE does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the opcodes'")]
pub enum Work {
    Nop,
    Send { imm: Option<[u8; 4]>, invalidate: Option<u32> },
    Write { imm: Option<[u8; 4]> },
    Read,
    Atomic(Atomic),
    Umr(Box<Umr>),
}

/// An atomic operation on 8 bytes: `old` → `(old & compare_mask) == (compare & compare_mask)` ? swap under mask : old, or an
/// addition whose carries stop at the boundaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the operands'")]
pub enum Atomic {
    CompareSwap { compare: u64, swap: u64, compare_mask: u64, swap_mask: u64 },
    FetchAdd { add: u64, boundary: u64 },
}

impl Atomic {
    /// The number that replaces `old`.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap, compare_mask, swap_mask } => {
                if (old ^ compare) & compare_mask == 0 {
                    old & !swap_mask | swap & swap_mask
                } else {
                    old
                }
            }
            Self::FetchAdd { add, boundary: 0 } => old.wrapping_add(add),
            Self::FetchAdd { add, boundary } => {
                let (mut sum, mut carry) = (0, 0);
                for bit in 0..64 {
                    let total = (old >> bit & 1) + (add >> bit & 1) + carry;
                    sum |= (total & 1) << bit;
                    carry = if boundary >> bit & 1 == 1 { 0 } else { total >> 1 };
                }
                sum
            }
        }
    }
}

/// Change of a memory key: binding of a window, or local invalidation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub struct Umr {
    pub key: u32,
    pub flags: u8,
    pub mask: u64,
    pub free: bool,
    pub access: Access,
    pub qpn: u32,
    pub variant: u8,
    pub pd: u32,
    pub start: u64,
    pub len: u64,
    pub klms: Vec<(u32, u32, u64)>,
}

/// A piece of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// In the WQE itself.
    Inline(Vec<u8>),
    /// In registered memory.
    Sge(Sge),
}

impl Segment {
    fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Sge(sge) => sge.len.into(),
        }
    }
}

/// Address vector of a UD send WQE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the fields'")]
pub struct Av {
    pub qkey: u32,
    pub dqpn: u32,
    pub sl: u8,
    /// In the device's numbers; 0 for no limit.
    pub static_rate: u8,
    pub src_path_bits: u8,
    /// InfiniBand: destination LID. Ethernet: UDP source port.
    pub rlid: u16,
    pub rmac: [u8; 6],
    pub tclass: u8,
    pub hop_limit: u8,
    pub grh: bool,
    pub sgid_index: u8,
    pub flow_label: u32,
    pub rgid: [u8; 16],
}

impl SendWqe {
    /// Takes the WQE apart that starts at `bytes`, which may be longer than it. `kind` is the queue pair's.
    pub fn decode(bytes: &[u8], kind: QpKind) -> Result<Self, &'static str> {
        let head = be32(bytes, ctrl::OPMOD_INDEX_OPCODE);
        let (op, index) = (head as u8, (head >> 8) as u16);
        let ds = (be32(bytes, ctrl::QPN_DS) & 0x3f) as u8;
        if ds == 0 {
            return Err("no units (ds is 0)");
        }
        let bytes = bytes.get(..usize::from(ds) * wqe::DS_BYTES).ok_or("it is longer than its ring")?;
        let fm_ce_se = bytes[ctrl::FM_CE_SE];
        let imm: [u8; 4] = array(bytes, ctrl::IMM);
        let mut rest = Segments(&bytes[wqe::DS_BYTES..]);

        let av =
            (kind == QpKind::Ud && op != opcode::NOP).then(|| rest.take(wqe::av::BYTES).map(decode_av)).transpose()?;
        let is_message = !matches!(op, opcode::NOP | opcode::UMR);
        let xrc_srqn = (kind == QpKind::XrcIni && is_message)
            .then(|| rest.take(16).map(|b| be32(b, wqe::xrc::SRQN) & 0xff_ffff))
            .transpose()?;
        let remote = matches!(
            op,
            opcode::RDMA_WRITE | opcode::RDMA_WRITE_IMM | opcode::RDMA_READ | opcode::ATOMIC_CS
                ..=opcode::ATOMIC_MASKED_FA
        )
        .then(|| rest.take(16).map(|b| (be64(b, wqe::raddr::ADDR), be32(b, wqe::raddr::RKEY))))
        .transpose()?;
        let work = match op {
            opcode::NOP => Work::Nop,
            opcode::SEND => Work::Send { imm: None, invalidate: None },
            opcode::SEND_IMM => Work::Send { imm: Some(imm), invalidate: None },
            opcode::SEND_INVAL => Work::Send { imm: None, invalidate: Some(u32::from_be_bytes(imm)) },
            opcode::RDMA_WRITE => Work::Write { imm: None },
            opcode::RDMA_WRITE_IMM => Work::Write { imm: Some(imm) },
            opcode::RDMA_READ => Work::Read,
            opcode::ATOMIC_CS | opcode::ATOMIC_FA => Work::Atomic(decode_atomic(op, rest.take(16)?)),
            opcode::ATOMIC_MASKED_CS | opcode::ATOMIC_MASKED_FA => Work::Atomic(decode_atomic(op, rest.take(32)?)),
            opcode::UMR => Work::Umr(Box::new(decode_umr(u32::from_be_bytes(imm), &mut rest)?)),
            _ => return Err("unknown opcode"),
        };
        let data = if is_message { gather_list(rest.0)? } else { vec![] };
        let wqe = Self {
            index,
            ds,
            work,
            remote,
            data,
            av,
            xrc_srqn,
            signaled: fm_ce_se & ctrl::COMPLETE_MASK == ctrl::COMPLETE_ALWAYS,
            solicited: fm_ce_se & ctrl::SOLICITED != 0,
            fence: fm_ce_se & ctrl::FENCE_MASK,
        };
        wqe.check(kind).map(|()| wqe)
    }

    fn check(&self, kind: QpKind) -> Result<(), &'static str> {
        let reliable = matches!(kind, QpKind::Rc | QpKind::XrcIni);
        let inline = self.data.iter().any(|s| matches!(s, Segment::Inline(_)));
        match &self.work {
            Work::Read | Work::Atomic(_) if !reliable => Err("the transport has no READ and no atomics"),
            Work::Read | Work::Atomic(_) if inline => Err("inline data where an answer is to go"),
            Work::Atomic(_) if self.len_bytes() != 8 => Err("an atomic's answer has 8 bytes"),
            Work::Write { .. } if kind == QpKind::Ud => Err("the transport has no WRITE"),
            Work::Send { invalidate: Some(_), .. } if !reliable => Err("the transport cannot invalidate"),
            Work::Umr(_) if kind == QpKind::Ud => Err("the transport has no memory windows"),
            _ => Ok(()),
        }
    }

    /// Bytes of the message.
    pub fn len_bytes(&self) -> u64 {
        self.data.iter().map(Segment::len).sum()
    }

    /// BBs that it occupies.
    pub fn bbs(&self) -> u16 {
        u16::from(self.ds).div_ceil(4)
    }

    /// The opcode as a completion repeats it.
    pub fn opcode(&self) -> u8 {
        match &self.work {
            Work::Nop => opcode::NOP,
            Work::Send { invalidate: Some(_), .. } => opcode::SEND_INVAL,
            Work::Send { imm: Some(_), .. } => opcode::SEND_IMM,
            Work::Send { .. } => opcode::SEND,
            Work::Write { imm: Some(_) } => opcode::RDMA_WRITE_IMM,
            Work::Write { .. } => opcode::RDMA_WRITE,
            Work::Read => opcode::RDMA_READ,
            Work::Atomic(Atomic::CompareSwap { compare_mask: u64::MAX, swap_mask: u64::MAX, .. }) => opcode::ATOMIC_CS,
            Work::Atomic(Atomic::CompareSwap { .. }) => opcode::ATOMIC_MASKED_CS,
            Work::Atomic(Atomic::FetchAdd { boundary: 0, .. }) => opcode::ATOMIC_FA,
            Work::Atomic(Atomic::FetchAdd { .. }) => opcode::ATOMIC_MASKED_FA,
            Work::Umr(_) => opcode::UMR,
        }
    }

    /// Whether it brings bytes back.
    pub fn is_read(&self) -> bool {
        matches!(self.work, Work::Read | Work::Atomic(_))
    }
}

/// What is left of a WQE's segments.
struct Segments<'a>(&'a [u8]);

impl<'a> Segments<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        let (head, tail) = self.0.split_at_checked(n).ok_or("it ends before its segments do")?;
        self.0 = tail;
        Ok(head)
    }
}

fn decode_av(b: &[u8]) -> Av {
    use wqe::av;
    let grh = be32(b, av::GRH_GID_FL);
    Av {
        qkey: be32(b, av::QKEY),
        dqpn: be32(b, av::DQP) & 0xff_ffff,
        sl: b[av::RATE_SL] & 0xf,
        static_rate: b[av::RATE_SL] >> 4,
        src_path_bits: b[av::FL_MLID] & 0x7f,
        rlid: be16(b, av::RLID),
        rmac: array(b, av::RMAC),
        tclass: b[av::TCLASS],
        hop_limit: b[av::HOP_LIMIT],
        grh: grh & av::GRH != 0,
        sgid_index: (grh >> 20) as u8,
        flow_label: grh & 0xf_ffff,
        rgid: array(b, av::RGID),
    }
}

fn decode_atomic(op: u8, b: &[u8]) -> Atomic {
    use wqe::atomic as a;
    let (swap_add, compare) = (be64(b, a::SWAP_ADD), be64(b, a::COMPARE));
    match op {
        opcode::ATOMIC_CS => {
            Atomic::CompareSwap { compare, swap: swap_add, compare_mask: u64::MAX, swap_mask: u64::MAX }
        }
        opcode::ATOMIC_FA => Atomic::FetchAdd { add: swap_add, boundary: 0 },
        opcode::ATOMIC_MASKED_CS => Atomic::CompareSwap {
            compare,
            swap: swap_add,
            compare_mask: be64(b, a::COMPARE_MASK),
            swap_mask: be64(b, a::SWAP_ADD_MASK),
        },
        _ => Atomic::FetchAdd { add: swap_add, boundary: be64(b, a::SWAP_ADD_MASK) },
    }
}

fn decode_umr(key: u32, rest: &mut Segments<'_>) -> Result<Umr, &'static str> {
    use wqe::{klm, mkey, umr};
    let control = rest.take(umr::BYTES)?;
    let context = rest.take(mkey::BYTES)?;
    let flags = control[umr::FLAGS];
    let octowords = usize::from(be16(control, umr::KLM_OCTOWORDS));
    let list = if flags & umr::INLINE != 0 { rest.take(octowords * klm::BYTES)? } else { &[] };
    let bits = context[mkey::ACCESS];
    let mut access = Access::LOCAL_READ;
    for (bit, right) in [
        (mkey::LW, Access::LOCAL_WRITE),
        (mkey::RW, Access::REMOTE_WRITE),
        (mkey::RR, Access::REMOTE_READ),
        (mkey::A, Access::REMOTE_ATOMIC),
    ] {
        if bits & bit != 0 {
            access = access | right;
        }
    }
    let qpn_mkey = be32(context, mkey::QPN_MKEY);
    Ok(Umr {
        key,
        flags,
        mask: be64(control, umr::MKEY_MASK),
        free: context[mkey::FREE] & mkey::FREE_BIT != 0,
        access,
        qpn: qpn_mkey >> 8,
        variant: qpn_mkey as u8,
        pd: be32(context, mkey::FLAGS_PD) & 0xff_ffff,
        start: be64(context, mkey::START_ADDR),
        len: be64(context, mkey::LEN),
        klms: list
            .chunks_exact(klm::BYTES)
            .map(|k| (be32(k, klm::BYTE_COUNT), be32(k, klm::MKEY), be64(k, klm::ADDR)))
            .filter(|(bytes, key, _)| (*bytes, *key) != (0, 0))
            .collect(),
    })
}

/// The data segments of a send WQE.
fn gather_list(mut rest: &[u8]) -> Result<Vec<Segment>, &'static str> {
    let mut list = vec![];
    while !rest.is_empty() {
        let count = be32(rest, data::BYTE_COUNT);
        let used = if count & data::INLINE != 0 {
            let len = (count & !data::INLINE) as usize;
            let bytes =
                rest.get(data::INLINE_HEAD_BYTES..).and_then(|b| b.get(..len)).ok_or("inline data do not fit")?;
            list.push(Segment::Inline(bytes.to_vec()));
            (data::INLINE_HEAD_BYTES + len).next_multiple_of(wqe::DS_BYTES)
        } else {
            list.push(Segment::Sge(decode_sge(rest, count)));
            wqe::DS_BYTES
        };
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(list)
}

/// The data segments of a receive WQE: all of its stride, or up to the one that ends the list.
pub fn scatter_list(bytes: &[u8]) -> Vec<Sge> {
    let segments = bytes.chunks_exact(wqe::DS_BYTES).map(|s| (be32(s, data::BYTE_COUNT), be32(s, data::LKEY), s));
    segments
        .take_while(|(count, lkey, _)| (*count, *lkey) != (0, data::TERMINATE_LKEY))
        .map(|(count, _, s)| decode_sge(s, count))
        .collect()
}

fn decode_sge(segment: &[u8], count: u32) -> Sge {
    let len = if count == 0 { data::ZERO_MEANS_BYTES } else { count };
    Sge { lkey: be32(segment, data::LKEY), address: be64(segment, data::ADDR), len }
}
