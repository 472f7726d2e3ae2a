//! Published ports: their text, their sockets, and which clients keep their address.

use super::*;

fn why(text: &str) -> String {
    text.parse::<Publish>().expect_err(text).to_string()
}

#[test]
fn what_is_published_reads_as_it_was_written() {
    for text in [
        "80",
        "8080:80",
        "127.0.0.1:8080:80",
        "[::1]:8080:80",
        "53/udp",
        "1-9:11-19/udp",
        "auto",
        "auto,~22,~5000-5009/udp",
        "all",
        "all,~22/udp",
        "8000-8009:9000-9009,~8003",
    ] {
        assert_eq!(text.parse::<Publish>().expect(text).to_string(), text);
    }
    let socket: Publish = "/run/udp/tcp.sock:80".parse().expect("a path");
    assert_eq!(socket.on, On::Unix("/run/udp/tcp.sock".into()));
}

#[test]
fn what_cannot_be_published_says_why() {
    assert!(why("").contains("a port is a number"));
    assert!(why("80:0").contains("cannot be 0"));
    assert!(why("9-1").contains("ends before it begins"));
    assert!(why("1-9:1-5").contains("differ in length"));
    assert!(why("1-9:65530").contains("beyond 65535"));
    assert!(why("1.2.3:80").contains("no address"));
    assert!(why("[::1:80").contains("']:'"));
    assert!(why("auto,22").contains("begin with ~"));
    assert!(why("/run/x").contains("port of the guest"));
}

#[test]
fn a_range_leads_to_as_many_ports_from_the_first_on() {
    let free: u16 = 20_000 + (std::process::id() % 20_000) as u16;
    let text = format!("127.0.0.1:{free}-{}:80", free + 2);
    let Ok(opened) = text.parse::<Publish>().expect("a range").open() else { return };
    assert_eq!(opened.iter().map(|o| o.port).collect::<Vec<_>>(), [80, 81, 82]);
    drop(opened);
    let text = format!("{text},~{}", free + 1);
    let Ok(opened) = text.parse::<Publish>().expect("a range").open() else { return };
    assert_eq!(opened.iter().map(|o| o.port).collect::<Vec<_>>(), [80, 82]);
}

#[test]
fn all_are_those_that_are_free_and_as_many_as_the_process_may_have() {
    let mine = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = mine.local_addr().expect("its address").port();
    let publish: Publish = format!("all,~1-{},~{}-65535", port - 1, port + 1).parse().expect("all");
    assert!(publish.open().expect("no error").is_empty(), "the kernel's, and in use");
    let limit = Rlimit { current: Some(200), maximum: Some(200) };
    let before = getrlimit(Resource::Nofile);
    // The limit is the process's: this test has one of its own, under nextest.
    if setrlimit(Resource::Nofile, limit).is_ok() {
        let why = "all".parse::<Publish>().expect("all").open().expect_err("too many").to_string();
        assert!(why.contains("leave ports out"), "{why}");
        let _ = setrlimit(Resource::Nofile, before);
    }
}

#[test]
fn a_file_that_is_no_socket_stays_and_a_socket_that_nobody_serves_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("guest.sock");
    let publish: Publish = format!("{}:80", path.display()).parse().expect("a path");
    std::fs::write(&path, "precious").expect("a file");
    let error = publish.open().expect_err("there is a file");
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read(&path).expect("the file"), b"precious");
    std::fs::remove_file(&path).expect("the file");
    // The target of a link stays, too.
    let other = dir.path().join("other");
    std::fs::write(&other, "precious").expect("a file");
    std::os::unix::fs::symlink(&other, &path).expect("a link");
    assert!(publish.open().is_err());
    assert_eq!(std::fs::read(&other).expect("the file"), b"precious");
    std::fs::remove_file(&path).expect("the link");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let opened = publish.open().expect("nobody listens there");
    assert!(publish.open().is_err(), "somebody listens now");
    drop(opened);
    assert!(!path.exists());
}
