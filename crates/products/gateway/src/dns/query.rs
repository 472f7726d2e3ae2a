//! DNS messages (RFC 1035 section 4): parsing queries and answers, and building the gateway's own answers.
//!
//! Queries and answers are passed on as they are, so only a query's header and question are read
//! here: a forwarder need not know every type of record. Answers are read by `simple-dns`.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use simple_dns::rdata::{A, AAAA, RData, SVCB, SVCParam};
use simple_dns::{CLASS, Name as WireName, Packet, PacketFlag, ResourceRecord};

use crate::limits::{DNS_ADDRESSES, DNS_ALIASES, DNS_OWN_TTL, DNS_RECORDS};
use crate::request::Name;

/// Bytes of a message's header.
const HEADER: usize = 12;

/// Bytes of type and class behind a question's name.
const KIND: usize = 4;

/// Longest name on the wire, its final zero included (RFC 1035 section 2.3.4).
const MAX_NAME: usize = 255;

/// Shortest question and resource record, with a name of one byte.
const MIN_QUESTION: usize = 1 + KIND;
const MIN_RECORD: usize = 11;

/// Bits of a header's third byte: response, operation, cut, recursion desired.
const QR: u8 = 0x80;
const OPCODE: u8 = 0x78;
const TC: u8 = 0x02;
const RD: u8 = 0x01;
/// Bits of the fourth byte of the header: recursion available, and the result code.
const RA: u8 = 0x80;
const RCODE: u8 = 0x0f;

/// Types of questions (RFC 1035 section 3.2.2, RFC 3596, RFC 1995, RFC 9460).
const TYPE_A: u16 = 1;
const TYPE_AAAA: u16 = 28;
const TYPE_SVCB: u16 = 64;
const TYPE_HTTPS: u16 = 65;

/// The key of a service's parameter: keys for encrypted ClientHellos (RFC 9848).
const ECH: u16 = 5;
const TYPE_IXFR: u16 = 251;
const TYPE_AXFR: u16 = 252;
const TYPE_ANY: u16 = 255;

/// The Internet's class, and any.
const CLASS_IN: u16 = 1;
const CLASS_ANY: u16 = 255;

/// The result of a query (RFC 1035 section 4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    NoError = 0,
    /// The query is malformed.
    FormErr = 1,
    /// No resolver answered.
    ServFail = 2,
    /// There is no such name.
    NxDomain = 3,
    /// An operation other than a query.
    NotImp = 4,
    /// A rule forbids it.
    Refused = 5,
}

/// A query's header and question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The name as rules and logs know it; `None`: the root, or a name that is no host's.
    pub(crate) name: Option<Name>,
    /// Type of the records asked for.
    pub(crate) kind: u16,
    pub(crate) class: u16,
    /// Offset of the end of the question in the message.
    end: usize,
}

/// The addresses in an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AnsweredAddresses {
    /// The name that was asked for, and those that it is an alias of.
    pub(crate) names: Vec<Name>,
    pub(crate) addresses: Vec<(IpAddr, Duration)>,
    /// More names may lead to the addresses.
    pub(crate) more_names: bool,
    /// There may be more addresses.
    pub(crate) more_addresses: bool,
}

/// A message that is no query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadQuery {
    /// The message gets no answer: it is too short, or an answer itself.
    Ignored,
    /// The message gets this answer.
    Answered(Code),
}

impl Query {
    /// Reads a query with one question.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, BadQuery> {
        let flags = *message.get(2).filter(|_| message.len() >= HEADER).ok_or(BadQuery::Ignored)?;
        if flags & QR != 0 {
            return Err(BadQuery::Ignored);
        }
        if flags & OPCODE != 0 {
            return Err(BadQuery::Answered(Code::NotImp));
        }
        let malformed = BadQuery::Answered(Code::FormErr);
        if word(message, 4) != Some(1) || !is_plausible(message) {
            return Err(malformed);
        }
        let (name, at) = question_name(message).ok_or(malformed)?;
        let kind = word(message, at).ok_or(malformed)?;
        let class = word(message, at + 2).ok_or(malformed)?;
        Ok(Self { name, kind, class, end: at + KIND })
    }

    /// Whether it asks for a whole zone, in several messages.
    pub(crate) fn is_transfer(&self) -> bool {
        matches!(self.kind, TYPE_IXFR | TYPE_AXFR)
    }

    /// Whether `answer` answers this query, which was sent as `sent`: by the same identifier and
    /// the same question, in which a server may have changed the letters' case.
    pub(crate) fn is_answered_by(&self, sent: &[u8], answer: &[u8]) -> bool {
        let (Some(id), Some(question)) = (sent.get(..2), sent.get(HEADER..self.end)) else {
            return false;
        };
        let flags = answer.get(2).copied().unwrap_or_default();
        if answer.len() < HEADER || answer.get(..2) != Some(id) || flags & (QR | OPCODE) != QR {
            return false;
        }
        match word(answer, 4) {
            // A server that could not read the question repeats none.
            Some(0) => answer.get(3).is_some_and(|byte| byte & RCODE != 0),
            // The letters' case does not matter; length bytes are no letters, types are compared.
            Some(1) => answer.get(HEADER..self.end).is_some_and(|theirs| {
                let (ours, kind) = question.split_at(question.len() - KIND);
                let (theirs, their_kind) = theirs.split_at(theirs.len() - KIND);
                ours.eq_ignore_ascii_case(theirs) && kind == their_kind
            }),
            _ => false,
        }
    }

    /// Whether it asks for IPv4 addresses, perhaps among others.
    pub(crate) fn asks_for_ipv4(&self) -> bool {
        self.class == CLASS_IN && matches!(self.kind, TYPE_A | TYPE_ANY)
    }

    /// An answer without records.
    pub(crate) fn answer(&self, message: &[u8], code: Code) -> Vec<u8> {
        error(message, code, self.end)
    }

    /// The answer that leads to these addresses, of the version that is asked for.
    pub(crate) fn lead_to(&self, message: &[u8], addresses: &[IpAddr]) -> Vec<u8> {
        let empty = || self.answer(message, Code::NoError);
        let wanted = |addr: &&IpAddr| match self.kind {
            TYPE_A => addr.is_ipv4(),
            TYPE_AAAA => addr.is_ipv6(),
            TYPE_ANY => true,
            _ => false,
        };
        if self.class != CLASS_IN {
            return empty();
        }
        // Only the question: what else is in the query is not answered.
        let mut asked = message.get(..self.end).unwrap_or_default().to_vec();
        if let Some([_, _, high, low, _, _, counts @ ..]) = asked.first_chunk_mut::<HEADER>() {
            (*high, *low) = (*high & RD, 0);
            *counts = [0; 6];
        }
        let Ok(query) = Packet::parse(&asked) else { return empty() };
        let Some(name) = query.questions.first().map(|question| question.qname.clone()) else {
            return empty();
        };
        let mut reply = query.clone().into_reply();
        reply.set_flags(PacketFlag::RECURSION_AVAILABLE | PacketFlag::AUTHORITATIVE_ANSWER);
        if query.has_flags(PacketFlag::RECURSION_DESIRED) {
            reply.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        for address in addresses.iter().filter(wanted) {
            let data = match address {
                IpAddr::V4(v4) => RData::A(A { address: v4.to_bits() }),
                IpAddr::V6(v6) => RData::AAAA(AAAA { address: v6.to_bits() }),
            };
            let ttl = DNS_OWN_TTL.as_secs() as u32;
            reply.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, ttl, data));
        }
        reply.build_bytes_vec_compressed().unwrap_or_else(|_| empty())
    }

    /// Whether it asks how to reach a service, whose answer may have addresses of its own (RFC 9460
    /// section 7.3).
    pub(crate) fn is_about_service(&self) -> bool {
        matches!(self.kind, TYPE_SVCB | TYPE_HTTPS)
    }

    /// The addresses in an answer to this query: the name and its aliases lead to them.
    pub(crate) fn resolved(&self, answer: &[u8]) -> AnsweredAddresses {
        let kinds = [TYPE_A, TYPE_AAAA, TYPE_SVCB, TYPE_HTTPS, TYPE_ANY];
        let Some(first) = self.name.clone() else { return AnsweredAddresses::default() };
        if !matches!(self.class, CLASS_IN | CLASS_ANY) || !kinds.contains(&self.kind) {
            return AnsweredAddresses::default();
        }
        let mut found = AnsweredAddresses { names: vec![first], ..AnsweredAddresses::default() };
        let packet = is_plausible(answer).then(|| Packet::parse(answer).ok()).flatten();
        let Some(packet) = packet else {
            (found.more_names, found.more_addresses) = (true, true);
            return found;
        };
        // A record may come before the alias that leads to it: as often as there are aliases.
        let answers = || packet.answers.iter().take(DNS_RECORDS);
        while let Some(next) = answers().find_map(|record| {
            let target = target_of(record).and_then(name_of)?;
            (is_of(record, &found.names) && !found.names.contains(&target)).then_some(target)
        }) {
            if found.names.len() > DNS_ALIASES {
                found.more_names = true;
                break;
            }
            found.names.push(next);
        }
        let address = |record: &ResourceRecord<'_>| {
            let address = match &record.rdata {
                RData::A(a) => IpAddr::V4(a.address.into()),
                RData::AAAA(aaaa) => IpAddr::V6(aaaa.address.into()),
                _ => return None,
            };
            let ttl = Duration::from_secs(record.ttl.into());
            is_of(record, &found.names).then_some((address, ttl))
        };
        found.addresses = answers().filter_map(address).take(DNS_ADDRESSES).collect();
        let mut all = packet.answers.iter().chain(&packet.additional_records);
        found.more_names |= packet.answers.len() > DNS_RECORDS;
        found.more_addresses = found.more_names
            || found.addresses.len() >= DNS_ADDRESSES
            || all.any(|record| service_of(record).is_some());
        found
    }

    /// The name about which rules decide: that of the host, if the question is about its service at another port
    /// (RFC 9460 section 9.1: `_8443._https.example.org`).
    pub(crate) fn judged_name(&self) -> Option<Cow<'_, Name>> {
        let name = self.name.as_ref()?;
        let host = || {
            let (port, rest) = name.as_str().strip_prefix('_')?.split_once("._https.")?;
            port.parse::<u16>().ok().and_then(|_| rest.parse().ok())
        };
        let host = if self.kind == TYPE_HTTPS { host() } else { None };
        Some(host.map_or(Cow::Borrowed(name), Cow::Owned))
    }

    /// The answer without keys for encrypted ClientHellos (RFC 9848), by which clients would hide names.
    pub(crate) fn without_keys(&self, message: &[u8], answer: Vec<u8>) -> Vec<u8> {
        let packet = is_plausible(&answer).then(|| Packet::parse(&answer).ok()).flatten();
        let Some(mut packet) = packet else {
            return if self.is_about_service() { self.withhold(message, &answer) } else { answer };
        };
        let mut had_keys = false;
        let Packet { answers, name_servers, additional_records, .. } = &mut packet;
        for section in [answers, name_servers, additional_records] {
            section.retain_mut(|record| {
                let Some(service) = service_of(record) else { return true };
                if service.get_param(ECH).is_none() {
                    return true;
                }
                had_keys = true;
                let mut bare = SVCB::new(service.priority, service.target.clone());
                for param in service.iter_params().filter(|param| param.key_code() != ECH) {
                    // Clients leave out a record that lacks a mandatory parameter.
                    if matches!(param, SVCParam::Mandatory(keys) if keys.contains(&ECH)) {
                        return false;
                    }
                    bare.set_param(param.clone());
                }
                record.rdata = match record.rdata {
                    RData::SVCB(_) => RData::SVCB(bare),
                    _ => RData::HTTPS(bare.into()),
                };
                true
            });
        }
        if !had_keys {
            return answer;
        }
        // Nobody has signed the answer as it is now.
        packet.remove_flags(PacketFlag::AUTHENTIC_DATA);
        let Packet { answers, name_servers, additional_records, .. } = &mut packet;
        for section in [answers, name_servers, additional_records] {
            section.retain(|record| !matches!(record.rdata, RData::RRSIG(_)));
        }
        let bare = packet.build_bytes_vec_compressed().ok();
        let bare = bare.filter(|bare| bare.len() <= answer.len());
        bare.unwrap_or_else(|| self.withhold(message, &answer))
    }

    /// The answer to who must not see `answer`: by TCP, it may be another if that one was cut.
    pub(crate) fn withhold(&self, message: &[u8], answer: &[u8]) -> Vec<u8> {
        let is_cut = answer.get(2).is_some_and(|byte| byte & TC != 0);
        // Programs ask for hints beside addresses: they do without.
        let code = if is_cut || self.is_about_service() { Code::NoError } else { Code::Refused };
        let mut reply = self.answer(message, code);
        if is_cut && let Some(byte) = reply.get_mut(2) {
            *byte |= TC;
        }
        reply
    }
}

/// An answer to something that could not be read as a query.
pub(crate) fn refuse(message: &[u8], code: Code) -> Vec<u8> {
    error(message, code, HEADER)
}

/// Whether a resolver says that it could not find out: another one may.
pub(crate) fn has_failed(answer: &[u8]) -> bool {
    let failures = [Code::ServFail, Code::NotImp, Code::Refused].map(|code| code as u8);
    answer.get(3).is_some_and(|byte| failures.contains(&(byte & RCODE)))
}

pub(crate) fn id(message: &[u8]) -> u16 {
    word(message, 0).unwrap_or_default()
}

pub(crate) fn set_id(message: &mut [u8], id: u16) {
    if let Some(bytes) = message.first_chunk_mut() {
        *bytes = id.to_be_bytes();
    }
}

/// The message up to `end` as an answer without records.
fn error(message: &[u8], code: Code, end: usize) -> Vec<u8> {
    let mut reply = message.get(..end).unwrap_or_default().to_vec();
    let questions = u8::from(end > HEADER);
    if let Some([_, _, high, low, counts @ ..]) = reply.first_chunk_mut::<HEADER>() {
        *high = QR | (*high & (OPCODE | RD));
        *low = RA | code as u8;
        *counts = [0, questions, 0, 0, 0, 0, 0, 0];
    }
    reply
}

fn word(message: &[u8], at: usize) -> Option<u16> {
    let bytes = message.get(at..at.checked_add(2)?)?;
    bytes.try_into().ok().map(u16::from_be_bytes)
}

/// Whether the message is at least as long as the counts in its header say: its reader reserves
/// memory for that number of records.
fn is_plausible(message: &[u8]) -> bool {
    let count = |at| usize::from(word(message, at).unwrap_or(u16::MAX));
    let records = count(6) + count(8) + count(10);
    HEADER + count(4) * MIN_QUESTION + records * MIN_RECORD <= message.len()
}

/// The name in a question, and where it ends. The first name of a message cannot be compressed
/// (RFC 1035 section 4.1.4: a pointer leads to a prior occurrence).
fn question_name(message: &[u8]) -> Option<(Option<Name>, usize)> {
    let mut labels: Vec<&[u8]> = Vec::new();
    let mut at = HEADER;
    loop {
        let len = usize::from(*message.get(at)?);
        at += 1;
        if at - HEADER > MAX_NAME || len >= 64 {
            return None;
        }
        if len == 0 {
            return Some((join(labels.into_iter()), at));
        }
        labels.push(message.get(at..at + len)?);
        at += len;
    }
}

/// Labels as text; `None` where text would not say where one ends.
fn join<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Option<Name> {
    let mut text = String::new();
    for label in labels {
        if label.contains(&b'.') {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(str::from_utf8(label).ok()?);
    }
    text.parse().ok()
}

/// The name that another is an alias of, or whose service has a record.
fn target_of<'a>(record: &'a ResourceRecord<'_>) -> Option<&'a WireName<'a>> {
    match &record.rdata {
        RData::CNAME(target) => Some(target),
        _ => service_of(record).map(|service| &service.target),
    }
}

fn service_of<'a, 'b>(record: &'a ResourceRecord<'b>) -> Option<&'a SVCB<'b>> {
    match &record.rdata {
        RData::SVCB(service) => Some(service),
        RData::HTTPS(service) => Some(service),
        _ => None,
    }
}

fn name_of(name: &WireName<'_>) -> Option<Name> {
    join(name.as_bytes())
}

fn is_of(record: &ResourceRecord<'_>, names: &[Name]) -> bool {
    record.class == CLASS::IN && name_of(&record.name).is_some_and(|name| names.contains(&name))
}
