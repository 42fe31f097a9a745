//! Doorbells: registers of a UAR page, and doorbell records in the driver's memory.

/// Bytes of a UAR page.
pub const UAR_BYTES: usize = 4096;
/// Offset in a UAR page of the CQ doorbell, 8 bytes: arm word (63:32), CQ number (23:0).
pub const CQ: usize = 0x20;
/// Offset in a UAR page of the first of the send doorbells, 8 bytes: the first 8 bytes of the last WQE's control segment.
/// A BlueFlame copy of a whole WQE starts at the same place.
pub const SEND: usize = 0x800;
/// Send doorbells of a page: four registers of two halves.
pub const SEND_COUNT: usize = 8;
/// Distance between the halves of send doorbells, the most that a BlueFlame copy can be.
pub const SEND_STRIDE: usize = 0x100;

/// Doorbell record of a QP: receive counter (15:0).
pub const RECORD_RECV: u64 = 0;
/// Doorbell record of a QP: send counter in BBs (15:0).
pub const RECORD_SEND: u64 = 4;
/// Doorbell record of a CQ: consumer index (23:0).
pub const RECORD_CI: u64 = 0;
/// Doorbell record of a CQ: arm word.
pub const RECORD_ARM: u64 = 4;

/// The arm word of a CQ, as in its doorbell record and in the upper half of its doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Command sequence number (29:28): how many events software has had, modulo 4.
    pub sn: u8,
    /// Solicited completions and errors only (24).
    pub solicited_only: bool,
    /// Consumer index (23:0).
    pub ci: u32,
}

impl Arm {
    /// Takes the word apart.
    pub fn decode(word: u32) -> Self {
        Self { sn: (word >> 28 & 3) as u8, solicited_only: word & 1 << 24 != 0, ci: word & 0xff_ffff }
    }

    /// Whether software that armed with this may have armed with `next` since then, as the record tells before a doorbell of a guest is
    /// carried out: it has consumed more; or had an event, of an arm before this, or one more; or waits for other completions now.
    pub fn may_come_before(self, next: Self) -> bool {
        let consumed = next.ci.wrapping_sub(self.ci) & 0xff_ffff;
        let events = next.sn.wrapping_sub(self.sn) & 3;
        (1..1 << 23).contains(&consumed) || consumed == 0 && events < 3
    }
}
