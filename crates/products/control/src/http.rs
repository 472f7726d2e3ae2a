//! The part of HTTP/1.1 that a Prometheus server needs: one request on a connection, one answer.

use std::net::IpAddr;

use crate::limits::REQUEST_BYTES;
use crate::metrics;
use crate::protocol::Stats;

/// The answer to what has come so far; `None`: the head is not complete.
///
/// On a loopback address, a request has to name that address, or `localhost`: the page of a stranger whose
/// name leads here (DNS rebinding) has the browser name the stranger.
pub(crate) fn answer(
    request: &[u8],
    is_loopback: bool,
    stats: impl FnOnce() -> Stats,
) -> Option<Vec<u8>> {
    let ended = |end: &[u8]| request.windows(end.len()).any(|window| window == end);
    if !ended(b"\r\n\r\n") && !ended(b"\n\n") {
        let too_long = request.len() > REQUEST_BYTES;
        return too_long.then(|| page("431 Request Header Fields Too Large", "text/plain", ""));
    }
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    if is_loopback && !hosts(request).all(is_this_machine) {
        let text = "name this by its address, or as localhost\n";
        return Some(page("421 Misdirected Request", "text/plain", text));
    }
    Some(match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => match metrics::render(&stats()) {
            Ok(text) => {
                let mut page = page("200 OK", "text/plain; version=0.0.4; charset=utf-8", &text);
                if method == b"HEAD" {
                    page.truncate(page.len() - text.len());
                }
                page
            }
            Err(why) => page("500 Internal Server Error", "text/plain", &format!("{why}\n")),
        },
        (b"GET" | b"HEAD", _) => {
            page("404 Not Found", "text/plain", "the metrics are at /metrics\n")
        }
        _ => page("405 Method Not Allowed", "text/plain", ""),
    })
}

/// The values of the fields `Host`, as far as they are text.
fn hosts(request: &[u8]) -> impl Iterator<Item = &str> {
    let lines = request.split(|byte| *byte == b'\n').skip(1);
    let named = lines.filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(at);
        name.eq_ignore_ascii_case(b"host").then(|| str::from_utf8(value.get(1..)?).ok())
    });
    // Bytes that are no text name nothing.
    named.map(|value| value.unwrap_or("?").trim())
}

fn is_this_machine(host: &str) -> bool {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    // The colons of an IPv6 address are in brackets.
    let name = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    is_address(bare.unwrap_or(name)) || name.eq_ignore_ascii_case("localhost")
}

fn page(status: &str, kind: &str, text: &str) -> Vec<u8> {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> Option<String> {
        status_at(request, false)
    }

    fn status_at(request: &str, is_loopback: bool) -> Option<String> {
        let answer = answer(request.as_bytes(), is_loopback, Stats::default)?;
        let text = String::from_utf8(answer).expect("text");
        Some(text.lines().next().expect("a line").to_owned())
    }

    #[test]
    fn on_loopback_a_stranger_s_name_leads_nowhere() {
        for (host, ours) in [
            ("127.0.0.1", true),
            ("127.0.0.1:9464", true),
            ("[::1]:9464", true),
            ("[::1]", true),
            ("localhost:9464", true),
            ("LocalHost", true),
            ("evil.example:9464", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:9464", false),
            ("", false),
            ("\u{fffd}", false),
        ] {
            let request = format!("GET /metrics HTTP/1.1\r\nAccept: */*\r\nhOST:  {host}\r\n\r\n");
            let expected =
                if ours { "HTTP/1.1 200 OK" } else { "HTTP/1.1 421 Misdirected Request" };
            assert_eq!(status_at(&request, true).as_deref(), Some(expected), "{host}");
            // Elsewhere a Prometheus server may know us by a name.
            assert_eq!(status(&request).as_deref(), Some("HTTP/1.1 200 OK"), "{host}");
        }
        let two = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n";
        assert!(status_at(two, true).expect("an answer").contains("421"));
        assert!(
            status_at("GET /metrics HTTP/1.0\r\n\r\n", true).expect("an answer").contains("200")
        );
    }

    #[test]
    fn metrics_are_at_their_path_and_nothing_else_is() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: a\r\n"), None, "the head goes on");
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "200 OK"),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200 OK"),
            ("HEAD /metrics HTTP/1.1\n\n", "200 OK"),
            ("GET / HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("\r\n\r\n", "405 Method Not Allowed"),
        ] {
            assert_eq!(status(request), Some(format!("HTTP/1.1 {expected}")), "{request}");
        }
        let long = status(&"x".repeat(REQUEST_BYTES + 1));
        assert!(long.expect("an answer").contains("431"));
    }
}
