//! Tests of the client, against our own server and against servers that misbehave, over loopback.

use std::cell::RefCell;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use crate::commands::fetch::{Output, Summary, fetch};
use crate::http::server::Server;
use crate::http::url::Url;
use crate::signals::Stop;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.path(name)).ok()
    }
}

/// Answers each connection with the next script, after having read one request head.
fn scripted(answers: Vec<Vec<u8>>) -> (SocketAddr, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                connection.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            requests.push(String::from_utf8(head).unwrap());
            connection.write_all(&answer).unwrap();
        }
        requests
    });
    (address, serving)
}

fn fetch_to(address: SocketAddr, place: &Place) -> Result<Summary, String> {
    let url = Url::parse(&format!("http://{address}/file")).unwrap();
    let output = Output::file(place.path("out"));
    fetch(TcpStream::connect, &url, &output, &Stop::default()).map_err(|e| format!("{e:?}"))
}

#[test]
fn content_arrives_in_each_framing() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\nhello",
    ] {
        let place = Place::new();
        let (address, serving) = scripted(vec![answer.into()]);
        let summary = fetch_to(address, &place).unwrap();
        assert_eq!((summary.bytes, summary.resumed_at), (5, 0));
        assert_eq!(place.read("out").unwrap(), b"hello");
        assert!(place.read("out.part").is_none() && place.read("out.part.from").is_none());
        serving.join().unwrap();
    }
}

#[test]
fn an_interrupted_download_goes_on_where_the_file_is_the_same() {
    let place = Place::new();
    let cut = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 10\r\n\r\nhello";
    let rest = "HTTP/1.1 206 P\r\nETag: \"v1\"\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\nworld";
    let (address, serving) = scripted(vec![cut.into(), rest.into()]);
    let error = fetch_to(address, &place).unwrap_err();
    assert!(error.contains("after 5 of 10 bytes; run the same command again"), "{error}");
    assert_eq!(place.read("out.part").unwrap(), b"hello");
    assert!(place.read("out").is_none());
    let summary = fetch_to(address, &place).unwrap();
    assert_eq!((summary.bytes, summary.resumed_at), (5, 5));
    assert_eq!(place.read("out").unwrap(), b"helloworld");
    let requests = serving.join().unwrap();
    assert!(
        requests[1].contains("Range: bytes=5-\r\n") && requests[1].contains("If-Range: \"v1\"\r\n")
    );
}

#[test]
fn a_rest_longer_than_any_file_is_an_error_in_words() {
    let place = Place::new();
    let cut = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 10\r\n\r\nhello";
    let rest = format!(
        "HTTP/1.1 206 P\r\nETag: \"v1\"\r\nContent-Range: bytes 5-9/10\r\nContent-Length: {}\r\n\r\nworld",
        u64::MAX
    );
    let (address, serving) = scripted(vec![cut.into(), rest.into()]);
    fetch_to(address, &place).unwrap_err();
    let error = fetch_to(address, &place).unwrap_err();
    assert!(error.contains("after 10 of 18446744073709551615 bytes"), "{error}");
    serving.join().unwrap();
}

#[test]
fn a_download_starts_over_where_the_file_has_changed() {
    let place = Place::new();
    let cut = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 10\r\n\r\nhello";
    let whole = "HTTP/1.1 200 OK\r\nETag: \"v2\"\r\nContent-Length: 3\r\n\r\nnew";
    let (address, serving) = scripted(vec![cut.into(), whole.into()]);
    fetch_to(address, &place).unwrap_err();
    let summary = fetch_to(address, &place).unwrap();
    assert_eq!((summary.bytes, summary.resumed_at), (3, 0));
    assert_eq!(place.read("out").unwrap(), b"new");
    serving.join().unwrap();
}

#[test]
fn a_download_starts_over_without_a_strong_validator_or_where_ranges_do_not_fit() {
    let cut = "HTTP/1.1 200 OK\r\nETag: W/\"v1\"\r\nContent-Length: 10\r\n\r\nhello";
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew";
    let place = Place::new();
    let (address, serving) = scripted(vec![cut.into(), whole.into()]);
    let error = fetch_to(address, &place).unwrap_err();
    assert!(!error.contains("again"), "{error}");
    fetch_to(address, &place).unwrap();
    assert!(!serving.join().unwrap()[1].contains("Range"));

    let cut = cut.replace("W/", "");
    for misfit in [
        "HTTP/1.1 206 P\r\nContent-Range: bytes 4-9/10\r\nContent-Length: 6\r\n\r\noworld",
        "HTTP/1.1 206 P\r\nContent-Length: 5\r\n\r\nworld",
        "HTTP/1.1 416 R\r\nContent-Range: bytes */4\r\nContent-Length: 0\r\n\r\n",
    ] {
        let place = Place::new();
        let (address, serving) = scripted(vec![cut.clone().into(), misfit.into(), whole.into()]);
        fetch_to(address, &place).unwrap_err();
        assert_eq!(fetch_to(address, &place).unwrap().bytes, 3);
        assert_eq!(place.read("out").unwrap(), b"new");
        serving.join().unwrap();
    }
}

#[test]
fn a_complete_part_only_gets_its_name() {
    let place = Place::new();
    let cut = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nContent-Length: 6\r\n\r\nhello";
    let done = "HTTP/1.1 416 R\r\nContent-Range: bytes */5\r\nContent-Length: 0\r\n\r\n";
    let (address, serving) = scripted(vec![cut.into(), done.into()]);
    fetch_to(address, &place).unwrap_err();
    assert_eq!(fetch_to(address, &place).unwrap().resumed_at, 5);
    assert_eq!(place.read("out").unwrap(), b"hello");
    serving.join().unwrap();
}

#[test]
fn redirects_are_followed_up_to_a_limit() {
    let redirect = "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n";
    let whole = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew";
    let place = Place::new();
    let mut answers = vec![redirect.into(); 5];
    answers.push(whole.into());
    let (address, serving) = scripted(answers);
    fetch_to(address, &place).unwrap();
    assert!(serving.join().unwrap()[5].starts_with("GET /x HTTP/1.1\r\n"));
    let (address, serving) = scripted(vec![redirect.into(); 6]);
    assert!(fetch_to(address, &place).unwrap_err().contains("redirects"));
    serving.join().unwrap();
}

#[test]
fn an_answer_that_is_no_file_is_an_error_that_names_it() {
    for (answer, expected) in [
        ("HTTP/1.1 404 Nope\r\nContent-Length: 0\r\n\r\n", "answered 404 Not Found"),
        ("HTTP/1.1 599 X\r\nContent-Length: 0\r\n\r\n", "answered 599"),
        ("HTTP/1.1 301 X\r\nContent-Length: 0\r\n\r\n", "leads nowhere"),
        ("", "without an answer"),
        ("SSH-2.0-server\r\n\r\n", "not HTTP"),
    ] {
        let place = Place::new();
        let (address, serving) = scripted(vec![answer.into()]);
        let error = fetch_to(address, &place).unwrap_err();
        assert!(error.contains(expected), "{answer:?}: {error}");
        assert!(place.read("out").is_none() && place.read("out.part").is_none());
        serving.join().unwrap();
    }
}

#[test]
fn our_server_resumes_our_client() {
    let place = Place::new();
    let content: Vec<u8> = (0..5_000_003_u32).map(|i| (i * 7 + i / 300) as u8).collect();
    fs::create_dir(place.path("served")).unwrap();
    fs::write(place.path("served/file"), &content).unwrap();
    // An old file, so that its tag is strong.
    let old = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: old, last_modification: old };
    let file = fs::File::open(place.path("served/file")).unwrap();
    rustix::fs::futimens(&file, &times).unwrap();
    let server = Arc::new(Server::new(&place.path("served"), 0, 0).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut connection, _) = listener.accept().unwrap();
            server.serve(&mut connection);
        }
    });
    // The files that an interrupted first attempt would have left.
    let url = Url::parse(&format!("http://{address}/file")).unwrap();
    let output = Output::file(place.path("out"));
    let etag = RefCell::new(String::new());
    let probe = |to: SocketAddr| -> io::Result<TcpStream> {
        let mut connection = TcpStream::connect(to)?;
        connection.write_all(b"HEAD /file HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut head = String::new();
        connection.read_to_string(&mut head)?;
        let line = head.lines().find_map(|l| l.strip_prefix("ETag: ")).unwrap();
        etag.replace(line.trim_start_matches("W/").to_owned());
        Ok(connection)
    };
    probe(address).unwrap();
    fs::write(place.path("out.part"), &content[..1_234_567]).unwrap();
    fs::write(place.path("out.part.from"), format!("{}\n{}\n", url.as_str(), etag.borrow()))
        .unwrap();
    let summary = fetch(TcpStream::connect, &url, &output, &Stop::default()).unwrap();
    assert!(place.read("out").unwrap() == content);
    // The tag is weak if the file was changed (its ctime) within the last 100 ms: all again then.
    assert!(summary.resumed_at == 1_234_567 || summary.resumed_at == 0);
    accepting.join().unwrap();
}
