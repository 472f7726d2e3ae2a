//! A DNS client over the host's own network.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use pagewire_sockets::timeout;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};

use crate::host::{Host, Resolver, Resolving};
use crate::names::{normal, not_found};
use crate::net::{TcpStream, UdpSocket};

/// How long a server has for its answer, and how often each server is asked (`resolv.conf(5)`: `timeout`,
/// `attempts`).
const TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 2;

/// Bytes of the largest answer over UDP that is taken, and over TCP (RFC 1035 section 4.2.2).
const MOST_OVER_UDP: usize = 4096;
const MOST_OVER_TCP: usize = u16::MAX as usize;

/// Most addresses of one version that are taken of an answer, as in musl.
const MOST_ADDRESSES: usize = 48;

/// Bytes of a message's header, and of the shortest record in it.
const HEADER: usize = 12;
const MIN_RECORD: usize = 5;

/// A [`Resolver`] that knows some names, and asks DNS servers for the others (RFC 1035), over UDP and, for
/// answers that are too long, over TCP. Addresses of both IP versions are asked for at the same time; those of
/// IPv6 come first. A server has 5 seconds; then the next one is asked. Each is asked twice at most.
///
/// A lookup fails with `NotFound` for a name without addresses, `TimedOut` if no server answered,
/// `InvalidData` for an answer that is none, `Other` with the server's code.
///
/// ```
/// use pagewire::{Dns, Host, Pair};
///
/// # let (left, right) = Pair::new()?;
/// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// # let _listener = server.listen("10.0.0.1:80")?;
/// let names = Dns::new(["10.0.0.1".parse()?]).name("www.example", "10.0.0.1".parse()?);
/// let host = Host::builder().device(right).address("10.0.0.2/24").resolver(names).start()?;
/// assert_eq!(host.connect("www.example:80")?.peer_addr()?.to_string(), "10.0.0.1:80");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Dns {
    servers: Vec<SocketAddr>,
    names: HashMap<String, Vec<IpAddr>>,
}

impl Dns {
    /// A resolver that asks these servers, each when the one before it does not answer.
    pub fn new(servers: impl IntoIterator<Item = IpAddr>) -> Self {
        let servers = servers.into_iter().map(|ip| SocketAddr::new(ip, 53)).collect();
        Self { servers, names: HashMap::new() }
    }

    /// Adds a server at a port of its own.
    pub fn server(mut self, server: SocketAddr) -> Self {
        self.servers.push(server);
        self
    }

    /// Adds an address of a name, as a line of `/etc/hosts`. Servers are not asked for it.
    pub fn name(mut self, name: &str, address: IpAddr) -> Self {
        self.names.entry(normal(name)).or_default().push(address);
        self
    }

    async fn ask(&self, host: &Host, name: &str) -> io::Result<Vec<IpAddr>> {
        if let Some(found) = self.names.get(&normal(name)) {
            return Ok(found.clone());
        }
        let wire = Name::new(name).map_err(|_| not_found(name))?;
        let mut last = None;
        for server in (0..ATTEMPTS).flat_map(|_| &self.servers) {
            let v4 = query(host, *server, &wire, TYPE::A);
            let v6 = query(host, *server, &wire, TYPE::AAAA);
            // Each is a query of its own: a server may answer one of them only.
            match both(v6, v4).await {
                (Err(error), Err(_)) => last = Some(error),
                // Nothing of one version is no answer while that of the other is missing.
                (Ok(found), Err(error)) | (Err(error), Ok(found)) if found.is_empty() => {
                    last = Some(error);
                }
                (v6, v4) => {
                    let found: Vec<_> = [v6, v4].into_iter().flatten().flatten().collect();
                    return if found.is_empty() { Err(not_found(name)) } else { Ok(found) };
                }
            }
        }
        Err(last.unwrap_or_else(|| not_found(name)))
    }
}

impl Resolver for Dns {
    fn resolve<'a>(&'a self, host: &'a Host, name: &'a str) -> Resolving<'a> {
        Box::pin(self.ask(host, name))
    }
}

/// Asks one server for the addresses of one kind.
async fn query(
    host: &Host,
    server: SocketAddr,
    name: &Name<'_>,
    kind: TYPE,
) -> io::Result<Vec<IpAddr>> {
    let id = rand::random();
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(name.clone(), QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(question.clone());
    let query = packet.build_bytes_vec().map_err(io::Error::other)?;
    let answer = limited(host, over_udp(host, server, &query, id)).await?;
    match read(&answer, id, &question)? {
        Some(found) => Ok(found),
        None => {
            let answer = limited(host, over_tcp(host, server, &query)).await?;
            read(&answer, id, &question)?.ok_or_else(malformed)
        }
    }
}

/// The answer over UDP. The socket's port is a random one, and only the server's datagrams are received.
async fn over_udp(host: &Host, server: SocketAddr, query: &[u8], id: u16) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind_on(host, any).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; MOST_OVER_UDP];
    loop {
        let n = socket.recv(&mut answer).await?;
        // Another message is a late answer, or somebody's guess.
        if n >= HEADER && answer.get(..2) == Some(&id.to_be_bytes()) {
            answer.truncate(n);
            return Ok(answer);
        }
    }
}

/// The answer over TCP, where messages have their length in front.
async fn over_tcp(host: &Host, server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let stream = TcpStream::connect_on(host, server).await?;
    let len = u16::try_from(query.len()).map_err(|_| malformed())?;
    stream.send([&len.to_be_bytes(), query].concat()).await?;
    let (mut answer, mut needs) = (Vec::new(), 2);
    while answer.len() < needs {
        let chunks = stream.recv_chunks(MOST_OVER_TCP).await?;
        if chunks.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&chunks.into_bytes());
        if let Some(&[high, low]) = answer.get(..2) {
            needs = 2 + usize::from(u16::from_be_bytes([high, low]));
        }
    }
    answer.truncate(needs);
    Ok(answer.split_off(2))
}

/// The addresses in an answer; `None`: the answer was cut, and has to be asked for over TCP.
fn read(answer: &[u8], id: u16, asked: &Question<'_>) -> io::Result<Option<Vec<IpAddr>>> {
    // Room is made for as many records as the header tells: not for more than can be there.
    let counts = answer.get(4..HEADER).ok_or_else(malformed)?;
    let records: usize = counts.chunks(2).map(|c| usize::from(c[0]) << 8 | usize::from(c[1])).sum();
    if records * MIN_RECORD > answer.len() - HEADER {
        return Err(malformed());
    }
    let packet = Packet::parse(answer).map_err(|_| malformed())?;
    if packet.id() != id || !packet.has_flags(PacketFlag::RESPONSE) {
        return Err(malformed());
    }
    // RFC 5452 section 9.1: a reply repeats the question: its name, type and class.
    let same = |question: &Question<'_>| {
        normal(&question.qname.to_string()) == normal(&asked.qname.to_string())
            && (question.qtype, question.qclass) == (asked.qtype, asked.qclass)
    };
    if !matches!(&packet.questions[..], [question] if same(question)) {
        return Err(malformed());
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Ok(None);
    }
    match packet.rcode() {
        RCODE::NoError | RCODE::NameError => {}
        code => return Err(io::Error::other(format!("the DNS server answers {code:?}"))),
    }
    // Aliases (CNAME) come before the addresses of the names that they lead to. Records of other names answer
    // nothing.
    let (mut owner, mut found) = (normal(&asked.qname.to_string()), Vec::new());
    for record in &packet.answers {
        if normal(&record.name.to_string()) != owner {
            continue;
        }
        match &record.rdata {
            RData::A(a) => found.push(IpAddr::from(Ipv4Addr::from_bits(a.address))),
            RData::AAAA(a) => found.push(IpAddr::from(Ipv6Addr::from_bits(a.address))),
            RData::CNAME(alias) => owner = normal(&alias.0.to_string()),
            _ => {}
        }
    }
    found.truncate(MOST_ADDRESSES);
    Ok(Some(found))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the DNS server's answer is malformed")
}

/// The answers of two futures that run at the same time.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(done) = a.as_mut().poll(cx)
        {
            first = Some(done);
        }
        if second.is_none()
            && let Poll::Ready(done) = b.as_mut().poll(cx)
        {
            second = Some(done);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

/// The answer of a server that has [`TIMEOUT`].
async fn limited<T>(host: &Host, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = timeout(host, Some(TIMEOUT), work).await;
    done.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}
