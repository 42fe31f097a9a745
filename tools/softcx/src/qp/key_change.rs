//! Binding memory windows and taking keys back: the UMR of the send queue.

use super::Qp;
use crate::bits::wqe::umr;
use crate::mkey::{Access, KeyRange, Mkey, Translation};
use crate::report::{Misuse, WqeImage};
use crate::shared::Shared;
use crate::syndrome::Syndrome;
use crate::wqe::Umr;

impl Qp {
    /// Binds a window or takes a key back.
    pub(super) fn change_key(&self, shared: &mut Shared, change: &Umr, image: &WqeImage) -> Result<(), Syndrome> {
        const FAILED: Syndrome = Syndrome::MW_BIND;
        let klm = |&(bytes, key, address): &(u32, u32, u64)| {
            let len = if bytes == 0 { 1 << 31 } else { u64::from(bytes) };
            KeyRange { key, address, len }
        };
        let ranges: Vec<KeyRange> = change.klms.iter().map(klm).collect();
        let covered = |mask: u64| change.mask & mask != 0;
        // Binding to a range that is not the binder's.
        if !change.free || !covered(umr::MASK_FREE) {
            let need = if change.access.allows(Access::REMOTE_WRITE) || change.access.allows(Access::REMOTE_ATOMIC) {
                Access::LOCAL_WRITE
            } else {
                Access::LOCAL_READ
            };
            for range in ranges.iter().filter(|_| change.len != 0) {
                if let Err(e) = shared.mkeys.check_direct(self.asker(), *range, need) {
                    self.report(shared, Some(image), Misuse::LocalAccess(e));
                    return Err(FAILED);
                }
            }
        }
        let (pd, qpn, privileged) = (self.spec.pd, self.qpn, self.privileged);
        let may = |m: &&mut Mkey| m.is_window && m.pd == pd || m.umr && privileged;
        let mkey = shared.mkeys.entry(change.key).filter(may).ok_or(FAILED)?;
        let bound_elsewhere = mkey.qpn.is_some_and(|owner| owner != qpn);
        if change.flags & umr::FAIL_IF_FREE != 0 && mkey.free
            || change.flags & umr::FAIL_IF_NOT_FREE != 0 && !mkey.free
            || change.flags & umr::CHECK_QPN != 0 && bound_elsewhere
            || !mkey.free && mkey.variant != change.key as u8
        {
            return Err(FAILED);
        }
        if covered(umr::MASK_FREE) {
            mkey.free = change.free;
        }
        if covered(umr::MASK_PD) && privileged {
            mkey.pd = change.pd;
        }
        if covered(umr::MASK_KEY) {
            mkey.variant = change.variant;
        }
        if covered(umr::MASK_QPN) {
            mkey.qpn = (change.qpn != 0xff_ffff && !change.free).then_some(change.qpn);
        }
        if covered(umr::MASK_START) {
            mkey.start = change.start;
        }
        if covered(umr::MASK_LEN) {
            mkey.len = change.len;
            // A window of no length grants nothing.
            mkey.free |= change.len == 0;
        }
        for (mask, right) in [
            (umr::MASK_LW, Access::LOCAL_WRITE),
            (umr::MASK_RR, Access::REMOTE_READ),
            (umr::MASK_RW, Access::REMOTE_WRITE),
            (umr::MASK_A, Access::REMOTE_ATOMIC),
        ] {
            if covered(mask) {
                mkey.access = Access(mkey.access.0 & !right.0 | change.access.0 & right.0);
            }
        }
        if !ranges.is_empty() {
            mkey.translation = Translation::Keys(ranges);
        }
        Ok(())
    }
}
