//! As much of HTTP/1.1 as a Prometheus server needs: one request on a connection, one answer.

use crate::limits::REQUEST_BYTES;
use crate::metrics;
use crate::protocol::Stats;

/// The answer to what has come so far; `None`: the head is not complete.
pub(crate) fn answer(request: &[u8], stats: impl FnOnce() -> Stats) -> Option<Vec<u8>> {
    let ended = |end: &[u8]| request.windows(end.len()).any(|window| window == end);
    if !ended(b"\r\n\r\n") && !ended(b"\n\n") {
        let too_long = request.len() > REQUEST_BYTES;
        return too_long.then(|| page("431 Request Header Fields Too Large", "text/plain", ""));
    }
    let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
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
        let answer = answer(request.as_bytes(), Stats::default)?;
        let text = String::from_utf8(answer).expect("text");
        Some(text.lines().next().expect("a line").to_owned())
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
