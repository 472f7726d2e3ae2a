//! The lines between a gateway and a program that judges: one JSON object each.
//!
//! ```text
//!   --> {"id":1,"guest":1,"flow":17,"protocol":"tcp","from":"10.0.2.15:40000","to":"203.0.113.1:443","names":["a.example"]}
//!   <-- {"id":1,"verdict":"allow","shown":false,"for":60}
//! ```
//!
//! An answer has an `id` and a `verdict`: `allow`, `prohibit`, `refuse`, `unreachable`, `drop`, or `rules` for no
//! opinion. `shown` and `names` say what a permitted flow must show ([`Shows`](super::Shows)); `for` is the time in
//! seconds for which the answer is kept. Further members mean nothing.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::Opinion;
use crate::limits::{JUDGE_LINE, POLICY_KEEP};
use crate::request::{Ask, Name, Protocol, Verdict};

/// The line of a question, with its end.
pub(super) fn write_question(id: u64, flow: u64, ask: &Ask) -> String {
    let address = |at: SocketAddr| match ask.protocol {
        Protocol::Echo => at.ip().to_string(),
        Protocol::Tcp | Protocol::Udp => at.to_string(),
    };
    let names: Vec<&str> = ask.names.iter().map(Name::as_str).collect();
    let line = json!({
        "id": id,
        "guest": ask.guest.number(),
        "flow": flow,
        "protocol": ask.protocol.name(),
        "from": address(ask.from),
        "to": address(ask.to),
        "names": names,
    });
    format!("{line}\n")
}

/// The number of the question and the opinion in a line; `None`: the line is no answer.
pub(crate) fn read_answer(line: &[u8]) -> Option<(u64, Opinion)> {
    let value: Value = serde_json::from_slice(line).ok()?;
    let id = value.get("id")?.as_u64()?;
    let opinion = match value.get("verdict")?.as_str()? {
        "allow" => Opinion::verdict(Verdict::Allow),
        "prohibit" => Opinion::verdict(Verdict::Prohibit),
        "refuse" => Opinion::verdict(Verdict::Refuse),
        "unreachable" => Opinion::verdict(Verdict::Unreachable),
        "drop" => Opinion::verdict(Verdict::Drop),
        "rules" => Opinion::rules(),
        _ => return None,
    };
    let opinion = match value.get("shown") {
        None | Some(Value::Bool(true)) => opinion,
        Some(Value::Bool(false)) => opinion.by_address(),
        Some(Value::String(by)) if by == "ech" => opinion.encrypted(),
        Some(_) => return None,
    };
    let opinion = match value.get("names") {
        None => opinion,
        Some(names) => {
            let names = names.as_array()?.iter().map(|name| name.as_str()?.parse().ok());
            opinion.names(names.collect::<Option<Vec<Name>>>()?)
        }
    };
    let Some(time) = value.get("for") else { return Some((id, opinion)) };
    let time = time.as_f64().filter(|time| *time >= 0.0)?;
    Some((id, opinion.keep(Duration::from_secs_f64(time.min(POLICY_KEEP.as_secs_f64())))))
}

/// Cuts a stream into lines of at most [`JUDGE_LINE`] bytes. Longer ones are left out.
#[derive(Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
    /// The line is too long already.
    cut: bool,
}

impl Lines {
    /// Takes the next bytes, and gives each line that they end, without its end.
    pub(crate) fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (text, ends) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            self.cut |= self.begun.len() + text.len() > JUDGE_LINE;
            if self.cut {
                self.begun.clear();
            } else {
                self.begun.extend_from_slice(text);
            }
            if ends {
                if !std::mem::take(&mut self.cut) {
                    line(&self.begun);
                }
                self.begun.clear();
            }
        }
    }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
