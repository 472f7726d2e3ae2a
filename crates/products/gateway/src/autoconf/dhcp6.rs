//! The DHCPv6 server (RFC 8415 section 18.3): messages in, answers out.
//!
//! The link has one guest, and one address to give: whoever asks gets it. So nothing is remembered,
//! and a guest that restarts under another identifier has its address at once.

use std::net::Ipv6Addr;

use pagewire::Cidr;

use super::AutoconfConfig;
use super::ra::encoded;
use crate::limits::{DHCP6_MAX_IDENTITIES, RA_PREFERRED, RA_VALID};

/// Message types (RFC 8415 section 7.3).
const SOLICIT: u8 = 1;
const ADVERTISE: u8 = 2;
const REQUEST: u8 = 3;
const CONFIRM: u8 = 4;
const RENEW: u8 = 5;
const REBIND: u8 = 6;
const REPLY: u8 = 7;
const RELEASE: u8 = 8;
const DECLINE: u8 = 9;
const INFORMATION_REQUEST: u8 = 11;

/// Options (RFC 8415 section 21, RFC 3646).
const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_TA: u16 = 4;
const IA_ADDRESS: u16 = 5;
const STATUS: u16 = 13;
const RAPID_COMMIT: u16 = 14;
const DNS_SERVERS: u16 = 23;
const DOMAIN_LIST: u16 = 24;
const IA_PD: u16 = 25;

/// Status codes (RFC 8415 section 21.13).
const SUCCESS: u16 = 0;
const NO_ADDRESSES: u16 = 2;
const NOT_ON_LINK: u16 = 4;

/// Longest client identifier (RFC 8415 section 11.1: "not more than 128 octets long, not including
/// the type code").
const MAX_CLIENT_ID: usize = 130;

/// Bytes in front of an address association's options: its number, T1 and T2.
const IA_HEAD: usize = 12;

/// The kind of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Advertise,
    Reply,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) kind: Kind,
    /// The client says that somebody else has its address.
    pub(super) declined: bool,
    pub(super) bytes: Vec<u8>,
}

/// Why a message has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unanswered {
    Malformed,
    NotForUs,
}

/// The server.
#[derive(Debug)]
pub(super) struct Dhcp6 {
    network: Cidr,
    guest: Option<Ipv6Addr>,
    /// Our identifier: RFC 8415 section 11.4, by the link address.
    id: [u8; 10],
    /// Resolvers and domain, as options.
    settings: Vec<u8>,
}

/// The options of a message that matter.
#[derive(Debug, Default)]
struct Message<'a> {
    client: Option<&'a [u8]>,
    server: Option<&'a [u8]>,
    /// Associations of addresses: their numbers, and the addresses that they have.
    identities: Vec<([u8; 4], Vec<Ipv6Addr>)>,
    /// Asks for temporary addresses or prefixes, of which there are none.
    others: bool,
    rapid: bool,
}

impl Dhcp6 {
    pub(super) fn new(config: &AutoconfConfig, mac: [u8; 6]) -> Self {
        let mut settings = Vec::new();
        if !config.dns.is_empty() {
            let servers: Vec<u8> = config.dns.iter().flat_map(Ipv6Addr::octets).collect();
            option(&mut settings, DNS_SERVERS, &servers);
        }
        if !config.search.is_empty() {
            let list: Vec<u8> = config.search.iter().flat_map(|domain| encoded(domain)).collect();
            option(&mut settings, DOMAIN_LIST, &list);
        }
        let [a, b, c, d, e, f] = mac;
        let id = [0, 3, 0, 1, a, b, c, d, e, f];
        Self { network: config.network, guest: config.guest, id, settings }
    }

    /// Decides on a message.
    pub(super) fn handle(&self, bytes: &[u8]) -> Result<Answer, Unanswered> {
        let (&[kind, a, b, c], options) = bytes.split_first_chunk().ok_or(Unanswered::Malformed)?;
        let message = Message::parse(options).ok_or(Unanswered::Malformed)?;
        self.check(kind, &message)?;
        let offer = kind == SOLICIT && !message.rapid;
        let answer = if offer { ADVERTISE } else { REPLY };
        let mut out = vec![answer, a, b, c];
        option(&mut out, SERVER_ID, &self.id);
        if let Some(client) = message.client {
            option(&mut out, CLIENT_ID, client);
        }
        match kind {
            SOLICIT | REQUEST | RENEW | REBIND => {
                if kind == SOLICIT && message.rapid {
                    option(&mut out, RAPID_COMMIT, &[]);
                }
                self.give(&mut out, &message);
            }
            CONFIRM => {
                // RFC 8415 section 18.3.3.
                let mut all = message.identities.iter().flat_map(|(_, has)| has).peekable();
                if all.peek().is_none() {
                    return Err(Unanswered::NotForUs);
                }
                let on_link = all.all(|address| self.network.contains((*address).into()));
                status(&mut out, if on_link { SUCCESS } else { NOT_ON_LINK });
            }
            RELEASE | DECLINE => status(&mut out, SUCCESS),
            _ => {}
        }
        out.extend_from_slice(&self.settings);
        let kind = if offer { Kind::Advertise } else { Kind::Reply };
        Ok(Answer { kind, declined: bytes.first() == Some(&DECLINE), bytes: out })
    }

    /// RFC 8415 section 16: which messages are valid, and for this server.
    fn check(&self, kind: u8, message: &Message<'_>) -> Result<(), Unanswered> {
        let has_client = message.client.is_some();
        let ours = message.server == Some(&self.id);
        match kind {
            SOLICIT | CONFIRM | REBIND if !has_client || message.server.is_some() => {
                Err(Unanswered::Malformed)
            }
            REQUEST | RENEW | RELEASE | DECLINE if !has_client || message.server.is_none() => {
                Err(Unanswered::Malformed)
            }
            REQUEST | RENEW | RELEASE | DECLINE if !ours => Err(Unanswered::NotForUs),
            // Section 16.12: "the message includes an IA option".
            INFORMATION_REQUEST if !message.identities.is_empty() || message.others => {
                Err(Unanswered::Malformed)
            }
            INFORMATION_REQUEST if message.server.is_some() && !ours => Err(Unanswered::NotForUs),
            SOLICIT | CONFIRM | REBIND | REQUEST | RENEW | RELEASE | DECLINE
            | INFORMATION_REQUEST => Ok(()),
            _ => Err(Unanswered::NotForUs),
        }
    }

    /// The first association gets the address; what it had otherwise is no longer valid.
    fn give(&self, out: &mut Vec<u8>, message: &Message<'_>) {
        for (at, (number, has)) in message.identities.iter().enumerate() {
            // Times at which the client asks again: it chooses.
            let mut ia = [&number[..], &[0; 8]].concat();
            match self.guest.filter(|_| at == 0) {
                Some(guest) => {
                    address(&mut ia, guest, RA_PREFERRED.as_secs(), RA_VALID.as_secs());
                    for old in has.iter().filter(|old| **old != guest) {
                        address(&mut ia, *old, 0, 0);
                    }
                }
                None => status(&mut ia, NO_ADDRESSES),
            }
            option(out, IA_NA, &ia);
        }
    }
}

impl<'a> Message<'a> {
    fn parse(mut options: &'a [u8]) -> Option<Self> {
        let mut message = Self::default();
        while !options.is_empty() {
            let (kind, data, rest) = split(options)?;
            options = rest;
            match kind {
                CLIENT_ID if data.is_empty() || data.len() > MAX_CLIENT_ID => return None,
                CLIENT_ID => message.client = Some(data),
                SERVER_ID => message.server = Some(data),
                RAPID_COMMIT => message.rapid = true,
                IA_TA | IA_PD => message.others = true,
                IA_NA if message.identities.len() < DHCP6_MAX_IDENTITIES => {
                    message.identities.push(identity(data)?);
                }
                _ => {}
            }
        }
        Some(message)
    }
}

/// An association's number and addresses.
fn identity(data: &[u8]) -> Option<([u8; 4], Vec<Ipv6Addr>)> {
    let number = *data.first_chunk()?;
    let (mut options, mut addresses) = (data.get(IA_HEAD..)?, Vec::new());
    while !options.is_empty() {
        let (kind, data, rest) = split(options)?;
        options = rest;
        if kind == IA_ADDRESS && addresses.len() < DHCP6_MAX_IDENTITIES {
            addresses.push(Ipv6Addr::from(*data.first_chunk::<16>()?));
        }
    }
    Some((number, addresses))
}

/// The first option: its kind, its data, and what follows.
fn split(options: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (&[a, b, c, d], rest) = options.split_first_chunk()?;
    let (data, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([c, d])))?;
    Some((u16::from_be_bytes([a, b]), data, rest))
}

fn option(out: &mut Vec<u8>, kind: u16, data: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u16).to_be_bytes());
    out.extend_from_slice(data);
}

fn status(out: &mut Vec<u8>, code: u16) {
    option(out, STATUS, &code.to_be_bytes());
}

fn address(out: &mut Vec<u8>, address: Ipv6Addr, preferred: u64, valid: u64) {
    let mut data = address.octets().to_vec();
    data.extend_from_slice(&(preferred as u32).to_be_bytes());
    data.extend_from_slice(&(valid as u32).to_be_bytes());
    option(out, IA_ADDRESS, &data);
}
