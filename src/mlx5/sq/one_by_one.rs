//! Pushing one by one, for tests, which look at the ring between one request and the next.

use super::*;

impl<B: Bus> Sq<B> {
    /// Does something with the batch that was pushed so far.
    fn with<T>(&mut self, work: impl FnOnce(&mut OpenSq<'_, B>) -> T) -> T {
        let pushed = self.pushed;
        let mut open = self.open();
        if pushed.at.count != open.batch.at.count {
            open.batch = pushed;
        }
        let result = work(&mut open);
        self.pushed = open.batch;
        result
    }

    pub fn rollback(&mut self) {
        self.pushed = Batch::at(self.told);
    }

    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.with(|open| open.push(wr))
    }

    pub fn push_to(&mut self, wr: &SendWr<'_>, target: Target<'_>) -> Result<(), PostError> {
        self.with(|open| open.push_to(wr, target))
    }

    pub fn push_local_inv(&mut self, wr_id: u64, flags: WrFlags, rkey: Rkey) -> Result<(), PostError> {
        self.with(|open| open.push_local_inv(wr_id, flags, rkey))
    }

    pub fn push_send_inv(
        &mut self,
        wr_id: u64,
        flags: WrFlags,
        rkey: Rkey,
        data: &Payload<'_>,
        target: Target<'_>,
    ) -> Result<(), PostError> {
        self.with(|open| open.push_send_inv(wr_id, flags, rkey, data, target))
    }

    pub fn push_bind(&mut self, wr_id: u64, flags: WrFlags, bind: &Bind) -> Result<(), PostError> {
        self.with(|open| open.push_bind(wr_id, flags, bind))
    }

    pub fn push_nop(&mut self, wr_id: u64, flags: WrFlags) -> Result<(), PostError> {
        self.with(|open| open.push_nop(wr_id, flags))
    }

    pub fn submit(&mut self) {
        self.with(|open| open.submit());
    }

    /// Work requests that can be pushed behind those.
    pub fn left(&mut self) -> u32 {
        self.with(|open| open.remaining())
    }

    /// Starts at a place.
    pub fn start_at(&mut self, block: u32, count: u32) {
        self.told = Position { head: self.told.head.reset().past(block), count, full_at: 0, fence: 0 };
        self.rollback();
    }

    /// Goes on in another ring of the same length.
    pub fn use_ring(&mut self, ring: Ring) {
        assert_eq!(ring.bytes(), self.ring.bytes());
        self.ring = ring;
    }
}
