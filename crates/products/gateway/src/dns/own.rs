//! [`OwnNames`]: names that the gateway itself answers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::request::{Name, NameError};

/// Names with addresses that the gateway's resolver answers by itself: its own (`gateway`), that of
/// the machine where it is mapped (`host`), guests, and what was given. Each also with
/// `.internal`, the top-level domain that nobody else has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNames(BTreeMap<Name, Vec<IpAddr>>);

impl OwnNames {
    /// Adds an address to a name.
    pub fn add(&mut self, name: Name, address: IpAddr) {
        let addresses = self.0.entry(name).or_default();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    /// Adds an address to a word, and to the word with `.internal`.
    ///
    /// # Errors
    /// If it is no label of a name.
    pub fn add_word(&mut self, word: &str, address: IpAddr) -> Result<(), NameError> {
        self.add(word.parse()?, address);
        self.add(format!("{word}.internal").parse()?, address);
        Ok(())
    }

    /// The addresses of a name.
    pub fn get(&self, name: &Name) -> Option<&[IpAddr]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_all_its_addresses_with_and_without_the_domain() {
        let mut names = OwnNames::default();
        let both: [IpAddr; 2] = ["10.0.2.2".parse().unwrap(), "fd00::2".parse().unwrap()];
        for address in both.into_iter().chain(both) {
            names.add_word("gateway", address).unwrap();
        }
        for name in ["gateway", "Gateway.internal."] {
            assert_eq!(names.get(&name.parse().unwrap()), Some(&both[..]));
        }
        assert_eq!(names.get(&"host".parse().unwrap()), None);
        assert!(names.add_word("", both[0]).is_err());
    }
}
