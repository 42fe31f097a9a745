//! Memory: where it lies, what it is made of, what may change, and what devices do not have.
//!
//! # Safety argument
//!
//! Read-only memory is mapped from a file that only this test has. A child process touches memory of its own only, and ends
//! without running destructors.
#![allow(unsafe_code)]

use crate::fixture::{Pair, Setup, assert_sent};
use crate::harness::{skip, step};
use crate::seen;
use crate::target::{Kind, Target, kernel};
use crate::tests;
use fastrand::Rng;
use ironverbs::{
    AccessFlags, Advice, Errno, Error, ForkPolicy, Inline, Lacking, Memory, Mr, PageKind, Pd, RemoteAddr, WcOpcode,
    WcStatus, WrFlags,
};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::ptr::NonNull;

tests! {
    named_by_another_address,
    address_that_does_not_fit_is_refused,
    access_is_changed_in_place,
    protection_domain_is_changed_in_place,
    changes_that_cannot_be_are_refused,
    hints_do_no_harm,
    unknown_access_is_refused_by_name,
    dma_bufs_are_the_drivers_to_offer,
    paging_is_the_devices_to_offer,
    device_memory_is_the_drivers_to_offer,
    read_only_file_takes_no_local_write,
    unmapped_memory_is_told_from_bad_access,
    huge_pages,
    huge_pages_that_are_not_there,
    fork_leaves_registered_memory_whole,
    fork_leaves_a_neighbour_on_the_page_alone,
}

/// Reports of the address in the program and the one in work requests being taken for each other.
fn named_by_another_address(target: &Target) {
    for (iova, offset) in [(0x1_0000_0000, 0), (0x1_0000_0000, 0x678), (0, 0), (0, 8), (0x7fff_ffff_f000, 1)] {
        step(format!("{iova:#x} + {offset:#x}"));
        let mut pair = Pair::new(target, &Setup::default());
        let moved = |pd: &Pd| {
            let builder = pd.mr_builder(32 * 1024).offset(offset).access(AccessFlags::ALL);
            builder.iova(iova + offset as u64).build().unwrap()
        };
        pair.a.mr = moved(&pair.a.pd);
        pair.b.mr = moved(&pair.b.pd);
        assert_eq!(pair.b.mr.iova(), iova + offset as u64);
        assert_ne!(pair.b.mr.addr(), pair.b.mr.iova());
        assert_eq!(pair.b.mr.addr() % 4096, offset as u64);
        pair.scramble(&mut Rng::with_seed(221));
        let (entry, remote) = (pair.a.sge(100, 5000), pair.b.remote(200));
        assert_eq!((entry.addr(), remote.addr), (iova + offset as u64 + 100, iova + offset as u64 + 200));
        pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], remote));
        assert_sent(&pair.a.success(), 1, &pair.a.qp, WcOpcode::RDMA_WRITE);
        let moved = pair.a.image[100..5100].to_vec();
        pair.b.expect(200, &moved);
        let (entry, remote) = (pair.a.sge(9000, 3000), pair.b.remote(10_000));
        pair.a.send(|batch| batch.read(1, WrFlags::SIGNALED, &[entry], remote));
        pair.a.success();
        let moved = pair.b.image[10_000..13_000].to_vec();
        pair.a.expect(9000, &moved);
        let room = [pair.b.sge(20_000, 100)];
        pair.b.recv(1, &room);
        pair.a.send(|batch| batch.send(2, WrFlags::SIGNALED, Inline(b"by its other name")));
        pair.b.success();
        pair.b.expect(20_000, b"by its other name");
        pair.check();
        pair.a.success();
        // The address in the program names nothing.
        let addr = pair.b.mr.addr();
        let wrong = RemoteAddr { addr, rkey: pair.b.mr.rkey() };
        pair.a.send(|batch| batch.write(3, WrFlags::SIGNALED, Inline(b"nowhere"), wrong));
        assert_eq!(pair.a.completions(1)[0].status(), WcStatus::REM_ACCESS_ERR);
        pair.check();
    }
    seen::works("MR with an address of its own (iova)");
}

fn address_that_does_not_fit_is_refused(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let builder = pd.mr_builder(100).offset(0x123);
    for iova in [0x1_0000_0000, 0x1_0000_0122, 1] {
        let text = builder.iova(iova).build().unwrap_err().to_string();
        let start =
            format!("reg_mr: iova is {iova:#x}; it must lie at the same offset in its page as the memory, which");
        assert!(text.starts_with(&start), "{text}");
    }
    let text = builder.iova(u64::MAX - 0xfff + 0x123).build().map(drop);
    assert!(text.is_ok(), "the last page: {text:?}");
    let text = pd.mr_builder(8192).iova(u64::MAX - 0xfff).build().unwrap_err().to_string();
    assert!(text.contains("8192 bytes do not fit from there on"), "{text}");
    builder.iova(0x123).build().unwrap();
}

fn access_is_changed_in_place(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut Rng::with_seed(222));
    match pair.b.mr.rereg(None, Some(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)) {
        Ok(()) => {}
        Err(error) => {
            assert_eq!(target.kind, Kind::Rxe6_1, "{error}");
            lacks(&error, Lacking::Driver, "changing a region's access to LOCAL_WRITE | REMOTE_READ");
            seen::refused("MR rereg access", &error);
            // The region is as before.
            assert_eq!(pair.b.mr.access(), AccessFlags::ALL);
            let remote = pair.b.remote(0);
            pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, Inline(b"still"), remote));
            pair.a.success();
            pair.b.expect(0, b"still");
            return pair.check();
        }
    }
    assert_eq!(pair.b.mr.access(), AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ);
    let (entry, remote) = (pair.a.sge(0, 8), pair.b.remote(64));
    pair.a.send(|batch| batch.read(1, WrFlags::SIGNALED, &[entry], remote));
    pair.a.success();
    let read = pair.b.image[64..72].to_vec();
    pair.a.expect(0, &read);
    pair.a.send(|batch| batch.write(2, WrFlags::SIGNALED, &[entry], remote));
    assert_eq!(pair.a.completions(1)[0].status(), WcStatus::REM_ACCESS_ERR);
    pair.check();
    seen::works("MR rereg access");
}

fn protection_domain_is_changed_in_place(target: &Target) {
    let setup = Setup::default();
    let mut pair = Pair::new(target, &setup);
    let mut other = Pair::new(target, &setup);
    pair.scramble(&mut Rng::with_seed(223));
    // A pair whose far side is in another domain of the same context.
    let pd = pair.b.context.alloc_pd().unwrap();
    let b = crate::fixture::prepare(target, &pd, &pair.b.cq, &pair.b.cq, &setup);
    let a = crate::fixture::prepare(target, &pair.a.pd, &pair.a.cq, &pair.a.cq, &setup);
    let (a_end, b_end) = (a.endpoint(), b.endpoint());
    let (mut a, b) = (crate::fixture::connect(a, &b_end, &setup), crate::fixture::connect(b, &a_end, &setup));
    let foreign = pair.b.mr.rereg(Some(&other.b.pd), None).unwrap_err().to_string();
    assert!(foreign.starts_with("rereg_mr: protection domain is foreign"), "{foreign}");
    if let Err(error) = pair.b.mr.rereg(Some(&pd), None) {
        assert_eq!(target.kind, Kind::Rxe6_1, "{error}");
        lacks(&error, Lacking::Driver, "changing a region's protection domain");
        return seen::refused("MR rereg protection domain", &error);
    }
    let remote = pair.b.remote(64);
    crate::fixture::try_send(&mut a, |batch| batch.write(1, WrFlags::SIGNALED, Inline(b"new"), remote)).unwrap();
    pair.a.success();
    pair.b.expect(64, b"new");
    pair.check();
    pair.a.send(|batch| batch.write(2, WrFlags::SIGNALED, Inline(b"old"), remote));
    assert_eq!(pair.a.completions(1)[0].status(), WcStatus::REM_ACCESS_ERR);
    pair.check();
    // Both at once, and back.
    let own = pair.b.pd.clone();
    pair.b.mr.rereg(Some(&own), Some(AccessFlags::LOCAL_WRITE)).unwrap();
    assert_eq!(pair.b.mr.access(), AccessFlags::LOCAL_WRITE);
    crate::fixture::try_send(&mut a, |batch| batch.write(3, WrFlags::SIGNALED, Inline(b"no"), remote)).unwrap();
    assert_eq!(pair.a.completions(1)[0].status(), WcStatus::REM_ACCESS_ERR);
    pair.check();
    drop(b);
    // The region no longer holds on to the other domain.
    drop(pd);
    assert!(pair.b.context.leaks().is_empty(), "{:?}", pair.b.context.leaks());
    other.a.silent();
    seen::works("MR rereg protection domain");
}

fn changes_that_cannot_be_are_refused(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let mut mr = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE).unwrap();
    mr.rereg(None, None).unwrap();
    let text = mr.rereg(None, Some(AccessFlags::REMOTE_WRITE)).unwrap_err().to_string();
    assert!(text.starts_with("rereg_mr: access is REMOTE_WRITE; remote write"), "{text}");
    let text = mr.rereg(None, Some(AccessFlags::from_bits(1 << 15))).unwrap_err().to_string();
    assert!(text.contains("0x8000 is no access flag"), "{text}");
    assert_eq!(mr.access(), AccessFlags::LOCAL_WRITE);
    mr.close().unwrap();
    // Pages that were pinned for reading are not written.
    let mut mr = pd.alloc_mr(4096, AccessFlags::LOCAL_READ).unwrap();
    let text = mr.rereg(None, Some(AccessFlags::LOCAL_WRITE)).unwrap_err().to_string();
    assert!(text.starts_with("rereg_mr: access is LOCAL_WRITE; the region was registered for reading"), "{text}");
    assert_eq!(mr.access(), AccessFlags::LOCAL_READ);
    mr.close().unwrap();
}

#[track_caller]
fn lacks(error: &Error, who: Lacking, what: &str) {
    assert!(matches!(error, Error::Unsupported { by, .. } if *by == who), "{error}");
    assert!(error.to_string().contains(what), "it should say {what}: {error}");
}

/// Reports of a hint that made registration fail on some drivers.
fn hints_do_no_harm(target: &Target) {
    let hints = AccessFlags::RELAXED_ORDERING | AccessFlags::from_bits(1 << 29);
    let mut pair = Pair::new(target, &Setup { mr_access: AccessFlags::ALL | hints, ..Setup::default() });
    pair.scramble(&mut Rng::with_seed(224));
    let (entry, remote) = (pair.a.sge(0, 8000), pair.b.remote(0));
    pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], remote));
    pair.a.success();
    let written = pair.a.image[..8000].to_vec();
    pair.b.expect(0, &written);
    pair.check();
    seen::works("MR RELAXED_ORDERING");
}

fn unknown_access_is_refused_by_name(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    for bit in [10, 15, 19, 30, 31] {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::from_bits(1 << bit);
        let text = pd.alloc_mr(4096, access).unwrap_err().to_string();
        let flag = format!("{:#x}", 1u32 << bit);
        let expected =
            format!("reg_mr: access is LOCAL_WRITE | {flag}; {flag} is no access flag that this library knows");
        assert_eq!(text, expected);
    }
}

/// Reports of a plain "not supported" that did not say by whom, and of other regions that then failed too.
fn dma_bufs_are_the_drivers_to_offer(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    let text = pd.reg_dmabuf_mr(file.as_fd(), 17_920, 4096, 0x1000, AccessFlags::LOCAL_WRITE).unwrap_err().to_string();
    assert!(text.contains("iova is 0x1000; it must lie at the same offset in its page as the offset"), "{text}");
    let error = pd.reg_dmabuf_mr(file.as_fd(), 17_920, 4096, 0x1600, AccessFlags::LOCAL_WRITE).unwrap_err();
    if target.kind.is_rxe() {
        lacks(&error, Lacking::Driver, "memory of a dma-buf");
        seen::refused("MR of a dma-buf", &error);
    }
    pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
}

fn paging_is_the_devices_to_offer(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    if context.attr().odp_caps.general != 0 {
        skip("the device has on-demand paging");
    }
    let error = pd.alloc_mr(4096, AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND).unwrap_err();
    lacks(&error, Lacking::Device, "IBV_ODP_SUPPORT");
    seen::refused("MR with on-demand paging", &error);
    // SAFETY: it is refused before anything is registered.
    let error = unsafe { pd.reg_implicit_odp_mr(AccessFlags::LOCAL_WRITE) }.unwrap_err();
    lacks(&error, Lacking::Device, "IBV_ODP_SUPPORT_IMPLICIT");
    seen::refused("MR with implicit on-demand paging", &error);
    let mr = pd.alloc_mr(4096, AccessFlags::ALL).unwrap();
    let text = pd.advise_mr(Advice::Prefetch, false, &[]).unwrap_err().to_string();
    assert_eq!(text, "advise_mr: number of entries is 0; at least one");
    let error = pd.advise_mr(Advice::PrefetchWrite, true, &[mr.sge(..).unwrap()]).unwrap_err();
    if target.kind.is_rxe() {
        lacks(&error, Lacking::Driver, "advice about regions");
    }
    seen::refused("MR advise", &error);
}

fn device_memory_is_the_drivers_to_offer(target: &Target) {
    let context = target.open();
    if context.attr().max_dm_size > 0 {
        skip("the device has memory of its own");
    }
    let error = context.alloc_dm(4096, 6).unwrap_err();
    lacks(&error, Lacking::Driver, "device memory");
    seen::refused("DM alloc", &error);
    let text = context.alloc_dm(0, 0).unwrap_err().to_string();
    assert_eq!(text, "alloc_dm: length is 0; at least 1 byte");
}

/// A file mapped for reading.
struct ReadOnly(memmap2::Mmap);

// SAFETY: the mapping stays where it is, and no reference to it is made. It says that it is not writable.
unsafe impl Memory for ReadOnly {
    const WRITABLE: bool = false;
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(NonNull::new(self.0.as_ptr().cast_mut()).unwrap(), self.0.len())
    }
}

/// The same, taken for writable.
struct Mistaken(ReadOnly);

// SAFETY: it breaks its promise to be writable, and the kernel refuses to register it for that; so nobody relies on it.
unsafe impl Memory for Mistaken {
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        self.0.as_bytes()
    }
}

fn read_only_file(shared: bool) -> (tempfile::NamedTempFile, ReadOnly) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[0x5a; 8192]).unwrap();
    let options = memmap2::MmapOptions::new();
    // SAFETY: the file is this test's own, and is not changed while it is mapped.
    let map = unsafe { if shared { options.map(file.as_file()) } else { options.map_copy_read_only(file.as_file()) } };
    (file, ReadOnly(map.unwrap()))
}

fn read_only_file_takes_no_local_write(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let (_file, memory) = read_only_file(true);
    let text = Mr::register(&pair.a.pd, memory, AccessFlags::LOCAL_WRITE).unwrap_err().to_string();
    assert!(text.starts_with("reg_mr: access is LOCAL_WRITE; the memory is read-only"), "{text}");
    // What the kernel says to memory of which the program knows no better.
    let (file, memory) = read_only_file(true);
    let error = Mr::register(&pair.a.pd, Mistaken(memory), AccessFlags::LOCAL_WRITE).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error.errno(), Some(Errno::EFAULT | Errno::EACCES | Errno::EPERM)), "{text}");
    for part in [file.path().to_str().unwrap(), "read-only", "LOCAL_WRITE"] {
        assert!(text.contains(part), "it should say {part}: {text}");
    }
    for shared in [true, false] {
        let (_file, memory) = read_only_file(shared);
        let mut mr = match Mr::register(&pair.a.pd, memory, AccessFlags::REMOTE_READ) {
            Ok(mr) => mr,
            Err(error) => {
                assert!(shared && kernel() < [6, 2], "{error}");
                assert!(error.to_string().contains("map it privately (MAP_PRIVATE)"), "{error}");
                continue;
            }
        };
        let text = mr.write(0, b"x").unwrap_err().to_string();
        assert!(text.contains("read-only"), "{text}");
        let (entry, remote) = (mr.sge(..8192).unwrap(), pair.b.remote(0));
        pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], remote));
        pair.a.success();
        pair.b.expect(0, &[0x5a; 8192]);
        pair.b.check("b");
    }
    seen::works("MR of a read-only file");
}

/// Memory that is not there, to see what the kernel makes of it.
pub struct Unmapped(NonNull<u8>);

impl Unmapped {
    /// Below the first address that a program may map.
    pub fn new() -> Self {
        Self(NonNull::new(std::ptr::without_provenance_mut(0x4000)).unwrap())
    }
}

// SAFETY: nothing reads or writes it, and the kernel refuses to register it.
unsafe impl Send for Unmapped {}
// SAFETY: as above.
unsafe impl Sync for Unmapped {}
// SAFETY: as above: it is never registered, so that nobody relies on the promise that it is there.
unsafe impl Memory for Unmapped {
    fn as_bytes(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.0, 16_384)
    }
}

fn unmapped_memory_is_told_from_bad_access(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let error = Mr::register(&pd, Unmapped::new(), AccessFlags::LOCAL_WRITE).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.errno(), Some(Errno::EFAULT), "{text}");
    assert!(text.contains("of the 16384 bytes at 0x4000, those from 0x4000 on are not mapped"), "{text}");
}

/// How many huge pages the host has to give, after an attempt to have some.
fn free_huge_pages(wanted: u64) -> u64 {
    const DIRECTORY: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
    let count = |file: &str| -> u64 {
        fs::read_to_string(format!("{DIRECTORY}/{file}")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    if count("free_hugepages") < wanted {
        let _ = fs::write(format!("{DIRECTORY}/nr_hugepages"), wanted.to_string());
    }
    count("free_hugepages").saturating_sub(count("resv_hugepages"))
}

/// Reports of bare EINVAL with huge pages: lengths that end inside one, and places inside one.
fn huge_pages(target: &Target) {
    const HUGE: usize = 2 << 20;
    if free_huge_pages(6) < 4 {
        skip("the host has fewer than 4 huge pages, and gives no more");
    }
    for (len, offset) in [(HUGE, 0), (HUGE + HUGE / 2, 0), (100_001, 12_345), (HUGE, HUGE - 1)] {
        step(format!("{len} bytes at {offset}"));
        let mut pair = Pair::new(target, &Setup { mr_bytes: 1 << 16, ..Setup::default() });
        let builder = pair.b.pd.mr_builder(len).access(AccessFlags::ALL).pages(PageKind::Huge2M).offset(offset);
        let mut mr = builder.build().unwrap();
        assert_eq!((mr.len_bytes(), mr.addr() as usize % HUGE), (len, offset % HUGE));
        let mut bytes = vec![0; len];
        Rng::with_seed(225).fill(&mut bytes);
        mr.write(0, &bytes).unwrap();
        // The first bytes, those around the end of the first page, and the last.
        for at in [0, (HUGE - offset % HUGE).min(len - 500).saturating_sub(250), len - 500] {
            let (entry, remote) = (pair.a.sge(0, 500), mr.remote(at).unwrap());
            pair.a.send(|batch| batch.read(1, WrFlags::SIGNALED, &[entry], remote));
            pair.a.success();
            assert_eq!(pair.a.bytes(0, 500), bytes[at..at + 500], "at {at}");
        }
        // One byte beyond.
        let (entry, remote) = (pair.a.sge(0, 2), mr.remote(len - 1).unwrap());
        pair.a.send(|batch| batch.read(1, WrFlags::SIGNALED, &[entry], remote));
        assert_eq!(pair.a.completions(1)[0].status(), WcStatus::REM_ACCESS_ERR);
        mr.close().unwrap();
    }
    seen::works("MR in huge pages");
}

fn huge_pages_that_are_not_there(target: &Target) {
    let context = target.open();
    let pd = context.alloc_pd().unwrap();
    let free = free_huge_pages(0) as usize;
    let wanted = (free + 1_000_000) << 21;
    let error = pd.mr_builder(wanted).pages(PageKind::Huge2M).build().unwrap_err();
    let text = error.to_string();
    assert_eq!(error.errno(), Some(Errno::ENOMEM), "{text}");
    for part in ["1000", "huge pages of 2 MiB", "use ordinary pages"] {
        assert!(text.contains(part), "it should say {part}: {text}");
    }
}

/// Runs `child` in a forked process, while the parent does `meanwhile`.
fn forked(child: impl FnOnce(), meanwhile: impl FnOnce()) {
    // SAFETY: the child runs plain code on memory of its own, without locks of other threads, and exits at once.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            child();
            // SAFETY: ends the child without destructors, which would talk to the parent's device.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            meanwhile();
            assert!(matches!(waitpid(child, None).unwrap(), WaitStatus::Exited(_, 0)), "the child failed");
        }
    }
}

/// Reports of a parent whose registered memory was no longer the device's after it had forked.
fn fork_leaves_registered_memory_whole(target: &Target) {
    let mut pair = Pair::new(target, &Setup::default());
    let mut rng = Rng::with_seed(226);
    pair.scramble(&mut rng);
    for round in 0..4 {
        step(format!("fork {round}"));
        forked(
            || std::thread::sleep(std::time::Duration::from_millis(30)),
            || {
                // The parent writes while the child still shares its memory.
                pair.scramble(&mut rng);
                let (entry, remote) = (pair.a.sge(0, 16_000), pair.b.remote(16_384));
                pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], remote));
                pair.a.success();
                let written = pair.a.image[..16_000].to_vec();
                pair.b.expect(16_384, &written);
                pair.check();
            },
        );
        pair.check();
    }
    if matches!(target.kind, Kind::Rxe6_1 | Kind::Rxe6_12) {
        assert_eq!(ForkPolicy::get(), ForkPolicy::CopyOnFork);
    }
    seen::works("MR in a process that forks");
}

/// Reports of a child that lost, or a parent that saw changed, what lay beside registered memory on the same page.
fn fork_leaves_a_neighbour_on_the_page_alone(target: &Target) {
    if target.host.simulated().is_some() {
        skip("simulated devices pin no memory");
    }
    if ForkPolicy::get() == ForkPolicy::DontFork {
        skip("this kernel does not copy pinned pages, and memory of the program's own is not protected");
    }
    let mut pair = Pair::new(target, &Setup::default());
    pair.scramble(&mut Rng::with_seed(227));
    // Two halves of one page's worth of the heap, only the first of which is registered.
    let registered = vec![0x11_u8; 2000];
    let mut neighbour = vec![0x22_u8; 2000];
    let mr = Mr::register(&pair.a.pd, registered, AccessFlags::ALL).unwrap();
    forked(
        || {
            assert!(neighbour.iter().all(|byte| *byte == 0x22));
            neighbour.fill(0x33);
        },
        || {
            let (entry, remote) = (mr.sge(..).unwrap(), pair.b.remote(0));
            pair.a.send(|batch| batch.write(1, WrFlags::SIGNALED, &[entry], remote));
            pair.a.success();
            pair.b.expect(0, &[0x11; 2000]);
            pair.b.check("b");
            pair.a.send(|batch| batch.read(1, WrFlags::SIGNALED, &[entry], pair.b.mr.remote(4096).unwrap()));
            pair.a.success();
        },
    );
    assert!(neighbour.iter().all(|byte| *byte == 0x22), "the child's writes are its own");
    let read = mr.close().unwrap();
    assert_eq!(read, pair.b.image[4096..6096]);
}
