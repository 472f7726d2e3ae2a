//! Rules by name, with real clients and with those who try to get around them. Two names lead to one server, as where
//! a content network has many sites behind one address; only `good.example` is permitted.

use std::process::Command;

use crate::lab::{Lab, Running, V4, run, text};

pub(super) const SITES: [&str; 4] =
    ["--name", "good.example=198.51.100.1", "--name", "evil.example=198.51.100.1"];

/// The options of a run in which `rules` hold and FILE `log` is the record.
pub(super) fn under<'a>(rules: &[&'a str]) -> Vec<&'a str> {
    let allow = rules.iter().flat_map(|rule| ["--allow", rule]);
    SITES.into_iter().chain(["--log", "log"]).chain(allow).collect()
}

/// Makes a certificate of both names, `ca.pem`, which is its own authority, and its key, `key.pem`.
pub(super) fn certify(lab: &Lab) {
    let san = "subjectAltName=DNS:good.example,DNS:evil.example,IP:198.51.100.1";
    let mut make = Command::new("openssl");
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    make.args(["-days", "30", "-subj", "/CN=good.example", "-addext", san]);
    run(make.args(["-keyout", "key.pem", "-out", "ca.pem"]).current_dir(&lab.dir));
}

/// A laboratory with a server on ports 80 and 443, which has both names; `None`: some program is missing.
pub(super) fn lab(needs: &[&str]) -> Option<(Lab, Running)> {
    let lab = Lab::new(&[&["nginx", "openssl", "curl"], needs].concat())?;
    let dir = lab.dir.path().display().to_string();
    certify(&lab);
    std::fs::create_dir(lab.path("www")).expect("a folder");
    std::fs::write(lab.path("www/file"), b"content\n").expect("a file");
    // other.example is at this server.
    let answer = b"\0\0\x81\x80\0\x01\0\x01\0\0\0\0\x05other\x07example\0\0\x01\0\x01\
        \xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc6\x33\x64\x01";
    std::fs::write(lab.path("www/dns-answer"), answer).expect("a file");
    let conf = format!(
        "user root; daemon off; master_process off; pid {dir}/pid; error_log {dir}/errors; events {{}}\n\
         http {{ access_log {dir}/access; client_body_temp_path {dir}/a; proxy_temp_path {dir}/b;\n\
         fastcgi_temp_path {dir}/c; uwsgi_temp_path {dir}/d; scgi_temp_path {dir}/e;\n\
         server {{ listen {V4}:80; listen {V4}:443 ssl http2; listen {V4}:853 ssl; root {dir}/www;\n\
         rewrite ^/to-(.*)$ http://$1.example/file redirect;\n\
         location /dns-answer {{ default_type application/dns-message; }}\n\
         location /dns-query {{ error_page 404 405 =200 /dns-answer; }}\n\
         ssl_certificate {dir}/ca.pem; ssl_certificate_key {dir}/key.pem; }} }}\n"
    );
    std::fs::write(lab.path("conf"), conf).expect("a file");
    let start = format!("echo started; exec nginx -c {dir}/conf");
    let server = lab.server("sh", &["-c", &start]);
    let script = format!(
        "for i in $(seq 200); do curl -so /dev/null http://{V4}/file && exit 0; sleep 0.05; done; exit 1"
    );
    run(lab.command("sh").args(["-c", &script]));
    Some((lab, server))
}

/// The lines of the log with this event.
pub(super) fn events(lab: &Lab, event: &str) -> Vec<serde_json::Value> {
    let log = std::fs::read_to_string(lab.path("log")).expect("a log");
    let lines = log.lines().map(|line| serde_json::from_str(line).expect("an object"));
    lines.filter(|line: &serde_json::Value| line["event"] == event).collect()
}

#[test]
fn real_clients_reach_a_permitted_name_and_no_other_at_its_address() {
    let Some((lab, _server)) = lab(&["python3", "node", "git"]) else { return };
    let repository = lab.path("www/a.git").display().to_string();
    let git = |args: &[&str]| run(Command::new("git").args(args).current_dir(&lab.dir));
    git(&["init", "-q", "a"]);
    let author = ["-c", "user.name=n", "-c", "user.email=e@example.org"];
    git(&[&["-C", "a"], &author[..], &["commit", "-q", "--allow-empty", "-m", "one"]].concat());
    git(&["clone", "-q", "--bare", "a", &repository]);
    git(&["-C", &repository, "update-server-info"]);
    let clients = [
        "curl -sS --http1.1 --cacert ca.pem https://NAME/file",
        "curl -sS --http2 --cacert ca.pem https://NAME/file",
        "curl -sS --tlsv1.2 --tls-max 1.2 --cacert ca.pem https://NAME/file",
        // Two requests on one connection, the second one plain.
        "curl -sS http://NAME/file -o /dev/null http://NAME/file",
        "curl -sS --http2 http://NAME/file",
        "curl -sS -T ca.pem -o /dev/null http://NAME/x -H 'Transfer-Encoding: chunked'; \
         curl -sS http://NAME/file",
        "SSL_CERT_FILE=ca.pem python3 -c 'import urllib.request as u; print(u.urlopen(\"https://NAME/file\").read().decode())'",
        "NODE_EXTRA_CA_CERTS=ca.pem node -e 'require(\"https\").get(\"https://NAME/file\", r => r.pipe(process.stdout)).on(\"error\", e => { console.error(e); process.exit(1) })'",
        "printf 'GET /file HTTP/1.0\\r\\nHost: NAME\\r\\n\\r\\n' | openssl s_client -quiet -CAfile ca.pem -servername NAME -connect NAME:443 2>/dev/null | grep .",
        "GIT_SSL_CAINFO=ca.pem git clone -q https://NAME/a.git b-$$ && echo content",
    ];
    for client in clients {
        let to = |name: &str| client.replace("NAME", name);
        let said = lab.inside(&under(&["good.example"]), &["sh", "-c", &to("good.example")]);
        assert!(said.contains("content"), "{client}: {said}");
        // The address is known by the permitted name, and the other one is in the hosts file of the program.
        let hosts = "getent hosts good.example >/dev/null; echo '198.51.100.1 evil.example' >hosts; \
                     mount --bind hosts /etc/hosts";
        let script = format!("{hosts} && {}", to("evil.example"));
        let evil =
            lab.run(&under(&["good.example"]), &["unshare", "-rm", "sh", "-c", &script]).output();
        let evil = evil.expect("it runs");
        assert!(!text(&evil.stdout).contains("content"), "{client}: {}", text(&evil.stdout));
        let shown = events(&lab, "mismatch");
        assert!(
            shown.iter().any(|line| line["shown"] == "evil.example" && line["to"].is_string()),
            "{client}: {shown:?} {}",
            text(&evil.stderr)
        );
    }
}

#[test]
fn ways_around_a_permission_by_name_lead_nowhere() {
    let Some((lab, _server)) = lab(&["bash", "dig"]) else { return };
    let request = |lines: &str| {
        format!(
            "exec 3<>/dev/tcp/good.example/80; printf '{lines}' >&3; timeout 5 cat <&3 | grep content"
        )
    };
    let get = "GET /file HTTP/1.1\\r\\nHost: good.example\\r\\n\\r\\n";
    let evil = "GET /file HTTP/1.1\\r\\nHost: evil.example\\r\\nConnection: close\\r\\n\\r\\n";
    let plain = "GET /file HTTP/1.0\\r\\nHost: good.example\\r\\n\\r\\n";
    // The control: the same request without a trick.
    let said = lab.inside(&under(&["good.example"]), &["bash", "-c", &request(plain)]);
    assert_eq!(said, "content\n");
    let ways = [
        ("a shared address", true, "curl -sSk --resolve evil.example:443:198.51.100.1 https://evil.example/file".into()),
        ("a forged server name", true, "curl -sSk -H 'Host: good.example' --connect-to evil.example:443:good.example:443 https://evil.example/file".into()),
        ("no server name", true, format!("(printf '{plain}'; sleep 2) | timeout 5 openssl s_client -quiet -noservername -connect 198.51.100.1:443 2>/dev/null | grep content")),
        ("an address", true, "curl -sSk https://198.51.100.1/file".into()),
        ("an address written as IPv6", false, "curl -sSk 'https://[::ffff:198.51.100.1]/file'".into()),
        ("another Host", true, "curl -sS -H 'Host: evil.example' http://good.example/file".into()),
        ("a proxy", true, "curl -sS -x http://good.example:80 http://evil.example/file".into()),
        ("a proxy's tunnel", false, "curl -sSk -p -x http://good.example:80 https://evil.example/file".into()),
        ("a second request", true, request(&format!("{}{evil}", get.replace("/file", "/none")))),
        ("a request behind a body", true, request(&format!("POST /none HTTP/1.1\\r\\nHost: good.example\\r\\nContent-Length: 1\\r\\n\\r\\nx{evil}"))),
        ("two hosts", false, request("GET /file HTTP/1.1\\r\\nHost: good.example\\r\\nHost: evil.example\\r\\n\\r\\n")),
        ("no host", true, request("GET /file HTTP/1.0\\r\\n\\r\\n")),
        ("a change of protocol that nobody follows", false, request(&format!("GET /none HTTP/1.1\\r\\nHost: good.example\\r\\nUpgrade: x\\r\\n\\r\\n{evil}"))),
        ("another protocol", false, request("EHLO evil.example\\r\\n")),
        ("an outside resolver", false, "dig +time=2 +tries=1 +short @198.51.100.1 evil.example".into()),
        ("an outside resolver over TCP", false, "dig +tcp +time=2 +tries=1 +short @198.51.100.1 evil.example".into()),
    ];
    for (what, works, way) in ways {
        let script = format!("getent hosts good.example >/dev/null; {way}");
        let output = lab.run(&under(&["good.example"]), &["bash", "-c", &script]).output();
        let said = text(&output.expect("it runs").stdout);
        assert!(!said.contains("content"), "{what}: {said}");
        // The way is one where the address is permitted, so that the rule by name is what closes it.
        if works {
            let said =
                lab.inside(&[&SITES[..], &["--allow", V4]].concat(), &["bash", "-c", &script]);
            assert!(said.contains("content"), "{what}");
        }
        let refused = [events(&lab, "mismatch"), events(&lab, "verdict")].concat();
        let is_refusal = |line: &serde_json::Value| line["verdict"] != "allow";
        assert!(refused.iter().any(is_refusal), "{what}: {refused:?}");
    }
}

#[test]
fn prefixes_of_rules_say_what_a_connection_must_show() {
    let Some((lab, _server)) = lab(&["bash"]) else { return };
    let tls = "curl -sSk https://good.example/file";
    let http = "curl -sS http://good.example/file";
    let raw = "exec 3<>/dev/tcp/good.example/80; printf 'GET /file HTTP/1.0\\r\\n\\r\\n' >&3; grep content <&3";
    let ssh =
        "exec 3<>/dev/tcp/good.example/80; printf 'SSH-2.0-x\\r\\n' >&3; grep 'Bad Request' <&3";
    for (rule, permitted) in [
        ("good.example", [true, true, false, false]),
        ("tls:good.example", [true, false, false, false]),
        ("http:good.example", [false, true, false, false]),
        ("http:*.example:80", [false, true, false, false]),
        ("ssh:good.example:80", [false, false, false, true]),
        ("tcp:good.example", [true, true, true, true]),
        ("tcp:good.example:80", [false, true, true, true]),
        ("udp:good.example", [false, false, false, false]),
        ("198.51.100.1", [true, true, true, true]),
    ] {
        for (script, permitted) in [tls, http, raw, ssh].into_iter().zip(permitted) {
            let output =
                lab.run(&under(&[rule]), &["timeout", "10", "bash", "-c", script]).output();
            let output = output.expect("it runs");
            assert_eq!(
                output.status.success(),
                permitted,
                "{rule}: {script}: {}",
                text(&output.stderr)
            );
        }
    }
}

#[test]
fn a_denied_name_is_refused_wherever_its_address_comes_from() {
    let Some((lab, _server)) = lab(&[]) else { return };
    let options = [&SITES[..], &["--log", "log", "--deny", "evil.example"]].concat();
    let curl = |name| format!("curl -sSk --resolve {name}:443:198.51.100.1 https://{name}/file");
    let said = lab.inside(&options, &["sh", "-c", &curl("good.example")]);
    assert_eq!(said, "content\n");
    lab.fails(&options, &["sh", "-c", &curl("evil.example")]);
    assert_eq!(events(&lab, "mismatch")[0]["shown"], "evil.example");
    assert_eq!(events(&lab, "closed").last().expect("an end")["how"], "prohibited");
}

/// A server at port 8000: answers a request that ends with a last chunk with the number of its bytes, agrees to each
/// change of protocol and then returns what comes, and speaks first to clients that are silent.
const SERVER: &str = r#"
import socket, threading
def serve(s):
    s.settimeout(0.5)
    try: data = s.recv(65536)
    except TimeoutError: s.sendall(b'220 welcome\r\n'); s.settimeout(None); data = s.recv(65536)
    s.settimeout(None)
    if b'Upgrade' in data:
        s.sendall(b'HTTP/1.1 101 Switching Protocols\r\n\r\n')
        while more := s.recv(65536): s.sendall(more)
        return s.close()
    while not data.endswith(b'0\r\n\r\n'):
        more = s.recv(1 << 20)
        if not more: break
        data += more
    s.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n%08d' % len(data))
    s.close()
l = socket.create_server(('198.51.100.1', 8000))
print('ready', flush=True)
while True: threading.Thread(target=serve, args=[l.accept()[0]], daemon=True).start()
"#;

#[test]
fn what_follows_a_permitted_name_passes_whole() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let _server = lab.server("python3", &["-uc", SERVER]);
    let python = |script: &str| {
        let script = format!(
            "import socket\ns = socket.create_connection(('good.example', 8000))\n{script}"
        );
        lab.inside(&under(&["good.example"]), &["timeout", "20", "python3", "-c", &script])
    };
    // Bursts of the relay end within chunks of all sizes.
    let upload = "head = b'POST / HTTP/1.1\\r\\nHost: good.example\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'
body = b''.join(b'%x\\r\\n%s\\r\\n' % (n, b'x' * n) for n in (1, 7, 8192, 32768, 65535, 300000) for _ in range(40))
s.sendall(head + body + b'0\\r\\n\\r\\n')
print(int(s.recv(999)[-8:]) - len(head + body) - 5)";
    assert_eq!(python(upload), "0\n");
    let websocket =
        "s.sendall(b'GET / HTTP/1.1\\r\\nHost: good.example\\r\\nUpgrade: websocket\\r\\n\\r\\n')
f = s.makefile('rb'); f.readline(); f.readline()
s.sendall(b'\\x81\\x05hello'); print(f.read(7)[2:])";
    assert_eq!(python(websocket), "b'hello'\n");
    // Nobody waits for the client's first bytes but those who judge them.
    let silent = "print(s.recv(99)); s.sendall(b'EHLO x\\r\\n')
try: print(s.recv(99))
except ConnectionResetError: print('reset')";
    assert_eq!(python(silent), "b'220 welcome\\r\\n'\nreset\n");
}
