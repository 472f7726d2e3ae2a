//! [`Rules`]: pure decisions from addresses, ports, protocols and names. Read [`Rules::judge`] first.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::LazyLock;

use pagewire::Cidr;

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
#[derive(Clone, Debug, Default)]
pub struct Rules {
    allow: Vec<Rule>,
    /// Denials, each with the guest's answer.
    deny: Vec<(Rule, Verdict)>,
    /// Addresses that stand for others, such as the host's loopback address.
    mapped: Vec<(IpAddr, IpAddr)>,
    /// Prefixes behind which the network translates to IPv4.
    translators: Vec<Cidr>,
    offline: bool,
}

impl Rules {
    /// Forbids everything, names included.
    pub fn offline() -> Self {
        Self { offline: true, ..Self::default() }
    }

    /// Permits what the rule matches. From the first one on, nothing else is permitted.
    #[must_use]
    pub fn allow(mut self, rule: Rule) -> Self {
        self.allow.push(rule);
        self
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
        self.deny.push((rule, answer));
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
        let given = self.allow.len() + self.deny.len() + self.mapped.len() + self.translators.len();
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

    /// The verdict. Rules are about what guests reach: what comes in by a published port is
    /// permitted.
    pub fn judge(&self, ask: &Ask) -> Verdict {
        if self.offline {
            return Verdict::Prohibit;
        }
        if ask.direction == Direction::In {
            return Verdict::Allow;
        }
        let to = ask.to.ip();
        if is_no_host(to) {
            return Verdict::Prohibit;
        }
        if self.translated(to).any(|inner| is_no_host(inner) || is_closed(inner)) {
            return Verdict::Prohibit;
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
            return Verdict::Prohibit;
        }
        if let Some((_, answer)) = self.deny.iter().find(|(rule, _)| self.denies(rule, ask)) {
            return *answer;
        }
        if !self.allow.is_empty() && !ask.mapped && !self.allow.iter().any(|r| permitted(&r)) {
            return Verdict::Prohibit;
        }
        let target = |(_, to): &(_, IpAddr)| Verdict::To(SocketAddr::new(*to, ask.to.port()));
        mapped.map_or(Verdict::Allow, target)
    }

    /// The demand on a flow that these rules permit.
    pub(crate) fn demand(&self, ask: &Ask) -> Demand {
        if ask.direction == Direction::In || ask.mapped || ask.protocol == Protocol::Echo {
            return Demand::Nothing;
        }
        if self.allow.is_empty() {
            let denies = ask.protocol == Protocol::Tcp && self.denies_names();
            return if denies { Demand::NoDeniedName } else { Demand::Nothing };
        }
        let by_name = |rule: &&Rule| matches!(rule.what, Pattern::Name(_));
        let needs_none = |rule: &&Rule| !by_name(rule) || rule.proof == Proof::Address;
        let mut permitting = self.allow.iter().filter(needs_none);
        match permitting.any(|rule| self.permits(rule, ask)) {
            true => Demand::Nothing,
            false => Demand::PermittedName,
        }
    }

    /// Whether the flow, which [`judge`](Self::judge) permits, may go on with what it shows.
    pub(crate) fn permits_shown(&self, ask: &Ask, shown: &Shown) -> bool {
        let denies = |rule: &Rule, name| rule.matches_service(ask) && rule.has_name(name);
        if shown.name.as_ref().is_some_and(|name| self.denials().any(|rule| denies(rule, name))) {
            return false;
        }
        if self.allow.is_empty() {
            return true;
        }
        let is_shown = |name: &&Name| shown.name.as_ref() == Some(*name);
        let mut ask = Cow::Borrowed(ask);
        if shown.by != ShownBy::Ssh && !ask.names.iter().all(|name| is_shown(&name)) {
            // The flow leads to the name's addresses, and not to another server's by the same rule.
            let ask = ask.to_mut();
            ask.names = ask.names.iter().filter(is_shown).cloned().collect();
            ask.given = ask.given.iter().filter(is_shown).cloned().collect();
        }
        let is_of_name = |rule: &&Rule| matches!(rule.what, Pattern::Name(_));
        let mut accepting =
            self.allow.iter().filter(is_of_name).filter(|rule| rule.proof.accepts(shown.by));
        accepting.any(|rule| self.permits(rule, &ask))
    }

    /// A permission that would let the flow go on, be it with what it shows. `None`: a denial forbids it, or there is no
    /// permission yet, and the first would forbid everything else.
    pub(crate) fn permission(&self, ask: &Ask, shown: Option<&Shown>) -> Option<Rule> {
        let ports = (ask.protocol != Protocol::Echo)
            .then_some(Ports { first: ask.to.port(), last: ask.to.port() });
        let by_name = |name: &Name| {
            let proof = match shown.map(|shown| shown.by) {
                None | Some(ShownBy::Tls | ShownBy::Http | ShownBy::Quic) => Proof::Shown,
                Some(ShownBy::Ssh) => Proof::Ssh,
                Some(ShownBy::EncryptedHello | ShownBy::Unknown) => Proof::Address,
            };
            let protocol = (proof != Proof::Shown).then_some(ask.protocol);
            Rule { what: Pattern::Name(Glob(name.as_str().into())), ports, protocol, proof }
        };
        let net = Pattern::Net(Cidr::host(ask.to.ip()));
        let protocol = Some(ask.protocol);
        let by_address = Rule { what: net, ports, protocol, proof: Proof::default() };
        // The name that the flow shows, if its address is that name's; else the name that the guest asked for last.
        let shows = shown.and_then(|shown| shown.name.as_ref());
        let name = shows.or(ask.names.first());
        let name = name.filter(|name| ask.names.contains(name) && is_plain(name));
        let permits = |rule: &Rule| {
            let rules = self.clone().allow(rule.clone());
            let judged = matches!(rules.judge(ask), Verdict::Allow | Verdict::To(_));
            judged
                && match rules.demand(ask) {
                    Demand::Nothing => true,
                    _ => shown.is_none_or(|shown| rules.permits_shown(ask, shown)),
                }
        };
        let all = name.map(by_name).into_iter().chain([by_address]);
        all.filter(|_| !self.allow.is_empty()).find(permits)
    }

    /// A permission that would let the name be asked for; `None` as of [`permission`](Self::permission).
    pub(crate) fn permission_of_name(&self, name: &Name) -> Option<Rule> {
        let what = Pattern::Name(Glob(name.as_str().into()));
        let rule = Rule { what, ports: None, protocol: None, proof: Proof::default() };
        let opens = || self.clone().allow(rule.clone()).resolves(name);
        let permits = !self.allow.is_empty() && is_plain(name) && opens();
        permits.then_some(rule)
    }

    /// Whether the name may be asked for: no denial of all its ports has it, and if permissions
    /// are given and all of them are names, one has it.
    pub fn resolves(&self, name: &Name) -> bool {
        let has = |rule: &Rule| rule.has_name(name);
        let denied = |rule: &Rule| rule.is_of_all_ports() && has(rule);
        let names_only = self.allow.iter().all(|rule| matches!(rule.what, Pattern::Name(_)));
        !self.offline
            && !self.denials().any(denied)
            && (self.allow.is_empty() || !names_only || self.allow.iter().any(has))
    }
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

/// A rule: a destination, its ports and its protocol; written `[PREFIX:]WHAT[:PORTS][/PROTOCOL]`.
///
/// `WHAT` is an address, a network (`10.0.0.0/8`), the word `host` for the gateway's own machine,
/// or a name, in which `*` stands for any characters, dots included. A name matches the addresses
/// that the gateway's resolver gave the guest for it, and never an address written as such, but for
/// the name `*` in a denial, which has every address; see [`Rules`] about private networks. The gateway's stack drops what a guest sends to loopback
/// addresses and to IPv6's link-local ones: no rule lets a guest name those itself.
/// A connection that only a name permits must show that name, because servers share addresses; [`Proof`] has the
/// prefixes, which say how. Echo requests show nothing, and reach no server: they need no proof.
/// `PORTS` is a port or a range (`8000-8999`); an IPv6 address in front of it has brackets.
/// `PROTOCOL` is `tcp`, `udp` or `icmp`.
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
    /// `ssh:`: the connection must be one of SSH, which shows no name. The address decides.
    Ssh,
    /// `tcp:` and `udp:`: the address decides, which the gateway's resolver gave for the name.
    Address,
}

impl Proof {
    const ALL: [(&'static str, Self, Option<Protocol>); 5] = [
        ("tls:", Self::Tls, Some(Protocol::Tcp)),
        ("http:", Self::Http, Some(Protocol::Tcp)),
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
    /// Whether the rule applies to the flow.
    pub fn matches(&self, ask: &Ask) -> bool {
        self.matches_service(ask)
            && match &self.what {
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

/// A name with `*` for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Box<str>);

impl Glob {
    /// Whether the whole name matches.
    pub fn matches(&self, name: &Name) -> bool {
        glob(self.0.as_bytes(), name.as_str().as_bytes())
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
    /// The ports are no numbers, or the range is empty.
    #[error("'{0}' is no port and no range of ports: write it as in 443 or 8000-8999")]
    Ports(String),
    /// The prefix and the end of the rule name different protocols.
    #[error("'{0}' has one protocol in front and another behind")]
    Prefix(String),
    /// The prefix asks for a name to be shown, and there is none.
    #[error("'{0}': tls:, http: and ssh: are for names; an address needs tcp: or no prefix")]
    NoName(String),
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
        let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Echo];
        let suffix = |protocol: Protocol| {
            let rest = text.strip_suffix(protocol.name())?.strip_suffix('/')?;
            Some((rest, protocol))
        };
        let (rest, protocol) = match protocols.into_iter().find_map(suffix) {
            Some((rest, protocol)) => (rest, Some(protocol)),
            None => (text, None),
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
        let what = pattern(what).ok_or_else(|| RuleError::What(what.into()))?;
        let is_name = matches!(what, Pattern::Name(_));
        if !is_name && !matches!(proof, Proof::Shown | Proof::Address) {
            return Err(RuleError::NoName(text.into()));
        }
        let proof = if is_name { proof } else { Proof::default() };
        let ports: Option<Ports> = ports.map(str::parse).transpose()?;
        let ports = ports.or((proof == Proof::Ssh).then_some(SSH));
        if protocol == Some(Protocol::Echo) && ports.is_some() {
            return Err(RuleError::EchoPorts(text.into()));
        }
        Ok(Self { what, ports, protocol, proof })
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

/// Whether the name means itself as a rule, and to a shell: guests choose names.
fn is_plain(name: &Name) -> bool {
    name.as_str().chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn pattern(what: &str) -> Option<Pattern> {
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
        let is_prefix =
            |glob: &str| Proof::ALL.iter().any(|(word, ..)| word.strip_suffix(':') == Some(glob));
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
        let protocol = self.protocol.filter(|_| prefix.is_none());
        protocol.map_or(Ok(()), |protocol| write!(f, "/{protocol}"))
    }
}
