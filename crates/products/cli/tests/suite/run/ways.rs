//! `--via`: real clients go by a real proxy, which the test is. Proxy and servers are on the loopback of the gateway's
//! network namespace. At the servers' own address is a trap: whoever comes there has not come by the proxy.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::lab::{Lab, V4, content, counter, is_same, text};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Socks5,
    Http,
}

const KINDS: [(Kind, &str); 2] =
    [(Kind::Socks5, "socks5://127.0.0.1:1080"), (Kind::Http, "http://localhost:1080")];

/// Ports: files by HTTP, the number of bytes before the client's end, and a server that speaks first.
const FILES: u16 = 8000;
const COUNTS: u16 = 8001;
const SPEAKS: u16 = 8002;

const GREETING: &[u8] = b"220 the server speaks first\r\n";

/// Notes of what came.
type Notes = Arc<Mutex<Vec<String>>>;

/// A network with a proxy; its threads end with the process of the test.
struct World {
    lab: Lab,
    file: Vec<u8>,
    /// The destinations that the proxy was asked for.
    asked: Notes,
    /// Who came without the proxy.
    trapped: Notes,
}

impl World {
    /// `password`: the proxy asks for `user` with it. `None`: the test is skipped.
    fn new(kind: Kind, password: Option<&'static str>) -> Option<Self> {
        let lab = Lab::new(&["curl", "python3"])?;
        let file = content(5 << 20);
        let (asked, trapped) = (Notes::default(), Notes::default());
        let served = file.clone();
        let (noted, caught) = (Arc::clone(&asked), Arc::clone(&trapped));
        // A thread has the network namespace of the one that starts it.
        lab.netns.inside(move || {
            let proxy = move |client| {
                let _ = serve(client, kind, password, &noted);
            };
            listen(Ipv4Addr::LOCALHOST.into(), 1080, proxy);
            listen(Ipv4Addr::LOCALHOST.into(), FILES, move |client| {
                let _ = answer(client, &served);
            });
            listen(Ipv4Addr::LOCALHOST.into(), COUNTS, |mut client| {
                let sent = client.read_to_end(&mut Vec::new()).unwrap_or(0);
                let _ = write!(client, "{sent} bytes");
            });
            listen(Ipv4Addr::LOCALHOST.into(), SPEAKS, |mut client| {
                let _ = client.write_all(GREETING);
                let _ = io::copy(&mut client.try_clone().expect("a copy"), &mut client);
            });
            let there: IpAddr = V4.parse().expect("an address");
            for port in [FILES, COUNTS, SPEAKS] {
                let caught = Arc::clone(&caught);
                listen(there, port, move |client| {
                    note(&caught, client.peer_addr().expect("a peer").to_string());
                    let _ = answer(client, b"direct");
                });
            }
            let datagrams = UdpSocket::bind((there, 53)).expect("a port");
            thread::spawn(move || {
                while let Ok((_, from)) = datagrams.recv_from(&mut [0; 1500]) {
                    note(&caught, from.to_string());
                    let _ = datagrams.send_to(b"direct", from);
                }
            });
        });
        Some(Self { lab, file, asked, trapped })
    }

    /// The destinations that the proxy was asked for since the last look.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().expect("no panic"))
    }

    fn trapped(&self) -> Vec<String> {
        std::mem::take(&mut self.trapped.lock().expect("no panic"))
    }
}

fn note(notes: &Notes, what: String) {
    notes.lock().expect("no panic").push(what);
}

/// Serves each client in a thread.
fn listen(at: IpAddr, port: u16, serve: impl Fn(TcpStream) + Clone + Send + 'static) {
    let listener = TcpListener::bind((at, port)).expect("a port");
    thread::spawn(move || {
        for client in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(client.expect("a client")));
        }
    });
}

/// Answers one request of HTTP.
fn answer(mut client: TcpStream, body: &[u8]) -> io::Result<()> {
    head(&mut client)?;
    let length = body.len();
    write!(client, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")?;
    client.write_all(body)
}

/// Reads up to the empty line, and no byte behind it.
fn head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(text(&head))
}

/// Serves one client of the proxy: each name is that of a server on the loopback, but for some.
fn serve(
    mut client: TcpStream,
    kind: Kind,
    password: Option<&str>,
    asked: &Notes,
) -> io::Result<()> {
    let target = match kind {
        Kind::Socks5 => socks5_request(&mut client, password)?,
        Kind::Http => {
            let head = head(&mut client)?;
            let proof = "\r\nProxy-Authorization: Basic dXNlcjpodW50ZXIy\r\n";
            if password.is_some() && !head.contains(proof) {
                let refusal = "HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic realm=x\r\n\r\n";
                return client.write_all(refusal.as_bytes());
            }
            head.split(' ').nth(1).unwrap_or_default().to_owned()
        }
    };
    note(asked, target.clone());
    let (host, port) = target.rsplit_once(':').expect("a port");
    // By the reply of SOCKS5 and the status of HTTP.
    let refusal = match host {
        "refused.example" => Some((5, 502)),
        "forbidden.example" => Some((2, 403)),
        "gone.example" => Some((4, 504)),
        _ => None,
    };
    let socks5_reply = |code| [5, code, 0, 1, 0, 0, 0, 0, 0, 0].to_vec();
    if let Some((reply, status)) = refusal {
        return match kind {
            Kind::Socks5 => client.write_all(&socks5_reply(reply)),
            Kind::Http => write!(client, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n"),
        };
    }
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse().expect("a port")))?;
    let mut reply = match kind {
        Kind::Socks5 => socks5_reply(0),
        Kind::Http => b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n".to_vec(),
    };
    if port == SPEAKS.to_string() {
        // The server's bytes follow the answer in one segment.
        let mut greeting = vec![0; GREETING.len()];
        server.read_exact(&mut greeting)?;
        reply.extend(greeting);
    }
    client.write_all(&reply)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    let inward = thread::spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Write);
    let _ = inward.join();
    Ok(())
}

/// Reads a request of SOCKS5 (RFC 1928), with the credentials of RFC 1929 before it.
fn socks5_request(client: &mut TcpStream, password: Option<&str>) -> io::Result<String> {
    let counted = |client: &mut TcpStream| {
        let mut len = [0];
        client.read_exact(&mut len)?;
        let mut bytes = vec![0; len[0].into()];
        client.read_exact(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    client.read_exact(&mut [0])?;
    let methods = counted(client)?;
    let method = if password.is_some() { 2 } else { 0 };
    assert!(methods.contains(&method) || password.is_some(), "{methods:?}");
    if !methods.contains(&method) {
        client.write_all(&[5, 0xff])?;
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    client.write_all(&[5, method])?;
    if let Some(password) = password {
        client.read_exact(&mut [0])?;
        let is_right = counted(client)? == b"user";
        let is_right = counted(client)? == password.as_bytes() && is_right;
        client.write_all(&[1, u8::from(!is_right)])?;
        if !is_right {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    let mut start = [0; 4];
    client.read_exact(&mut start)?;
    let host = match start {
        [5, 1, 0, 1] => {
            let mut address = [0; 4];
            client.read_exact(&mut address)?;
            Ipv4Addr::from(address).to_string()
        }
        [5, 1, 0, 3] => text(&counted(client)?),
        other => panic!("{other:?}"),
    };
    let mut port = [0; 2];
    client.read_exact(&mut port)?;
    Ok(format!("{host}:{}", u16::from_be_bytes(port)))
}

fn curl<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&["curl", "-sSg", "--max-time", "60"], args].concat()
}

#[test]
fn a_file_comes_by_the_proxy_which_gets_names_as_names() {
    for (kind, url) in KINDS {
        let Some(world) = World::new(kind, None) else { return };
        let by_proxy = ["--via", url, "--dns", "via", "--log", "log", "--stats"];
        let get = curl(&["-o", "got", "http://files.example:8000/file"]);
        let ran = world.lab.run(&by_proxy, &get).output().expect("it runs");
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        assert!(is_same(&world.lab.path("got"), &world.file));
        assert_eq!(world.asked(), ["files.example:8000"]);
        assert_eq!(counter(&text(&ran.stderr), "proxied"), 1);
        let log = std::fs::read_to_string(world.lab.path("log")).expect("a log");
        let opened = log.lines().find(|line| line.contains("\"opened\"")).expect("a line");
        assert!(
            opened.contains(&format!("\"peer\":\"127.0.0.1:1080\",\"via\":\"{url}\"")),
            "{log}"
        );
        // An address that the gateway would reach itself.
        let plain = format!("http://{V4}:8000/file");
        world.lab.inside(&by_proxy, &curl(&["-o", "got", &plain]));
        assert!(is_same(&world.lab.path("got"), &world.file));
        assert_eq!(world.asked(), [format!("{V4}:8000")]);
        assert_eq!(world.trapped(), [""; 0]);
    }
}

#[test]
fn rules_hold_before_the_proxy_and_choose_the_way() {
    let Some(world) = World::new(Kind::Socks5, None) else { return };
    let (_, url) = KINDS[0];
    let named = ["--via", url, "--dns", "via", "--allow", "*.good.example"];
    let good = curl(&["-o", "got", "http://a.good.example:8000/file"]);
    world.lab.inside(&named, &good);
    assert_eq!(world.asked(), ["a.good.example:8000"]);
    world.lab.fails(&named, &curl(&["http://evil.example:8000/file"]));
    world.lab.fails(&named, &curl(&["-H", "Host: evil.example", "http://a.good.example:8000/"]));
    // The proxy itself is no destination, nor is an address that stands for no name.
    for to in ["http://127.0.0.1:1080/", "http://198.18.77.7:8000/", &format!("http://{V4}:8000/")]
    {
        world.lab.fails(&named, &curl(&[to]));
    }
    assert_eq!(world.asked(), ["a.good.example:8000"], "for the request that shows another name");
    assert_eq!(world.trapped(), [""; 0]);
    let there = format!("http://{V4}:8000/");
    for direct in [&format!("{V4}=direct"), "host=direct"] {
        let said = world.lab.inside(&["--via", direct, "--via", url], &curl(&[&there]));
        assert_eq!((said.as_str(), world.trapped().len()), ("direct", 1), "{direct}");
    }
    // What leads to this machine's loopback is not the proxy's.
    let mapped = ["--via", url, "--dns", "via", "--host", "router"];
    world.lab.inside(&mapped, &curl(&["-o", "got", "http://host:8000/file"]));
    assert_eq!((world.asked().len(), world.trapped().len()), (0, 0));
}

#[test]
fn the_program_sees_what_the_proxy_says() {
    let connect = "import socket, sys
for name in ('refused.example', 'forbidden.example', 'gone.example'):
    try: socket.create_connection((name, 8000), 20)
    except OSError as error: print(error.strerror)";
    for (kind, url) in KINDS {
        let Some(world) = World::new(kind, None) else { return };
        let options = ["--via", url, "--dns", "via", "--log", "log"];
        let said = world.lab.inside(&options, &["python3", "-c", connect]);
        let log = std::fs::read_to_string(world.lab.path("log")).expect("a log");
        let host = "No route to host";
        assert_eq!(said.lines().collect::<Vec<_>>(), ["Connection refused", host, host], "{log}");
        let names = ["refused.example:8000", "forbidden.example:8000", "gone.example:8000"];
        assert_eq!(world.asked(), names);
    }
    // Nobody listens there.
    let Some(world) = World::new(Kind::Http, None) else { return };
    let options = ["--via", "http://127.0.0.1:1", "--dns", "via"];
    let said = world.lab.fails(&options, &curl(&["http://files.example:8000/file"]));
    assert!(text(&said.stderr).contains("a proxy gave no connection"), "{}", text(&said.stderr));
    assert_eq!(world.trapped(), [""; 0]);
}

#[test]
fn a_proxy_may_ask_for_credentials_which_nothing_shows() {
    for (kind, url) in KINDS {
        let Some(world) = World::new(kind, Some("hunter2")) else { return };
        for (file, content) in [("right", "user:hunter2\n"), ("wrong", "user:secret\n")] {
            std::fs::write(world.lab.path(file), content).expect("a file");
        }
        let get = curl(&["-o", "got", "http://files.example:8000/file"]);
        let options = |file| {
            ["--via", url, "--dns", "via", "--via-credentials", file, "--log", "log", "--stats"]
        };
        let ran = world.lab.run(&options("right"), &get).output().expect("it runs");
        let log = std::fs::read_to_string(world.lab.path("log")).expect("a log");
        assert!(is_same(&world.lab.path("got"), &world.file), "{}", text(&ran.stderr));
        assert!(!log.contains("hunter2") && !text(&ran.stderr).contains("hunter2"), "{log}");
        let failed = world.lab.fails(&options("wrong"), &get);
        let log = std::fs::read_to_string(world.lab.path("log")).expect("a log");
        let said = text(&failed.stderr);
        assert!(said.contains("credentials") && !said.contains("secret"), "{said}");
        assert!(!log.contains("secret") && log.contains("\"how\":\"prohibited\""), "{log}");
        world.lab.fails(&options("wrong")[..4], &get);
        assert_eq!(world.asked(), ["files.example:8000"]);
    }
}

#[test]
fn streams_end_one_by_one_and_a_server_may_speak_first() {
    let talk = "import socket
s = socket.create_connection(('a.example', 8001), 20)
s.sendall(b'x' * 1000000)
s.shutdown(socket.SHUT_WR)
print(s.makefile().read())
s = socket.create_connection(('a.example', 8002), 20)
print(s.makefile().readline().strip())
s.sendall(b'echo\\n')
print(s.makefile().readline().strip())";
    for (kind, url) in KINDS {
        let Some(world) = World::new(kind, None) else { return };
        let options = ["--via", url, "--dns", "via"];
        let said = world.lab.inside(&options, &["python3", "-c", talk]);
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines, ["1000000 bytes", text(GREETING).trim(), "echo"]);
        assert_eq!(world.trapped(), [""; 0]);
    }
}

#[test]
fn datagrams_that_no_proxy_takes_go_nowhere() {
    let Some(world) = World::new(Kind::Socks5, None) else { return };
    let ask = format!(
        "import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect(('{V4}', 53))
s.send(b'x')
try: print(s.recv(100).decode())
except OSError as error: print(error.strerror)"
    );
    let by_proxy = ["--via", KINDS[0].1, "--dns", "via", "--stats"];
    let ran = world.lab.run(&by_proxy, &["python3", "-c", &ask]).output().expect("it runs");
    assert_eq!(text(&ran.stdout), "No route to host\n");
    assert_eq!(counter(&text(&ran.stderr), "no_way"), 1);
    assert_eq!(world.trapped(), [""; 0]);
    let direct = ["--via", "0.0.0.0/0/udp=direct", "--via", KINDS[0].1];
    assert_eq!(world.lab.inside(&direct, &["python3", "-c", &ask]), "direct\n");
    assert_eq!(world.trapped().len(), 1);
}
