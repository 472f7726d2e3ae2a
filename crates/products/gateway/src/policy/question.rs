//! [`Question`]: a flow as text, about which rules are asked when there is no guest.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use pagewire::Cidr;

use super::rules::{Decision, Pattern, Ports, Proof, Rule, RuleError, Rules};
use crate::request::{Ask, Direction, GuestId, Name, Protocol, Verdict};

/// The address of a name whose address the text does not say: one on the Internet, of documentation (RFC 5737).
const SOMEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// A port of clients, which no rule is about.
const CLIENT_PORT: u16 = 40_000;

/// A flow that might ask for permission; written `HOST:PORT[/PROTOCOL]`, for TCP if there is no protocol.
///
/// `HOST` is an address, a name, or both as `NAME@ADDRESS`. A name without an address has one on the Internet,
/// 198.51.100.1. `host` is an address of the gateway's own machine. With `from:` in front `HOST` is the
/// address of a client, and `PORT` is the guest's. `icmp` has no port.
///
/// ```
/// use pagewire_gateway::{Question, Reason, Rules};
///
/// let rules = Rules::default().allow("*.debian.org:443".parse()?);
/// let question: Question = "deb.debian.org:80".parse()?;
/// assert_eq!(question.answer(&rules).reason, Reason::NotPermitted);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    ask: Ask,
    text: String,
}

/// Why a text is no question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// A part is none that rules have.
    #[error(transparent)]
    Part(#[from] RuleError),
    /// The text is about more than one host, port or protocol, or about none.
    #[error(
        "'{0}': ask as in example.org:443, 10.1.2.3:53/udp, NAME@ADDRESS:PORT or 10.1.2.3/icmp"
    )]
    Shape(String),
}

impl Question {
    /// The flow, as a guest without a number would ask for it.
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    /// The decision of these rules. A name that may not be asked for is a refusal, because the guest gets no address.
    pub fn answer(&self, rules: &Rules) -> Decision {
        let refusal = |name: &Name| rules.refusal_of_name(name);
        match self.ask.names.first().and_then(refusal) {
            Some(reason) => Decision { verdict: Verdict::Prohibit, reason },
            None => rules.decide(&self.ask),
        }
    }
}

impl FromStr for Question {
    type Err = QuestionError;

    fn from_str(text: &str) -> Result<Self, QuestionError> {
        let shape = || QuestionError::Shape(text.into());
        let (name, rest) = match text.split_once('@') {
            Some((name, rest)) => (Some(name.parse::<Rule>()?), rest),
            None => (None, text),
        };
        let rule: Rule = rest.parse()?;
        let name = match name {
            None => None,
            Some(Rule { what: Pattern::Name(glob), ports: None, protocol: None, .. }) => {
                Some(glob.name().ok_or_else(shape)?)
            }
            Some(_) => return Err(shape()),
        };
        let (name, address) = match (&rule.what, name) {
            (Pattern::Net(net), name) if *net == Cidr::host(net.addr()) => (name, net.addr()),
            (Pattern::Name(glob), None) => (Some(glob.name().ok_or_else(shape)?), SOMEWHERE),
            (Pattern::Host, None) if rule.direction == Direction::Out => (None, SOMEWHERE),
            _ => return Err(shape()),
        };
        let protocol = rule.protocol.unwrap_or(Protocol::Tcp);
        let port = match rule.ports {
            Some(Ports { first, last }) if first == last && first > 0 => first,
            None if protocol == Protocol::Echo => 0,
            _ => return Err(shape()),
        };
        if rule.proof != Proof::Shown || (name.is_some() && rule.direction == Direction::In) {
            return Err(shape());
        }
        let nowhere: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let (from, to) = match rule.direction {
            Direction::Out => (SocketAddr::new(nowhere, 0), SocketAddr::new(address, port)),
            Direction::In => {
                (SocketAddr::new(address, CLIENT_PORT), SocketAddr::new(nowhere, port))
            }
        };
        let mut ask = Ask::new(GuestId(0), protocol, from, to);
        ask.direction = rule.direction;
        ask.names = name.into_iter().collect();
        ask.ours = rule.what == Pattern::Host;
        Ok(Self { ask, text: text.into() })
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
