//! Sockets of a service manager: whom they are for, and which of them a link takes.

use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use super::*;

#[test]
fn sockets_are_for_the_process_that_is_named_and_nobody_else() {
    let of = |process: Option<&str>, count: Option<&str>| {
        Passed::of(process.map(str::to_owned), count.map(str::to_owned), 41).0
    };
    assert_eq!(of(Some("41"), Some("1")).as_deref(), Some("1"));
    for process in [None, Some("40"), Some(""), Some("x"), Some("-41")] {
        assert_eq!(of(process, Some("1")), None, "{process:?}");
    }
    assert_eq!(of(Some("41"), None), None);
}

#[test]
fn a_number_of_sockets_that_is_not_one_is_refused_with_what_is_needed() {
    for count in ["2", "", "x", "-1"] {
        let refused = passed(count).take(
            &mut Inherited::find(),
            GuestLink::Stream,
            Some(Path::new("/run/link.sock")),
        );
        let said = usage(refused);
        assert!(said.starts_with("--socket /run/link.sock: "), "{said}");
        assert!(said.contains(&format!("passed {count} sockets;")), "{said}");
        assert!(said.contains("a listening stream socket that is bound to this path"), "{said}");
    }
    let refused = passed("1").take(&mut Inherited::find(), GuestLink::Tap, None);
    assert!(usage(refused).contains("takes none"));
    for nothing in [Passed(None), passed("0")] {
        let none = nothing.take(&mut Inherited::find(), GuestLink::Tap, None);
        assert!(none.expect("nobody passed any").is_none());
    }
}

#[test]
fn a_descriptor_is_known_by_its_kind_and_its_path() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let listener = UnixListener::bind(path("a")).expect("bound");
    assert_eq!(judge(&file(listener)), Ok((LISTENER, Some(path("a")))));
    let datagram = UnixDatagram::bind(path("b")).expect("bound");
    assert_eq!(judge(&file(datagram)), Ok((DATAGRAM, Some(path("b")))));
    let unbound = UnixDatagram::unbound().expect("a socket");
    assert_eq!(judge(&file(unbound)), Ok((DATAGRAM, None)));
    let (connected, _other) = UnixStream::pair().expect("a pair");
    let connected = judge(&file(connected)).expect("a Unix socket").0;
    assert!(connected.contains("does not listen"), "{connected}");
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    assert!(judge(&file(tcp)).is_err());
    assert!(judge(&File::open("/dev/null").expect("it is there")).is_err());
}

#[test]
fn a_path_is_the_same_however_it_is_written() {
    let here = env::current_dir().expect("a directory");
    assert!(is_same(&here.join("link"), Path::new("link")));
    assert!(is_same(Path::new("/run/a"), Path::new("/run//./a")));
    assert!(!is_same(Path::new("/run/a"), Path::new("/run/b")));
    assert!(!is_same(Path::new("/run/a"), Path::new("")));
}

fn passed(count: &str) -> Passed {
    Passed(Some(count.into()))
}

fn file(socket: impl Into<OwnedFd>) -> File {
    socket.into().into()
}

fn usage(refused: Result<Option<OwnedFd>, Failure>) -> String {
    match refused {
        Err(Failure::Usage(text)) => text,
        other => panic!("{other:?}"),
    }
}
