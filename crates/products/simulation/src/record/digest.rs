//! The [`Digest`], a hash over everything that happened between hosts: runs with the same digest were the same.

use std::fmt;
use std::str::FromStr;

use xxhash_rust::xxh3::Xxh3;

/// A hash over what happened between the hosts of a run, in its order: the packets that left, were lost
/// and arrived, with their times, and with the contents of those that arrived; the orders; panics, and
/// the starts and ends of programs with what they returned.
///
/// Events inside of a host are not in the digest: runs of its tasks, its timers, random numbers that it
/// draws, connections to itself. They count by the packets, ends and times that follow: two runs
/// that differ only there have one digest. A program that wants more to be compared sends it, or returns
/// it in an error.
///
/// The same seed gives the same digest, on every machine and with every build. Prints as 32
/// hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 32 hexadecimal digits")]
pub struct DigestError;

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        if text.len() != 32 {
            return Err(DigestError);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| DigestError)
    }
}

/// The numbers of an event in the digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) at: u64,
    pub(crate) kind: u8,
    pub(crate) a: u64,
    pub(crate) b: u64,
}

/// Events, in their order; little-endian and of fixed width, so that machines agree. Nobody tries to
/// find two runs with one digest, so the hash (XXH3, 128 bits) is a quick one: it reads every byte
/// that arrives.
#[derive(Clone, Default)]
pub(crate) struct Digester {
    hasher: Xxh3,
    events: u64,
}

impl Digester {
    /// Adds an event: its time, its kind, and two numbers.
    pub(crate) fn event(&mut self, event: Event) {
        self.events += 1;
        let Event { at, kind, a, b } = event;
        let record = [at, a, b, u64::from(kind)].map(u64::to_le_bytes);
        self.hasher.update(record.as_flattened());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// A hash over the events so far, for comparisons within a process.
    pub(crate) fn hash(&self) -> u64 {
        self.hasher.digest()
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn digest(&self) -> Digest {
        let mut hasher = self.hasher.clone();
        hasher.update(&self.events.to_le_bytes());
        Digest(hasher.digest128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_text_and_back() {
        let digest = Digester::default().digest();
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!("7".parse::<Digest>(), Err(DigestError));
        assert_eq!("g".repeat(32).parse::<Digest>(), Err(DigestError));
    }

    #[test]
    fn every_part_of_an_event_counts() {
        let of = |at, kind, a, b, bytes: &[u8]| {
            let mut digester = Digester::default();
            digester.event(Event { at, kind, a, b });
            digester.bytes(bytes);
            digester.digest()
        };
        let all = [
            of(1, 2, 3, 4, b"5"),
            of(0, 2, 3, 4, b"5"),
            of(1, 0, 3, 4, b"5"),
            of(1, 2, 0, 4, b"5"),
            of(1, 2, 3, 0, b"5"),
            of(1, 2, 3, 4, b"0"),
        ];
        for (at, digest) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != digest), "{at}");
        }
    }

    /// On any machine: this is the digest that one computed once.
    #[test]
    fn the_digest_of_the_same_events_never_changes() {
        let mut digester = Digester::default();
        digester.event(Event { at: 1_000_000, kind: 1, a: 0, b: 7 });
        digester.bytes(b"frame");
        insta::assert_snapshot!(digester.digest(), @"b5359f5f52b433b6940124ac7b040dc2");
    }
}
