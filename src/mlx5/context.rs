//! One opened device: what it can do, its doorbell pages and records, and the user indices of its queues.

use super::abi::{AllocUcontextReq, AllocUcontextResp, lib_caps, ucontext_mask};
use super::dbrec::DoorbellPages;
use super::layout::{Limits, MAX_RECEIVES, MAX_SEND_BLOCKS};
use super::uar::{Caching, Registers, SendRegister, UarPage};
use super::uar_object;
use super::uidx::UserIndices;
use crate::mem::map::page_bytes;
use crate::uverbs::context::Ucontext;
use crate::uverbs::error::{Error, Lacking, Verb};
use crate::uverbs::sys::Cdev;
use std::mem::offset_of;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Completion format that is understood: with the user's index.
const CQE_VERSION: u8 = 1;

/// Whether a single small work request may be copied into the device's register whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlueFlame {
    /// Where write-combining is known to work: the kernel has tried it, and the processor is one that combines eight stores of
    /// eight bytes into one transfer.
    #[default]
    WhereProven,
    /// Never: eight bytes at a time.
    Never,
}

/// What the device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    pub limits: Limits,
    /// Bytes of a send register; 0 where write-combining does not work.
    pub register_bytes: u32,
    /// Log2 of a doorbell page's bytes; 0 not told.
    pub log_uar_bytes: u32,
    pub num_ports: u16,
    /// Whether CREATE_AH tells the next hop's Ethernet address.
    pub create_ah_tells_dmac: bool,
    /// Whether the page that relates the device's clock to the host's can be mapped.
    pub has_clock_page: bool,
    /// Where in its page the device's clock is.
    pub core_clock_offset: Option<u64>,
    /// Whether completions can carry the real time.
    pub has_real_time_stamps: bool,
    /// Whether a queue pair can go from SQD to RTS.
    pub has_sqd_to_rts: bool,
}

/// An opened device.
pub struct Mlx5Context {
    // Fields are dropped in this order: pages before the file that they are objects of.
    registers: Registers,
    /// Where completion queues are armed, and what queue pairs ring without a register of their own.
    shared_uar: Arc<UarPage>,
    records: DoorbellPages,
    indices: UserIndices,
    caps: Caps,
    blueflame: bool,
    ucontext: Arc<Ucontext>,
}

impl Mlx5Context {
    /// Opens the context of a file of an mlx5 device.
    pub fn open(cdev: Arc<dyn Cdev>, blueflame: BlueFlame) -> Result<Arc<Self>, Error> {
        if usize::BITS < 64 {
            return Err(unsupported("mlx5 on a host of 32 bits, which cannot store 8 bytes at once", Lacking::Library));
        }
        let request = AllocUcontextReq {
            // Not used by a context that makes its doorbell pages itself, but checked.
            total_num_bfregs: 16,
            num_low_latency_bfregs: 4,
            max_cqe_version: CQE_VERSION,
            lib_caps: lib_caps::UAR_4K | lib_caps::DYN_UAR,
            ..Default::default()
        };
        let mut response = AllocUcontextResp::default();
        let ucontext = Ucontext::open(cdev, request.as_bytes(), response.as_mut_bytes())?;
        let caps = Caps::new(&response)?;
        let shared_uar = uar_object::alloc(&ucontext, Caching::Uncached, caps.log_uar_bytes)?;
        Ok(Arc::new(Self {
            registers: Registers::default(),
            shared_uar,
            records: DoorbellPages::default(),
            indices: UserIndices::default(),
            caps,
            // Eight stores of eight bytes leave x86 as one transfer. What other processors do is not proven.
            blueflame: blueflame == BlueFlame::WhereProven && cfg!(target_arch = "x86_64"),
            ucontext,
        }))
    }

    pub fn ucontext(&self) -> &Arc<Ucontext> {
        &self.ucontext
    }

    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The page that completion queues are armed through.
    pub fn shared_uar(&self) -> &Arc<UarPage> {
        &self.shared_uar
    }

    pub fn records(&self) -> &DoorbellPages {
        &self.records
    }

    pub fn indices(&self) -> &UserIndices {
        &self.indices
    }

    /// A register for a new send queue: one of its own where write-combining works and there are any left, else the shared one.
    pub fn send_register(&self) -> SendRegister {
        let Caps { register_bytes, log_uar_bytes, .. } = self.caps;
        let own = || {
            let new_page = || uar_object::alloc(&self.ucontext, Caching::WriteCombining, log_uar_bytes);
            self.registers.exclusive(register_bytes, self.blueflame, new_page)
        };
        let own = if register_bytes > 0 { own() } else { None };
        own.unwrap_or_else(|| self.shared_register())
    }

    /// The register that any number of queues share.
    pub fn shared_register(&self) -> SendRegister {
        SendRegister::shared(Arc::clone(&self.shared_uar))
    }
}

impl Caps {
    fn new(response: &AllocUcontextResp) -> Result<Self, Error> {
        let r = told(response);
        if r.cqe_version != CQE_VERSION {
            return Err(unsupported("completions that carry the user's index", Lacking::Device));
        }
        if r.max_send_wqebb != 0 && !r.max_send_wqebb.is_power_of_two() || r.max_send_wqebb > 1 << 16 {
            return Err(impossible("max_send_wqebb", "a power of two of at most 65536", r.max_send_wqebb));
        }
        if r.log_uar_size != 0 && !(12..=page_bytes().ilog2()).contains(&r.log_uar_size) {
            return Err(impossible("log_uar_size", "12 to a system page's", r.log_uar_size));
        }
        let has = |bit| r.comp_mask & bit != 0;
        Ok(Self {
            limits: Limits {
                max_send_blocks: r.max_send_wqebb.min(MAX_SEND_BLOCKS),
                max_send_element_bytes: r.max_sq_desc_sz.into(),
                max_recv_element_bytes: r.max_rq_desc_sz.into(),
                max_recv_wr: r.max_recv_wr.min(MAX_RECEIVES),
                max_srq_recv_wr: r.max_srq_recv_wr,
            },
            register_bytes: r.bf_reg_size,
            log_uar_bytes: r.log_uar_size,
            num_ports: r.num_ports,
            create_ah_tells_dmac: r.cmds_supp_uhw & 2 != 0,
            has_clock_page: r.clock_info_versions & 1 != 0,
            core_clock_offset: has(ucontext_mask::CORE_CLOCK_OFFSET).then_some(r.hca_core_clock_offset),
            has_real_time_stamps: has(ucontext_mask::REAL_TIME_TS),
            has_sqd_to_rts: has(ucontext_mask::SQD2RTS),
        })
    }
}

/// The response as far as the kernel says that it filled it; the rest zero.
fn told(response: &AllocUcontextResp) -> AllocUcontextResp {
    let mut bytes = [0; size_of::<AllocUcontextResp>()];
    // Kernels too old to say have filled no less than what comes before the field that says it.
    let len = (response.response_length as usize).clamp(offset_of!(AllocUcontextResp, response_length), bytes.len());
    bytes[..len].copy_from_slice(&response.as_bytes()[..len]);
    AllocUcontextResp::read_from_bytes(&bytes).unwrap_or_default()
}

fn unsupported(what: &'static str, by: Lacking) -> Error {
    Error::Unsupported { verb: Verb::OpenDevice, what: what.into(), by }
}

fn impossible(what: &'static str, need: &'static str, got: u32) -> Error {
    Error::Abi { verb: Verb::OpenDevice, what: what.into(), need: need.into(), got: got.to_string().into() }
}

#[cfg(all(test, not(loom)))]
mod tests;
