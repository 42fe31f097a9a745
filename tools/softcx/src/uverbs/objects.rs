//! Protection domains, memory, address handles, XRC domains, UAR pages, and what is left of shared receive queues.

use super::caps::MAX_DYNAMIC_UARS;
use super::file::{File, What, errno, kind};
use super::page::{Page, Registers};
use super::uapi::{Answer, Call, Request, Response};
use crate::host_memory::is_accessible;
use crate::memory::Buffer;
use crate::mkey::{Access, Mkey, Translation};
use crate::packet::{MULTICAST_LIDS, is_multicast};
use crate::port::{Link, PathGrh};
use ironverbs::Errno;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Bits of a region's access flags (`enum ib_access_flags`).
mod access {
    pub const LOCAL_WRITE: u32 = 1 << 0;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const ON_DEMAND: u32 = 1 << 6;
    pub const FLUSH: u32 = 3 << 8;
    /// Hints; unknown ones are ignored.
    pub const OPTIONAL: u32 = 0x3ff << 20;
    /// Of 6.12: window binding, zero-based and huge pages besides.
    pub const KNOWN: u32 = 0x3ff | OPTIONAL;
}

fn check_access(flags: u32) -> Result<Access, Errno> {
    use access::*;
    if flags & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && flags & LOCAL_WRITE == 0 || flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & (ON_DEMAND | FLUSH) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let bits = flags & (LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC);
    // The device's bits are in the same order.
    Ok(Access(bits as u8))
}

/// What REG_MR and REREG_MR check of a range.
fn check_range(start: u64, len: u64, iova: u64, access: Access) -> Result<(), Errno> {
    if (start ^ iova) & 0xfff != 0 || len == 0 {
        return Err(Errno::EINVAL);
    }
    let write = access.0 & !Access::REMOTE_READ.0 != 0;
    if is_accessible(start, len, write) { Ok(()) } else { Err(Errno::EFAULT) }
}

impl File {
    /// ALLOC_PD.
    pub(super) fn alloc_pd(&self, call: &Call<'_>) -> Result<Answer, Errno> {
        call.needs_room(4)?;
        let pd = self.with(|d| d.alloc_pd());
        let handle = self.state().insert(What::Pd { pd }, vec![]);
        Ok(Answer { core: Response::new(4).u32(0, handle).done(), driver: Response::new(4).u32(0, pd).done() })
    }

    /// REG_MR.
    pub(super) fn reg_mr(&self, request: Request<'_>) -> Result<Response, Errno> {
        let (start, len, iova) = (request.u64(8), request.u64(16), request.u64(24));
        let access = check_access(request.u32(36))?;
        let mut state = self.state();
        let pd = state.pd(request.u32(32))?;
        check_range(start, len, iova, access)?;
        let key = self.with(|d| {
            d.create_mkey(Mkey {
                variant: 0,
                pd,
                access,
                start: iova,
                len,
                translation: Translation::Bus(Buffer::contiguous(start, len)),
                free: false,
                qpn: None,
                is_window: false,
                umr: false,
            })
        });
        let handle = state.insert(What::Mr { key, iova, len }, vec![request.u32(32)]);
        Ok(Response::new(12).u32(0, handle).u32(4, key).u32(8, key))
    }

    /// REREG_MR: the region gets another range, domain or rights, and other keys.
    pub(super) fn rereg_mr(&self, request: Request<'_>) -> Result<Response, Errno> {
        const TRANSLATION: u32 = 1;
        const PD: u32 = 2;
        const ACCESS: u32 = 4;
        let (handle, flags) = (request.u32(8), request.u32(12));
        if flags & !(TRANSLATION | PD | ACCESS) != 0 || flags == 0 {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state();
        let What::Mr { key, .. } = *state.object(handle)? else { return Err(Errno::EINVAL) };
        let mut mkey = self.with(|d| d.mkey(key).cloned()).ok_or(Errno::EINVAL)?;
        if flags & ACCESS != 0 {
            mkey.access = check_access(request.u32(44))?;
        }
        if flags & PD != 0 {
            mkey.pd = state.pd(request.u32(40))?;
        }
        if flags & TRANSLATION != 0 {
            let (start, len, iova) = (request.u64(16), request.u64(24), request.u64(32));
            check_range(start, len, iova, mkey.access)?;
            (mkey.start, mkey.len) = (iova, len);
            mkey.translation = Translation::Bus(Buffer::contiguous(start, len));
        }
        let (iova, len) = (mkey.start, mkey.len);
        let new = self.with(|d| d.destroy_mkey(key).map(|()| d.create_mkey(mkey))).map_err(errno)?;
        let uses = (flags & PD != 0).then(|| vec![request.u32(40)]);
        state.replace(handle, What::Mr { key: new, iova, len }, uses);
        Ok(Response::new(8).u32(0, new).u32(4, new))
    }

    /// MR.QUERY_MR: key, length, address.
    pub(super) fn query_mr(&self, handle: u32) -> Result<(u32, u64, u64), Errno> {
        match *self.state().object(handle)? {
            What::Mr { key, iova, len } => Ok((key, len, iova)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// ALLOC_MW.
    pub(super) fn alloc_mw(&self, call: &Call<'_>) -> Result<Answer, Errno> {
        let mw_type = call.request.u8(12);
        if !matches!(mw_type, 1 | 2) || !call.driver.is_zero_from(5) || call.driver.u32(0) != 0 {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state();
        let pd = state.pd(call.request.u32(8))?;
        let key = self.with(|d| {
            d.create_mkey(Mkey {
                variant: 0,
                pd,
                access: Access::LOCAL_READ,
                start: 0,
                len: 0,
                translation: Translation::Keys(vec![]),
                free: true,
                qpn: None,
                is_window: true,
                umr: false,
            })
        });
        let handle = state.insert(What::Mw { key }, vec![call.request.u32(8)]);
        let driver = Response::new(8).u32(4, 8).done();
        Ok(Answer { core: Response::new(8).u32(0, handle).u32(4, key).done(), driver })
    }

    /// CREATE_AH: the address vector is the program's; the kernel only finds the Ethernet address.
    pub(super) fn create_ah(&self, call: &Call<'_>) -> Result<Answer, Errno> {
        /// `ib_uverbs_ah_attr` in the request.
        const ATTR: usize = 24;
        let request = call.request;
        let mut state = self.state();
        state.pd(request.u32(16))?;
        let global = (request.u8(ATTR + 29) != 0).then(|| PathGrh {
            dgid: request.bytes(ATTR),
            flow_label: request.u32(ATTR + 16),
            sgid_index: request.u8(ATTR + 20),
            hop_limit: request.u8(ATTR + 21),
            tclass: request.u8(ATTR + 22),
        });
        let dmac = self.resolve(request.u8(ATTR + 30), global.as_ref())?;
        const MIN_ANSWER_BYTES: usize = 10;
        if call.driver_room.is_some_and(|room| room != 0 && room < MIN_ANSWER_BYTES) {
            return Err(Errno::EINVAL);
        }
        let handle = state.insert(What::Ah, vec![request.u32(16)]);
        let driver = Response::new(16).u32(0, MIN_ANSWER_BYTES as u32).put(4, &dmac).done();
        Ok(Answer { core: Response::new(4).u32(0, handle).done(), driver })
    }

    /// OPEN_XRCD: a domain of this file, or the one that others have by the same file.
    pub(super) fn open_xrcd(&self, request: Request<'_>) -> Result<Response, Errno> {
        const CREATE: u32 = libc::O_CREAT as u32;
        const EXCLUSIVE: u32 = libc::O_EXCL as u32;
        let (fd, flags) = (request.u32(8) as i32, request.u32(12));
        let inode = match fd {
            -1 => None,
            fd => {
                let file = std::fs::metadata(format!("/proc/self/fd/{fd}")).map_err(|_| Errno::EBADF)?;
                Some((file.dev(), file.ino()))
            }
        };
        let mut domains = self.shared.domains();
        let known = inode.and_then(|(dev, ino)| domains.open.get_mut(&(self.id, dev, ino)));
        let xrcd = match known {
            Some(_) if flags & EXCLUSIVE != 0 => return Err(Errno::EINVAL),
            Some((xrcd, count)) => {
                *count += 1;
                *xrcd
            }
            None if inode.is_some() && flags & CREATE == 0 => return Err(Errno::EAGAIN),
            None => {
                let xrcd = self.with(|d| d.alloc_xrcd());
                if let Some((dev, ino)) = inode {
                    domains.open.insert((self.id, dev, ino), (xrcd, 1));
                }
                xrcd
            }
        };
        drop(domains);
        let handle = self.state().insert(What::Xrcd { xrcd, inode }, vec![]);
        Ok(Response::new(4).u32(0, handle))
    }

    pub(super) fn close_xrcd(&self, xrcd: u32, inode: Option<(u64, u64)>) -> Result<(), Errno> {
        let mut domains = self.shared.domains();
        if let Some((dev, ino)) = inode
            && let Some((_, count)) = domains.open.get_mut(&(self.id, dev, ino))
        {
            *count -= 1;
            if *count > 0 {
                return Ok(());
            }
            domains.open.remove(&(self.id, dev, ino));
        }
        self.with(|d| d.dealloc_xrcd(xrcd)).map_err(errno)
    }

    /// OPEN_QP: another handle of an XRC receiving end.
    pub(super) fn open_qp(&self, request: Request<'_>) -> Result<Response, Errno> {
        const XRC_TGT: u8 = 10;
        let mut state = self.state();
        let (xrcd, qpn) = (state.xrcd(request.u32(16)).map_err(|_| Errno::EINVAL)?, request.u32(20));
        if request.u8(24) != XRC_TGT {
            return Err(Errno::EINVAL);
        }
        let mut domains = self.shared.domains();
        match domains.receiving.get_mut(&(self.id, qpn)) {
            Some((of, handles)) if *of == xrcd => *handles += 1,
            _ => return Err(Errno::EINVAL),
        }
        drop(domains);
        let what = What::Qp { qpn, qp_type: XRC_TGT, sig_all: false, inline: 0, opened: true };
        let handle = state.insert(what, vec![request.u32(16)]);
        Ok(Response::new(32).u32(0, handle).u32(4, qpn))
    }

    /// MODIFY_SRQ: the limit only.
    pub(super) fn modify_srq(&self, request: Request<'_>) -> Result<(), Errno> {
        const MAX_WR: u32 = 1;
        const LIMIT: u32 = 2;
        let (mask, limit) = (request.u32(4), request.u32(12));
        let What::Srq { srqn, max_wr, .. } = *self.state().object(request.u32(0))? else { return Err(Errno::EINVAL) };
        if mask & MAX_WR != 0 {
            return Err(Errno::EINVAL);
        }
        if mask & LIMIT != 0 {
            if limit > max_wr {
                return Err(Errno::EINVAL);
            }
            self.with(|d| d.arm_srq(srqn, limit as u16)).map_err(errno)?;
        }
        Ok(())
    }

    /// QUERY_SRQ.
    pub(super) fn query_srq(&self, handle: u32) -> Result<Response, Errno> {
        let What::Srq { srqn, max_wr, max_sge } = *self.state().object(handle)? else { return Err(Errno::EINVAL) };
        let limit = self.with(|d| d.srq_limit(srqn)).unwrap_or(0);
        Ok(Response::new(16).u32(0, max_wr).u32(4, max_sge).u32(8, limit.into()))
    }

    /// ATTACH_MCAST, DETACH_MCAST.
    pub(super) fn multicast(&self, request: Request<'_>, attach: bool) -> Result<(), Errno> {
        let (gid, qpn, lid) = (request.bytes(0), self.state().qpn(request.u32(16))?, request.u16(20));
        // Groups of InfiniBand have LIDs of their own (`is_valid_mcast_lid` in the kernel's verbs.c).
        let has_lids = self.with(|d| d.ports().iter().all(|p| matches!(p.link, Link::InfiniBand { .. })));
        if !is_multicast(&gid) || has_lids && !(MULTICAST_LIDS..0xffff).contains(&lid) {
            return Err(Errno::EINVAL);
        }
        self.with(|d| if attach { d.attach_multicast(gid, qpn) } else { d.detach_multicast(gid, qpn) }).map_err(errno)
    }

    /// UAR.ALLOC: handle, offset to map at, page number.
    pub(super) fn alloc_uar(&self, uar_type: u64) -> Result<(u32, u64, u32), Errno> {
        const BLUE_FLAME: u64 = 0;
        const NOT_CACHED: u64 = 1;
        match uar_type {
            BLUE_FLAME if !self.shared.write_combining(self.id) => return Err(Errno::EOPNOTSUPP),
            BLUE_FLAME | NOT_CACHED => {}
            _ => return Err(Errno::EINVAL),
        }
        if self.handles(kind::UAR).len() >= MAX_DYNAMIC_UARS as usize {
            return Err(Errno::ENOMEM);
        }
        let registers = Arc::new(Page::registers(&self.shared.pages)?);
        let page = self.with(|d| {
            let page = d.uar_number();
            d.add_uar(page, Box::new(Registers(Arc::clone(&registers))));
            page
        });
        let mut state = self.state();
        let offset = (0..).map(entry_offset).find(|o| !state.pages.contains_key(o)).unwrap_or(0);
        state.pages.insert(offset, registers);
        let handle = state.insert(What::Uar { page, offset }, vec![]);
        Ok((handle, offset, page))
    }
}

/// Where the nth object that can be mapped is: page number `9 << 8`, low byte of the index in 7:0, the rest from bit 16.
fn entry_offset(index: u64) -> u64 {
    const ENTRIES: u64 = 9;
    (ENTRIES << 8 | index & 0xff | index >> 8 << 16) << 12
}
