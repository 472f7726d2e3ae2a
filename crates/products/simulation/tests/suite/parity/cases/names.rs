//! Name resolution, and text as addresses.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use super::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket, lookup_host};

async fn first(given: impl ToSocketAddrs) -> SocketAddr {
    lookup_host(given).await.unwrap().next().unwrap()
}

cases! {
    async fn all_forms_of_an_address_are_taken() {
        let expected = SocketAddr::from(([10, 1, 2, 3], 80));
        let ip = Ipv4Addr::new(10, 1, 2, 3);
        assert_eq!(first(expected).await, expected);
        assert_eq!(first(SocketAddrV4::new(ip, 80)).await, expected);
        assert_eq!(first((ip, 80)).await, expected);
        assert_eq!(first((IpAddr::V4(ip), 80)).await, expected);
        assert_eq!(first("10.1.2.3:80").await, expected);
        assert_eq!(first(String::from("10.1.2.3:80")).await, expected);
        assert_eq!(first(&String::from("10.1.2.3:80")).await, expected);
        assert_eq!(first(("10.1.2.3", 80)).await, expected);
        assert_eq!(first((String::from("10.1.2.3"), 80)).await, expected);
        assert_eq!(first(&[expected][..]).await, expected);
        assert_eq!(first(&&expected).await, expected);
        assert_eq!(first("[fd00::7]:80").await.to_string(), "[fd00::7]:80");
        assert_eq!(first(("fd00::7", 80)).await.to_string(), "[fd00::7]:80");
    }

    async fn localhost_is_this_host() {
        let all: Vec<_> = lookup_host("localhost:80").await?.collect();
        assert!(!all.is_empty() && all.iter().all(|at| at.ip().is_loopback()));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let (client, _) =
            tokio::try_join!(TcpStream::connect(("localhost", port)), listener.accept())?;
        assert_eq!(client.peer_addr()?.port(), port);
    }

    async fn an_unknown_name_is_not_found() {
        for error in [
            TcpStream::connect("no such host:80").await.map(drop).unwrap_err(),
            TcpListener::bind("no such host:80").await.map(drop).unwrap_err(),
            UdpSocket::bind(("no such host", 80)).await.map(drop).unwrap_err(),
        ] {
            assert!(error.to_string().contains("failed to lookup address information"), "{error}");
        }
    }

    async fn text_without_a_port_is_no_address() {
        for text in ["127.0.0.1", "localhost", "localhost:", "localhost:70000", ""] {
            let error = TcpStream::connect(text).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
    }
}
