//! Names, several addresses, limits of time, and the host of the code that runs.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use pagewire::{ConnectOptions, Dns, Host, Resolver, Resolving, TcpStream, net};
use pagewire_testkit::given;
use simple_dns::rdata::{A, CNAME, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};

use crate::support::{block_on, builders, manual_hosts, poll_once};

const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// A server, and a client that asks it for names.
fn hosts() -> (Host, Host) {
    let (server, client) = builders();
    let client = client.resolver(Dns::new([SERVER]).name("known", SERVER)).start();
    (server.start().expect("host"), client.expect("host"))
}

/// The behaviour of the DNS server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    Address,
    Alias,
    NoSuchName,
    Failure,
    /// Over UDP only that the answer is too long.
    Cut,
    /// First a message with another identifier, and one that is no message.
    Noise,
    /// Counts of records that are not there.
    Counts,
    /// Nothing to the first question for an IPv4 address.
    LessAtFirst,
    /// The address of another name.
    OtherName,
    /// Not what was asked.
    NoQuestion,
    /// The question for the other version.
    OtherQuestion,
    /// More addresses than anybody tries.
    Many,
}

fn answer(query: &[u8], says: Says, udp: bool) -> Vec<u8> {
    let query = Packet::parse(query).expect("a query");
    let mut reply = Packet::new_reply(query.id());
    let question = query.questions[0].clone();
    let v4 = question.qtype == QTYPE::TYPE(TYPE::A);
    let name = question.qname.clone();
    reply.questions.push(question);
    let address = |name: Name<'static>| {
        let a = RData::A(A { address: Ipv4Addr::new(10, 0, 0, 1).to_bits() });
        ResourceRecord::new(name, CLASS::IN, 60, a)
    };
    match says {
        Says::NoSuchName => *reply.rcode_mut() = RCODE::NameError,
        Says::Failure => *reply.rcode_mut() = RCODE::ServerFailure,
        Says::Cut if udp => reply.set_flags(PacketFlag::TRUNCATION),
        Says::OtherName if v4 => reply.answers.push(address(Name::new_unchecked("evil.example"))),
        Says::NoQuestion => reply.questions.clear(),
        Says::OtherQuestion => reply.questions[0].qtype = QTYPE::TYPE(TYPE::MX),
        Says::Many if udp => reply.set_flags(PacketFlag::TRUNCATION),
        Says::Many if v4 => {
            reply.answers.extend((0..1000).map(|_| address(name.clone().into_owned())));
        }
        Says::Alias if v4 => {
            let other = Name::new_unchecked("other.example").into_owned();
            let alias = RData::CNAME(CNAME(other.clone()));
            reply.answers.push(ResourceRecord::new(name.into_owned(), CLASS::IN, 60, alias));
            reply.answers.push(address(other));
        }
        _ if v4 => reply.answers.push(address(name.into_owned())),
        _ => {}
    }
    let mut bytes = reply.build_bytes_vec().expect("an answer");
    if says == Says::Counts {
        bytes[6..8].fill(0xff);
    }
    bytes
}

/// Answers queries, over UDP and TCP, for as long as the host runs.
fn serve(host: &Host, mut says: Says) {
    let udp = host.udp("10.0.0.1:53").expect("socket");
    thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((n, from)) = udp.recv_from(&mut buf) {
            if says == Says::Noise {
                let mut other = answer(&buf[..n], says, true);
                other[0] ^= 0xff;
                udp.send_to(&other, from).expect("send");
                udp.send_to(&other[..1], from).expect("send");
            }
            let one = answer(&buf[..n], says, true);
            if says == Says::LessAtFirst && Packet::parse(&one).is_ok_and(|p| !p.answers.is_empty())
            {
                says = Says::Address;
                udp.send_to(&answer(&buf[..n], Says::Failure, true), from).expect("send");
                continue;
            }
            udp.send_to(&one, from).expect("send");
        }
    });
    let tcp = host.listen("10.0.0.1:53").expect("listen");
    thread::spawn(move || {
        for stream in tcp.incoming() {
            let Ok(stream) = stream else { return };
            let query = stream.recv_chunks(512).expect("a query").into_bytes();
            let answer = answer(&query[2..], says, false);
            // In two pieces: a message is not a segment.
            let len = (answer.len() as u16).to_be_bytes();
            stream.send([&len[..], &answer[..5]].concat()).expect("send");
            stream.send(answer[5..].to_vec()).expect("send");
        }
    });
}

fn lookup(says: Says) -> io::Result<Vec<SocketAddr>> {
    let (server, client) = hosts();
    serve(&server, says);
    client.lookup("www.example:80")
}

fn found() -> Vec<SocketAddr> {
    vec![SocketAddr::new(SERVER, 80)]
}

/// By an alias, over TCP where the answer was cut, past messages with other identifiers, and again where only the
/// question for the other version was answered.
#[test]
fn a_name_is_asked_of_the_dns_server_over_the_hosts_own_network() {
    for says in [Says::Address, Says::Alias, Says::Cut, Says::Noise, Says::LessAtFirst] {
        assert_eq!(lookup(says).expect("found"), found(), "{says:?}");
    }
}

#[test]
fn a_name_that_is_not_there_is_not_found() {
    let error = lookup(Says::NoSuchName).expect_err("none");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("failed to lookup address information"), "{error}");
}

/// RFC 5452 section 9.1, and a bound on what an answer makes a program try.
#[test]
fn an_answer_counts_for_the_question_that_was_asked() {
    let error = lookup(Says::OtherName).expect_err("none of this name").to_string();
    assert!(error.contains("failed to lookup address information"), "{error}");
    for says in [Says::NoQuestion, Says::OtherQuestion] {
        let error = lookup(says).expect_err("not the question");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{says:?}");
    }
    assert_eq!(lookup(Says::Many).expect("found").len(), 48);
}

#[test]
fn a_failing_or_hostile_server_is_an_error() {
    let error = lookup(Says::Failure).expect_err("a failure").to_string();
    assert_eq!(error, "the DNS server answers ServerFailure");
    assert_eq!(lookup(Says::Counts).expect_err("nonsense").kind(), io::ErrorKind::InvalidData);
}

#[test]
fn names_that_the_resolver_was_told_and_localhost_ask_nobody() {
    let (_server, client) = hosts();
    assert_eq!(client.lookup("KNOWN.:80").expect("told"), found());
    let here = client.lookup("localhost:80").expect("this host");
    assert!(here.iter().all(|at| at.ip().is_loopback()) && !here.is_empty());
}

given! {
    let (server, client) = hosts();

    a_connection_by_name_goes_to_the_address_that_listens {
        serve(&server, Says::Address);
        let listener = server.listen("10.0.0.1:80").expect("listen");
        let near = client.connect("www.example:80").expect("connect");
        assert_eq!(listener.accept().expect("accept").1, near.local_addr().expect("bound"));
    }
    an_address_that_does_not_answer_does_not_hold_up_the_next {
        let _listener = server.listen("10.0.0.1:80").expect("listen");
        // No neighbour has it: that is known after seconds.
        let dead: SocketAddr = "10.0.0.99:80".parse().expect("an address");
        let began = Instant::now();
        let near = client.connect(&[dead, found()[0]][..]).expect("connect");
        assert_eq!(near.peer_addr().expect("peer"), found()[0]);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    a_connection_does_not_begin_with_a_time_to_live_of_0 {
        let _listener = server.listen("10.0.0.1:80").expect("listen");
        let error = client.connect_with("10.0.0.1:80", &ConnectOptions::new().ttl(0));
        assert_eq!(error.expect_err("as IP_TTL").kind(), io::ErrorKind::InvalidInput);
    }
    a_default_host_counts_on_all_threads_and_runs_no_longer_for_that {
        server.make_default();
        let (says, hears) = channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            let bound = runtime.block_on(net::TcpListener::bind("10.0.0.1:80"));
            says.send(bound.and_then(|listener| listener.local_addr())).expect("it listens");
        });
        assert_eq!(hears.recv().expect("it answers").expect("bound"), found()[0]);
        drop((server, client));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let ended = runtime.block_on(net::TcpListener::bind("10.0.0.1:80")).expect_err("no host");
        assert_eq!(ended.kind(), io::ErrorKind::Unsupported);
    }
    a_listener_of_both_versions_shows_peers_of_ipv4_as_mapped_addresses {
        let listener = server.listen("[::]:80").expect("listen");
        let near: TcpStream = client.connect("10.0.0.1:80").expect("connect");
        let (far, peer) = listener.accept().expect("accept");
        assert_eq!(peer.ip().to_string(), "::ffff:10.0.0.2");
        assert_eq!(far.local_addr().expect("bound").ip().to_string(), "::ffff:10.0.0.1");
        assert_eq!(near.peer_addr().expect("peer").ip().to_string(), "10.0.0.1");
    }
}

#[test]
fn of_several_addresses_that_refuse_the_last_error_is_returned() {
    let (_server, client) = hosts();
    let closed: SocketAddr = "10.0.0.1:9".parse().expect("an address");
    let error = client.connect(&[closed, closed][..]).expect_err("closed");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn a_limit_of_time_ends_the_attempts_of_all_addresses_whoever_drives_the_host() {
    let ((_server, client), (manual, _peer)) = (hosts(), manual_hosts());
    let dead: Vec<SocketAddr> =
        (90..99).map(|last| SocketAddr::new(Ipv4Addr::new(10, 0, 0, last).into(), 80)).collect();
    let options = ConnectOptions::new().timeout(Duration::from_millis(50));
    for to in [&dead[..], &dead[..1]] {
        for (driver, host) in [("its own thread", &client), ("its caller", &manual)] {
            let error = host.connect_with(to, &options).expect_err("nobody");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "driven by {driver}");
        }
    }
    let error = manual.connect_timeout(&dead[..], Duration::from_millis(20)).expect_err("nobody");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

/// A resolver that never answers.
struct Silent;

impl Resolver for Silent {
    fn resolve<'a>(&'a self, _: &'a Host, _: &'a str) -> Resolving<'a> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_limit_of_time_ends_with_the_host_whose_clock_it_is() {
    let (server, client) = builders();
    let (_server, client) =
        (server.start().expect("host"), client.resolver(Silent).start().expect("host"));
    let options = ConnectOptions::new().timeout(Duration::from_secs(3600));
    let mut connects = pin!(net::TcpStream::connect_with(&client, "www.example:80", &options));
    poll_once(&mut connects);
    client.shutdown(Duration::ZERO);
    block_on(connects).expect_err("the host has ended");
}

#[tokio::test]
async fn sockets_are_made_on_the_host_that_the_thread_has_entered() {
    let (server, client) = hosts();
    let none = net::TcpListener::bind("10.0.0.1:80").await.expect_err("no host");
    assert_eq!(none.kind(), io::ErrorKind::Unsupported);
    let entered = server.enter();
    let listener = net::TcpListener::bind("10.0.0.1:80").await.expect("listen");
    {
        let _client = client.enter();
        let near = net::TcpStream::connect("10.0.0.1:80").await.expect("connect");
        assert_eq!(near.local_addr().expect("bound").ip().to_string(), "10.0.0.2");
    }
    // In any order.
    let (first, second) = (client.enter(), server.enter());
    drop(first);
    net::UdpSocket::bind("10.0.0.1:8").await.expect("still entered");
    drop(second);
    let here = net::UdpSocket::bind("10.0.0.1:9").await.expect("socket");
    assert_eq!(here.local_addr().expect("bound").ip(), SERVER);
    drop((entered, listener));
    assert!(net::UdpSocket::bind("10.0.0.1:9").await.is_err());
}
