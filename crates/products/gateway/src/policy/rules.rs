//! [`Rules`]: pure decisions from addresses, ports, protocols and names. Read [`Rules::judge`] first.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::LazyLock;

use pagewire::Cidr;

use super::idna;
use crate::limits::RULES;
use crate::request::{Ask, Demand, Direction, Judge, Name, Protocol, Shown, ShownBy, Verdict};

/// The destinations that guests may reach. The order of decisions: addresses that no guest reaches unless a rule
/// names them (loopback, link-local and metadata addresses), denials, permissions; if there are permissions, they
/// are all that is permitted.
///
/// A permission by name is for addresses on the Internet: whoever has the name chooses its addresses,
/// so it opens neither private networks nor this machine's own addresses. Those need a permission by
/// address, or a name that the gateway was [given](crate::Builder::names) itself. A connection that only
/// a name permits must show the name ([`Proof`]).
///
/// Rules of direction [`In`](Direction::In) are about clients of the guest's published ports. The two directions
/// have nothing to do with each other: a permission for clients closes nothing to guests.
///
/// ```
/// use pagewire_gateway::Rules;
///
/// let rules = Rules::default()
///     .allow("*.debian.org:443/tcp".parse()?)
///     .allow("192.168.7.0/24".parse()?)
///     .deny("192.168.7.1".parse()?);
/// assert!(rules.resolves(&"deb.debian.org".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    allow: Vec<Rule>,
    /// Denials, each with the guest's answer.
    deny: Vec<(Rule, Verdict)>,
    /// Permissions and denials for clients of published ports.
    clients: Vec<Rule>,
    denied_clients: Vec<(Rule, Verdict)>,
    /// Addresses that stand for others, such as the host's loopback address.
    mapped: Vec<(IpAddr, IpAddr)>,
    /// Prefixes behind which the network translates to IPv4.
    translators: Vec<Cidr>,
    /// Nothing is permitted but what a permission names, be there none.
    restricted: bool,
    /// The same of clients of published ports.
    clients_restricted: bool,
    /// What these rules refuse is written down, and goes on.
    audit: bool,
    offline: bool,
}

impl Rules {
    /// Forbids everything, names included.
    pub fn offline() -> Self {
        Self { offline: true, ..Self::default() }
    }

    /// Permits what the rule matches. From the first one on, nothing else is permitted in the rule's direction.
    #[must_use]
    pub fn allow(mut self, rule: Rule) -> Self {
        match rule.direction {
            Direction::Out => {
                self.restricted = true;
                self.allow.push(rule);
            }
            Direction::In => {
                self.clients_restricted = true;
                self.clients.push(rule);
            }
        }
        self
    }

    /// Permits nothing but what permissions name, be there none.
    #[must_use]
    pub fn restrict(mut self) -> Self {
        self.restricted = true;
        self
    }

    /// Permits nothing but what permissions name where `other` does so, be there none: for rules that take the place of
    /// others, whose file may be cut off.
    #[must_use]
    pub fn restrict_like(mut self, other: &Self) -> Self {
        self.restricted |= other.restricted;
        self.clients_restricted |= other.clients_restricted;
        self
    }

    /// Whether no client of published ports is permitted but those that a permission names.
    pub fn are_clients_restricted(&self) -> bool {
        self.clients_restricted || self.offline
    }

    /// Has flows and names that these rules refuse be written down ([`Record::Audit`](crate::Record::Audit)), and go on.
    /// Refused are still addresses that no guest reaches unless a rule names them.
    #[must_use]
    pub fn audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Whether what these rules refuse goes on.
    pub fn is_audit(&self) -> bool {
        self.audit
    }

    /// Rules with the same mappings and translators, and no permission and no denial.
    pub(crate) fn opened(&self) -> Self {
        let (mapped, translators) = (self.mapped.clone(), self.translators.clone());
        Self { mapped, translators, ..Self::default() }
    }

    /// Takes all permissions and denials back that are equal to the rule. Where permissions were given, nothing but what
    /// others name is permitted from then on, be there none.
    #[must_use]
    pub fn without(mut self, rule: &Rule) -> Self {
        for permissions in [&mut self.allow, &mut self.clients] {
            permissions.retain(|other| other != rule);
        }
        for denials in [&mut self.deny, &mut self.denied_clients] {
            denials.retain(|(other, _)| other != rule);
        }
        self
    }

    /// The permissions, in their order.
    pub fn permissions(&self) -> impl Iterator<Item = &Rule> {
        self.allow.iter().chain(&self.clients)
    }

    /// The denials with the guest's answers, in their order.
    pub fn prohibitions(&self) -> impl Iterator<Item = (&Rule, Verdict)> {
        self.deny.iter().chain(&self.denied_clients).map(|(rule, answer)| (rule, *answer))
    }

    /// Whether nothing is permitted to the guest but what a permission names.
    pub fn is_restricted(&self) -> bool {
        self.restricted || self.offline
    }

    /// Forbids what the rule matches, whatever is permitted.
    #[must_use]
    pub fn deny(self, rule: Rule) -> Self {
        self.deny_with(rule, Verdict::Prohibit)
    }

    /// As [`deny`](Self::deny), with the guest's answer: [`Verdict::Refuse`], [`Verdict::Prohibit`],
    /// [`Verdict::Unreachable`] or [`Verdict::Drop`]. Any other verdict counts as `Prohibit`.
    #[must_use]
    pub fn deny_with(mut self, rule: Rule, answer: Verdict) -> Self {
        let answer = match answer {
            Verdict::Allow | Verdict::To(_) => Verdict::Prohibit,
            denial => denial,
        };
        match rule.direction {
            Direction::Out => self.deny.push((rule, answer)),
            Direction::In => self.denied_clients.push((rule, answer)),
        }
        self
    }

    /// Connections to `address` go to `to` instead, usually 127.0.0.1 of the gateway's machine,
    /// which this alone permits; `address` may be link-local, which is otherwise closed. Permissions are about `address`: `to` itself stays as closed as it
    /// was. A denial of `to` holds for both.
    #[must_use]
    pub fn map(mut self, address: IpAddr, to: IpAddr) -> Self {
        self.mapped.push((address, to));
        self
    }

    /// Addresses within `prefix` lead to IPv4 addresses, because the network has a translator (NAT64) with
    /// a prefix of its own: they are judged as those, too.
    #[must_use]
    pub fn nat64(mut self, prefix: Cidr) -> Self {
        self.translators.push(prefix);
        self
    }

    /// Checks the number of rules, each of which is compared with each new connection, and the prefixes of
    /// translators.
    ///
    /// # Errors
    /// `TooMany`, `Nat64`.
    pub fn checked(self) -> Result<Self, RuleError> {
        let rules = self.allow.len() + self.deny.len();
        let of_clients = self.clients.len() + self.denied_clients.len();
        let given = rules + of_clients + self.mapped.len() + self.translators.len();
        if given > RULES {
            return Err(RuleError::TooMany { given });
        }
        let is_wrong =
            |prefix: &&Cidr| !prefix.addr().is_ipv6() || !LENGTHS.contains(&prefix.prefix());
        match self.translators.iter().find(is_wrong) {
            Some(prefix) => Err(RuleError::Nat64(prefix.to_string())),
            None => Ok(self),
        }
    }

    /// The IPv4 addresses to which the address may lead.
    fn translated(&self, addr: IpAddr) -> impl Iterator<Item = IpAddr> {
        let here = self.translators.iter().filter(move |prefix| prefix.contains(addr));
        let here = here.filter_map(move |prefix| match addr {
            IpAddr::V6(v6) => embedded(v6, prefix.prefix()),
            IpAddr::V4(_) => None,
        });
        here.map(IpAddr::from).chain(translated(addr))
    }

    /// Whether the address is of a private network, also behind a translator.
    fn is_private(&self, addr: IpAddr) -> bool {
        let mut all = self.translated(addr).chain([addr]);
        all.any(|addr| PRIVATE.iter().any(|range| range.contains(addr)))
    }

    /// Whether the rule permits the flow: as [`Rule::matches`], but a name that strangers chose does not lead
    /// into private networks, nor to the gateway's machine, be it by an address that is mapped there.
    fn permits(&self, rule: &Rule, ask: &Ask) -> bool {
        match &rule.what {
            Pattern::Name(glob)
                if ask.ours
                    || self.is_private(ask.to.ip())
                    || self.mapped.iter().any(|(address, _)| *address == ask.to.ip()) =>
            {
                rule.matches_service(ask) && ask.given.iter().any(|name| glob.matches(name))
            }
            _ => rule.matches(ask),
        }
    }

    /// Whether the rule denies the flow, its destination behind a translator, or a name that the address once had.
    fn denies(&self, rule: &Rule, ask: &Ask) -> bool {
        let leads_to = |net: &Cidr| self.translated(ask.to.ip()).any(|inner| net.contains(inner));
        let elsewhere = match &rule.what {
            Pattern::Net(net) => leads_to(net),
            Pattern::Name(glob) => glob.is_any() || ask.once.iter().any(|name| glob.matches(name)),
            Pattern::Host => false,
        };
        rule.matches(ask) || (elsewhere && rule.matches_service(ask))
    }

    fn denials(&self) -> impl Iterator<Item = &Rule> {
        self.deny.iter().map(|(rule, _)| rule)
    }

    /// Whether some rule is about names.
    pub(crate) fn has_names(&self) -> bool {
        let named = |rule: &Rule| matches!(rule.what, Pattern::Name(_));
        self.offline || self.allow.iter().chain(self.denials()).any(named)
    }

    /// The verdict.
    pub fn judge(&self, ask: &Ask) -> Verdict {
        self.decide(ask).verdict
    }

    /// The verdict and its reason.
    pub fn decide(&self, ask: &Ask) -> Decision {
        let forbidden = |reason| Decision { verdict: Verdict::Prohibit, reason };
        if self.offline {
            return forbidden(Reason::Offline);
        }
        if ask.direction == Direction::In {
            return self.decide_client(ask);
        }
        let to = ask.to.ip();
        if is_no_host(to) {
            return forbidden(Reason::NoHost);
        }
        if self.translated(to).any(|inner| is_no_host(inner) || is_closed(inner)) {
            return forbidden(Reason::Closed);
        }
        // A mapping leads to its target and no further.
        let mapped = self.mapped.iter().find(|(address, _)| *address == to && !ask.mapped);
        // The target of a mapping was judged as the mapped address, and the mapping names that.
        let permitted = |rule: &&Rule| self.permits(rule, ask);
        let opened = |range: &Cidr| {
            ask.mapped
                || mapped.is_some()
                || self.allow.iter().filter(permitted).any(|rule| rule.lies_in(range))
        };
        if CLOSED.iter().any(|range| range.contains(to) && !opened(range)) {
            return forbidden(Reason::Closed);
        }
        let mut denials = self.deny.iter().enumerate();
        if let Some((n, (_, answer))) = denials.find(|(_, (rule, _))| self.denies(rule, ask)) {
            return Decision { verdict: *answer, reason: Reason::Denial(n) };
        }
        let reason = match self.permission_for(ask) {
            _ if ask.mapped => Reason::Mapped,
            Some((n, _)) => Reason::Permission(n),
            None if self.restricted => return forbidden(Reason::NotPermitted),
            None => Reason::Open,
        };
        let target = |(_, to): &(_, IpAddr)| Verdict::To(SocketAddr::new(*to, ask.to.port()));
        Decision { verdict: mapped.map_or(Verdict::Allow, target), reason }
    }

    /// The decision about a client of a published port.
    fn decide_client(&self, ask: &Ask) -> Decision {
        let mut denials = self.denied_clients.iter().enumerate();
        if let Some((n, (_, answer))) = denials.find(|(_, (rule, _))| rule.matches(ask)) {
            return Decision { verdict: *answer, reason: Reason::Denial(n) };
        }
        let permission = self.clients.iter().position(|rule| rule.matches(ask));
        let (verdict, reason) = match permission {
            Some(n) => (Verdict::Allow, Reason::Permission(n)),
            None if !self.clients_restricted => (Verdict::Allow, Reason::Open),
            None => (Verdict::Prohibit, Reason::NotPermitted),
        };
        Decision { verdict, reason }
    }

    /// The permissions that permit a flow of the guest, with their numbers.
    fn permitting(&self, ask: &Ask) -> impl Iterator<Item = (usize, &Rule)> {
        self.allow.iter().enumerate().filter(move |(_, rule)| self.permits(rule, ask))
    }

    /// The permission that decides about a flow of the guest: one that asks for no proof of a name, else the first.
    fn permission_for(&self, ask: &Ask) -> Option<(usize, &Rule)> {
        let mut first = None;
        for found in self.permitting(ask) {
            if !found.1.asks_for_proof() {
                return Some(found);
            }
            first = first.or(Some(found));
        }
        first
    }

    /// The number of the permission whose rate a flow has that was permitted, by what it shows if rules ask for that.
    pub(crate) fn rated(&self, ask: &Ask, shown: Option<&Shown>) -> Option<usize> {
        let accepts = |rule: &Rule| match shown {
            Some(shown) if rule.asks_for_proof() => {
                rule.proof.accepts(shown.by)
                    && (shown.by == ShownBy::Ssh
                        || shown.name.as_ref().is_some_and(|name| rule.has_name(name)))
            }
            _ => true,
        };
        let found = match shown {
            Some(_) if !self.permits_by_address(ask) => {
                self.permitting(ask).find(|(_, rule)| accepts(rule))
            }
            _ => self.permission_for(ask),
        };
        found.filter(|(_, rule)| rule.rate.is_some()).map(|(n, _)| n)
    }

    /// The speeds of permissions, by their numbers.
    pub(crate) fn speeds(&self) -> impl Iterator<Item = (usize, Speed)> {
        self.allow.iter().enumerate().filter_map(|(n, rule)| Some((n, rule.rate?)))
    }

    /// The numbers of the permissions by one of which a flow may go on if it shows what the permission asks for;
    /// empty: it may show what it likes.
    pub fn proofs(&self, ask: &Ask) -> Vec<usize> {
        match self.demand(ask) {
            Demand::PermittedName => self.permitting(ask).map(|(n, _)| n).collect(),
            Demand::Nothing | Demand::NoDeniedName => Vec::new(),
        }
    }

    /// The demand on a flow that these rules permit.
    pub(crate) fn demand(&self, ask: &Ask) -> Demand {
        if ask.direction == Direction::In || ask.mapped || ask.protocol == Protocol::Echo {
            return Demand::Nothing;
        }
        if self.restricted && !self.permits_by_address(ask) {
            return Demand::PermittedName;
        }
        let denies = || self.named_denials().any(|rule| rule.matches_service(ask));
        let may_be_denied = ask.protocol == Protocol::Tcp && denies();
        if may_be_denied { Demand::NoDeniedName } else { Demand::Nothing }
    }

    /// Whether a permission has the flow that asks for no proof of a name.
    fn permits_by_address(&self, ask: &Ask) -> bool {
        self.permission_for(ask).is_some_and(|(_, rule)| !rule.asks_for_proof())
    }

    /// Whether the flow, which [`judge`](Self::judge) permits, may go on with what it shows.
    pub(crate) fn permits_shown(&self, ask: &Ask, shown: &Shown) -> bool {
        let denies = |rule: &Rule, name| rule.matches_service(ask) && rule.has_name(name);
        if shown.name.as_ref().is_some_and(|name| self.denials().any(|rule| denies(rule, name))) {
            return false;
        }
        if !self.restricted {
            return true;
        }
        let is_shown = |name: &&Name| shown.name.as_ref() == Some(*name);
        let mut led = Cow::Borrowed(ask);
        if shown.by != ShownBy::Ssh && !ask.names.iter().all(|name| is_shown(&name)) {
            // The flow leads to the name's addresses, and not to another server's by the same rule.
            let led = led.to_mut();
            led.names = led.names.iter().filter(is_shown).cloned().collect();
            led.given = led.given.iter().filter(is_shown).cloned().collect();
        }
        let is_of_name = |rule: &&Rule| matches!(rule.what, Pattern::Name(_));
        let mut accepting =
            self.allow.iter().filter(is_of_name).filter(|rule| rule.proof.accepts(shown.by));
        accepting.any(|rule| self.permits(rule, &led)) || self.permits_by_address(ask)
    }

    /// The name by which others may be asked for the destination of a flow that these rules permit: the latest that
    /// permits it. `None`: an address permits it, or the gateway's settings gave the name, which others do not know.
    pub(crate) fn name_for<'a>(&self, ask: &'a Ask) -> Option<&'a Name> {
        let permits = |name: &Name| {
            let ask = Ask { names: [name.clone()].into(), ..ask.clone() };
            let of_name = |rule: &&Rule| matches!(rule.what, Pattern::Name(_));
            self.allow.iter().filter(of_name).any(|rule| self.permits(rule, &ask))
        };
        let mut names = ask.names.iter().filter(|name| name.is_host_name());
        names.find(|name| !ask.given.contains(name) && (self.allow.is_empty() || permits(name)))
    }

    /// The permission to offer for a flow that was refused, perhaps for what it shows.
    pub(crate) fn hint(&self, ask: &Ask, shown: Option<&Shown>) -> Option<Rule> {
        let by_shown = shown.and_then(|shown| self.permission_of_shown(ask, shown));
        by_shown.or_else(|| self.permission(ask, shown))
    }

    /// A permission of the name that a refused flow shows, if the rules permit no such flow to that name's addresses.
    fn permission_of_shown(&self, ask: &Ask, shown: &Shown) -> Option<Rule> {
        // The clear name of an encrypted ClientHello need not be that of the server.
        let is_true = shown.by != ShownBy::EncryptedHello;
        let name = shown.name.as_ref().filter(|name| is_true && !ask.names.contains(name))?;
        let led = Ask { names: [name.clone()].into(), given: [].into(), ..ask.clone() };
        let rule = self.permission(&led, Some(shown))?;
        let is_new = !self.permits_shown(&led, shown);
        (is_new && rule.asks_for_proof()).then_some(rule)
    }

    /// A permission that would let the flow go on, be it with what it shows. `None`: a denial forbids it, or there is no
    /// permission yet, and the first would forbid everything else.
    pub(crate) fn permission(&self, ask: &Ask, shown: Option<&Shown>) -> Option<Rule> {
        if ask.direction == Direction::In {
            return self.permission_of_client(ask);
        }
        let ports = (ask.protocol != Protocol::Echo)
            .then_some(Ports { first: ask.to.port(), last: ask.to.port() });
        let named = |name: &Name, proof: Proof| {
            let of_protocol = !matches!(proof, Proof::Shown | Proof::Encrypted);
            let protocol = of_protocol.then_some(ask.protocol);
            let what = Pattern::Name(Glob(name.as_str().into()));
            Rule { what, ports, protocol, proof, direction: Direction::Out, rate: None }
        };
        let shows = shown.and_then(|shown| shown.name.as_ref());
        let proof = match shown.map(|shown| shown.by) {
            None | Some(ShownBy::Tls | ShownBy::Http | ShownBy::Quic) => Proof::Shown,
            Some(ShownBy::Ssh) => Proof::Ssh,
            Some(ShownBy::EncryptedHello) if shows.is_some() => Proof::Encrypted,
            Some(ShownBy::EncryptedHello | ShownBy::Unknown) => Proof::Address,
        };
        // The name that the flow shows, if its address is that name's; without one, the name asked for last.
        let name = shows.or(ask.names.first()).filter(|name| ask.names.contains(name));
        let by_proof = name.map(|name| named(name, proof));
        // An address opens all its names, and the resolver for all names: better a name by its address.
        let is_named = ask.protocol != Protocol::Echo;
        let by_name = ask.names.iter().filter(|_| is_named).map(|name| named(name, Proof::Address));
        let net = Pattern::Net(Cidr::host(ask.to.ip()));
        let by_address = Rule { ports, protocol: Some(ask.protocol), ..Rule::of(net) };
        let permits = |rule: &Rule| {
            let rules = self.clone().allow(rule.clone());
            let judged = matches!(rules.judge(ask), Verdict::Allow | Verdict::To(_));
            judged && shown.is_none_or(|shown| rules.permits_shown(ask, shown))
        };
        let all = by_proof.into_iter().chain(by_name).chain([by_address]);
        all.filter(|rule| self.restricted && rule.is_as_written()).find(permits)
    }

    fn permission_of_client(&self, ask: &Ask) -> Option<Rule> {
        let port = ask.to.port();
        let rule = Rule {
            ports: Some(Ports { first: port, last: port }),
            protocol: Some(ask.protocol),
            direction: Direction::In,
            ..Rule::of(Pattern::Net(Cidr::host(client(ask))))
        };
        let permits = || self.clone().allow(rule.clone()).judge(ask) == Verdict::Allow;
        let is_one = self.clients_restricted && permits();
        is_one.then_some(rule)
    }

    /// A permission that would let the name be asked for; `None` as of [`permission`](Self::permission).
    pub(crate) fn permission_of_name(&self, name: &Name) -> Option<Rule> {
        let what = Pattern::Name(Glob(name.as_str().into()));
        let rule = Rule::of(what);
        let opens = || self.clone().allow(rule.clone()).resolves(name);
        let permits = self.restricted && rule.is_as_written() && opens();
        permits.then_some(rule)
    }

    /// Whether the name may be asked for: no denial of all its ports has it, and if permissions
    /// are given and all of them are names, one has it.
    pub fn resolves(&self, name: &Name) -> bool {
        self.refusal_of_name(name).is_none()
    }

    /// The reason for which the name may not be asked for; `None`: it [may](Self::resolves).
    pub fn refusal_of_name(&self, name: &Name) -> Option<Reason> {
        let has = |rule: &Rule| rule.has_name(name);
        let names_only = self.allow.iter().all(|rule| matches!(rule.what, Pattern::Name(_)));
        let denial = self.denials().position(|rule| rule.is_of_all_ports() && has(rule));
        match denial {
            _ if self.offline => Some(Reason::Offline),
            Some(n) => Some(Reason::Denial(n)),
            None if !self.restricted || !names_only || self.allow.iter().any(has) => None,
            None => Some(Reason::NotPermitted),
        }
    }
}

/// A verdict of [`Rules`] and its reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The reason.
    pub reason: Reason,
}

/// The reason of a decision. Rules have numbers from 0, in the order in which they were given: permissions and denials
/// of each [`Direction`] by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Everything is forbidden.
    Offline,
    /// The address is no host's.
    NoHost,
    /// The address is closed (loopback, link-local, metadata), and no permission names it.
    Closed,
    /// The denial of this number.
    Denial(usize),
    /// There are permissions, and none is for this.
    NotPermitted,
    /// The permission of this number.
    Permission(usize),
    /// The rules themselves have redirected the flow.
    Mapped,
    /// There are no permissions: all is permitted that no denial is for.
    Open,
}

impl Rules {
    /// Denials of some names. A denial of all names needs none: it is a denial of every address.
    fn named_denials(&self) -> impl Iterator<Item = &Rule> {
        self.denials().filter(|rule| matches!(&rule.what, Pattern::Name(glob) if !glob.is_any()))
    }

    /// Whether the addresses of some names must be remembered, because denials have these names.
    pub(crate) fn denies_names(&self) -> bool {
        self.named_denials().next().is_some()
    }

    /// Whether the names that connections show count: permissions ask for proofs, names are denied, or all is written down.
    pub(crate) fn ask_for_names(&self) -> bool {
        self.audit || self.allow.iter().any(Rule::asks_for_proof) || self.denies_names()
    }

    /// Whether some denial has this name, be it of a few ports only, and does not have all names.
    pub(crate) fn denies_name(&self, name: &Name) -> bool {
        self.named_denials().any(|rule| rule.has_name(name))
    }

    /// Whether every denial that has `name` has `other`, too.
    pub(crate) fn denies_as_much(&self, other: &Name, name: &Name) -> bool {
        self.named_denials().all(|rule| !rule.has_name(name) || rule.has_name(other))
    }
}

impl Judge for Rules {
    fn judge(&self, ask: &Ask) -> Option<Verdict> {
        Some(self.judge(ask))
    }

    fn asks_for_ours(&self) -> bool {
        self.allow.iter().any(|rule| !matches!(rule.what, Pattern::Net(_)))
            || self.denials().any(|rule| rule.what == Pattern::Host)
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> (IpAddr, u8) {
    (IpAddr::V4(Ipv4Addr::new(a, b, c, d)), prefix)
}

const fn v6(segments: [u16; 8], prefix: u8) -> (IpAddr, u8) {
    let [a, b, c, d, e, f, g, h] = segments;
    (IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), prefix)
}

/// Out of reach unless a permission names a part of the range: the gateway's machine itself, and
/// addresses at which clouds give machines their secrets.
static CLOSED: LazyLock<Vec<Cidr>> = LazyLock::new(|| {
    networks(&[
        v4(127, 0, 0, 0, 8),
        v6([0, 0, 0, 0, 0, 0, 0, 1], 128),
        // Link-local, where most clouds have their metadata service.
        v4(169, 254, 0, 0, 16),
        v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10),
        // Metadata addresses of Azure ("WireServer"), Alibaba Cloud and Oracle Cloud.
        v4(168, 63, 129, 16, 32),
        v4(100, 100, 100, 200, 32),
        v4(192, 0, 0, 192, 32),
        // Metadata addresses of EC2 and Scaleway over IPv6, which have several in one network.
        v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32),
        v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0], 32),
        // Metadata addresses of Google Cloud and Oracle Cloud over IPv6.
        v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128),
        v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128),
    ])
});

/// Addresses of private networks: RFC 1918, RFC 6598 (shared address space), RFC 6890 (IETF protocol
/// assignments), RFC 2544 (measurements), RFC 4193 (unique local addresses), RFC 3879 (site-local
/// addresses, which some still use).
static PRIVATE: LazyLock<Vec<Cidr>> = LazyLock::new(|| {
    networks(&[
        v4(10, 0, 0, 0, 8),
        v4(172, 16, 0, 0, 12),
        v4(192, 168, 0, 0, 16),
        v4(100, 64, 0, 0, 10),
        v4(192, 0, 0, 0, 24),
        v4(198, 18, 0, 0, 15),
        v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10),
        v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7),
    ])
});

fn networks(all: &[(IpAddr, u8)]) -> Vec<Cidr> {
    all.iter().filter_map(|(addr, prefix)| Cidr::new(*addr, *prefix).ok()).collect()
}

fn is_closed(addr: IpAddr) -> bool {
    CLOSED.iter().any(|range| range.contains(addr))
}

/// Lengths of translators' prefixes in bits (RFC 6052 section 2.2).
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// The IPv4 address behind a translator's prefix of this number of bits. RFC 6052 section 2.2: "Bits 64 to 71 of
/// the address are reserved", so the address goes around them.
fn embedded(addr: Ipv6Addr, prefix: u8) -> Option<[u8; 4]> {
    let octets = addr.octets().into_iter().enumerate();
    let mut behind = octets.skip(usize::from(prefix / 8)).filter(|(at, _)| *at != 8);
    let mut next = || behind.next().map(|(_, octet)| octet);
    Some([next()?, next()?, next()?, next()?])
}

/// The IPv4 addresses to which a network with a translator or a tunnel may take a packet to this IPv6
/// address. A guest chooses the address, and we do not know the network: each that it can mean counts.
pub(super) fn translated(addr: IpAddr) -> impl Iterator<Item = IpAddr> {
    let mut found = [None; 4];
    if let IpAddr::V6(v6) = addr {
        let [_, _, _, _, a, b, c, d, .., e, f, g, h] = v6.octets();
        let last = [e, f, g, h];
        match v6.segments() {
            // RFC 6052 section 2.1: the well-known prefix of translators has 96 bits.
            [0x64, 0xff9b, 0, 0, 0, 0, ..] => found[0] = Some(last),
            // RFC 8215: a network may translate by any prefix in there. What begins with zero is the
            // padding of another length, unless all do.
            [0x64, 0xff9b, 1, ..] => {
                let behind = |bits| embedded(v6, bits).filter(|octets| octets[0] != 0);
                found = [48, 56, 64, 96].map(behind);
                if found == [None; 4] {
                    found[0] = Some([0; 4]);
                }
            }
            // 6to4 (RFC 3056 section 2).
            [0x2002, ..] => found[0] = embedded(v6, 16),
            // Teredo (RFC 4380 section 4): the server, and the client with its bits inverted.
            [0x2001, 0, ..] => {
                found = [Some([a, b, c, d]), Some(last.map(|byte| !byte)), None, None];
            }
            // ISATAP (RFC 5214 section 6.1), within any network.
            [_, _, _, _, 0 | 0x200, 0x5efe, ..] => found[0] = Some(last),
            _ => {}
        }
    }
    found.into_iter().flatten().map(IpAddr::from)
}

/// Whether an address is one that no rule opens: no host's address, or another way to write one. A kernel takes
/// 0.0.0.0 for its loopback address.
fn is_no_host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(v4) => v4.octets()[0] == 0 || v4.octets()[0] >= 224,
        // RFC 4291 sections 2.5.5.1 and 2.5.5.2: IPv4 addresses in IPv6 ones, `::` among them.
        IpAddr::V6(v6) => v6.is_multicast() || (v6.to_ipv4().is_some() && !v6.is_loopback()),
    }
}

/// The address of a published port's client. A client by a Unix socket has none of its own, and counts as one of
/// this machine.
fn client(ask: &Ask) -> IpAddr {
    let from = ask.from.ip().to_canonical();
    let is_by_path = ask.from.port() == 0 && from == ask.to.ip() && ask.protocol == Protocol::Tcp;
    match from {
        _ if is_by_path => Ipv4Addr::LOCALHOST.into(),
        // Any client by loopback: a socket that is bound to all addresses is judged once for them.
        IpAddr::V4(v4) if v4.is_unspecified() || v4.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        _ => from,
    }
}

/// A rule: a destination, its ports and its protocol; written `[PREFIX:]WHAT[:PORTS][/PROTOCOL][@SPEED]`.
///
/// `WHAT` is an address, a network (`10.0.0.0/8`), the word `host` for the gateway's own machine,
/// or a name, in which `*` stands for any characters, dots included. A name matches the addresses
/// that the gateway's resolver gave the guest for it, and never an address written as such, but for
/// the name `*` in a denial, which has every address; see [`Rules`] about private networks. The gateway's stack drops what a guest sends to loopback
/// addresses and to IPv6's link-local ones: no rule lets a guest name those itself.
/// A connection that only a name permits must show that name, because servers share addresses; [`Proof`] has the
/// prefixes, which say how. Echo requests show nothing, and reach no server: they need no proof.
/// `PORTS` is a port or a range (`8000-8999`); an IPv6 address in front of it has brackets.
/// `PROTOCOL` is `tcp`, `udp` or `icmp`. Behind a permission, `@SPEED` as in `@10mbit` is its [rate](Self::rate).
///
/// With `from:` in front the rule is about clients of the guest's published ports: `WHAT` is the client's address or
/// network, `PORTS` are the guest's. The loopback addresses of the gateway's machine, and its Unix sockets, are one
/// client: a rule for one of them is for all.
///
/// A name outside of ASCII stands for its form in DNS (IDNA, UTS 46 non-transitional): `bücher.example` is
/// `xn--bcher-kva.example`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The destination.
    pub what: Pattern,
    /// Ports of the destination; `None`: all.
    pub ports: Option<Ports>,
    /// The protocol; `None`: all.
    pub protocol: Option<Protocol>,
    /// The proof of a name that a permission asks for. A denial asks for none.
    pub proof: Proof,
    /// The side that begins the flows: with [`Direction::In`], `what` is the client.
    pub direction: Direction,
    /// Bits a second that all flows share which a permission permits, in each direction; `None`: no limit.
    pub rate: Option<Speed>,
}

/// A number of bits a second, 8,000 at least; written with `bit`, `kbit`, `mbit` or `gbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed(u64);

/// The units of a speed, the largest first.
const UNITS: [(&str, u64); 4] =
    [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];

/// The least speed: a thousand bytes a second.
const LEAST_SPEED: u64 = 8000;

impl Speed {
    /// The number of bits a second.
    pub fn bits(self) -> u64 {
        self.0
    }
}

impl FromStr for Speed {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Speed(text.into());
        let unit = |(unit, factor): &(&str, u64)| Some((text.strip_suffix(unit)?, *factor));
        let (number, factor) = UNITS.iter().find_map(unit).ok_or_else(wrong)?;
        // `parse` would take a sign.
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse::<u64>().ok().filter(|_| is_number);
        let bits = number.and_then(|number| number.checked_mul(factor));
        bits.filter(|bits| *bits >= LEAST_SPEED).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, u64)| self.0.is_multiple_of(*factor);
        let (unit, factor) = UNITS.iter().find(fits).copied().unwrap_or(("bit", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// The way in which a connection shows the name that permits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Proof {
    /// TLS, HTTP or QUIC must show the name: the rule has no prefix.
    #[default]
    Shown,
    /// `tls:`: TLS must show the name, by the server name of its ClientHello.
    Tls,
    /// `http:`: HTTP must show the name, by the `Host` line of each request.
    Http,
    /// `ech:`: TLS or QUIC must show the name in the clear. The ClientHello may be encrypted (RFC 9849): the server may
    /// find another name in the encrypted part.
    Encrypted,
    /// `ssh:`: the connection must be one of SSH, which shows no name. The address decides.
    Ssh,
    /// `tcp:` and `udp:`: the address decides, which the gateway's resolver gave for the name.
    Address,
}

impl Proof {
    const ALL: [(&'static str, Self, Option<Protocol>); 6] = [
        ("tls:", Self::Tls, Some(Protocol::Tcp)),
        ("http:", Self::Http, Some(Protocol::Tcp)),
        ("ech:", Self::Encrypted, None),
        ("ssh:", Self::Ssh, Some(Protocol::Tcp)),
        ("tcp:", Self::Address, Some(Protocol::Tcp)),
        ("udp:", Self::Address, Some(Protocol::Udp)),
    ];

    /// Whether what a connection shows is this proof.
    fn accepts(self, by: ShownBy) -> bool {
        match self {
            Self::Shown => matches!(by, ShownBy::Tls | ShownBy::Http | ShownBy::Quic),
            Self::Tls => by == ShownBy::Tls,
            Self::Http => by == ShownBy::Http,
            Self::Encrypted => {
                matches!(by, ShownBy::Tls | ShownBy::Quic | ShownBy::EncryptedHello)
            }
            Self::Ssh => by == ShownBy::Ssh,
            Self::Address => true,
        }
    }
}

/// The port of SSH, which a rule with the prefix `ssh:` has unless it has others.
const SSH: Ports = Ports { first: 22, last: 22 };

/// The destinations that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Destinations in a network.
    Net(Cidr),
    /// Destinations on the gateway's own machine.
    Host,
    /// Destinations whose address our resolver gave the guest for a matching name.
    Name(Glob),
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Rule {
    /// A rule for all ports and protocols.
    fn of(what: Pattern) -> Self {
        let (proof, direction) = (Proof::default(), Direction::Out);
        Self { what, ports: None, protocol: None, proof, direction, rate: None }
    }

    /// Whether the rule applies to the flow.
    pub fn matches(&self, ask: &Ask) -> bool {
        self.direction == ask.direction
            && self.matches_service(ask)
            && match &self.what {
                Pattern::Net(net) if self.direction == Direction::In => has_client(net, ask),
                Pattern::Net(net) => net.contains(ask.to.ip()),
                Pattern::Host => ask.ours,
                Pattern::Name(glob) => ask.names.iter().any(|name| glob.matches(name)),
            }
    }

    /// Whether the rule has a pattern that matches the name.
    fn has_name(&self, name: &Name) -> bool {
        matches!(&self.what, Pattern::Name(glob) if glob.matches(name))
    }

    /// Whether the rule applies to the flow's protocol and port.
    fn matches_service(&self, ask: &Ask) -> bool {
        if self.protocol.is_some_and(|protocol| protocol != ask.protocol) {
            return false;
        }
        let port = ask.to.port();
        // An echo request has no port.
        let has_port = |ports: Ports| {
            ask.protocol != Protocol::Echo && ports.first <= port && port <= ports.last
        };
        self.ports.is_none_or(has_port)
    }

    /// Whether a flow must show the name by which this permits it.
    fn asks_for_proof(&self) -> bool {
        matches!(self.what, Pattern::Name(_)) && self.proof != Proof::Address
    }

    fn is_of_all_ports(&self) -> bool {
        self.ports.is_none() && self.protocol.is_none()
    }

    /// Whether the rule names a part of this range, and not a larger network that includes the range.
    fn lies_in(&self, range: &Cidr) -> bool {
        match &self.what {
            Pattern::Net(net) => net.prefix() >= range.prefix() && range.contains(net.addr()),
            Pattern::Host | Pattern::Name(_) => false,
        }
    }
}

/// Whether the client of a published port is in the network.
fn has_client(net: &Cidr, ask: &Ask) -> bool {
    let client = client(ask);
    net.contains(client)
        || (client.is_loopback()
            && net.addr().is_loopback()
            && client.is_ipv4() == net.addr().is_ipv4())
}

/// A name with `*` for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Whether the whole name matches.
    pub fn matches(&self, name: &Name) -> bool {
        glob(self.0.as_bytes(), name.as_str().as_bytes())
    }

    /// The name, if it is the only one that matches.
    pub fn name(&self) -> Option<Name> {
        if self.0.contains('*') { None } else { self.0.parse().ok() }
    }

    /// Whether every name matches.
    fn is_any(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }
}

/// Matches with one mark to go back to: the last `*`, which takes one more character each time.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut mark = None;
    while let Some(byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                mark = Some((p, t));
            }
            Some(wanted) if wanted == byte => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((behind, taken)) = mark else { return false };
                mark = Some((behind, taken + 1));
                p = behind;
                t = taken + 1;
            }
        }
    }
    pattern.iter().skip(p).all(|byte| *byte == b'*')
}

/// Why a text is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The destination in front of ports and protocol is missing.
    #[error(
        "'{0}' is no rule: write an address, a network or a name, then [:PORTS][/tcp|udp|icmp]"
    )]
    Empty(String),
    /// The text in front of the ports is neither an address, nor a network, nor a name.
    #[error("'{0}' is neither an address, nor a network, nor a name")]
    What(String),
    /// A denial has a prefix that asks for a proof.
    #[error("'{0}' denies by a proof: a denial holds whatever is shown, so leave out the prefix")]
    DeniedProof(String),
    /// The text is a URL.
    #[error("'{0}' is a URL: a rule has the name alone, as in example.org:443")]
    Url(String),
    /// The text is no speed, or a denial or a rule about clients has one.
    #[error(
        "'{0}' is no speed: write it as in 10mbit, 8kbit at least, for a permission of what the guest reaches"
    )]
    Speed(String),
    /// The ports are no numbers, or the range is empty.
    #[error("'{0}' is no port and no range of ports: write it as in 443 or 8000-8999")]
    Ports(String),
    /// The prefix and the end of the rule name different protocols.
    #[error("'{0}' has one protocol in front and another behind")]
    Prefix(String),
    /// The prefix asks for a name to be shown, and there is none.
    #[error("'{0}': tls:, http:, ech: and ssh: are for names; an address needs tcp: or no prefix")]
    NoName(String),
    /// The rule is for clients, and has something else than addresses.
    #[error("'{0}': a rule for clients has their addresses, as in from:10.0.0.0/8:8080")]
    Client(String),
    /// IDNA has no form of the name for DNS.
    #[error("'{0}' is no name that IDNA permits")]
    Idna(String),
    /// Echo requests have no ports.
    #[error("'{0}': icmp has no ports")]
    EchoPorts(String),
    /// The text is no prefix of a translator.
    #[error(
        "'{0}' is no prefix of NAT64: that is an IPv6 network of 32, 40, 48, 56, 64 or 96 bits"
    )]
    Nat64(String),
    /// There are more rules than are compared with each connection.
    #[error("{given} rules given, at most {RULES} are supported")]
    TooMany {
        /// The number of rules.
        given: usize,
    },
}

impl FromStr for Ports {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let wrong = || RuleError::Ports(text.into());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first = first.parse().map_err(|_| wrong())?;
        let last = last.parse().map_err(|_| wrong())?;
        if first > last || last == 0 { Err(wrong()) } else { Ok(Self { first, last }) }
    }
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        Ok(WrittenRule::read(text)?.rule)
    }
}

/// The prefix of rules about clients.
const FROM: &str = "from:";

/// A rule as read, with the parts that its text has.
pub(super) struct WrittenRule {
    pub(super) rule: Rule,
    pub(super) has_ports: bool,
    pub(super) has_direction: bool,
}

impl WrittenRule {
    pub(super) fn read(text: &str) -> Result<Self, RuleError> {
        if text.contains("//") {
            return Err(RuleError::Url(text.into()));
        }
        let (front, rate) = match text.rsplit_once('@') {
            Some((front, rate)) => (front, Some(rate.parse()?)),
            None => (text, None),
        };
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Echo];
        let suffix = |protocol: Protocol| {
            let rest = front.strip_suffix(protocol.name())?.strip_suffix('/')?;
            Some((rest, protocol))
        };
        let (rest, protocol) = match protocols.into_iter().find_map(suffix) {
            Some((rest, protocol)) => (rest, Some(protocol)),
            None => (front, None),
        };
        let (rest, direction) = match rest.strip_prefix(FROM) {
            Some(rest) => (rest, Direction::In),
            None => (rest, Direction::Out),
        };
        let prefix = |(prefix, proof, protocol): &(&str, Proof, Option<Protocol>)| {
            Some((rest.strip_prefix(prefix)?, *proof, *protocol))
        };
        let prefixed = Proof::ALL.iter().find_map(prefix);
        let (rest, proof, of_prefix) = prefixed.unwrap_or((rest, Proof::default(), None));
        if of_prefix.is_some() && protocol.is_some_and(|protocol| Some(protocol) != of_prefix) {
            return Err(RuleError::Prefix(text.into()));
        }
        let protocol = of_prefix.or(protocol);
        let (what, ports) = parts(rest);
        if what.is_empty() {
            return Err(RuleError::Empty(text.into()));
        }
        let what = pattern(what)?;
        let is_name = matches!(what, Pattern::Name(_));
        if !is_name && !matches!(proof, Proof::Shown | Proof::Address) {
            return Err(RuleError::NoName(text.into()));
        }
        let proof = if is_name { proof } else { Proof::default() };
        let ports: Option<Ports> = ports.map(str::parse).transpose()?;
        let (has_ports, has_direction) = (ports.is_some(), direction == Direction::In);
        let ports = ports.or((proof == Proof::Ssh).then_some(SSH));
        let mut rule = Rule { rate, ports, protocol, proof, ..Rule::of(what) };
        rule.turn(direction, text)?;
        rule.check(text)?;
        Ok(Self { rule, has_ports, has_direction })
    }
}

impl Rule {
    /// Makes this a rule about flows of that direction.
    pub(super) fn turn(&mut self, direction: Direction, text: &str) -> Result<(), RuleError> {
        if direction == Direction::In && !matches!(self.what, Pattern::Net(_)) {
            return Err(RuleError::Client(text.into()));
        }
        self.direction = direction;
        Ok(())
    }

    /// Checks that the ports and the prefix fit the protocol, and the rate the direction.
    pub(super) fn check(&self, text: &str) -> Result<(), RuleError> {
        if self.rate.is_some() && self.direction == Direction::In {
            return Err(RuleError::Speed(text.into()));
        }
        if self.protocol == Some(Protocol::Echo) && self.proof == Proof::Encrypted {
            return Err(RuleError::Prefix(text.into()));
        }
        match self.protocol == Some(Protocol::Echo) && self.ports.is_some() {
            true => Err(RuleError::EchoPorts(text.into())),
            false => Ok(()),
        }
    }

    /// Checks that the rule can be a denial, which holds whatever a flow shows.
    ///
    /// # Errors
    /// [`RuleError::DeniedProof`].
    pub fn check_denial(&self) -> Result<(), RuleError> {
        match self.proof {
            Proof::Shown | Proof::Address => Ok(()),
            _ => Err(RuleError::DeniedProof(self.to_string())),
        }
    }

    /// Whether the text of the rule means the same, also to a shell: strangers choose names.
    fn is_as_written(&self) -> bool {
        let text = self.to_string();
        let is_name = matches!(self.what, Pattern::Name(_));
        let is_odd = text.starts_with('-') || (is_name && text.contains(['[', '*']));
        !is_odd && text.parse::<Self>().as_ref() == Ok(self)
    }
}

/// Splits a rule's text into the destination and the ports.
fn parts(text: &str) -> (&str, Option<&str>) {
    if let Some((inside, behind)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        // A prefix length may stand behind the brackets or inside.
        return match behind.strip_prefix(':') {
            Some(ports) => (inside, Some(ports)),
            None if behind.is_empty() => (inside, None),
            None => (text, None),
        };
    }
    if text.parse::<IpAddr>().is_ok() {
        return (text, None);
    }
    // Behind a prefix length, or behind an IPv4 address or a name, a colon is one of ports.
    let from = text.find('/').unwrap_or(0);
    let (front, behind) = text.split_at(from);
    match behind.split_once(':') {
        Some((rest, ports)) => {
            (text.get(..front.len() + rest.len()).unwrap_or_default(), Some(ports))
        }
        None => (text, None),
    }
}

fn pattern(what: &str) -> Result<Pattern, RuleError> {
    let wrong = || RuleError::What(what.into());
    if !what.is_ascii() {
        let name = idna::to_ascii(what).ok_or_else(|| RuleError::Idna(what.into()))?;
        return match ascii_pattern(&name) {
            Some(Pattern::Name(glob)) => Ok(Pattern::Name(glob)),
            _ => Err(wrong()),
        };
    }
    ascii_pattern(what).ok_or_else(wrong)
}

fn ascii_pattern(what: &str) -> Option<Pattern> {
    let lower = what.to_ascii_lowercase();
    let lower = lower.trim_end_matches('.');
    if lower == "host" {
        return Some(Pattern::Host);
    }
    if let Ok(addr) = what.parse() {
        return Some(Pattern::Net(Cidr::host(addr)));
    }
    if what.contains('/') {
        return what.parse().ok().map(Pattern::Net);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.*".contains(c);
    // An address with a mistake in it is no name.
    let only_digits = !what.contains(|c: char| c.is_ascii_alphabetic() || c == '*');
    let named = lower.chars().all(plain) && !only_digits;
    named.then(|| Pattern::Name(Glob(lower.into())))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |(_, proof, protocol): &&(&str, Proof, Option<Protocol>)| {
            *proof == self.proof && (*proof != Proof::Address || *protocol == self.protocol)
        };
        let prefix = Proof::ALL.iter().find(has);
        // In front of ports, such a name would be taken for a prefix.
        let mut prefixes = Proof::ALL.iter().map(|(word, ..)| *word).chain([FROM]);
        let mut is_prefix = |glob: &str| prefixes.any(|word| word.strip_suffix(':') == Some(glob));
        if self.direction == Direction::In {
            f.write_str(FROM)?;
        }
        f.write_str(prefix.map_or("", |(prefix, ..)| prefix))?;
        match &self.what {
            Pattern::Net(net) if net.addr().is_ipv6() && self.ports.is_some() => {
                let net = net.to_string();
                write!(f, "[{}]", net.strip_suffix("/128").unwrap_or(&net))?
            }
            Pattern::Net(net) if *net == Cidr::host(net.addr()) => write!(f, "{}", net.addr())?,
            Pattern::Net(net) => write!(f, "{net}")?,
            Pattern::Host => f.write_str("host")?,
            Pattern::Name(Glob(glob)) if prefix.is_none() && is_prefix(glob) => {
                write!(f, "[{glob}]")?
            }
            Pattern::Name(Glob(glob)) => f.write_str(glob)?,
        }
        match self.ports {
            Some(ports) if self.proof == Proof::Ssh && ports == SSH => {}
            Some(Ports { first, last }) if first == last => write!(f, ":{first}")?,
            Some(Ports { first, last }) => write!(f, ":{first}-{last}")?,
            None => {}
        }
        let is_said = prefix.is_some_and(|(_, _, protocol)| protocol.is_some());
        let protocol = self.protocol.filter(|_| !is_said);
        protocol.map_or(Ok(()), |protocol| write!(f, "/{protocol}"))?;
        self.rate.map_or(Ok(()), |rate| write!(f, "@{rate}"))
    }
}
