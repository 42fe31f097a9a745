//! What becomes of registered memory when the process forks.

use crate::uverbs::discover;
use memmap2::{Advice, MmapMut};
use std::io;
use std::sync::OnceLock;

/// What keeps registered memory whole when the process forks.
///
/// A fork shares memory until one side writes it, and then that side gets a copy. If the parent writes first, the copy is
/// not what the device has: it goes on with the old page, and the parent sees nothing of it any more.
///
/// | kernel | what happens | what this library does |
/// | --- | --- | --- |
/// | since Linux 5.12 | the kernel copies pinned pages for the child at once | nothing: no memory is marked |
/// | before | see above | memory that it makes ([`Pages`](crate::Pages), pools) has whole pages of its own, and is marked so that a child does not get it (`MADV_DONTFORK`); the child must not touch it |
///
/// Memory that the program brought, as a vector, is never marked: marks are for whole pages, and a neighbour on the same
/// page would be missing in the child. With an older kernel a program that forks must not register such memory.
///
/// Whatever the policy, both sides have the same open file, and a queue pair that a child drops is gone for its parent, too. A child
/// must drop nothing of this library: it calls `exec`, or ends with `_exit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkPolicy {
    /// The kernel copies pinned pages when the process forks (`RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK`).
    CopyOnFork,
    /// It does not, or does not say: memory of this library is left out of children.
    DontFork,
}

impl ForkPolicy {
    /// What holds on this host. The kernel is asked once.
    ///
    /// ```no_run
    /// if ironverbs::ForkPolicy::get() == ironverbs::ForkPolicy::DontFork {
    ///     println!("children must not touch registered memory");
    /// }
    /// ```
    #[doc(alias = "ibv_is_fork_initialized")]
    #[doc(alias = "ibv_fork_init")]
    pub fn get() -> Self {
        static POLICY: OnceLock<ForkPolicy> = OnceLock::new();
        *POLICY.get_or_init(|| if discover::copy_on_fork() { Self::CopyOnFork } else { Self::DontFork })
    }

    /// Readies memory that is to be registered.
    pub(super) fn ready(self, map: &MmapMut) -> io::Result<()> {
        match self {
            Self::CopyOnFork => Ok(()),
            Self::DontFork => map.advise(Advice::DontFork),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the page at `address` is left out of children (`dc` in `VmFlags`, `Documentation/filesystems/proc.rst`).
    fn left_out(address: usize) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in smaps.lines() {
            if let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) {
                let hex = |text| usize::from_str_radix(text, 16).unwrap_or(usize::MAX);
                inside = (hex(start)..hex(end)).contains(&address);
            } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
                return flags.split_whitespace().any(|flag| flag == "dc");
            }
        }
        panic!("{address:#x} is not mapped");
    }

    /// Reports of corrupt memory after a mark that was set where the kernel copies by itself, or reached a neighbour.
    #[test]
    fn memory_is_marked_exactly_where_the_kernel_does_not_copy() {
        let copied = MmapMut::map_anon(8192).unwrap();
        ForkPolicy::CopyOnFork.ready(&copied).unwrap();
        assert!(!left_out(copied.as_ptr().addr()));
        let marked = MmapMut::map_anon(8192).unwrap();
        ForkPolicy::DontFork.ready(&marked).unwrap();
        assert!(left_out(marked.as_ptr().addr()) && left_out(marked.as_ptr().addr() + 8191));
    }
}
