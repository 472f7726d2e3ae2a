//! Sequence numbers: 32 bits that wrap (RFC 9293 section 3.4).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A sequence number.
///
/// > RFC 9293 section 3.4: Since the space is finite, all arithmetic dealing with sequence numbers
/// > must be performed modulo 2^32. [...] There are some subtleties to computer modulo arithmetic,
/// > so great care should be taken in programming the comparison of such values.
///
/// There is no total order on a circle, so this type has no `Ord`: `a.lt(b)` means that `b` lies
/// less than half the circle ahead of `a`. Numbers of one window are at most 2^30 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// The number `n`.
    pub const fn new(n: u32) -> Self {
        Self(n)
    }

    /// The number as it stands in a header.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether `self` comes before `other`.
    pub const fn lt(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether `self` comes before `other` or is the same.
    pub const fn le(self, other: Self) -> bool {
        !other.lt(self)
    }

    /// Whether `self` comes after `other`.
    pub const fn gt(self, other: Self) -> bool {
        other.lt(self)
    }

    /// Whether `self` comes after `other` or is the same.
    pub const fn ge(self, other: Self) -> bool {
        !self.lt(other)
    }

    /// The later of the two.
    #[must_use]
    pub const fn max(self, other: Self) -> Self {
        if self.lt(other) { other } else { self }
    }

    /// The earlier of the two.
    #[must_use]
    pub const fn min(self, other: Self) -> Self {
        if other.lt(self) { other } else { self }
    }

    /// Steps forward from `earlier` to `self`, all the way round if need be.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Steps forward from `earlier` to `self`; 0 if `self` comes before it.
    pub const fn saturating_since(self, earlier: Self) -> u32 {
        if self.lt(earlier) { 0 } else { self.since(earlier) }
    }

    /// Whether `start =< self < start + len`, for `len` of any size.
    pub const fn in_window(self, start: Self, len: u32) -> bool {
        self.since(start) < len
    }

    /// Whether `low =< self =< high`, going forward from `low`.
    pub const fn between(self, low: Self, high: Self) -> bool {
        self.since(low) <= high.since(low)
    }
}

impl Add<u32> for Seq {
    type Output = Self;
    fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Seq {
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for Seq {
    type Output = Self;
    fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }
}

/// The signed distance: negative if `self` comes before the other.
impl Sub for Seq {
    type Output = i32;
    fn sub(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
#[path = "seq_tests.rs"]
mod tests;
