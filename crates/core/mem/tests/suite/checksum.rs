//! The Internet checksum against the sentence that defines it.

use bytes::Bytes;
use pagewire_mem::checksum::Checksum;
use pagewire_mem::{CopyLedger, CopyReason, Frag, PagePool, PageWriter, Region};
use proptest::prelude::*;

/// RFC 1071, section 1:
/// > Adjacent octets to be checksummed are paired to form 16-bit integers, and the 1's complement
/// > sum of these 16-bit integers is formed.
fn oracle(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    sum as u16
}

/// Splits `bytes` at `cuts`, in order, wherever they are.
fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let (mut out, mut from) = (Vec::new(), 0);
    for cut in cuts.into_iter().chain([bytes.len()]) {
        out.push(&bytes[from..cut]);
        from = cut;
    }
    out
}

proptest! {
    #[test]
    fn the_sum_is_the_same_over_any_split(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let mut sum = Checksum::new();
        let mut by_frag = Checksum::new();
        let mut ledger = CopyLedger::new();
        for piece in pieces(&bytes, &cuts) {
            sum.add_bytes(piece);
            by_frag.add_frag(&Frag::from_bytes(Bytes::copy_from_slice(piece)), &mut ledger);
        }
        prop_assert_eq!(sum.sum(), oracle(&bytes));
        prop_assert_eq!(sum.finish(), !oracle(&bytes));
        prop_assert_eq!(by_frag.sum(), sum.sum());
        prop_assert_eq!(ledger.ours(), 0, "private memory is summed in place");
    }

    #[test]
    fn shared_memory_is_summed_through_counted_snapshots(
        bytes in prop::collection::vec(any::<u8>(), 1..9000),
        first in 0..3usize,
    ) {
        let mut pool = PagePool::over(Region::memfd_shared("sum", 1 << 18).unwrap()).unwrap();
        let mut ledger = CopyLedger::new();
        let (frags, _) =
            PageWriter::new().write(&mut pool, &bytes, &mut ledger, CopyReason::AppWrite);
        let mut sum = Checksum::new();
        sum.add_bytes(&[0xab; 2][..first.min(2)]);
        for frag in &frags {
            sum.add_frag(frag, &mut ledger);
        }
        let mut all = vec![0xab; first.min(2)];
        all.extend_from_slice(&bytes);
        prop_assert_eq!(sum.sum(), oracle(&all));
        prop_assert_eq!(ledger.get(CopyReason::Snapshot), bytes.len() as u64);
    }
}

#[test]
fn the_example_of_rfc_1071_sums_as_printed() {
    // Section 3: "00 01 f2 03 f4 f5 f6 f7" sums to ddf2.
    let mut sum = Checksum::new();
    sum.add_bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
    assert_eq!((sum.sum(), sum.finish()), (0xddf2, 0x220d));
    let mut words = Checksum::new();
    for word in [0x0001, 0xf203, 0xf4f5, 0xf6f7] {
        words.add_u16(word);
    }
    assert_eq!(words.sum(), 0xddf2);
}

#[test]
fn nothing_sums_to_zero_and_all_ones_to_all_ones() {
    assert_eq!(Checksum::new().sum(), 0);
    assert_eq!(Checksum::new().finish(), 0xffff);
    let mut ones = Checksum::new();
    ones.add_bytes(&vec![0xff; 1 << 20]);
    assert_eq!((ones.sum(), ones.finish()), (0xffff, 0));
}
