use super::*;
use crate::mlx5::fake::FakeMlx5;
use crate::uverbs::errno::Errno;

fn open(fake: &Arc<FakeMlx5>) -> Result<Arc<Mlx5Context>, Error> {
    Mlx5Context::open(fake.clone(), BlueFlame::WhereProven)
}

#[test]
fn a_context_asks_for_its_own_pages_and_the_users_index() {
    let fake = FakeMlx5::new();
    let context = open(&fake).unwrap();
    let words = [16_u32, 4, 0, 0, 1, 0, 3, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(fake.request(0, 3), words);
    assert_eq!(fake.uars(), (1, 1), "one page, to arm and to share");
    assert_eq!(context.shared_uar().caching(), Caching::Uncached);
    let caps = context.caps();
    assert_eq!((caps.register_bytes, caps.log_uar_bytes, caps.num_ports), (512, 12, 1));
    assert_eq!((caps.core_clock_offset, caps.has_clock_page, caps.has_real_time_stamps), (Some(0x1000), true, true));
    assert_eq!((caps.create_ah_tells_dmac, caps.has_sqd_to_rts), (true, false));
    assert_eq!((caps.limits.max_send_blocks, caps.limits.max_send_element_bytes), (32768, 1024));
    drop(context);
    assert_eq!(fake.uars(), (0, 1));
}

#[test]
fn what_the_device_lacks_is_said() {
    let fake = FakeMlx5::new();
    fake.set_caps(44, &[0]);
    let error = open(&fake).err().unwrap();
    assert!(error.to_string().contains("user's index is not supported by the device"), "{error}");
    let fake = FakeMlx5::new();
    fake.refuse_uar(1, Some(Errno::EPROTONOSUPPORT));
    let error = open(&fake).err().unwrap();
    assert!(error.to_string().contains("not supported by the device's kernel driver"), "{error}");
}

#[test]
fn nonsense_is_refused() {
    for (at, value) in [(20, 32769_u32), (20, 1 << 17), (56, 11), (56, 40)] {
        let fake = FakeMlx5::new();
        fake.set_caps(at, &value.to_ne_bytes());
        assert!(matches!(open(&fake), Err(Error::Abi { .. })), "{value} at {at}");
    }
}

/// A ring of 2^16 blocks, or receives, that is full could not be told from one that is empty.
#[test]
fn queues_are_no_longer_than_their_index_can_tell() {
    for (told, taken) in [(0, 0), (1 << 14, 1 << 14), (1 << 15, 1 << 15), (1 << 16, 1 << 15)] {
        let fake = FakeMlx5::new();
        fake.set_caps(20, &u32::to_ne_bytes(told));
        fake.set_caps(24, &u32::to_ne_bytes(told));
        let limits = open(&fake).unwrap().caps().limits;
        assert_eq!((limits.max_send_blocks, limits.max_recv_wr), (taken, taken));
    }
    let fake = FakeMlx5::new();
    fake.set_caps(24, &u32::MAX.to_ne_bytes());
    assert_eq!(open(&fake).unwrap().caps().limits.max_recv_wr, 1 << 15);
}

/// A kernel older than the last fields says so by the length of its answer: what lies behind it does not count.
#[test]
fn a_shorter_answer_is_read_as_far_as_it_goes() {
    let fake = FakeMlx5::new();
    fake.set_caps(40, &48_u32.to_ne_bytes());
    fake.set_caps(56, &[0xff; 16]);
    let context = open(&fake).unwrap();
    assert_eq!((context.caps().log_uar_bytes, context.caps().core_clock_offset), (0, Some(0)));
}

#[test]
fn queues_have_registers_of_their_own_while_there_are_any() {
    let fake = FakeMlx5::new();
    let context = open(&fake).unwrap();
    let first: Vec<_> = (0..4).map(|_| context.send_register()).collect();
    assert!(first.iter().all(|r| r.page_id() != context.shared_uar().page_id()));
    assert_eq!(first.iter().all(|r| r.has_blueflame()), cfg!(target_arch = "x86_64"));
    assert_eq!(fake.uars(), (3, 3), "two registers a page, and the shared page");
    // The device has no more pages.
    fake.refuse_uar(0, Some(Errno::ENOMEM));
    let more = context.send_register();
    assert_eq!((more.page_id(), more.has_blueflame()), (context.shared_uar().page_id(), false));
    drop(first);
    assert_eq!(fake.uars().0, 1);
}

#[test]
fn without_write_combining_eight_bytes_at_a_time() {
    let fake = FakeMlx5::new();
    fake.set_caps(4, &[0; 4]);
    let context = open(&fake).unwrap();
    let register = context.send_register();
    assert_eq!((register.page_id(), register.has_blueflame()), (context.shared_uar().page_id(), false));
    assert_eq!(fake.uars(), (1, 1), "no page that would be of no use");

    let never = Mlx5Context::open(FakeMlx5::new(), BlueFlame::Never).unwrap();
    assert!(!never.send_register().has_blueflame());
}
