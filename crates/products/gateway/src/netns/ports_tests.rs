//! Tables of sockets, and which ports they have.

use std::net::{TcpListener, TcpStream, UdpSocket};

use super::*;

const TCP: &str =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0F02000A:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 3 1
   3: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4 1
";

#[cfg(target_endian = "little")]
#[test]
fn sockets_that_listen_are_told_from_others_and_by_their_address() {
    let port = |port, at| ListeningPort { port, at };
    let all =
        [port(8080, ListensAt::Loopback), port(22, ListensAt::Any), port(80, ListensAt::Other)];
    assert_eq!(parse(TCP, LISTENS), all);
    let v6 = "head\n 0: 00000000000000000000000001000000:0050 0:0 0A\n";
    assert_eq!(parse(v6, LISTENS), [port(80, ListensAt::Loopback)]);
    let mapped = "head\n 0: 0000000000000000FFFF00000100007F:0051 0:0 0A\n";
    assert_eq!(parse(mapped, LISTENS), [port(81, ListensAt::Loopback)]);
}

#[test]
fn lines_that_make_no_sense_are_left_out() {
    for line in [
        "",
        "0:",
        "0: :",
        "0: 0100007F:",
        "0: 0100007F:1F90",
        "0: 0100007F:1F90 0",
        "0: 0100007F:11F90 0:0 0A",
        "0: 0100007:1F90 0:0 0A",
        "0: 0100007G:1F90 0:0 0A",
        "0: é100007:1F90 0:0 0A",
        "0: 0100007F:0000 0:0 0A",
        "0: 0100007F1F90 0:0 0A",
    ] {
        assert_eq!(parse(&format!("head\n{line}\n"), LISTENS), [], "{line}");
    }
}

#[test]
fn each_look_shows_the_ports_of_that_time() {
    let tables = PortTables::of(PortTables::open_files());
    let listens = |protocol, socket_port: u16| {
        let found = tables.listening(protocol).expect("a table");
        found.iter().find(|found| found.port == socket_port).map(|found| found.at)
    };
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = tcp.local_addr().expect("its address").port();
    assert_eq!(listens(Protocol::Tcp, port), Some(ListensAt::Loopback));
    // Below the ports that the kernel gives out, some port is free.
    let mut low = (20_000..20_100).filter_map(|port| UdpSocket::bind(("0.0.0.0", port)).ok());
    let udp = low.next().expect("a port");
    let udp_port = udp.local_addr().expect("its address").port();
    assert_eq!(listens(Protocol::Udp, udp_port), Some(ListensAt::Any));
    let client = UdpSocket::bind("0.0.0.0:0").expect("a port");
    assert_eq!(listens(Protocol::Udp, client.local_addr().expect("its address").port()), None);
    // A connection is nothing that listens.
    let client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let own = client.local_addr().expect("its address").port();
    assert_eq!(listens(Protocol::Tcp, own), None);
    drop(tcp);
    assert_eq!(listens(Protocol::Tcp, port), None);
}

#[test]
fn the_ports_that_the_kernel_gives_out_are_two_numbers() {
    assert_eq!(parse_range("1024\t65535\n"), Some((1024, 65_535)));
    for text in ["", "1024", "1024 many", "1024 65536"] {
        assert_eq!(parse_range(text), None, "{text}");
    }
}
