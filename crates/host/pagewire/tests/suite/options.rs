//! Settings with the names that users of `std` and `socket2` know.

use std::io::{Read, Write};
use std::time::Duration;

use pagewire::memory::Region;
use pagewire::tcp::{FastOpenConfig, FastOpenMode};
use pagewire::{ConnectOptions, Host, KeepAlive, SocketOption, StartError};

use crate::support::{builders, hosts, hosts_with};

#[test]
fn the_second_connection_with_fast_open_carries_data_in_its_syn() {
    let mode = FastOpenMode::CLIENT | FastOpenMode::SERVER;
    let config = FastOpenConfig::default();
    let (server, client) = hosts_with(|host| host.fast_open(FastOpenConfig { mode, ..config }));
    let listener = server.listen("10.0.0.1:9000").expect("listen");
    listener.set_fast_open(16).expect("option");
    let options = ConnectOptions::new().fast_open();
    for first in [true, false] {
        let mut conn = client.connect_with("10.0.0.1:9000", &options).expect("connect");
        conn.write_all(b"hello").expect("write");
        let (mut peer, _) = listener.accept().expect("accept");
        let mut got = [0; 5];
        peer.read_exact(&mut got).expect("read");
        assert_eq!(&got, b"hello");
        peer.write_all(b"!").expect("write");
        conn.read_exact(&mut got[..1]).expect("read");
        assert_eq!(conn.info().expect("info").syn_data, !first, "once there is a cookie");
    }
}

#[test]
fn fast_open_is_refused_where_the_host_does_without_it() {
    let (mode, config) = (FastOpenMode::empty(), FastOpenConfig::default());
    let (server, client) = hosts_with(|host| host.fast_open(FastOpenConfig { mode, ..config }));
    let _listener = server.listen("10.0.0.1:9000").expect("listen");
    let options = ConnectOptions::new().fast_open();
    let refused = client.connect_with("10.0.0.1:9000", &options).expect_err("refused");
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn settings_of_the_builder_of_a_connect_and_of_a_stream_are_what_a_stream_shows() {
    let (server, client) = builders();
    let server = server.start().expect("host");
    let probes = KeepAlive { idle: Duration::from_secs(60), ..Default::default() };
    let client = client
        .tcp_option(SocketOption::KeepAlive(Some(probes)))
        .tcp_option(SocketOption::SendBuffer(1 << 20))
        .start()
        .expect("host");
    let _listener = server.listen("10.0.0.1:9000").expect("listen");
    let options = ConnectOptions::new()
        .local("10.0.0.2:7777".parse().expect("address"))
        .option(SocketOption::RecvBuffer(1 << 19));
    let conn = client.connect_with("10.0.0.1:9000", &options).expect("connect");
    assert_eq!(conn.local_addr().expect("address").port(), 7777);
    assert_eq!(conn.keepalive().expect("option"), Some(probes));
    assert_eq!(conn.send_buffer_size().expect("option"), 1 << 20);
    assert_eq!(conn.recv_buffer_size().expect("option"), 1 << 19);

    conn.set_keepalive(None).expect("option");
    assert_eq!(conn.keepalive().expect("option"), None);
    conn.set_read_timeout(Some(Duration::from_millis(5))).expect("option");
    assert_eq!(conn.read_timeout().expect("option"), Some(Duration::from_millis(5)));
    assert_eq!(conn.write_timeout().expect("option"), None);
}

#[test]
fn a_builder_refuses_a_setting_that_connections_do_not_begin_with() {
    let error = builders().0.tcp_option(SocketOption::FastOpen(3)).start().expect_err("refused");
    assert!(matches!(&error, StartError::Option(name) if name.contains("FastOpen")), "{error}");
}

/// `main` prints the error that it returns by `Debug`.
#[test]
fn an_error_that_ends_main_is_printed_as_its_text() {
    let no_device = Host::builder().start().expect_err("refused");
    assert_eq!(
        format!("{no_device:?}"),
        "a host needs a device: call `.device(..)` before `.start()`"
    );
    let no_memory = Region::anonymous(1).expect_err("refused");
    assert_eq!(format!("{no_memory:?}"), no_memory.to_string());
    let lost = pagewire::device::DeviceError::Closed;
    assert_eq!(format!("{lost:?}"), "the device was closed by its other side, or deleted");
}

#[test]
fn a_datagram_socket_has_the_settings_of_std() {
    let (server, client) = hosts();
    let near = client.udp("10.0.0.2:9000").expect("socket");
    let far = server.udp("10.0.0.1:9000").expect("socket");
    near.set_recv_buffer_size(10_000).expect("option");
    assert_eq!(near.recv_buffer_size().expect("option"), 10_000);
    near.set_write_timeout(Some(Duration::from_secs(1))).expect("option");
    assert_eq!(near.write_timeout().expect("option"), Some(Duration::from_secs(1)));
    let refused = near.set_multicast_hops_v6(7).map_err(|error| error.raw_os_error());
    assert_eq!(refused, Err(Some(92)), "ENOPROTOOPT of a socket of IPv4");
    let six = client.udp("[::]:0").expect("socket");
    six.set_multicast_hops_v6(7).expect("option");
    assert_eq!(six.multicast_hops_v6().expect("option"), 7);

    near.connect("10.0.0.1:9000").expect("connect");
    assert_eq!(near.peer_addr().expect("address"), "10.0.0.1:9000".parse().expect("address"));
    near.send_chunks(vec![1; 100]).expect("send");
    let mut buf = [0; 200];
    assert_eq!(far.peek(&mut buf).expect("peek"), 100);
    assert_eq!(far.recv_chunks().expect("receive").len(), 100);
}
