use super::*;
use crate::rxe::testing::{raw_mapping, ring};

#[test]
fn takes_a_ring_that_fits_exactly() {
    for (log2, mask) in [(6, 0), (7, 127), (9, 15), (12, 1)] {
        let (mapping, _kernel) = ring(log2, mask, 0);
        let ring = MappedRing::new(mapping, "queue", 48).unwrap();
        assert_eq!((ring.slot_bytes(), ring.mask().capacity()), (1 << log2, mask));
    }
}

#[test]
fn refuses_geometry_that_cannot_be_and_says_what_it_found() {
    const LEN: usize = 384 + 16 * 128;
    let cases: &[(&str, usize, usize, u32, u32, usize)] = &[
        // what is wrong, offset, length, log2_elem_size, index_mask, bytes needed per element
        ("no room for the header", 0, 383, 7, 0, 48),
        ("misaligned", 4, LEN, 7, 15, 48),
        ("slots are not a power of two", 0, LEN, 7, 14, 48),
        ("slots are 2^32", 0, LEN, 7, u32::MAX, 48),
        ("one slot too many", 0, LEN - 1, 7, 15, 48),
        ("twice the slots", 0, LEN, 7, 31, 48),
        ("element smaller than needed", 0, LEN, 7, 15, 129),
        ("element smaller than a cache line", 0, LEN, 5, 15, 16),
        ("element size overflows", 0, LEN, 64, 0, 48),
        ("element size wraps to something small", 0, LEN, 64 + 7, 15, 48),
        ("ring size overflows", 0, LEN, 63, 0x7fff_ffff, 48),
        ("dirty header", 0, LEN, 0xffff_ffff, 0xffff_ffff, 48),
    ];
    for &(what, at, len, log2, mask, need) in cases {
        let error = MappedRing::new(raw_mapping(at, len, log2, mask), "send queue", need).expect_err(what);
        assert!(matches!(error, Error::Abi { verb: Verb::MapQueue, .. }), "{what}: {error}");
        assert!(error.to_string().contains("send queue"), "{what}: {error}");
    }
}

#[test]
fn geometry_is_read_once() {
    let (mapping, kernel) = ring(7, 15, 0);
    let header = mapping.as_ptr();
    let ring = MappedRing::new(mapping, "queue", 48).unwrap();
    // SAFETY: the mapping is owned by `ring` and holds the header; nothing else touches it now.
    unsafe { header.write_bytes(0xff, 8) };
    assert_eq!((ring.slot_bytes(), ring.mask().slots()), (128, 16));
    drop(kernel);
}
