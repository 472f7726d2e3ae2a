//! [`Vias`]: which flows go by a proxy, and what the proxy is told.

use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::{Handshake, Proxy, ProxyError, ProxyUrl, Target, TargetHost};
use crate::limits::VIAS;
use crate::policy::{Pattern, Proof, Rule, RuleError};
use crate::request::{Ask, Direction, Name};

/// A choice of the way out, written `[RULE=]URL` or `RULE=direct`: flows that the rule matches go by the proxy of the
/// URL, or by none. Without a rule the choice is for all flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// The flows; `None`: all.
    pub rule: Option<Rule>,
    /// The proxy; `None`: these flows go to their destinations themselves.
    pub proxy: Option<ProxyUrl>,
}

/// Why a text is no [`Via`]. The texts repeat nothing of a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViaError {
    /// The rule cannot be read.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The rule has a prefix of those that ask for proof.
    #[error(
        "a rule for a proxy has no prefix and no rate: the way is chosen before a connection shows anything"
    )]
    Proof,
    /// The URL cannot be read.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl FromStr for Via {
    type Err = ViaError;

    fn from_str(text: &str) -> Result<Self, ViaError> {
        let (rule, to) = match text.split_once('=') {
            Some((rule, to)) if !rule.contains("://") => (Some(rule), to),
            _ => (None, text),
        };
        let rule = rule.map(str::parse::<Rule>).transpose()?;
        if rule.as_ref().is_some_and(|rule| {
            rule.proof != Proof::default() || rule.direction == Direction::In || rule.rate.is_some()
        }) {
            return Err(ViaError::Proof);
        }
        let proxy = if to == "direct" { None } else { Some(to.parse()?) };
        Ok(Self { rule, proxy })
    }
}

/// The ways of flows: the first that matches counts. A flow that none matches goes to its destination itself.
///
/// A rule by name looks at the latest name that the gateway's resolver gave the guest for the address. Only TCP goes by
/// a proxy: datagrams and echo requests for which a proxy is chosen are prohibited, so that none goes another way.
/// Destinations that the gateway's settings have led to a loopback address of this machine need no way.
///
/// The proxy is told a name, if the flow has one that rules permit, and else the address. Where an address is what
/// rules permit, the proxy is told the address: a name could lead it elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Vias(Vec<(Option<Rule>, Option<Arc<Proxy>>)>);

impl Vias {
    /// Adds a way, behind the others: flows of the rule, or all, go by this proxy, or by none.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn add(mut self, rule: Option<Rule>, proxy: Option<Arc<Proxy>>) -> Result<Self, RuleError> {
        self.0.push((rule, proxy));
        match self.0.len() {
            given if given > VIAS => Err(RuleError::TooMany { given }),
            _ => Ok(self),
        }
    }

    /// Whether a rule is about this machine's own addresses.
    pub(crate) fn asks_for_ours(&self) -> bool {
        let asks = |rule: &Rule| rule.what == Pattern::Host;
        self.0.iter().any(|(rule, _)| rule.as_ref().is_some_and(asks))
    }

    /// Whether all flows go to their destinations themselves.
    pub(crate) fn is_direct(&self) -> bool {
        self.0.iter().all(|(_, proxy)| proxy.is_none())
    }

    /// The way of a flow that leads to `to`. `name`: what the proxy is told in place of the address.
    pub(crate) fn way(&self, ask: &Ask, to: SocketAddr, name: Option<&Name>) -> Way {
        if to.ip().is_loopback() {
            return Way::Direct;
        }
        let latest = name.or_else(|| ask.names.first().filter(|_| to == ask.to));
        let ask = Ask { to, names: latest.cloned().into_iter().collect(), ..ask.clone() };
        let matches = |rule: &Option<Rule>| rule.as_ref().is_none_or(|rule| rule.matches(&ask));
        let found = self.0.iter().find(|(rule, _)| matches(rule));
        let Some(proxy) = found.and_then(|(_, proxy)| proxy.clone()) else { return Way::Direct };
        let host = match name {
            Some(name) => TargetHost::Name(name.clone()),
            None => TargetHost::Address(to.ip()),
        };
        Way::Proxy(Route { proxy, target: Target { host, port: to.port() } })
    }
}

/// The way of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Direct,
    Proxy(Route),
}

/// A proxy, and the destination that it is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) target: Target,
}

impl Route {
    /// The request for the connection.
    pub(crate) fn handshake(&self) -> Handshake {
        let Proxy { kind, credentials, .. } = &*self.proxy;
        Handshake::new(*kind, &self.target, credentials.as_ref())
    }

    /// An address of the proxy, the first attempt being 0.
    pub(crate) fn peer(&self, attempt: usize) -> Option<SocketAddr> {
        self.proxy.addresses.get(attempt).copied()
    }
}
