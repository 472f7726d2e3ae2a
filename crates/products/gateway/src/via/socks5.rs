//! SOCKS5 (RFC 1928), with a user's name and password (RFC 1929).

use std::fmt;
use std::net::IpAddr;

use super::{Credentials, Next, Refused, Target, TargetHost};

/// RFC 1928 section 3: the version, and the methods "no authentication required" and "username/password".
const VERSION: u8 = 5;
const NO_CREDENTIALS: u8 = 0;
const PASSWORD: u8 = 2;

/// RFC 1929 section 2: the version of the subnegotiation.
const PASSWORD_VERSION: u8 = 1;

/// RFC 1928 sections 4 and 5.
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

pub(crate) struct Socks5 {
    /// The messages after the first, kept until their turn.
    password: Option<Vec<u8>>,
    request: Vec<u8>,
    /// The message that is being sent, and how much of it was.
    message: Vec<u8>,
    sent: usize,
    /// The answer so far.
    answer: Vec<u8>,
    stage: Stage,
}

/// The answer that is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Method,
    Password,
    Reply,
    Done,
    Refused(Refused),
}

impl Socks5 {
    pub(super) fn new(target: &Target, credentials: Option<&Credentials>) -> Self {
        let message = match credentials {
            Some(_) => vec![VERSION, 2, NO_CREDENTIALS, PASSWORD],
            None => vec![VERSION, 1, NO_CREDENTIALS],
        };
        let password = credentials.map(|credentials| {
            let mut message = vec![PASSWORD_VERSION];
            for part in [credentials.user(), credentials.password()] {
                push_counted(&mut message, part);
            }
            message
        });
        let request = request(target);
        let (answer, stage) = (Vec::new(), Stage::Method);
        Self { password, request, message, sent: 0, answer, stage }
    }

    pub(super) fn next(&self) -> Next<'_> {
        match self.stage {
            Stage::Done => Next::Done,
            Stage::Refused(why) => Next::Refused(why),
            _ => match self.message.get(self.sent..) {
                Some(rest) if !rest.is_empty() => Next::Send(rest),
                _ => Next::Receive,
            },
        }
    }

    pub(super) fn note_sent(&mut self, n: usize) {
        self.sent = self.message.len().min(self.sent + n);
    }

    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while self.next() == Next::Receive {
            let rest = bytes.get(taken..).unwrap_or_default();
            let part = rest.get(..self.lacks().min(rest.len())).unwrap_or_default();
            if part.is_empty() {
                break;
            }
            self.answer.extend_from_slice(part);
            taken += part.len();
            if let Some(stage) = self.read() {
                self.stage = stage;
            }
        }
        taken
    }

    pub(super) fn end(&mut self) {
        self.stage = Stage::Refused(Refused::Broken);
    }

    /// Bytes that the awaited answer has at least, beyond those that are there.
    fn lacks(&self) -> usize {
        let all = match (self.stage, self.answer.get(..5)) {
            (Stage::Method | Stage::Password, _) => 2,
            (_, None) if self.answer.len() < 2 => 2,
            (_, None) if self.answer.len() < 4 => 4,
            (_, None) => 5,
            (_, Some(&[.., IPV4, _])) => 10,
            (_, Some(&[.., IPV6, _])) => 22,
            (_, Some(&[.., len])) => 7 + usize::from(len),
            (_, Some(_)) => 5,
        };
        all.saturating_sub(self.answer.len())
    }

    /// The stage after the answer, if that is whole.
    fn read(&mut self) -> Option<Stage> {
        let broken = Some(Stage::Refused(Refused::Broken));
        match (self.stage, self.answer.as_slice()) {
            (Stage::Method, &[VERSION, NO_CREDENTIALS]) => Some(self.ask()),
            (Stage::Method, &[VERSION, PASSWORD]) => match self.password.take() {
                Some(message) => {
                    self.say(message);
                    Some(Stage::Password)
                }
                // The method was not offered.
                None => broken,
            },
            // RFC 1928 section 3: "NO ACCEPTABLE METHODS".
            (Stage::Method, &[VERSION, 0xff]) => Some(Stage::Refused(Refused::Credentials)),
            (Stage::Method, &[_, _]) => broken,
            // RFC 1929 section 2: "A STATUS field of X'00' indicates success."
            (Stage::Password, &[PASSWORD_VERSION, 0]) => Some(self.ask()),
            (Stage::Password, &[PASSWORD_VERSION, _]) => Some(Stage::Refused(Refused::Credentials)),
            (Stage::Password, &[_, _]) => broken,
            (Stage::Reply, &[VERSION, 0, ..]) => match self.answer.as_slice() {
                [_, _, _, IPV4 | IPV6 | NAME, _, ..] if self.lacks() == 0 => Some(Stage::Done),
                [_, _, _, IPV4 | IPV6 | NAME, ..] | [] | [_] | [_, _] | [_, _, _] => None,
                _ => broken,
            },
            (Stage::Reply, &[VERSION, reply, ..]) => Some(Stage::Refused(refused(reply))),
            (Stage::Reply, &[_, _, ..]) => broken,
            _ => None,
        }
    }

    /// Asks for the connection.
    fn ask(&mut self) -> Stage {
        let request = std::mem::take(&mut self.request);
        self.say(request);
        Stage::Reply
    }

    fn say(&mut self, message: Vec<u8>) {
        (self.message, self.sent) = (message, 0);
        self.answer.clear();
    }
}

impl fmt::Debug for Socks5 {
    /// Without the messages: one has the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socks5").field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// RFC 1928 section 4: "The SOCKS request".
fn request(target: &Target) -> Vec<u8> {
    let mut message = vec![VERSION, CONNECT, 0];
    match &target.host {
        TargetHost::Address(IpAddr::V4(v4)) => {
            message.push(IPV4);
            message.extend(v4.octets());
        }
        TargetHost::Address(IpAddr::V6(v6)) => {
            message.push(IPV6);
            message.extend(v6.octets());
        }
        TargetHost::Name(name) => {
            message.push(NAME);
            push_counted(&mut message, name.as_str().as_bytes());
        }
    }
    message.extend(target.port.to_be_bytes());
    message
}

/// Appends at most 255 bytes behind their number. Names and credentials have no more.
fn push_counted(message: &mut Vec<u8>, bytes: &[u8]) {
    let len = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    message.push(len);
    message.extend_from_slice(bytes.get(..len.into()).unwrap_or_default());
}

/// RFC 1928 section 6: the reply field.
fn refused(reply: u8) -> Refused {
    match reply {
        2 => Refused::Prohibited,
        3 => Refused::NetUnreachable,
        5 => Refused::Destination,
        // "Command not supported", "Address type not supported".
        7 | 8 => Refused::Prohibited,
        // "General SOCKS server failure", "Host unreachable", "TTL expired", and what is not assigned.
        _ => Refused::HostUnreachable,
    }
}
