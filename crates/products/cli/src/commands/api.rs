//! Requests for ports at run time, over a Unix socket, as slirp4netns has them.
//!
//! ```text
//!   {"execute":"add_hostfwd","arguments":{"proto":"tcp","host_port":8080,"guest_port":80}}
//!                                                                    {"return":{"id":1}}
//!   {"execute":"list_hostfwd"}                                       {"return":{"entries":[…]}}
//!   {"execute":"remove_hostfwd","arguments":{"id":1}}                {"return":{}}
//!   {"execute":"change_hostfwd",…}: see port_changes.rs             {"return":{}}
//!   anything else                                                    {"error":{"desc":"bad request: …"}}
//! ```
//!
//! A connection has one request, which ends with the object or with the client's end of file. The socket is
//! bound before the sandbox ([`ApiSocket`]) and served behind it ([`Api`]), over [`Ports`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pagewire::device::bind_listener;
use serde_json::{Map, Value, json};

use super::port_changes::{Change, default_guest};
pub(crate) use super::port_changes::{HostPort, Ports, Refused};
use crate::failure::{Failure, ascii, reason, socket_reason};
use crate::limits::{
    PORT_ANSWER, PORT_CLIENTS, PORT_EXCESS, PORT_REQUEST, PORT_REQUEST_TIME, THREAD_STACK, TICK,
};

/// A bound socket at which nothing is answered yet.
#[derive(Debug)]
pub(crate) struct ApiSocket(UnixListener);

impl ApiSocket {
    /// Binds the socket, in the place of one whose process has ended.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        let failed = |error| {
            Failure::because(
                format!("--api-socket {}", path.display()),
                socket_reason(path, &error),
            )
        };
        // Whoever may write to the socket may publish ports: this user.
        let listener = bind_listener(path).map_err(failed)?;
        // Threads wait in its calls.
        listener.set_nonblocking(false).map_err(failed)?;
        Ok(Self(listener))
    }

    /// Answers requests. Ports lead to the first of the guest's addresses, if a request names none.
    pub(crate) fn start(self, ports: Arc<dyn Ports>, guests: Vec<IpAddr>) -> Result<Api, Failure> {
        let listener = Arc::new(self.0);
        let desk = Arc::new(Desk { ports, guests, table: Mutex::default() });
        for _ in 0..PORT_CLIENTS {
            let (listener, desk) = (Arc::clone(&listener), Arc::clone(&desk));
            let serving = move || {
                loop {
                    match listener.accept() {
                        // A client that went away is its own affair.
                        Ok((client, _)) => drop(serve(&client, &desk)),
                        // The end; see `Drop`.
                        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
                        // Such as descriptors, which run out for a while.
                        Err(_) => thread::sleep(TICK),
                    }
                }
            };
            let thread = thread::Builder::new().name("api".into()).stack_size(THREAD_STACK);
            let thread = thread.spawn(serving);
            thread.map_err(|e| Failure::because("--api-socket", reason(&e)))?;
        }
        Ok(Api(listener))
    }
}

/// Answers, and takes no more requests when it is dropped. Its threads end with their clients.
#[derive(Debug)]
pub(crate) struct Api(Arc<UnixListener>);

impl Drop for Api {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// Reads a request, and answers it.
fn serve(client: &UnixStream, desk: &Desk) -> io::Result<()> {
    let until = Instant::now() + PORT_REQUEST_TIME;
    client.set_write_timeout(Some(PORT_REQUEST_TIME))?;
    let (answer, is_cut) = match request(client, until) {
        Ok(text) => (desk.answer(&text), false),
        Err(Unread::TooLarge) => (bad("too large message"), true),
        Err(Unread::Io(error)) if is_timeout(&error) => (bad("no whole request in time"), false),
        Err(Unread::Io(error)) => return Err(error),
    };
    let mut client = client;
    client.write_all(ascii(&answer.to_string()).as_bytes())?;
    client.shutdown(Shutdown::Write)?;
    // A client that is still writing reads the answer before it learns of the end.
    let mut left = if is_cut { PORT_EXCESS } else { 0 };
    while left > 0 && time_left(client, until).is_ok() {
        match client.read(&mut [0; PORT_REQUEST]) {
            Ok(n) if n > 0 => left = left.saturating_sub(n),
            _ => break,
        }
    }
    Ok(())
}

/// Why there is no request.
enum Unread {
    TooLarge,
    Io(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The text of a request: a whole object, or all that came before the end of file.
fn request(mut client: &UnixStream, until: Instant) -> Result<Vec<u8>, Unread> {
    let mut text = Vec::new();
    loop {
        time_left(client, until)?;
        let mut piece = [0; PORT_REQUEST];
        let n = match client.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        text.extend_from_slice(piece.get(..n).unwrap_or_default());
        if text.len() >= PORT_REQUEST {
            return Err(Unread::TooLarge);
        }
        if n == 0 || serde_json::from_slice::<Map<String, Value>>(&text).is_ok() {
            return Ok(text);
        }
    }
}

fn time_left(client: &UnixStream, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    // Zero would be no limit.
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => client.set_read_timeout(Some(left)),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Where requests are executed, one at a time.
struct Desk {
    ports: Arc<dyn Ports>,
    guests: Vec<IpAddr>,
    table: Mutex<Table>,
}

/// The numbers of ports, from 1.
#[derive(Default)]
struct Table {
    last: u64,
    known: BTreeMap<u64, HostPort>,
    numbers: HashMap<HostPort, u64>,
}

impl Table {
    /// Follows what is open. Numbers stay.
    fn follow(&mut self, open: &[HostPort]) {
        let all: HashSet<&HostPort> = open.iter().collect();
        self.known.retain(|_, port| all.contains(port));
        self.numbers.retain(|port, _| all.contains(port));
        for port in open {
            if !self.numbers.contains_key(port) {
                self.last += 1;
                self.known.insert(self.last, *port);
                self.numbers.insert(*port, self.last);
            }
        }
    }
}

impl Desk {
    fn answer(&self, text: &[u8]) -> Value {
        let request = match serde_json::from_slice(text) {
            Ok(Value::Object(request)) => request,
            Ok(_) => return bad("json_object() failed"),
            Err(_) => return bad("cannot parse JSON"),
        };
        let none = Map::new();
        let arguments = request.get("arguments").and_then(Value::as_object).unwrap_or(&none);
        // A panic would have been reported by its thread.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        match request.get("execute").and_then(Value::as_str) {
            Some("add_hostfwd") => self.add(arguments, &mut table),
            Some("list_hostfwd") => {
                table.follow(&self.ports.all());
                let entries: Vec<Value> =
                    table.known.iter().map(|(id, port)| entry(*id, port)).collect();
                let rules = self.ports.rules();
                // slirp4netns documents the first, and sends the second.
                match rules.is_empty() {
                    true => json!({ "return": { "entries": entries }, "entries": entries }),
                    false => {
                        json!({ "return": { "entries": entries, "rules": rules }, "entries": entries })
                    }
                }
            }
            Some("remove_hostfwd") => self.remove(arguments, &mut table),
            Some("change_hostfwd") => {
                let Some(change) = arguments.get("steps").and_then(Change::of) else {
                    return bad("change_hostfwd: bad arguments.steps");
                };
                match change.execute(&*self.ports, &self.guests) {
                    Ok(()) => json!({ "return": {} }),
                    Err(why) => json!({ "error": { "desc": why } }),
                }
            }
            Some(_) => bad("unknown execute"),
            None => bad("no execute found"),
        }
    }

    fn add(&self, arguments: &Map<String, Value>, table: &mut Table) -> Value {
        let port = match self.port(arguments) {
            Ok(port) => port,
            Err(what) => return bad(&format!("add_hostfwd: bad arguments.{what}")),
        };
        if let Err(Refused { why, .. }) = self.ports.open(&port) {
            return bad(&format!("add_hostfwd: slirp_add_hostfwd failed: {why}"));
        }
        table.follow(&self.ports.all());
        match table.numbers.get(&port) {
            Some(id) => json!({ "return": { "id": id } }),
            None => bad("add_hostfwd: slirp_add_hostfwd failed: the port was closed at once"),
        }
    }

    /// The port that a request names, or the name of a wrong argument.
    fn port(&self, arguments: &Map<String, Value>) -> Result<HostPort, &'static str> {
        let number = |name: &'static str| {
            let number = arguments.get(name).and_then(Value::as_u64);
            number.and_then(|n| u16::try_from(n).ok()).filter(|&n| n > 0).ok_or(name)
        };
        // Podman sends an empty address.
        let address = |name: &'static str| match arguments.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(text) => text.as_str().and_then(|t| t.parse().ok()).map(Some).ok_or(name),
        };
        let udp = match arguments.get("proto").and_then(Value::as_str) {
            Some("tcp") => false,
            Some("udp") => true,
            _ => return Err("proto"),
        };
        let (host_port, guest_port) = (number("host_port")?, number("guest_port")?);
        let host: IpAddr = address("host_addr")?.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let default = || default_guest(&self.guests, host);
        let guest = address("guest_addr")?.or_else(default).ok_or("guest_addr")?;
        Ok(HostPort { udp, host: (host, host_port).into(), guest: (guest, guest_port).into() })
    }

    fn remove(&self, arguments: &Map<String, Value>, table: &mut Table) -> Value {
        let id = arguments.get("id").and_then(Value::as_u64);
        table.follow(&self.ports.all());
        // The same port gets another number the next time.
        let Some(port) = id.and_then(|id| table.known.remove(&id)) else {
            return bad("remove_hostfwd: bad arguments.id");
        };
        table.numbers.remove(&port);
        match self.ports.close(&[port]) {
            0 => bad("remove_hostfwd: bad arguments.id"),
            _ => json!({ "return": {} }),
        }
    }
}

fn entry(id: u64, port: &HostPort) -> Value {
    json!({
        "id": id,
        "proto": if port.udp { "udp" } else { "tcp" },
        "host_addr": port.host.ip().to_string(),
        "host_port": port.host.port(),
        "guest_addr": port.guest.ip().to_string(),
        "guest_port": port.guest.port(),
    })
}

fn bad(why: &str) -> Value {
    json!({ "error": { "desc": format!("bad request: {why}") } })
}

/// Sends a request to a running gateway: what it returns, or why it does not.
pub(crate) fn ask(path: &Path, request: &Value, limit: Duration) -> Result<Value, String> {
    let failed = |e: io::Error| format!("{}: {}", path.display(), reason(&e));
    let mut stream = UnixStream::connect(path).map_err(failed)?;
    stream.set_read_timeout(Some(limit)).map_err(failed)?;
    stream.set_write_timeout(Some(PORT_REQUEST_TIME)).map_err(failed)?;
    stream.write_all(request.to_string().as_bytes()).map_err(failed)?;
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    let mut text = Vec::new();
    stream.take(PORT_ANSWER).read_to_end(&mut text).map_err(failed)?;
    let answer: Value = serde_json::from_slice(&text).map_err(|_| {
        format!("{}: there is no gateway of pagewire at this socket", path.display())
    })?;
    match (answer.get("return"), answer.pointer("/error/desc").and_then(Value::as_str)) {
        (Some(returned), _) => Ok(returned.clone()),
        (None, Some(why)) => Err(why.to_owned()),
        (None, None) => Err(format!("{}: an answer without a result", path.display())),
    }
}

#[cfg(test)]
#[path = "api_tests.rs"]
pub(crate) mod tests;
