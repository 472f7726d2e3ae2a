//! Arithmetic on the circle, above all around the wrap (RFC 9293 section 3.4).

use proptest::prelude::*;

use super::Seq;

/// Any number, and often one near the places where arithmetic goes wrong.
fn seq() -> impl Strategy<Value = Seq> {
    prop_oneof![any::<u32>(), 0u32..5, (u32::MAX - 5)..=u32::MAX, (0x7fff_fffau32..0x8000_0005),]
        .prop_map(Seq)
}

/// Distances that windows can have.
fn distance() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..5, 0u32..=1 << 30, (0x7fff_fff0u32..=0x7fff_ffff)]
}

#[test]
fn a_window_of_zero_holds_nothing_and_the_largest_everything_but_one() {
    assert!(!Seq(7).in_window(Seq(7), 0));
    assert!(Seq(7).in_window(Seq(7), 1));
    assert!(!Seq(6).in_window(Seq(7), u32::MAX));
    assert!(Seq(5).in_window(Seq(7), u32::MAX));
}

#[test]
fn a_distance_backwards_saturates_to_zero() {
    assert_eq!(Seq(3).saturating_since(Seq(5)), 0);
    assert_eq!(Seq(3).saturating_since(Seq(u32::MAX)), 4);
}

proptest! {
    #[test]
    fn what_lies_ahead_by_less_than_half_the_circle_comes_later(a in seq(), n in distance()) {
        let b = a + n;
        prop_assert_eq!(a.lt(b), n > 0);
        prop_assert_eq!(b.gt(a), n > 0);
        prop_assert!(a.le(b) && b.ge(a));
        prop_assert_eq!(a.gt(b) || b.lt(a), false);
        prop_assert_eq!(a.max(b), b);
        prop_assert_eq!(b.min(a), a);
    }

    #[test]
    fn adding_and_subtracting_undo_each_other(a in seq(), n in any::<u32>()) {
        prop_assert_eq!((a + n) - n, a);
        prop_assert_eq!((a + n).since(a), n);
        prop_assert_eq!((a + n) - a, n as i32);
        let mut c = a;
        c += n;
        prop_assert_eq!(c, a + n);
    }

    #[test]
    fn comparison_does_not_depend_on_where_zero_is(a in seq(), b in seq(), shift in any::<u32>()) {
        prop_assert_eq!(a.lt(b), (a + shift).lt(b + shift));
        prop_assert_eq!(a - b, (a + shift) - (b + shift));
    }

    #[test]
    fn of_two_numbers_exactly_one_comes_first_unless_they_oppose(a in seq(), b in seq()) {
        prop_assume!(a - b != i32::MIN);
        let found = u8::from(a.lt(b)) + u8::from(b.lt(a)) + u8::from(a == b);
        prop_assert_eq!(found, 1);
    }

    #[test]
    fn a_window_holds_exactly_its_numbers(start in seq(), len in any::<u32>(), n in any::<u32>()) {
        prop_assert_eq!((start + n).in_window(start, len), n < len);
        prop_assert_eq!((start + n).between(start, start + len), n <= len);
    }
}
