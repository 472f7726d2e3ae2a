//! Tests of the server over the kernel's loopback.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::http::server::Server;
use crate::http::testing::{Script, connected};
use crate::limits::RATE_WINDOW;

struct Site {
    directory: tempfile::TempDir,
    server: Arc<Server>,
}

struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

impl Site {
    fn new(copy_below: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let served = directory.path().join("served");
        fs::create_dir(&served).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        fs::write(served.join("empty"), "").unwrap();
        fs::write(served.join("one"), "1").unwrap();
        fs::write(served.join("page.html"), "<p>hello").unwrap();
        fs::write(served.join("big.bin"), pattern(3_000_001)).unwrap();
        fs::write(served.join("a b&<c>\"'.txt"), "odd").unwrap();
        fs::create_dir(served.join("sub")).unwrap();
        fs::write(served.join("sub/x:y"), "colon").unwrap();
        fs::create_dir(served.join("indexed")).unwrap();
        fs::write(served.join("indexed/index.html"), "the index").unwrap();
        symlink("/etc/passwd", served.join("absolute")).unwrap();
        symlink("../secret", served.join("relative-out")).unwrap();
        symlink("..", served.join("dir-out")).unwrap();
        symlink("one", served.join("inside")).unwrap();
        symlink("loop", served.join("loop")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            served.join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let server = Arc::new(Server::new(&served, copy_below, 1000).unwrap());
        Self { directory, server }
    }

    /// A client's end, and the thread that serves it.
    fn connect(&self) -> (TcpStream, JoinHandle<()>) {
        let (client, mut ours) = connected();
        let server = Arc::clone(&self.server);
        (client, std::thread::spawn(move || server.serve(&mut ours)))
    }

    /// Sends bytes, closes that direction, and reads all that comes.
    fn talk(&self, request: &[u8]) -> Vec<u8> {
        let (mut client, serving) = self.connect();
        let mut writer = client.try_clone().unwrap();
        let request = request.to_vec();
        let writing = std::thread::spawn(move || {
            let _ = writer.write_all(&request);
            let _ = writer.shutdown(Shutdown::Write);
        });
        let mut bytes = Vec::new();
        let _ = client.read_to_end(&mut bytes);
        writing.join().unwrap();
        drop(client);
        serving.join().unwrap();
        bytes
    }

    fn answers(&self, request: &[u8], heads_only: bool) -> Vec<Answer> {
        let bytes = self.talk(request);
        let (mut rest, mut answers) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let at = rest.windows(4).position(|w| w == b"\r\n\r\n").expect("a whole head") + 4;
            let head = String::from_utf8(rest[..at].to_vec()).unwrap();
            let status = head[9..12].parse().unwrap();
            let mut answer = Answer { status, head, body: Vec::new() };
            let len = answer.field("Content-Length").map_or(0, |l| l.parse().unwrap());
            let len: usize = if heads_only { 0 } else { len };
            answer.body = rest[at..at + len].to_vec();
            rest = &rest[at + len..];
            answers.push(answer);
        }
        answers
    }

    fn get(&self, path: &str, fields: &str) -> Answer {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n");
        let mut answers = self.answers(request.as_bytes(), false);
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }
}

#[test]
fn files_of_every_size_arrive_by_copy_and_by_reference() {
    for copy_below in [0, 100, u64::MAX] {
        let site = Site::new(copy_below);
        for (name, content) in
            [("empty", Vec::new()), ("one", b"1".to_vec()), ("big.bin", pattern(3_000_001))]
        {
            let answer = site.get(&format!("/{name}"), "");
            assert_eq!(answer.status, 200);
            assert!(answer.body == content, "{name}, copying below {copy_below}");
            assert_eq!(answer.field("Accept-Ranges"), Some("bytes"));
            assert!(answer.field("ETag").is_some() && answer.field("Last-Modified").is_some());
        }
        let by_reference = site.server.counters.by_reference.load(Ordering::Relaxed);
        let expected = match copy_below {
            0 => 3_000_002,
            100 => 3_000_001,
            _ => 0,
        };
        assert_eq!(by_reference, expected);
    }
}

#[test]
fn types_follow_the_name() {
    let site = Site::new(0);
    assert_eq!(site.get("/page.html", "").field("Content-Type"), Some("text/html"));
    assert_eq!(site.get("/one", "").field("Content-Type"), Some("application/octet-stream"));
}

#[test]
fn ranges_give_their_bytes_and_say_which() {
    let (site, all) = (Site::new(0), pattern(3_000_001));
    for (range, first, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=4095-4096", 4095, 4097),
        ("bytes=1048575-2097153", 1_048_575, 2_097_154),
        ("bytes=3000000-", 3_000_000, 3_000_001),
        ("bytes=-5", 2_999_996, 3_000_001),
    ] {
        let answer = site.get("/big.bin", &format!("Range: {range}\r\n"));
        assert_eq!(answer.status, 206, "{range}");
        assert!(answer.body == all[first..end], "{range}");
        let expected = format!("bytes {first}-{}/3000001", end - 1);
        assert_eq!(answer.field("Content-Range"), Some(expected.as_str()));
    }
    let answer = site.get("/big.bin", "Range: bytes=3000001-\r\n");
    assert_eq!((answer.status, answer.field("Content-Range")), (416, Some("bytes */3000001")));
    let answer = site.get("/big.bin", "Range: bytes=0-1,5-6\r\n");
    assert!(answer.status == 200 && answer.body == all);
    let answer = site.get("/big.bin", "Range: bytes=0-1\r\nIf-Range: \"other\"\r\n");
    assert!(answer.status == 200 && answer.body == all);
    assert_eq!(site.get("/empty", "Range: bytes=0-\r\n").status, 416);
}

#[test]
fn what_the_client_has_is_not_sent_again() {
    let site = Site::new(0);
    let first = site.get("/one", "");
    let (etag, date) = (first.field("ETag").unwrap(), first.field("Last-Modified").unwrap());
    // The tag turns from weak to strong when the file has settled; both must match.
    let etag = etag.trim_start_matches("W/");
    for condition in [format!("If-None-Match: {etag}"), format!("If-Modified-Since: {date}")] {
        let answer = site.get("/one", &format!("{condition}\r\n"));
        assert_eq!((answer.status, answer.body.len()), (304, 0), "{condition}");
        assert!(answer.field("ETag").is_some());
    }
    let answer = site.get("/one", "If-Match: \"other\"\r\n");
    assert_eq!(answer.status, 412);
}

#[test]
fn head_gives_the_same_fields_and_no_content() {
    let site = Site::new(0);
    let request = "HEAD /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n\r\n\
                   HEAD / HTTP/1.1\r\nHost: a\r\n\r\nHEAD /none HTTP/1.1\r\nHost: a\r\n\r\n";
    let answers = site.answers(request.as_bytes(), true);
    assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [200, 200, 404]);
    assert_eq!(answers[0].field("Content-Length"), Some("3000001"));
}

#[test]
fn pipelined_requests_are_answered_in_order_on_one_connection() {
    let site = Site::new(0);
    let mut request = String::new();
    for _ in 0..3 {
        for name in ["one", "big.bin", "none", "empty", "sub"] {
            request += &format!("GET /{name} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        }
    }
    let answers = site.answers(request.as_bytes(), false);
    let statuses: Vec<_> = answers.iter().map(|a| a.status).collect();
    assert_eq!(statuses, [200, 200, 404, 200, 301].repeat(3));
    assert!(answers[6].body == pattern(3_000_001));
    assert_eq!(answers[0].field("Connection"), Some("keep-alive"));
}

#[test]
fn content_of_a_request_is_read_over_up_to_its_limit() {
    let site = Site::new(0);
    let mut chunked =
        String::from("GET /one HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    chunked += "5\r\nGET /\r\n0\r\n\r\n";
    let twice = chunked.repeat(2);
    let answers = site.answers(twice.as_bytes(), false);
    assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [200, 200]);
    let mut long =
        String::from("GET /one HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    long += &format!("10001\r\n{}\r\n0\r\n\r\n", "x".repeat(65_537));
    let answers = site.answers(long.as_bytes(), false);
    assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [413]);
}

#[test]
fn a_refused_request_says_why_and_closes_where_it_must() {
    let site = Site::new(0);
    for (request, status, closes) in [
        ("GET /.. HTTP/1.1\r\nHost: a\r\n\r\n", 400, false),
        ("GET /%2e%2e/secret HTTP/1.1\r\nHost: a\r\n\r\n", 400, false),
        ("GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 404, false),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /", 405, true),
        ("nonsense\r\n\r\n", 400, true),
        ("GET / HTTP/3.0\r\n\r\n", 505, true),
    ] {
        let one = format!("{request}GET /one HTTP/1.1\r\nHost: a\r\n\r\n");
        let answers = site.answers(one.as_bytes(), false);
        assert_eq!(answers[0].status, status, "{request:?}");
        assert_eq!(answers.len(), if closes { 1 } else { 2 }, "{request:?}");
        assert!(answers[0].body.starts_with(status.to_string().as_bytes()));
        if status == 405 {
            assert_eq!(answers[0].field("Allow"), Some("GET, HEAD"));
        }
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(40_000));
    assert_eq!(site.answers(long.as_bytes(), false)[0].status, 414);
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(40_000));
    assert_eq!(site.answers(long.as_bytes(), false)[0].status, 431);
}

#[test]
fn nothing_outside_of_the_directory_is_reached() {
    let site = Site::new(0);
    for (path, status) in [
        ("/absolute", 403),
        ("/relative-out", 403),
        ("/dir-out/", 403),
        ("/dir-out/secret", 403),
        ("/loop", 403),
        ("/fifo", 403),
        ("/one/", 404),
        ("/one/x", 404),
        ("/inside", 200),
        ("//one", 200),
        ("/sub/./../one", 400),
    ] {
        let answer = site.get(path, "");
        assert_eq!(answer.status, status, "{path}");
        assert!(!answer.body.windows(6).any(|w| w == b"secret"), "{path}");
    }
    let long = format!("/{}", "a".repeat(300));
    assert_eq!(site.get(&long, "").status, 404);
}

#[test]
fn a_directory_shows_its_index() {
    let site = Site::new(0);
    let answer = site.get("/sub", "");
    assert_eq!((answer.status, answer.field("Location")), (301, Some("/sub/")));
    let answer = site.get("//sub", "");
    assert_eq!((answer.status, answer.field("Location")), (301, Some("/sub/")));
    assert_eq!(site.get("/indexed/", "").body, b"the index");
    let root = String::from_utf8(site.get("/", "").body).unwrap();
    let odd = "<a href=\"./a%20b%26%3Cc%3E%22%27.txt\">a b&amp;&lt;c&gt;&quot;&#39;.txt</a>";
    assert!(root.contains(odd), "{root}");
    assert!(root.contains("<a href=\"./sub/\">sub/</a>"));
    assert!(!root.contains("../"));
    let sub = String::from_utf8(site.get("/sub/", "").body).unwrap();
    assert!(sub.contains("<a href=\"./x%3Ay\">x:y</a>") && sub.contains("href=\"../\""));
}

const GET_BIG: &[u8] = b"GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_reader_of_a_byte_now_and_then_is_reset_and_a_slow_one_is_not() {
    for copy_below in [0, u64::MAX] {
        let site = Site::new(copy_below);
        // Less than what counts as silence.
        let mut trickle = Script::slow(GET_BIG, 1, Duration::from_secs(29));
        site.server.serve(&mut trickle);
        assert!(trickle.aborted, "copying below {copy_below}");
        assert_eq!(trickle.passed(), RATE_WINDOW);
        assert_eq!(site.server.counters.stalled.load(Ordering::Relaxed), 1);
        // Twice the least rate, in bursts.
        let mut slow = Script::slow(GET_BIG, 20_000, Duration::from_secs(10));
        site.server.serve(&mut slow);
        assert!(!slow.aborted && slow.sent.ends_with(&pattern(3_000_001)));
        assert!(slow.passed() > RATE_WINDOW * 40);
    }
}

#[test]
fn a_reader_of_a_byte_now_and_then_is_reset_over_many_responses_too() {
    let site = Site::new(0);
    let mut trickle = Script::slow(
        &b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1000),
        1,
        Duration::from_secs(1),
    );
    site.server.serve(&mut trickle);
    assert!(trickle.aborted);
    assert_eq!(trickle.passed(), RATE_WINDOW);
}

/// Bytes of a file: more than loopback buffers.
const LARGE: usize = 24 << 20;

/// A file, and what a download of it got during which `change` was made: less than a file, if the
/// server noticed.
fn changed_while_served(copy_below: u64, change: impl FnOnce(&std::path::Path)) -> (Site, Vec<u8>) {
    let site = Site::new(copy_below);
    let path = site.directory.path().join("served/big.bin");
    fs::write(&path, pattern(LARGE)).unwrap();
    // Long ago, so that its time stamps can move.
    set_modified(&path, 1_000_000);
    let (mut client, serving) = site.connect();
    client.write_all(b"GET /big.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = vec![0; 1000];
    client.read_exact(&mut bytes).unwrap();
    // The server is still at it.
    change(&path);
    let _ = client.read_to_end(&mut bytes);
    serving.join().unwrap();
    let head = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head") + 4;
    bytes.drain(..head);
    (site, bytes)
}

fn set_modified(path: &std::path::Path, second: i64) {
    let time = rustix::fs::Timespec { tv_sec: second, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::futimens(fs::File::open(path).unwrap(), &times).unwrap();
}

/// The same number of other bytes, into the same file.
fn rewrite(path: &std::path::Path) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    (&file).write_all(&vec![7; LARGE]).unwrap();
}

#[test]
fn a_file_cut_short_while_it_is_sent_aborts_its_connection_only() {
    let (site, got) = changed_while_served(0, |path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5_000).unwrap();
    });
    assert!(got.len() < LARGE);
    assert_eq!(site.server.counters.truncated.load(Ordering::Relaxed), 1);
    assert_eq!(site.get("/big.bin", "").body, pattern(5_000));
    assert_eq!(site.get("/one", "").body, b"1");
}

#[test]
fn a_file_rewritten_while_it_is_sent_does_not_pass_as_whole() {
    for copy_below in [0, u64::MAX] {
        for change in [
            rewrite as fn(&std::path::Path),
            // A byte of what was not sent yet, and one of what was.
            |path| {
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                rustix::io::pwrite(&file, b"x", LARGE as u64 - 1).unwrap();
            },
            // Empty in between, and as long as before in the end.
            |path| fs::write(path, vec![7; LARGE]).unwrap(),
            // With its old time stamp.
            |path| {
                rewrite(path);
                set_modified(path, 1_000_000);
            },
        ] {
            let (site, got) = changed_while_served(copy_below, change);
            assert!(got.len() < LARGE, "copying below {copy_below}");
            let counters = &site.server.counters;
            let aborted =
                [&counters.changed, &counters.truncated].map(|c| c.load(Ordering::Relaxed));
            assert_eq!(aborted.iter().sum::<u64>(), 1);
        }
    }
}

#[test]
fn a_file_replaced_by_another_of_its_name_is_sent_to_its_end_as_it_was() {
    for change in [
        (|path| {
            fs::write(path.with_extension("new"), "new").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }) as fn(&std::path::Path),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap()
        },
    ] {
        for copy_below in [0, u64::MAX] {
            let (site, got) = changed_while_served(copy_below, change);
            assert!(got == pattern(LARGE), "copying below {copy_below}");
            assert_eq!(site.server.counters.changed.load(Ordering::Relaxed), 0);
        }
    }
}

#[test]
fn where_it_is_crowded_a_connection_ends_with_its_response() {
    let site = Site::new(0);
    site.server.crowded.store(true, Ordering::Relaxed);
    let answers = site.answers(&b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2), false);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].field("Connection"), Some("close"));
}

#[test]
fn a_stopping_server_finishes_the_request_and_takes_no_more() {
    let site = Site::new(0);
    site.server.stopping.store(true, Ordering::Relaxed);
    let mut script = Script::new([&b"GET /one HTTP/1.1\r\nHost: a\r\n\r\n"[..]]);
    site.server.serve(&mut script);
    assert!(script.sent.is_empty() && !script.aborted);
}

#[test]
fn a_peer_that_goes_away_is_its_own_business() {
    let site = Site::new(0);
    let (client, mut ours) = connected();
    let mut writer: &TcpStream = &client;
    writer.write_all(b"GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    drop(client);
    site.server.serve(&mut ours);
    assert_eq!(site.server.counters.truncated.load(Ordering::Relaxed), 0);
}

#[test]
fn parallel_downloads_share_their_mappings() {
    let site = Site::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| assert!(site.get("/big.bin", "").body == pattern(3_000_001)));
        }
    });
    assert_eq!(site.server.windows_kept(), 1);
}
