//! UAR pages, transport domains and counters, which only the firmware has; and memory keys.

use super::command::{CONTEXT, Command, PAGES, Status, paged};
use super::config_space::{BAR_BYTES, MSIX_PENDING, MSIX_TABLE};
use crate::bits::context::mkc;
use crate::bits::doorbell::UAR_BYTES;
use crate::bits::field::Field;
use crate::bits::firmware::{segment, status};
use crate::bits::{be32, be64};
use crate::device::Device;
use crate::memory::Buffer;
use crate::mkey::{Access, KeyRange, Mkey, Translation};
use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub(super) struct Objects {
    uars: BTreeSet<u32>,
    transport_domains: BTreeSet<u32>,
    counters: BTreeSet<u32>,
    domains_made: u32,
}

/// Number of a set of counters.
const COUNTERS: Field = Field::new(0x58, 8);
const MAX_COUNTERS: u32 = 255;

impl Objects {
    /// The number of a UAR page is its place in the BAR.
    pub fn alloc_uar(&mut self, c: &mut Command<'_>) -> Result<(), Status> {
        let page = |at: u64| (at / UAR_BYTES as u64) as u32;
        let interrupts = page(MSIX_TABLE)..=page(MSIX_PENDING);
        let free = (page(segment::END)..page(BAR_BYTES))
            .find(|uar| !interrupts.contains(uar) && !self.uars.contains(uar))
            .ok_or(Status(status::NO_RESOURCES))?;
        self.uars.insert(free);
        c.put_number(free);
        Ok(())
    }

    /// Queues may go on naming the page: the C library gives it back before the kernel ends what a program left open.
    pub fn dealloc_uar(&mut self, c: &Command<'_>) -> Result<(), Status> {
        self.uars.remove(&c.number()).then_some(()).ok_or(Status(status::BAD_RESOURCE))
    }

    pub fn alloc_transport_domain(&mut self, c: &mut Command<'_>) -> Result<(), Status> {
        self.domains_made += 1;
        self.transport_domains.insert(self.domains_made);
        c.put_number(self.domains_made);
        Ok(())
    }

    pub fn dealloc_transport_domain(&mut self, c: &Command<'_>) -> Result<(), Status> {
        self.transport_domains.remove(&c.number()).then_some(()).ok_or(Status(status::BAD_RESOURCE))
    }

    pub fn alloc_counters(&mut self, c: &mut Command<'_>) -> Result<(), Status> {
        let free = (1..=MAX_COUNTERS).find(|n| !self.counters.contains(n)).ok_or(Status(status::NO_RESOURCES))?;
        self.counters.insert(free);
        c.put(COUNTERS, free);
        Ok(())
    }

    pub fn dealloc_counters(&mut self, c: &Command<'_>) -> Result<(), Status> {
        let number = COUNTERS.get32(c.input);
        self.counters.remove(&number).then_some(()).ok_or(Status(status::BAD_RESOURCE))
    }

    /// Nothing is counted.
    pub fn query_counters(&self, c: &mut Command<'_>) -> Result<(), Status> {
        const ASKED: Field = Field::new(0xf8, 8);
        const BYTES: usize = 0x100;
        if !self.counters.contains(&ASKED.get32(c.input)) {
            return Err(Status(status::BAD_RESOURCE));
        }
        c.output(16, BYTES - 16);
        Ok(())
    }

    pub fn transport_domains(&self) -> usize {
        self.transport_domains.len()
    }

    pub fn live(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("UAR pages", self.uars.len()),
            ("transport domains", self.transport_domains.len()),
            ("sets of counters", self.counters.len()),
        ]
    }
}

/// CREATE_MKEY: context, then the translation list.
pub(super) fn create_mkey(device: &mut Device, c: &mut Command<'_>) -> Result<(), Status> {
    const BAD: Status = Status(status::BAD_PARAM);
    const ANY_QP: u32 = 0xff_ffff;
    let context = c.context(CONTEXT, mkc::BYTES)?;
    let mut access = Access::LOCAL_READ;
    for (field, right) in [
        (mkc::LOCAL_WRITE, Access::LOCAL_WRITE),
        (mkc::REMOTE_WRITE, Access::REMOTE_WRITE),
        (mkc::REMOTE_READ, Access::REMOTE_READ),
        (mkc::ATOMIC, Access::REMOTE_ATOMIC),
    ] {
        if field.is_set(context) {
            access = access | right;
        }
    }
    let free = mkc::FREE.is_set(context);
    let (start, mut len) = (mkc::START.get(context), mkc::LEN.get(context));
    let mode = mkc::ACCESS_MODE_LOW.get(context) | mkc::ACCESS_MODE_HIGH.get(context) << 2;
    let list = c.from(PAGES);
    let translation = match mode {
        mkc::mode::PHYSICAL => {
            if mkc::LENGTH_64.is_set(context) {
                len = u64::MAX;
            }
            Translation::Bus(Buffer::contiguous(start, len))
        }
        mkc::mode::PAGES if free => Translation::Bus(Buffer::contiguous(0, 0)),
        mkc::mode::PAGES => {
            let log_page = mkc::LOG_PAGE_SIZE.get32(context);
            let offset = start & (1_u64.checked_shl(log_page).ok_or(BAD)? - 1);
            Translation::Bus(paged(list, log_page, offset, len)?)
        }
        mkc::mode::KEYS if free => Translation::Keys(vec![]),
        mkc::mode::KEYS => {
            let count = mkc::OCTOWORDS.get(context) as usize;
            let entries = list.get(..count * 16).ok_or(BAD)?.chunks_exact(16);
            let range = |e: &[u8]| KeyRange { key: be32(e, 4), address: be64(e, 8), len: be32(e, 0).into() };
            Translation::Keys(entries.map(range).filter(|r| r.len != 0).collect())
        }
        _ => return Err(BAD),
    };
    let qpn = mkc::QPN.get32(context);
    let key = device.create_mkey_as(Mkey {
        variant: mkc::VARIANT.get(context) as u8,
        pd: mkc::PD.get32(context),
        access,
        start,
        len,
        translation,
        free,
        qpn: (qpn != ANY_QP).then_some(qpn),
        is_window: mode == mkc::mode::KEYS && free && mkc::UMR_ENABLE.is_set(context),
        umr: mkc::UMR_ENABLE.is_set(context),
    });
    c.put_number(key >> 8);
    Ok(())
}
