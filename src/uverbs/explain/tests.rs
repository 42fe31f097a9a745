use super::*;

#[test]
fn too_many_files_name_the_limit() {
    let text = Error::kernel(Verb::CreateCompChannel, Errno::EMFILE).to_string();
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(text.starts_with("create_comp_channel: EMFILE"), "{text}");
    assert!(text.contains(&format!("its limit is {}", number(soft))) && text.contains("ulimit -n"), "{text}");
    let text = Error::kernel(Verb::OpenDevice, Errno::ENFILE).to_string();
    assert!(text.contains("fs.file-max"), "{text}");
}

#[test]
fn memory_that_cannot_be_mapped_names_the_bytes_and_the_limit() {
    let error = || Error::kernel(Verb::CreateCq, Errno::ENOMEM);
    let text = mapping(error(), "the completion ring", 1 << 40).to_string();
    assert!(text.contains("the 1099511627776 bytes of the completion ring cannot be mapped"), "{text}");
    let (limit, status) = (Some((1 << 20, RLIM_INFINITY)), "Name:\tx\nVmSize:\t     512 kB\n");
    assert_eq!(
        no_address_space((512 << 10) + 1, limit, status),
        "the process may have 1048576 bytes of address space, of which 524288 are used (RLIMIT_AS): ask for less, or raise \
         it (ulimit -v, or LimitAS= of the service)"
    );
    for (limit, status) in [(limit, status), (Some((RLIM_INFINITY, RLIM_INFINITY)), ""), (None, "")] {
        let text = no_address_space(512 << 10, limit, status);
        assert!(text.contains("overcommit") && text.contains("vm.max_map_count") && !text.contains("RLIMIT"), "{text}");
    }
    // The limit of locked memory, where all that is mapped is locked.
    let text = mapping(Error::kernel(Verb::MapQueue, Errno::EAGAIN), "it", 4096).to_string();
    assert!(text.contains("the 4096 bytes of it cannot be mapped: the process locks all that it maps"), "{text}");
    assert!(text.contains("RLIMIT_MEMLOCK is") && !text.contains("RLIMIT_AS"), "{text}");
    let other = mapping(Error::kernel(Verb::MapQueue, Errno::EINVAL), "it", 4096).to_string();
    assert!(other.contains("the 4096 bytes of it cannot be mapped") && !other.contains("RLIMIT"), "{other}");
}

use crate::uverbs::error::Verb;

const STATUS: &str = "Name:\tx\nVmPin:\t     128 kB\nCapInh:\t0000000000000000\nCapEff:\t00000000a80425fb\n";

const SMAPS: &str = "\
7f0000000000-7f0000200000 rw-p 00000000 00:0f 123    /anon_hugepage (deleted)
Size:               2048 kB
KernelPageSize:     2048 kB
VmFlags: rd wr mr mw me ht
7f0000200000-7f0000210000 r--s 00000000 fe:01 77     /data/table one.bin
Size:                 64 kB
KernelPageSize:        4 kB
VmFlags: rd mr me ms
7f0000300000-7f0000301000 rw-s f0000000 00:06 88     /sys/devices/pci0000:00/resource0
KernelPageSize:        4 kB
VmFlags: rd wr sh io pf dd
7f0000400000-7f0000402000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
VmFlags: rd wr mr mw me
";

fn why(errno: Errno, addr: u64, len_bytes: u64, access: u32) -> String {
    let wanted = Wanted { addr, len_bytes, access };
    bad_memory(errno, wanted, &mapped(SMAPS, addr, addr + len_bytes))
}

#[test]
fn status_is_read() {
    let limits = PinLimits::parse(STATUS);
    assert_eq!(limits, PinLimits { memlock: None, ipc_lock: Some(false), pinned_bytes: Some(128 << 10) });
    assert_eq!(PinLimits::parse("CapEff:\t0000000000004000").ipc_lock, Some(true));
    assert_eq!(PinLimits::parse(""), PinLimits::default());
}

#[test]
fn the_limit_is_explained_with_both_ways_out() {
    let limits = PinLimits { memlock: Some((64 << 10, 1 << 20)), ..PinLimits::parse(STATUS) };
    let text = no_memory(Wanted { addr: 0x1000, len_bytes: 1 << 20, access: 1 }, limits);
    for part in ["1048576 bytes", "65536 bytes", "hard limit 1048576", "131072 bytes", "ulimit -l", "CAP_IPC_LOCK"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn without_a_limit_it_is_not_the_limit() {
    let unlimited =
        PinLimits { memlock: Some((RLIM_INFINITY, RLIM_INFINITY)), ipc_lock: Some(false), pinned_bytes: None };
    let capable = PinLimits { memlock: Some((65536, 65536)), ipc_lock: Some(true), pinned_bytes: None };
    for limits in [unlimited, capable] {
        let text = no_memory(Wanted { addr: 0x1000, len_bytes: 4096, access: 1 }, limits);
        assert!(text.contains("out of memory") && !text.contains("raise"), "{text}");
    }
}

#[test]
fn whole_pages_are_counted() {
    let text = pins(Wanted { addr: 0x1fff, len_bytes: 2, access: 0 });
    assert!(text.contains("the whole pages around 2 bytes"), "{text}");
    assert_eq!(pins(Wanted { addr: 0x10000, len_bytes: 65536, access: 0 }), "it pins 65536 bytes");
}

#[test]
fn kinds_of_memory_are_told_apart() {
    let text = why(Errno::EFAULT, 0x7f00_0020_0000, 0x1000, access::LOCAL_WRITE);
    assert!(text.contains("/data/table one.bin is read-only") && text.contains("LOCAL_WRITE"), "{text}");
    let text = why(Errno::EFAULT, 0x7f00_0020_0000, 0x1000, access::REMOTE_READ);
    assert!(text.contains("table one.bin is shared and read-only: map it privately"), "{text}");
    let text = why(Errno::EFAULT, 0x7f00_0030_0000, 0x1000, access::LOCAL_WRITE);
    assert!(text.contains("resource0 is an I/O mapping") && text.contains("dma-buf"), "{text}");
    let text = why(Errno::EINVAL, 0x7f00_0000_0010, 0x1000, access::LOCAL_WRITE);
    assert!(text.contains("huge pages of 2048 kB"), "{text}");
    let text = why(Errno::EFAULT, 0x7f00_0040_0000, 0x4000, 0);
    assert!(text.contains("from 0x7f0000402000 on are not mapped"), "{text}");
    let text = why(Errno::EFAULT, 0x7f00_0050_0000, 0x1000, 0);
    assert!(text.contains("from 0x7f0000500000 on are not mapped"), "{text}");
    let text = why(Errno::EOPNOTSUPP, 0x7f00_0040_0000, 0x1000, access::HUGETLB);
    assert!(text.contains("does not support access HUGETLB") && text.contains("anonymous memory"), "{text}");
}

#[test]
fn a_queue_names_the_limit_only_where_there_is_one() {
    let text = queue_memory(Error::kernel(Verb::CreateCq, Errno::ENOMEM)).to_string();
    assert!(text.contains("a smaller queue may fit"), "{text}");
    assert_eq!(text.contains("RLIMIT_MEMLOCK"), PinLimits::now().is_limited(), "{text}");
}

/// Our own memory is found in our own table.
#[test]
fn the_real_table_is_read() {
    let byte = 7_u8;
    let addr = std::ptr::from_ref(&byte).addr() as u64;
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let found = mapped(&smaps, addr, addr + 1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].writable && found[0].page_bytes >= 4096 && !found[0].io, "{found:?}");
}

/// Root of a container has capabilities that do not count here.
#[test]
fn a_user_namespace_of_its_own_is_told_from_the_initial_one() {
    assert!(!is_container("         0          0 4294967295\n"));
    assert!(!is_container(""), "not told");
    assert!(is_container("         0     100000      65536\n"));
}

#[test]
fn the_capability_counts_in_the_initial_user_namespace_only() {
    let (initial, container) = ("         0          0 4294967295\n", "         0     100000      65536\n");
    let is_exempt = |status, uid_map| PinLimits::of(status, uid_map).ipc_lock == Some(true);
    assert!(is_exempt("Name:\tx\nCapEff:\t000001ffffffffff\n", initial));
    assert!(!is_exempt("CapEff:\t000001ffffffffff\n", container));
    assert!(!is_exempt("CapEff:\t000001ffffffbfff\n", initial));
    assert!(!is_exempt("", ""));
}
