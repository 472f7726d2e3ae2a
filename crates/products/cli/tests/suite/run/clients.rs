//! Clients under rules by name: languages, protocols, and shapes of connections that a look at the first bytes could
//! spoil.

use std::process::Command;

use super::names::{SITES, events, lab, under};
use crate::lab::{Lab, V4, run, text};

/// Asks for each URL and prints the protocol and the answer.
const GO: &str = r#"package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	pem, _ := os.ReadFile("ca.pem")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	for _, http2 := range []bool{false, true} {
		way := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: http2}
		client := &http.Client{Transport: way}
		for _, url := range os.Args[1:] {
			answer, err := client.Get(url)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			body, _ := io.ReadAll(answer.Body)
			fmt.Print(answer.Proto, " ", string(body))
		}
	}
}
"#;

/// The same, by HTTP/2 where the server has it.
const JAVA: &str = r#"
import java.net.URI;
import java.net.http.*;

public class Get {
    public static void main(String[] urls) throws Exception {
        for (String url : urls) {
            for (var version : HttpClient.Version.values()) {
                var client = HttpClient.newBuilder().version(version).build();
                var request = HttpRequest.newBuilder(URI.create(url)).build();
                var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
                System.out.print(answer.version() + " " + answer.body());
            }
        }
    }
}
"#;

/// Runs a client at the permitted name, where it says `expected`, and at the other one, where it fails.
fn is_judged(lab: &Lab, client: &[&str], expected: &str) {
    let with = |name: &str| -> Vec<String> {
        client.iter().map(|word| word.replace("NAME", name)).collect()
    };
    fn words(all: &[String]) -> Vec<&str> {
        all.iter().map(String::as_str).collect()
    }
    let said = lab.inside(&under(&["good.example"]), &words(&with("good.example")));
    assert_eq!(said, expected);
    // Both names lead to the server, and only one is permitted.
    let known = "getent hosts good.example >/dev/null; exec \"$@\"";
    let evil = with("evil.example");
    let evil = [&["sh", "-c", known, "sh"][..], &words(&evil)].concat();
    let output = lab.fails(&under(&["good.example"]), &evil);
    assert_eq!(text(&output.stdout), "", "{}", text(&output.stderr));
    let shown = events(lab, "mismatch");
    assert!(shown.iter().any(|line| line["shown"] == "evil.example"), "{shown:?}");
}

#[test]
fn go_reaches_a_permitted_name_by_http_1_and_2() {
    let Some((lab, _server)) = lab(&["go"]) else { return };
    std::fs::write(lab.path("get.go"), GO).expect("a file");
    let mut build = Command::new("go");
    build.args(["build", "-o", "get", "get.go"]).current_dir(&lab.dir);
    run(build.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off").env("GOMAXPROCS", "1"));
    let expected = "HTTP/1.1 content\nHTTP/1.1 content\nHTTP/2.0 content\nHTTP/1.1 content\n";
    is_judged(&lab, &["./get", "https://NAME/file", "http://NAME/file"], expected);
}

#[test]
fn java_reaches_a_permitted_name_by_http_1_and_2() {
    let Some((lab, _server)) = lab(&["javac", "java", "keytool"]) else { return };
    std::fs::write(lab.path("Get.java"), JAVA).expect("a file");
    run(Command::new("javac").arg("Get.java").current_dir(&lab.dir));
    let import = ["-importcert", "-noprompt", "-file", "ca.pem", "-keystore", "store"];
    let mut keytool = Command::new("keytool");
    run(keytool.args(import).args(["-storepass", "changeit"]).current_dir(&lab.dir));
    let java = [
        "java",
        "-Djavax.net.ssl.trustStore=store",
        "-Djavax.net.ssl.trustStorePassword=changeit",
        "Get",
        "https://NAME/file",
        "http://NAME/file",
    ];
    let expected = "HTTP_1_1 content\nHTTP_2 content\nHTTP_1_1 content\nHTTP_1_1 content\n";
    is_judged(&lab, &java, expected);
}

#[test]
fn one_connection_of_http_2_carries_several_requests() {
    let Some((lab, _server)) = lab(&[]) else { return };
    let curl = "curl -sS --http2 --cacert ca.pem -w '%{http_version} %{num_connects}\n' \
                https://good.example/file https://good.example/file";
    let said = lab.inside(&under(&["good.example"]), &["sh", "-c", curl]);
    assert_eq!(said, "content\n2 1\ncontent\n2 0\n");
}

#[test]
fn a_long_download_arrives_as_it_is() {
    let Some((lab, _server)) = lab(&["sha256sum"]) else { return };
    run(lab.command("sh").args(["-c", "head -c 200M /dev/urandom >www/long"]));
    let sum = run(lab.command("sh").args(["-c", "sha256sum <www/long"]));
    for url in ["https://good.example/long", "http://good.example/long"] {
        let curl = format!("curl -sSk {url} | sha256sum");
        assert_eq!(lab.inside(&under(&["good.example"]), &["sh", "-c", &curl]), sum, "{url}");
    }
}

/// A server at port 8000 that reads to the end of the client's stream, and then sends a million bytes; and one at port
/// 8001 that speaks first.
const SERVER: &str = r#"
import socket, threading
def after_the_end(s):
    n = 0
    while more := s.recv(65536): n += len(more)
    s.sendall(b'%09d' % n + bytes(1000000)); s.close()
def first(s): s.sendall(b'220 welcome\r\n'); s.sendall(s.recv(99)); s.close()
def serve(port, what):
    l = socket.create_server(('198.51.100.1', port))
    def accept():
        while True: threading.Thread(target=what, args=[l.accept()[0]]).start()
    threading.Thread(target=accept).start()
serve(8000, after_the_end); serve(8001, first)
print('ready', flush=True)
"#;

#[test]
fn an_end_of_one_direction_leaves_the_other_one() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let _server = lab.server("python3", &["-uc", SERVER]);
    let script = "import socket
s = socket.create_connection(('good.example', 8000)); s.settimeout(20)
head = b'POST / HTTP/1.1\\r\\nHost: good.example\\r\\nContent-Length: 500000\\r\\n\\r\\n'
s.sendall(head + bytes(500000)); s.shutdown(socket.SHUT_WR)
f = s.makefile('rb'); print(int(f.read(9)) - len(head), len(f.read()))";
    for rule in ["good.example", "tcp:good.example"] {
        let said = lab.inside(&under(&[rule]), &["python3", "-c", script]);
        assert_eq!(said, "500000 1000000\n", "{rule}");
    }
}

#[test]
fn a_server_that_speaks_first_is_not_kept_waiting() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let _server = lab.server("python3", &["-uc", SERVER]);
    let script = "import socket
s = socket.create_connection(('good.example', 8001)); s.settimeout(20)
print(s.recv(99)); s.sendall(b'EHLO x\\r\\n'); print(s.recv(99))";
    let python = ["python3", "-c", script];
    let said = lab.inside(&under(&["tcp:good.example:8001"]), &python);
    assert_eq!(said, "b'220 welcome\\r\\n'\nb'EHLO x\\r\\n'\n");
    let output = lab.fails(&under(&["tls:good.example"]), &python);
    assert_eq!(text(&output.stdout), "b'220 welcome\\r\\n'\n", "the answer shows no name");
    let by_address = [&SITES[..], &["--allow", V4]].concat();
    assert_eq!(lab.inside(&by_address, &python), said);
}
