//! Changes of memory keys by work request (UMR): binding a memory window, and taking a key's meaning away.

use super::wqe::{Klm, MKEY_FREE, Mkey, UmrCtrl, mkey_access, mkey_mask, umr_flags};
use crate::uverbs::abi::verbs::access;
use crate::uverbs::memory_wr::MwBinding;
use crate::uverbs::types::{Lkey, Rkey};

/// Kinds of memory windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound by any queue pair of its protection domain, and then usable through all of them.
    One,
    /// Bound by one queue pair, and usable through that one only.
    Two,
}

/// What a peer may do through a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowAccess {
    pub remote_read: bool,
    pub remote_write: bool,
    pub remote_atomic: bool,
}

/// A memory window to be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    pub window: WindowType,
    /// The key it has now.
    pub rkey: Rkey,
    /// The key it gets: differs from `rkey` in the low byte only, the rest names the window.
    pub new_rkey: Rkey,
    /// The region behind it.
    pub lkey: Lkey,
    /// First byte, in the region's own address space.
    pub addr: u64,
    /// Bytes, at most 2^31; 0 takes the window's meaning away.
    pub length: u64,
    /// Peers count from 0 instead of from `addr`.
    pub zero_based: bool,
    pub access: WindowAccess,
}

/// Units of a translation list of one entry: padded to a block.
const LIST_DS: u16 = 4;
/// Any queue pair may use the key.
const ANY_QP: u32 = 0xff_ffff;

/// The segments of a UMR that binds.
pub struct Binding {
    pub control: UmrCtrl,
    pub key: Mkey,
    /// The first entry of the list that follows; none with a length of 0.
    pub entry: Option<Klm>,
}

const BARE_CONTROL: UmrCtrl = UmrCtrl {
    flags: 0,
    reserved: [0; 3],
    klm_octowords: zerocopy::big_endian::U16::ZERO,
    translation_offset: zerocopy::big_endian::U16::ZERO,
    mkey_mask: zerocopy::big_endian::U64::ZERO,
    reserved1: [0; 32],
};

const BARE_KEY: Mkey = Mkey {
    free: 0,
    reserved1: 0,
    access_flags: 0,
    sf: 0,
    qpn_mkey: zerocopy::big_endian::U32::ZERO,
    reserved2: zerocopy::big_endian::U32::ZERO,
    flags_pd: zerocopy::big_endian::U32::ZERO,
    start_addr: zerocopy::big_endian::U64::ZERO,
    len: zerocopy::big_endian::U64::ZERO,
    bsf_octword_size: zerocopy::big_endian::U32::ZERO,
    reserved3: [0; 16],
    translations_octword_size: zerocopy::big_endian::U32::ZERO,
    reserved4: [0; 3],
    log_page_size: 0,
    reserved5: zerocopy::big_endian::U32::ZERO,
};

/// Set in every UMR with the list inline.
const FLAGS: u8 = umr_flags::INLINE | umr_flags::TRANSLATION_OFFSET;

impl Bind {
    /// A binding as the verbs plan it.
    #[inline(always)]
    pub fn planned(binding: &MwBinding) -> Self {
        let MwBinding { old_rkey, new_rkey, lkey, addr, length, access, type_2 } = *binding;
        Self {
            window: if type_2 { WindowType::Two } else { WindowType::One },
            rkey: old_rkey,
            new_rkey,
            lkey,
            addr,
            length,
            zero_based: access & access::ZERO_BASED != 0,
            access: WindowAccess {
                remote_read: access & access::REMOTE_READ != 0,
                remote_write: access & access::REMOTE_WRITE != 0,
                remote_atomic: access & access::REMOTE_ATOMIC != 0,
            },
        }
    }

    /// The segments, for the queue pair `qpn`.
    #[inline(always)]
    pub fn segments(&self, qpn: u32) -> Binding {
        let two = self.window == WindowType::Two;
        if self.length == 0 {
            let (control, key) = free(self.new_rkey.0 as u8, two);
            return Binding { control, key, entry: None };
        }
        let mask = mkey_mask::FREE
            | mkey_mask::MKEY
            | mkey_mask::LEN
            | mkey_mask::START_ADDR
            | mkey_mask::ACCESS_LOCAL_WRITE
            | mkey_mask::ACCESS_REMOTE_READ
            | mkey_mask::ACCESS_REMOTE_WRITE
            | mkey_mask::ACCESS_ATOMIC
            | if two { mkey_mask::QPN } else { 0 };
        let WindowAccess { remote_read, remote_write, remote_atomic } = self.access;
        let access_flags = if remote_read { mkey_access::REMOTE_READ } else { 0 }
            | if remote_write { mkey_access::REMOTE_WRITE } else { 0 }
            | if remote_atomic { mkey_access::ATOMIC } else { 0 };
        let user = if two { qpn } else { ANY_QP };
        Binding {
            control: UmrCtrl {
                flags: FLAGS | if two { umr_flags::CHECK_FREE } else { 0 },
                klm_octowords: LIST_DS.into(),
                mkey_mask: mask.into(),
                ..BARE_CONTROL
            },
            key: Mkey {
                access_flags,
                qpn_mkey: (user << 8 | self.new_rkey.0 & 0xff).into(),
                start_addr: if self.zero_based { 0 } else { self.addr }.into(),
                len: self.length.into(),
                ..BARE_KEY
            },
            entry: Some(Klm {
                byte_count: (self.length as u32).into(),
                mkey: self.lkey.0.into(),
                address: self.addr.into(),
            }),
        }
    }
}

/// The segments of a UMR that invalidates a key of this queue pair's, whose low byte then is 0, as with the C library. The next bind
/// gives it another one.
#[inline(always)]
pub fn invalidate() -> (UmrCtrl, Mkey) {
    free(0, true)
}

/// The segments of a UMR after which a key names nothing. `own`: it must be this queue pair's.
#[inline(always)]
fn free(low_byte: u8, own: bool) -> (UmrCtrl, Mkey) {
    let mask = mkey_mask::FREE | mkey_mask::MKEY | if own { mkey_mask::QPN } else { 0 };
    let flags = FLAGS | if own { umr_flags::CHECK_QPN } else { 0 };
    let control = UmrCtrl { flags, mkey_mask: mask.into(), ..BARE_CONTROL };
    let key = Mkey { free: MKEY_FREE, qpn_mkey: (ANY_QP << 8 | u32::from(low_byte)).into(), ..BARE_KEY };
    (control, key)
}
