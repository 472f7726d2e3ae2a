//! Ways around rules by name, each a program of a guest that does not get through, beside a control that does. The
//! table is in `docs/WAYS-AROUND.md`. Ways that clients have without crafted bytes are in `names.rs`.

use pagewire_testkit::Netns;

use super::names::{SITES, events, lab, under};
use crate::lab::{Lab, Running, V4, run, text};

/// Makes ClientHellos of a real client, and sends them in pieces. `send(hello, sizes)` prints whether a server answers.
const HELLO: &str = r#"
import socket, ssl, struct, sys, time
def hello(name):
    context = ssl.create_default_context()
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(into, out, server_hostname=name)
    try: tls.do_handshake()
    except ssl.SSLWantReadError: pass
    return out.read()
def extended(hello, kind, data):
    more = struct.pack('>HH', kind, len(data)) + data
    body = hello[9:]
    at = 34 + 1 + body[34]
    at += 2 + int.from_bytes(body[at:at + 2], 'big')
    at += 1 + body[at]
    n = int.from_bytes(body[at:at + 2], 'big')
    body = body[:at] + struct.pack('>H', n + len(more)) + body[at + 2:] + more
    return records(b'\1' + len(body).to_bytes(3, 'big') + body, 16384)
def records(message, size):
    parts = [message[i:i + size] for i in range(0, len(message), size)]
    return b''.join(b'\x16\3\1' + struct.pack('>H', len(p)) + p for p in parts)
def send(data, size=65536):
    s = socket.create_connection(('198.51.100.1', 443))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.settimeout(10)
    try:
        for i in range(0, len(data), size):
            s.sendall(data[i:i + size])
        answer = s.recv(9)
    except OSError: answer = b''
    print('content' if answer[:1] == b'\x16' else 'nothing')
socket.getaddrinfo('good.example', 443)
"#;

#[test]
fn a_server_name_is_read_however_a_client_hello_is_cut() {
    let Some((lab, _server)) = lab(&["python3"]) else { return };
    let sent = |way: &str| {
        let script = format!("{HELLO}{way}");
        lab.inside(&under(&["good.example"]), &["timeout", "30", "python3", "-c", &script])
    };
    for (what, way) in [
        ("in one piece", "send(hello('NAME'))"),
        ("in two segments", "h = hello('NAME'); send(h, len(h) // 2)"),
        ("in many segments", "send(hello('NAME'), 7)"),
        ("in many records", "send(records(hello('NAME')[5:], 11))"),
        ("in many records and segments", "send(records(hello('NAME')[5:], 11), 100)"),
    ] {
        assert_eq!(sent(&way.replace("NAME", "good.example")), "content\n", "{what}");
        assert_eq!(sent(&way.replace("NAME", "evil.example")), "nothing\n", "{what}");
        let shown = events(&lab, "mismatch");
        assert_eq!(shown.last().expect("a mismatch")["shown"], "evil.example", "{what}");
    }
}

#[test]
fn an_encrypted_client_hello_is_refused_though_its_outer_name_is_permitted() {
    let Some((lab, _server)) = lab(&["python3"]) else { return };
    let sent = |options: &[&str], kind: u16| {
        let script = format!("{HELLO}send(extended(hello('good.example'), {kind}, bytes(64)))");
        lab.inside(options, &["timeout", "30", "python3", "-c", &script])
    };
    assert_eq!(sent(&under(&["good.example"]), 0xfff0), "content\n", "an unknown extension");
    assert_eq!(sent(&under(&["good.example"]), 0xfe0d), "nothing\n");
    assert_eq!(events(&lab, "mismatch")[0]["by"], "ech");
    let by_address = [&SITES[..], &["--allow", V4]].concat();
    assert_eq!(sent(&by_address, 0xfe0d), "content\n", "this way works");
}

#[test]
fn a_name_with_a_zero_byte_is_none() {
    let Some((lab, _server)) = lab(&["python3"]) else { return };
    let script = format!(
        "{HELLO}h = hello('good.example.evil.example'); \
         send(h.replace(b'good.example.evil', b'good.example\\0evil'))"
    );
    let program = ["timeout", "30", "python3", "-c", &script];
    assert_eq!(lab.inside(&under(&["good.example", "good.*"]), &program), "nothing\n");
    assert!(events(&lab, "mismatch")[0]["shown"].is_null());
}

#[test]
fn a_permitted_name_may_be_written_in_all_forms_of_a_name() {
    let Some((lab, _server)) = lab(&[]) else { return };
    let idna = "xn--bcher-kva.example";
    let mut options = under(&["good.example", idna]);
    options.extend(["--name", "xn--bcher-kva.example=198.51.100.1"]);
    for name in ["GOOD.example", "good.example.", idna] {
        let script = format!(
            "curl -sSk https://{name}/file && curl -sS -H 'Host: {name}' http://{name}/file"
        );
        assert_eq!(lab.inside(&options, &["sh", "-c", &script]), "content\ncontent\n", "{name}");
    }
    for name in ["EVIL.example", "evil.example.", "xn--bcher-kvb.example"] {
        let script = format!("curl -sSk --connect-to ::{V4}: https://{name}/file");
        let script = format!("getent hosts good.example >/dev/null; {script}");
        lab.fails(&options, &["sh", "-c", &script]);
    }
}

#[test]
fn a_redirect_of_a_permitted_name_leads_to_no_other() {
    let Some((lab, _server)) = lab(&[]) else { return };
    let to = |name: &str| {
        let to = format!("http://good.example/to-{name}");
        format!("curl -sSL -o /dev/null -w '%{{http_code}} %{{url_effective}}' {to}")
    };
    let good = lab.inside(&under(&["good.example"]), &["sh", "-c", &to("good")]);
    assert_eq!(good, "200 http://good.example/file");
    let both = under(&["good.example", "evil.example"]);
    let evil = lab.inside(&both, &["sh", "-c", &to("evil")]);
    assert_eq!(evil, "200 http://evil.example/file", "this way works");
    lab.fails(&under(&["good.example"]), &["sh", "-c", &to("evil")]);
    // Names of the gateway's own settings have addresses whether they are permitted or not.
    let shown = events(&lab, "mismatch");
    assert_eq!(shown[0]["shown"], "evil.example", "{shown:?}");
}

#[test]
fn within_tls_the_server_name_counts_and_no_host_line() {
    let Some((lab, _server)) = lab(&[]) else { return };
    let curl = "curl -sSk -H 'Host: evil.example' https://good.example/file";
    assert_eq!(lab.inside(&under(&["good.example"]), &["sh", "-c", curl]), "content\n");
}

#[test]
fn a_proxy_inside_is_under_the_same_rules() {
    let Some((lab, _server)) = lab(&["ncat"]) else { return };
    let script = |name: &str| {
        let wait = "until ncat -z 127.0.0.1 3128; do :; done";
        format!(
            "ncat -lk 127.0.0.1 3128 --proxy-type http & trap 'kill %1' EXIT; {wait}; \
             curl -sSk -p -x http://127.0.0.1:3128 https://{name}/file"
        )
    };
    let good = lab.inside(&under(&["good.example"]), &["bash", "-c", &script("good.example")]);
    assert_eq!(good, "content\n");
    lab.fails(&under(&["good.example"]), &["bash", "-c", &script("evil.example")]);
    let refused = events(&lab, "verdict").into_iter().find(|line| line["verdict"] != "allow");
    assert_eq!(refused.expect("a refusal")["names"][0], "evil.example");
}

#[test]
fn a_published_port_opens_nothing_outward() {
    let Some((lab, _server)) = lab(&["python3"]) else { return };
    // The guest answers a client, and then tries to reach that client's address by itself.
    let inside = format!(
        "import socket\nl = socket.create_server(('0.0.0.0', 7000))\nprint('ready', flush=True)\n\
         c, a = l.accept(); c.sendall(b'hello'); print(a[0], flush=True)\n\
         for port in (80, a[1]):\n    try: socket.create_connection(('{V4}', port), 5); print('through')\n    \
         except OSError as e: print(e.errno, flush=True)"
    );
    let publish = format!("{V4}:7000:7000");
    let options = [&under(&["good.example"])[..], &["--publish", &publish]].concat();
    let mut guest = Running::saying(
        &mut lab.run(&options, &["timeout", "30", "python3", "-c", &inside]),
        "ready",
    );
    let ask = format!("import socket; print(socket.create_connection(('{V4}', 7000)).recv(9))");
    assert_eq!(run(lab.command("python3").args(["-c", &ask])), "b'hello'\n");
    guest.line();
    let prohibited = format!("{}\n", rustix::io::Errno::HOSTUNREACH.raw_os_error());
    for _ in 0..2 {
        let said = guest.line();
        assert!(said != "through\n" && !said.is_empty(), "{said}");
        assert_eq!(said, prohibited);
    }
}

/// A client Initial of QUIC that shows example.com (RFC 9001 appendix A.2).
const INITIAL: &str = "rfc9001-initial";

#[test]
fn quic_shows_its_name_in_the_first_datagram() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    std::fs::write(lab.path(INITIAL), include_bytes!("rfc9001-initial")).expect("a file");
    let server = format!(
        "import socket\ns = socket.socket(type=socket.SOCK_DGRAM); s.bind(('{V4}', 443))\n\
         print('ready', flush=True)\nwhile True: d, a = s.recvfrom(9999); s.sendto(b'content', a)"
    );
    let _server = lab.server("python3", &["-uc", &server]);
    let script = format!(
        "import socket\nsocket.getaddrinfo('NAME', 443)\ns = socket.socket(type=socket.SOCK_DGRAM)\n\
         s.settimeout(3); s.connect(('{V4}', 443))\n\
         try: s.send(open('{INITIAL}', 'rb').read()); print(s.recv(99).decode())\n\
         except OSError: print('nothing')"
    );
    let names = ["--log", "log", "--name", "example.com=198.51.100.1", "--name", SITES[1]];
    let sent = |name: &str| {
        let options = [&names[..], &["--allow", name]].concat();
        lab.inside(&options, &["python3", "-c", &script.replace("NAME", name)])
    };
    assert_eq!(sent("example.com"), "content\n");
    assert_eq!(sent("good.example"), "nothing\n");
    let shown = &events(&lab, "mismatch")[0];
    assert_eq!((&shown["shown"], &shown["by"]), (&"example.com".into(), &"quic".into()));
    // What is refused takes nothing of a permission's rate: each attempt is told.
    let many = script.replace("NAME", "good.example").replace(
        "try:",
        "[socket.socket(type=socket.SOCK_DGRAM).sendto(open('rfc9001-initial', 'rb').read(), s.getpeername()) \
         for i in range(20)]\ntry:",
    );
    let options = [&names[..], &["--allow", "good.example@8kbit"]].concat();
    std::fs::remove_file(lab.path("log")).expect("a log");
    assert_eq!(lab.inside(&options, &["python3", "-c", &many]), "nothing\n");
    assert_eq!(events(&lab, "mismatch").len(), 21);
}

#[test]
fn names_that_a_program_chooses_are_no_permissions_of_another_kind() {
    let Some(lab) = Lab::new(&["dig"]) else { return };
    let ask = "for n in host 10.0.0.1 169.254.169.254 1.2.3 plain.example; do dig +tries=1 $n >/dev/null; done; true";
    let output = lab.run(&under(&["good.example"]), &["sh", "-c", ask]).output().expect("it runs");
    let said = text(&output.stderr);
    for name in ["host", "10.0.0.1", "169.254.169.254", "1.2.3"] {
        assert!(said.contains(&format!("once {name}\n")), "{said}");
    }
    assert!(said.contains("once plain.example: --allow plain.example\n"), "{said}");
}

#[test]
fn an_encrypted_client_hello_passes_where_the_rule_says_so() {
    let Some((lab, _server)) = lab(&["python3"]) else { return };
    let sent = |rule: &str, name: &str| {
        let script = format!("{HELLO}send(extended(hello('{name}'), 0xfe0d, bytes(64)))");
        lab.inside(&under(&[rule]), &["timeout", "30", "python3", "-c", &script])
    };
    assert_eq!(sent("ech:good.example", "good.example"), "content\n");
    assert_eq!(sent("ech:good.example", "evil.example"), "nothing\n");
}

/// Where the servers of [`far`] are.
const FAR: [&str; 3] = ["203.0.113.1", "203.0.113.2", "203.0.113.53"];

/// An HTTP server at port 80 of each far address, which says where it is and what `Host` it was asked for, and a
/// resolver at [`FAR`]'s last by UDP and TCP. The second answer for rebind.good.example is another one than the first.
const WORLD: &str = r#"
import socket, struct, threading
def labels(name): return b''.join(bytes([len(l)]) + l for l in name.split(b'.')) + b'\0'
def record(name, kind, data): return labels(name) + struct.pack('>HHIH', kind, 1, 0, len(data)) + data
A = lambda name, ip: record(name, 1, socket.inet_aton(ip))
asked = {}
def answers(name):
    asked[name] = asked.get(name, 0) + 1
    if name == b'good.example': return [A(name, '203.0.113.1')]
    if name.startswith(b'rebind-'):
        other = name.split(b'.')[0][7:].replace(b'-', b'.').decode()
        return [A(name, '203.0.113.1' if asked[name] == 1 else other)]
    if name.startswith(b'chain-'):
        n = int(name.split(b'.')[0][6:])
        all = [name] + [b'c%d.evil.example' % i for i in range(n)]
        return [record(a, 5, labels(b)) for a, b in zip(all, all[1:])] + [A(all[-1], '203.0.113.1')]
    return [A(name, '203.0.113.2')]
def reply(query):
    at, parts = 12, []
    while n := query[at]: parts.append(query[at + 1:at + 1 + n].lower()); at += 1 + n
    kind, = struct.unpack('>H', query[at + 1:at + 3])
    found = answers(b'.'.join(parts)) if kind == 1 else []
    return query[:2] + b'\x81\x80\0\1' + struct.pack('>H', len(found)) + bytes(4) + query[12:at + 5] + b''.join(found)
def by_udp(s):
    while True:
        query, client = s.recvfrom(9999); s.sendto(reply(query), client)
def by_tcp(s):
    while True:
        c = s.accept()[0]; q = c.recv(9999)
        if len(q) > 14: r = reply(q[2:]); c.sendall(struct.pack('>H', len(r)) + r)
        c.close()
def http(s):
    while True:
        c = s.accept()[0]
        body = s.getsockname()[0].encode()
        try: c.recv(9999); c.sendall(b'HTTP/1.0 200 OK\r\n\r\n' + body + b'\n')
        except ConnectionError: pass
        c.close()
all = ['203.0.113.1', '203.0.113.2', '203.0.113.53', '10.9.9.9']
for ip in all: threading.Thread(target=http, args=[socket.create_server((ip, 80))]).start()
u = socket.socket(type=socket.SOCK_DGRAM); u.bind((all[2], 53))
threading.Thread(target=by_udp, args=[u]).start()
threading.Thread(target=by_tcp, args=[socket.create_server((all[2], 53))]).start()
print('ready', flush=True)
"#;

/// Other machines behind the gateway's, with a resolver.
fn far(lab: &Lab) -> (Netns, Running) {
    let far = Netns::new();
    let path = far.path().display().to_string();
    for words in [
        format!("link add near type veth peer name far netns {path}"),
        "link set near up".into(),
        "addr add 203.0.113.77/24 dev near".into(),
        "route add 10.9.9.9 via 203.0.113.1".into(),
    ] {
        run(lab.command("ip").args(words.split(' ')));
    }
    for words in ["link set lo up", "link set far up", "addr add 10.9.9.9/32 dev lo"] {
        run(far.command("ip").args(words.split(' ')));
    }
    for ip in FAR {
        run(far.command("ip").args(["addr", "add", &format!("{ip}/24"), "dev", "far"]));
    }
    let mut server = far.command("python3");
    let server = Running::start(server.args(["-uc", WORLD]));
    (far, server)
}

/// The options of a run whose names come from the far resolver.
fn resolved<'a>(rules: &[&'a str]) -> Vec<&'a str> {
    let allow = rules.iter().flat_map(|rule| ["--allow", rule]);
    ["--dns", FAR[2], "--log", "log"].into_iter().chain(allow).collect()
}

#[test]
fn a_name_whose_answer_changes_leads_to_no_private_network() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _far = far(&lab);
    let get = |to: &str, rules: &[&str]| {
        let curl = format!("curl -sS -m 20 http://rebind-{to}.good.example/");
        let script = format!("{curl}; {curl}");
        lab.run(&resolved(rules), &["sh", "-c", &script]).output().expect("it runs")
    };
    let said = get("203-0-113-2", &["*.good.example"]);
    assert_eq!(text(&said.stdout), "203.0.113.1\n203.0.113.2\n", "public addresses may change");
    for to in ["10-9-9-9", "127-0-0-1", "10-0-2-2"] {
        let said = get(to, &["*.good.example"]);
        assert_eq!(text(&said.stdout), "203.0.113.1\n", "{to}: {}", text(&said.stderr));
        assert!(!said.status.success());
    }
    let mut names = resolved(&["*.good.example"]);
    names.extend(["--allow", "10.9.9.9"]);
    let curl = "curl -sS -m 20 http://10.9.9.9/";
    assert_eq!(lab.inside(&names, &["sh", "-c", curl]), "10.9.9.9\n", "this way works");
}

#[test]
fn a_chain_of_aliases_permits_the_name_that_was_asked_for() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _far = far(&lab);
    let rules = ["*.good.example"];
    let get = |name: &str, host: &str| {
        let curl = format!("curl -sS -m 20 -H 'Host: {host}' http://{name}/");
        lab.run(&resolved(&rules), &["sh", "-c", &curl]).output().expect("it runs")
    };
    for n in [1, 12] {
        let name = format!("chain-{n}.good.example");
        assert_eq!(text(&get(&name, &name).stdout), "203.0.113.1\n");
        assert_eq!(text(&get(&name, "c0.evil.example").stdout), "", "an alias is another name");
        assert_eq!(events(&lab, "mismatch")[0]["shown"], "c0.evil.example");
    }
    let name = "chain-40.good.example";
    assert_eq!(text(&get(name, name).stdout), "", "no further than resolvers follow");
    // A name that is an alias of a permitted one is not permitted by that.
    assert_eq!(text(&get("c0.evil.example", "c0.evil.example").stdout), "");
}

#[test]
fn other_resolvers_are_closed_by_udp_tcp_tls_and_https() {
    let Some((lab, _server)) = lab(&["dig", "python3"]) else { return };
    let _far = far(&lab);
    let get = "printf 'GET /file HTTP/1.0\\r\\n\\r\\n'";
    let ways = [
        ("our resolver", "dig +time=2 +tries=1 +short good.example | grep -x '[0-9.]*'", true),
        (
            "our resolver over TCP",
            "dig +tcp +time=2 +tries=1 +short good.example | grep -x '[0-9.]*'",
            true,
        ),
        (
            "our resolver over TCP, another name",
            "dig +tcp +time=2 +tries=1 +short evil.example | grep -x '[0-9.]*'",
            false,
        ),
        (
            "UDP",
            "dig +time=2 +tries=1 +short @203.0.113.53 evil.example | grep -x '[0-9.]*'",
            false,
        ),
        (
            "TCP",
            "dig +tcp +time=2 +tries=1 +short @203.0.113.53 evil.example | grep -x '[0-9.]*'",
            false,
        ),
        (
            "TLS",
            &format!(
                "({get}; sleep 1) | timeout 5 openssl s_client -quiet -connect {V4}:853 2>/dev/null | grep content"
            ),
            false,
        ),
        (
            "HTTPS",
            "curl -sSk --doh-insecure --doh-url https://198.51.100.1/dns-query https://other.example/file",
            false,
        ),
    ];
    let rules = ["good.example"];
    for (what, way, permitted) in ways {
        let said = lab.run(&resolved(&rules), &["bash", "-c", way]).output().expect("it runs");
        assert_eq!(said.status.success(), permitted, "{what}: {}", text(&said.stdout));
        let all = ["--dns", FAR[2], "--log", "log", "--allow", "0.0.0.0/0"];
        let said = lab.run(&all, &["bash", "-c", way]).output().expect("it runs");
        assert!(
            said.status.success(),
            "{what} works: {}{}",
            text(&said.stdout),
            text(&said.stderr)
        );
    }
}

#[test]
fn ipv4_addresses_written_as_ipv6_lead_nowhere() {
    let Some((lab, _server)) = lab(&["python3"]) else { return };
    let connect = |at: &str| {
        format!(
            "import socket\nsocket.getaddrinfo('good.example', 80)\n\
             s = socket.create_connection(('{at}', 80), 5); \
             s.sendall(b'GET /file HTTP/1.0\\r\\nHost: evil.example\\r\\n\\r\\n'); print(s.recv(9999))"
        )
    };
    for at in
        ["::ffff:198.51.100.1", "64:ff9b::198.51.100.1", "2002:c633:6401::1", "::198.51.100.1"]
    {
        lab.fails(&under(&["good.example"]), &["python3", "-c", &connect(at)]);
    }
    let said =
        lab.inside(&[&SITES[..], &["--allow", V4]].concat(), &["python3", "-c", &connect(V4)]);
    assert!(said.contains("200 OK"), "{said}");
}
