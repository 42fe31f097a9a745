//! A few operations, timed by the processor's time-stamp counter. In a guest whose clock counts instructions, that is how many
//! there were, those of the kernel among them if it had something to do meanwhile.
//!
//! # Safety argument
//!
//! The time-stamp counter is read, which changes nothing.
#![allow(unsafe_code)]

use crate::hot::Hot;
use crate::{Bench, LIST, REMOTE, ROUNDS, Result, must};
use ironverbs::{Provider, Wc};
use std::hint::black_box;
use std::mem::MaybeUninit;

const N: usize = LIST as usize;

impl<P: Provider> Bench<P> {
    /// Prints them as one line of JSON, each for `LIST` requests.
    pub fn clock(&mut self, hot: &Hot<P>) -> Result<()> {
        let remote = black_box(self.mr.remote(REMOTE)?);
        let (words, remotes) = ([[7; 8]; N], [remote; N]);
        let (words, remotes) = black_box((&words[..], &remotes[..]));
        let (bytes, word): (&[u8], &[u8; 8]) = black_box((&[7; 8], &[7; 8]));
        let [mut write, mut write_word, mut list, mut poll] = [const { vec![] }; 4];
        for _ in 0..ROUNDS {
            write.push(self.posts(|qp| (0..LIST).for_each(|_| must((hot.write_inline)(qp, 0, bytes, &remote))))?);
            write_word
                .push(self.posts(|qp| (0..LIST).for_each(|_| must((hot.write_inline_word)(qp, 0, word, &remote))))?);
            list.push(self.posts(|qp| must((hot.write_inline_list)(qp, words, remotes)))?);
            poll.push(self.poll_32(hot)?);
        }
        println!(
            r#"{{"write_inline_8":{write:?},"write_inline_word":{write_word:?},"write_inline_8_list":{list:?},"poll_32":{poll:?}}}"#
        );
        Ok(())
    }

    /// Times `post`, which posts `LIST` requests without part of the peer, and waits for them.
    fn posts(&mut self, post: impl FnOnce(&mut ironverbs::Qp<P>)) -> Result<u64> {
        let start = now();
        post(&mut self.a);
        let ticks = now() - start;
        self.drain(LIST, 0)?;
        Ok(ticks)
    }

    fn poll_32(&mut self, hot: &Hot<P>) -> Result<u64> {
        let mut room = [const { MaybeUninit::<Wc>::uninit() }; N];
        self.complete(hot, LIST)?;
        let (cq, out) = (&mut self.sent, &mut room[..]);
        let start = now();
        let polled = (hot.poll_many)(cq, out)?;
        let ticks = now() - start;
        black_box(&room);
        if polled == N { Ok(ticks) } else { Err(format!("poll of {N}: {polled} came").into()) }
    }
}

#[cfg(target_arch = "x86_64")]
fn now() -> u64 {
    // SAFETY: every processor of this architecture has the counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn now() -> u64 {
    0
}
