//! What is measured: a name, what is to be there before, and the measured call.

use crate::rig::{LIST, Rig};
use std::hint::black_box;

/// An operation, by the name that the table of `cargo rings --mlx5` has for it.
pub struct Operation {
    /// Name.
    pub name: &'static str,
    /// The measured function's name in the executable.
    pub function: &'static str,
    /// Requests, or completions.
    pub requests: usize,
    /// Comes before so many of it.
    before: fn(&mut Rig, usize),
    run: fn(&mut Rig),
}

const fn post(name: &'static str, function: &'static str, requests: usize, run: fn(&mut Rig)) -> Operation {
    Operation { name, function, requests, before: |_, _| (), run }
}

/// As [`post`], of a SEND, which needs receives.
const fn send(name: &'static str, function: &'static str, requests: usize, run: fn(&mut Rig)) -> Operation {
    Operation { name, function, requests, before: Rig::receive, run }
}

const fn poll(name: &'static str, function: &'static str, requests: usize, run: fn(&mut Rig)) -> Operation {
    Operation { name, function, requests, before: Rig::complete, run }
}

/// All of them.
pub const OPERATIONS: &[Operation] = &[
    post("write_inline_8", "hot_mlx5_write_inline", 1, |rig| {
        let (hot, word, remote) = (rig.hot, rig.words[0], rig.remote);
        (hot.write_inline)(rig.qp(), 0, black_box(&word), black_box(&remote)).unwrap();
    }),
    post("write_inline_8_list", "hot_mlx5_write_inline_list", LIST, |rig| {
        let (hot, words, remotes) = (rig.hot, std::mem::take(&mut rig.words), std::mem::take(&mut rig.remotes));
        (hot.write_inline_list)(rig.qp(), black_box(&words), black_box(&remotes)).unwrap();
        (rig.words, rig.remotes) = (words, remotes);
    }),
    send("send", "hot_mlx5_send", 1, |rig| {
        let (hot, sge) = (rig.hot, rig.sge);
        (hot.send)(rig.qp(), 0, black_box(&sge)).unwrap();
    }),
    send("send_list", "hot_mlx5_send_list", LIST, |rig| {
        let (hot, sge) = (rig.hot, rig.sge);
        (hot.send_list)(rig.qp(), LIST as u64, black_box(&sge)).unwrap();
    }),
    send("send_30_sges", "hot_mlx5_send_sges", 1, |rig| {
        let (hot, sges) = (rig.hot, std::mem::take(&mut rig.sges));
        (hot.send_sges)(rig.qp(), 0, black_box(&sges)).unwrap();
        rig.sges = sges;
    }),
    poll("poll", "hot_mlx5_poll", 1, |rig| {
        let Rig { hot, cq, .. } = rig;
        assert!(black_box((hot.poll)(cq)).unwrap().is_some());
    }),
    poll("poll_32", "hot_mlx5_poll_many", LIST, |rig| {
        let Rig { hot, cq, values, .. } = rig;
        assert_eq!((hot.poll_many)(cq, black_box(values)).unwrap(), LIST);
    }),
    poll("poll_status_32", "hot_mlx5_poll_many_status", LIST, |rig| {
        let Rig { hot, cq, statuses, .. } = rig;
        assert_eq!((hot.poll_many_status)(cq, black_box(statuses)).unwrap(), LIST);
    }),
];

impl Operation {
    /// The one of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        OPERATIONS.iter().find(|operation| operation.name == name)
    }

    /// Puts there what `times` of it need: as many as there is [room](Rig::room) for at most.
    pub fn before(&self, rig: &mut Rig, times: usize) {
        (self.before)(rig, times * self.requests);
    }

    /// Once.
    #[inline]
    pub fn run(&self, rig: &mut Rig) {
        (self.run)(rig);
    }
}
