//! Requests over the socket, to a double of a gateway.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use super::*;

/// Ports that are open in name only. TCP port 1 is always taken, port 2 with IPv6; there is no IPv6 for port 3.
#[derive(Default)]
pub(crate) struct Double {
    ports: Mutex<Vec<HostPort>>,
    pub(crate) rules: Mutex<Vec<String>>,
}

impl Ports for Double {
    fn open(&self, port: &HostPort) -> Result<(), Refused> {
        let mut all = self.ports.lock().unwrap();
        let is_taken = |other: &HostPort| (other.udp, other.host) == (port.udp, port.host);
        let (v6, number) = (port.host.is_ipv6(), port.host.port());
        let taken = number == 1 || (v6 && number == 2) || all.iter().any(is_taken);
        let lacks = v6 && number == 3;
        if taken || lacks {
            let why = if taken { "Address already in use" } else { "Address family not supported" };
            return Err(Refused { why: why.into(), taken, lacks });
        }
        all.push(*port);
        Ok(())
    }

    fn close(&self, ports: &[HostPort]) -> usize {
        let mut all = self.ports.lock().unwrap();
        let before = all.len();
        all.retain(|other| !ports.contains(other));
        before - all.len()
    }

    fn all(&self) -> Vec<HostPort> {
        self.ports.lock().unwrap().clone()
    }

    fn rules(&self) -> Vec<String> {
        self.rules.lock().unwrap().clone()
    }

    fn open_rule(&self, rule: &str) -> Result<(), Refused> {
        self.rules.lock().unwrap().push(rule.to_owned());
        Ok(())
    }

    fn close_rule(&self, rule: &str) -> bool {
        self.rules.lock().unwrap().retain(|other| other != rule);
        true
    }
}

pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    pub(crate) ports: Arc<Double>,
    _api: Api,
}

pub(crate) fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let ports = Arc::new(Double::default());
    let guests = vec!["10.0.2.100".parse().unwrap(), "fd00::100".parse().unwrap()];
    let socket = ApiSocket::bind(&dir.path().join("api.sock")).unwrap();
    let api = socket.start(Arc::clone(&ports) as Arc<dyn Ports>, guests).unwrap();
    Fixture { dir, ports, _api: api }
}

impl Fixture {
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("api.sock")
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).unwrap()
    }

    /// The answer to a request that ends with the end of file.
    fn say(&self, text: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn add(&self, arguments: &str) -> String {
        self.say(&format!("{{\"execute\":\"add_hostfwd\",\"arguments\":{{{arguments}}}}}"))
    }
}

#[test]
fn ports_are_added_listed_and_removed_by_numbers_from_1() {
    let gateway = fixture();
    let first = gateway.add(r#""proto":"tcp","host_port":8080,"guest_port":80"#);
    assert_eq!(first, r#"{"return":{"id":1}}"#);
    let second = gateway
        .add(r#""proto":"udp","host_addr":"::","host_port":53,"guest_addr":"","guest_port":5353"#);
    assert_eq!(second, r#"{"return":{"id":2}}"#);
    let listed: Value =
        serde_json::from_str(&gateway.say(r#"{"execute":"list_hostfwd"}"#)).unwrap();
    let entries = json!([
        { "id": 1, "proto": "tcp", "host_addr": "0.0.0.0", "host_port": 8080,
          "guest_addr": "10.0.2.100", "guest_port": 80 },
        { "id": 2, "proto": "udp", "host_addr": "::", "host_port": 53,
          "guest_addr": "fd00::100", "guest_port": 5353 },
    ]);
    assert_eq!(listed, json!({ "return": { "entries": entries }, "entries": entries }));
    let removed = gateway.say(r#"{"execute":"remove_hostfwd","arguments":{"id":1}}"#);
    assert_eq!(removed, r#"{"return":{}}"#);
    assert_eq!(gateway.ports.all().len(), 1);
    // A number is not used again.
    let third = gateway.add(r#""proto":"tcp","host_port":8080,"guest_port":80"#);
    assert_eq!(third, r#"{"return":{"id":3}}"#);
}

#[test]
fn ports_of_the_command_line_have_numbers_too() {
    let gateway = fixture();
    let port = HostPort {
        udp: false,
        host: "127.0.0.1:22".parse().unwrap(),
        guest: "10.0.2.100:22".parse().unwrap(),
    };
    gateway.ports.open(&port).unwrap();
    let listed = gateway.say(r#"{"execute":"list_hostfwd"}"#);
    assert!(listed.contains(r#""id":1"#) && listed.contains(r#""host_port":22"#), "{listed}");
    let removed = gateway.say(r#"{"execute":"remove_hostfwd","arguments":{"id":1}}"#);
    assert_eq!(removed, r#"{"return":{}}"#);
    assert!(gateway.ports.all().is_empty());
}

#[test]
fn mistakes_are_said_as_slirp4netns_says_them() {
    let gateway = fixture();
    let arguments =
        |text: &str| format!(r#"{{"execute":"add_hostfwd","arguments":{{"proto":"tcp",{text}}}}}"#);
    for (request, says) in [
        ("badjson\n", "cannot parse JSON"),
        ("", "cannot parse JSON"),
        ("[]", "json_object() failed"),
        (r#"{"unexpectedjson": 42}"#, "no execute found"),
        (r#"{"execute": 5}"#, "no execute found"),
        (r#"{"execute": "bad"}"#, "unknown execute"),
        (r#"{"execute": "add_hostfwd"}"#, "add_hostfwd: bad arguments.proto"),
        (
            r#"{"execute": "add_hostfwd", "arguments":{"proto": "bad"}}"#,
            "add_hostfwd: bad arguments.proto",
        ),
        (&arguments(r#""guest_port":80"#), "add_hostfwd: bad arguments.host_port"),
        (&arguments(r#""guest_port":80,"host_port":0"#), "add_hostfwd: bad arguments.host_port"),
        (
            &arguments(r#""guest_port":80,"host_port":78082"#),
            "add_hostfwd: bad arguments.host_port",
        ),
        (
            &arguments(r#""guest_port":80,"host_port":"8080""#),
            "add_hostfwd: bad arguments.host_port",
        ),
        (&arguments(r#""host_port":80"#), "add_hostfwd: bad arguments.guest_port"),
        (
            &arguments(r#""guest_port":80,"host_port":80,"host_addr":"x""#),
            "add_hostfwd: bad arguments.host_addr",
        ),
        (
            &arguments(r#""guest_port":80,"host_port":80,"guest_addr":7"#),
            "add_hostfwd: bad arguments.guest_addr",
        ),
        (
            &arguments(r#""guest_port":80,"host_port":1"#),
            "add_hostfwd: slirp_add_hostfwd failed: Address already in use",
        ),
        (r#"{"execute": "remove_hostfwd"}"#, "remove_hostfwd: bad arguments.id"),
        (
            r#"{"execute": "remove_hostfwd", "arguments":{"id": 77}}"#,
            "remove_hostfwd: bad arguments.id",
        ),
    ] {
        let expected = json!({ "error": { "desc": format!("bad request: {says}") } });
        assert_eq!(gateway.say(request), expected.to_string(), "{request}");
    }
}

#[test]
fn a_whole_object_is_answered_without_an_end_of_file() {
    let gateway = fixture();
    let mut stream = gateway.connect();
    stream.write_all(br#"{"execute":"#).unwrap();
    stream.write_all(br#""list_hostfwd"}"#).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, r#"{"return":{"entries":[]},"entries":[]}"#);
}

#[test]
fn a_client_that_sends_without_end_is_told_so_and_cut() {
    let gateway = fixture();
    let mut stream = gateway.connect();
    let mut reader = stream.try_clone().unwrap();
    // The gateway closes at some point, whatever we still have.
    let writing = thread::spawn(move || while stream.write_all(&[0; 4096]).is_ok() {});
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer);
    writing.join().unwrap();
    let text = String::from_utf8(answer).unwrap();
    assert_eq!(text, r#"{"error":{"desc":"bad request: too large message"}}"#);
}

#[test]
fn a_request_has_less_than_4096_bytes() {
    let gateway = fixture();
    let request = |bytes: usize| format!("{:>bytes$}", r#"{"execute":"list_hostfwd"}"#);
    assert!(gateway.say(&request(4095)).contains("entries"));
    assert!(gateway.say(&request(4096)).contains("too large message"));
}

#[test]
fn a_client_that_says_nothing_holds_up_nobody() {
    let gateway = fixture();
    let silent: Vec<UnixStream> = (1..PORT_CLIENTS).map(|_| gateway.connect()).collect();
    assert!(gateway.say(r#"{"execute":"list_hostfwd"}"#).contains("entries"));
    drop(silent);
}

#[test]
fn requests_at_once_get_numbers_of_their_own() {
    let gateway = fixture();
    let answers: BTreeSet<String> = thread::scope(|scope| {
        let add = |port: u16| {
            let gateway = &gateway;
            let arguments = format!(r#""proto":"tcp","host_port":{port},"guest_port":80"#);
            scope.spawn(move || gateway.add(&arguments))
        };
        let all: Vec<_> = (2001..2033).map(add).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(answers.len(), 32);
    assert_eq!(gateway.ports.all().len(), 32);
}

#[test]
fn a_socket_takes_the_place_of_a_dead_one_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    drop(UnixListener::bind(&path).unwrap());
    let alive = ApiSocket::bind(&path).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let said = |path: &Path| match ApiSocket::bind(path) {
        Err(Failure::Failed(text)) => text,
        other => panic!("{other:?}"),
    };
    assert!(said(&path).contains("another program listens there"), "{}", said(&path));
    drop(alive);
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(said(&file).contains("no socket"), "{}", said(&file));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let long = dir.path().join("a".repeat(108));
    assert!(said(&long).contains("107 bytes"), "{}", said(&long));
}

#[test]
fn a_client_of_ours_gets_what_is_returned_or_the_reason() {
    let gateway = fixture();
    let path = gateway.path();
    assert_eq!(
        ask(&path, &json!({ "execute": "list_hostfwd" }), PORT_REQUEST_TIME),
        Ok(json!({ "entries": [] }))
    );
    assert_eq!(
        ask(&path, &json!({ "execute": "x" }), PORT_REQUEST_TIME),
        Err("bad request: unknown execute".into())
    );
    let nowhere = ask(&gateway.dir.path().join("none"), &json!({}), PORT_REQUEST_TIME).unwrap_err();
    assert!(nowhere.ends_with("No such file or directory"), "{nowhere}");
}
