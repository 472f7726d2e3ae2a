//! The flags that packetdrill passes on: the stack's addresses, and the file of its settings.

use std::net::IpAddr;
use std::path::PathBuf;

use pagewire_stack::Cidr;
use pagewire_stack::limits::MAX_SHARDS;

use crate::limits::{MSS, MTU_V4, MTU_V6};

/// The parsed `--so_flags`: a list of `name=value`, separated by commas.
///
/// | flag | meaning |
/// |---|---|
/// | `addr=IP/LEN` | an address of the stack's; may be repeated, at least one |
/// | `gateway=IP` | a gateway; may be repeated. The medium has no stations, so that every packet finds its way without one: checked, and otherwise of no consequence |
/// | `sysctl=FILE` | settings, lines `net.ipv4.tcp_x=value`; see [`Settings`](crate::settings::Settings) |
/// | `looped=copy` | completions of zero-copy sends say that the bytes were copied, as Linux's do where a packet loops back to a local receiver |
/// | `shards=N` | the host has N stacks, 1 to 32. All sockets are those of one; each packet comes to any, as a fixed sequence of draws says |
/// | `mtu=BYTES` | the largest IP packet; by default what leaves an MSS of 1,460 |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Our addresses.
    pub addresses: Vec<Cidr>,
    /// Gateways.
    pub gateways: Vec<IpAddr>,
    /// The file of settings.
    pub sysctl: Option<PathBuf>,
    /// Completions report copied bytes.
    pub looped_copy: bool,
    /// Stacks of the host.
    pub shards: usize,
    /// Largest IP packet, in bytes, if given.
    pub mtu: Option<usize>,
}

/// Why flags cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// A word that is no `name=value` of ours.
    #[error(
        "`{0}` is no flag; there are addr=IP/LEN, gateway=IP, sysctl=FILE, looped=copy, shards=N, \
         mtu=BYTES"
    )]
    Unknown(String),
    /// A value that makes no sense.
    #[error("`{flag}`: {why}")]
    Value {
        /// The flag, as given.
        flag: String,
        /// The reason why the value is refused.
        why: String,
    },
    /// There is no address.
    #[error("no address: pass --so_flags=addr=IP/LEN with the address of --local_ip")]
    NoAddress,
}

impl Flags {
    /// Reads a list of flags.
    pub fn parse(list: &str) -> Result<Self, FlagError> {
        let mut flags = Self {
            addresses: Vec::new(),
            gateways: Vec::new(),
            sysctl: None,
            looped_copy: false,
            shards: 1,
            mtu: None,
        };
        for flag in list.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
            let bad = |why: &dyn std::fmt::Display| FlagError::Value {
                flag: flag.to_owned(),
                why: why.to_string(),
            };
            match flag.split_once('=') {
                Some(("addr", value)) => {
                    flags.addresses.push(value.parse().map_err(|why| bad(&why))?);
                }
                Some(("gateway", value)) => {
                    flags.gateways.push(value.parse().map_err(|why| bad(&why))?);
                }
                Some(("sysctl", value)) => flags.sysctl = Some(value.into()),
                Some(("looped", "copy")) => flags.looped_copy = true,
                Some(("looped", _)) => return Err(bad(&"only `copy` is known")),
                Some(("shards", value)) => {
                    flags.shards = value.parse().map_err(|why| bad(&why))?;
                    if !(1..=MAX_SHARDS).contains(&flags.shards) {
                        return Err(bad(&format_args!("there are 1 to {MAX_SHARDS}")));
                    }
                }
                Some(("mtu", value)) => flags.mtu = Some(value.parse().map_err(|why| bad(&why))?),
                _ => return Err(FlagError::Unknown(flag.to_owned())),
            }
        }
        if flags.addresses.is_empty() {
            return Err(FlagError::NoAddress);
        }
        Ok(flags)
    }

    /// The largest IP packet, in bytes: as given, or what leaves the MSS that scripts expect.
    pub fn mtu(&self) -> usize {
        let v6 = self.addresses.iter().any(|a| a.addr().is_ipv6());
        self.mtu.unwrap_or(if v6 { MTU_V6 } else { MTU_V4 })
    }

    /// The largest MSS, where both IP versions have addresses and no [MTU](Self::mtu) is given.
    pub fn max_mss(&self) -> Option<u16> {
        let both = self.addresses.iter().any(|a| a.addr().is_ipv4()) && self.mtu() == MTU_V6;
        (both && self.mtu.is_none()).then_some(MSS)
    }
}

#[cfg(test)]
#[path = "flags_tests.rs"]
mod tests;
