use super::*;
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    max_send_blocks: 32768,
    max_send_element_bytes: 1024,
    max_recv_element_bytes: 512,
    max_recv_wr: 32768,
    max_srq_recv_wr: 32767,
};

fn cap(max_send_wr: u32, max_send_sge: u32, max_inline_data: u32) -> QpCap {
    QpCap { max_send_wr, max_send_sge, max_inline_data, ..Default::default() }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> (&'static str, String) {
    match answer {
        Err(Error::Invalid { what, limit, .. }) => (what, limit.into_owned()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_completion_ring_is_what_the_kernel_pins() {
    // The kernel rounds what it is told, plus one, up to a power of two.
    for (cqe, entries) in [(1, 2), (2, 4), (3, 4), (62, 64), (63, 64), (64, 128), (65, 128), ((1 << 22) - 1, 1 << 22)] {
        for entry_bytes in [64, 128] {
            let layout = CqLayout::new(cqe, entry_bytes).unwrap();
            assert_eq!((layout.entries(), layout.capacity()), (entries, entries - 1));
            assert_eq!((layout.capacity() + 1).next_power_of_two() as usize * entry_bytes as usize, layout.bytes());
        }
    }
    assert_eq!(refusal(CqLayout::new(0, 64)).0, "cqe");
    assert_eq!(refusal(CqLayout::new(1 << 22, 64)), ("cqe", "1 to 4194303".into()));
    for bytes in [0, 32, 96, 256] {
        assert_eq!(refusal(CqLayout::new(8, bytes)).0, "cqe_size");
    }
}

#[test]
fn a_send_element_holds_the_longest_of_each_kind() {
    // (transport, entries, inline) and blocks of an element.
    for (transport, sge, inline, blocks) in [
        // Binding a window takes three blocks on connected transports, whatever else is asked for.
        (Transport::Rc, 1, 0, 3),
        (Transport::Rc, 9, 0, 3),
        (Transport::Rc, 10, 0, 4),
        (Transport::Rc, 0, 140, 3),
        (Transport::Rc, 0, 141, 4),
        (Transport::Rc, 30, 0, 9),
        (Transport::Uc, 10, 0, 3),
        (Transport::Ud, 0, 0, 1),
        (Transport::Ud, 1, 0, 2),
        (Transport::Ud, 4, 60, 2),
        (Transport::Ud, 4, 61, 3),
        (Transport::XrcIni, 8, 0, 3),
        (Transport::XrcIni, 9, 0, 4),
    ] {
        let layout = SqLayout::new(transport, &cap(64, sge, inline), &LIMITS).unwrap();
        assert_eq!(layout.blocks, (64_u32 * blocks).next_power_of_two(), "{transport:?} {sge} {inline}");
        assert_eq!((layout.max_wr, layout.max_ds), (layout.blocks / blocks, blocks * 4));
    }
}

#[test]
fn limits_are_named() {
    let new = |transport, cap| refusal(SqLayout::new(transport, &cap, &LIMITS));
    assert_eq!(
        new(Transport::Rc, cap(1, 61, 0)),
        ("max_send_sge", "the device takes at most 60 scatter/gather entries".into())
    );
    assert_eq!(new(Transport::Ud, cap(1, 60, 0)).0, "max_send_sge");
    assert_eq!(
        new(Transport::Rc, cap(1, 1, 957)),
        ("max_inline_data", "the device takes at most 956 inline bytes".into())
    );
    assert_eq!(new(Transport::Rc, cap(1, 1, u32::MAX)).0, "max_inline_data");
    assert_eq!(new(Transport::Rc, cap(u32::MAX, 1, 0)).0, "max_send_wr");
    assert!(new(Transport::Rc, cap(10923, 1, 0)).1.starts_with("the device takes at most 10922 "));
    assert!(SqLayout::new(Transport::Rc, &cap(10922, 60, 956), &LIMITS).is_err());
    let recv = |wr, sge| refusal(RqLayout::new(wr, sge, &LIMITS)).0;
    assert_eq!((recv(1, 33), recv(32769, 1), recv(u32::MAX, 1)), ("max_recv_sge", "max_recv_wr", "max_recv_wr"));
    let srq = |wr, sge| refusal(SrqLayout::new(wr, sge, &LIMITS)).0;
    assert_eq!((srq(1, 32), srq(0, 1), srq(32768, 1), srq(u32::MAX, 1)), ("max_sge", "max_wr", "max_wr", "max_wr"));
}

#[test]
fn a_queue_pair_without_a_queue_has_none() {
    assert_eq!(SqLayout::new(Transport::Rc, &cap(0, 4, 100), &LIMITS).unwrap().bytes(), 0);
    assert_eq!(SqLayout::new(Transport::XrcTgt, &cap(10, 4, 100), &LIMITS).unwrap().bytes(), 0);
    // The kernel refuses a count or a stride where there is no queue.
    assert_eq!(RqLayout::new(0, 4, &LIMITS).unwrap(), RqLayout::NONE);
    assert_eq!((RqLayout::NONE.elements, RqLayout::NONE.log2_stride), (0, 0));
}

#[test]
fn transports_by_the_kernels_numbers() {
    let known =
        [(2, Transport::Rc), (3, Transport::Uc), (4, Transport::Ud), (9, Transport::XrcIni), (10, Transport::XrcTgt)];
    for raw in 0..=255 {
        match known.iter().find(|(n, _)| *n == raw) {
            Some((_, transport)) => assert_eq!(Transport::from_raw(raw).unwrap(), *transport),
            None => assert!(matches!(Transport::from_raw(raw), Err(Error::Unsupported { .. })), "{raw}"),
        }
    }
}

proptest! {
    /// What was asked for fits, in a power of two, on a block.
    #[test]
    fn rings_hold_what_was_asked_for(wr in 1_u32..2000, sge in 0_u32..=31, inline in 0_u32..900) {
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcIni] {
            let layout = SqLayout::new(transport, &cap(wr, sge, inline), &LIMITS).unwrap();
            prop_assert!(layout.blocks.is_power_of_two() && layout.max_wr >= wr);
            prop_assert!(layout.max_sge >= sge && layout.max_inline >= inline);
            // Any `max_wr` elements, each as long as the longest, fit.
            let ds = transport.head_ds() + sge.max((inline + 4).div_ceil(16) * u32::from(inline > 0));
            prop_assert!(layout.max_wr * ds.max(transport.bare_ds()).div_ceil(4) <= layout.blocks);
        }
        let rq = RqLayout::new(wr, sge, &LIMITS).unwrap();
        prop_assert!(rq.elements.is_power_of_two() && rq.elements >= wr && rq.max_sge >= sge.max(1));
        prop_assert!(rq.bytes().is_multiple_of(64) && rq.log2_stride >= 4 && rq.bytes().is_power_of_two());
        let srq = SrqLayout::new(wr, sge, &LIMITS).unwrap();
        prop_assert!(srq.capacity() >= wr && srq.max_sge >= sge);
        // As the kernel computes it from the same numbers.
        let stride = (16 + 16 * sge).next_power_of_two().max(32);
        prop_assert_eq!((1 << srq.log2_stride, srq.elements), (stride, (wr + 1).next_power_of_two()));
    }
}
