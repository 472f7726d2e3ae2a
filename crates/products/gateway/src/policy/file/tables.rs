//! [`Tables`]: the tables of one file, by their keys.

use std::fmt::Display;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::Found;
use crate::policy::rules::{Ports, Speed};
use crate::request::{Direction, Protocol, Verdict};

/// The keys of a file.
pub(super) const FILE: [&str; 4] = ["include", "groups", "allow", "deny"];
/// The keys of a permission.
pub(super) const ALLOW: [&str; 6] = ["to", "ports", "protocol", "direction", "comment", "rate"];
/// The keys of a denial.
pub(super) const DENY: [&str; 6] = ["to", "ports", "protocol", "direction", "comment", "answer"];

pub(super) const PROTOCOLS: [(&str, Protocol); 3] =
    [("tcp", Protocol::Tcp), ("udp", Protocol::Udp), ("icmp", Protocol::Echo)];
pub(super) const DIRECTIONS: [(&str, Direction); 2] =
    [("out", Direction::Out), ("in", Direction::In)];
pub(super) const ANSWERS: [(&str, Verdict); 4] = [
    ("prohibit", Verdict::Prohibit),
    ("refuse", Verdict::Refuse),
    ("unreachable", Verdict::Unreachable),
    ("drop", Verdict::Drop),
];

/// A place in one of the files that are read; without an offset in bytes: the file as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) file: usize,
    pub(super) offset: Option<usize>,
}

/// A text of a file.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) at: At,
}

/// A list of destinations with a name.
pub(super) struct Group {
    pub(super) name: Text,
    pub(super) texts: Vec<Text>,
}

/// A table of `allow` or `deny`.
pub(super) struct Table {
    /// `None`: of `allow`.
    pub(super) answer: Option<Verdict>,
    pub(super) to: Vec<Text>,
    /// Empty: those of the texts.
    pub(super) ports: Vec<Ports>,
    /// Empty: those of the texts.
    pub(super) protocols: Vec<Protocol>,
    /// `None`: that of the texts.
    pub(super) direction: Option<Direction>,
    /// `None`: that of the texts.
    pub(super) rate: Option<Speed>,
    pub(super) comment: Option<Arc<str>>,
    /// A mistake in the table has been noted: what follows from it is no further mistake.
    pub(super) has_mistake: bool,
}

/// The tables of a file.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) includes: Vec<Text>,
    pub(super) groups: Vec<Group>,
    pub(super) rules: Vec<Table>,
}

/// A value of the file with its place.
type Value<'v, 'i> = &'v Spanned<DeValue<'i>>;

impl Tables {
    /// Reads a text as far as it can be understood, and notes its mistakes.
    pub(super) fn read(file: usize, text: &str, found: &mut Found) -> Self {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut broken = Vec::new();
        for error in errors {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            broken.push(line(text, at));
            found.note(At { file, offset: Some(at) }, error.message());
        }
        let before = found.0.len();
        let mut reading = Reading { file, found };
        let tables = reading.root(root.get_ref());
        // Where the text is no TOML, its keys and values are not those that were meant.
        let mut later = found.0.split_off(before);
        later.retain(|(at, _)| at.offset.is_none_or(|at| !broken.contains(&line(text, at))));
        found.0.append(&mut later);
        tables
    }
}

/// The number of a line.
fn line(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count()
}

struct Reading<'f> {
    file: usize,
    found: &'f mut Found,
}

impl Reading<'_> {
    fn at<T>(&self, what: &Spanned<T>) -> At {
        At { file: self.file, offset: Some(what.span().start) }
    }

    fn note<T>(&mut self, what: &Spanned<T>, why: impl Display) {
        let at = self.at(what);
        self.found.note(at, why);
    }

    fn root(&mut self, root: &DeTable<'_>) -> Tables {
        let mut tables = Tables::default();
        for (key, value) in root {
            match key.get_ref().as_ref() {
                "include" => tables.includes = self.texts(value, "include"),
                "groups" => tables.groups = self.groups(value),
                "allow" => self.rules(value, None, &mut tables.rules),
                "deny" => self.rules(value, Some(Verdict::Prohibit), &mut tables.rules),
                other => self.note(key, unknown("key", other, FILE)),
            }
        }
        tables
    }

    fn groups(&mut self, value: Value<'_, '_>) -> Vec<Group> {
        let Some(table) = value.get_ref().as_table() else {
            self.note(value, "'groups' is a table, as in [groups]");
            return Vec::new();
        };
        let group = |(key, value): (&Spanned<_>, _)| {
            let name: &std::borrow::Cow<'_, str> = key.get_ref();
            let name = Text { text: name.to_string(), at: self.at(key) };
            Group { name, texts: self.texts(value, key.get_ref()) }
        };
        table.iter().map(group).collect()
    }

    fn rules(&mut self, value: Value<'_, '_>, answer: Option<Verdict>, out: &mut Vec<Table>) {
        let name = if answer.is_some() { "deny" } else { "allow" };
        let Some(tables) = value.get_ref().as_array() else {
            return self
                .note(value, format_args!("write [[{name}]], which there may be several of"));
        };
        for table in tables.iter() {
            match table.get_ref().as_table() {
                Some(keys) => out.push(self.rule(table, keys, answer)),
                None => self.note(table, format_args!("'{name}' has tables, as in [[{name}]]")),
            }
        }
    }

    fn rule(&mut self, table: Value<'_, '_>, keys: &DeTable<'_>, answer: Option<Verdict>) -> Table {
        let before = self.found.0.len();
        let (to, comment, direction) = (Vec::new(), None, None);
        let (ports, protocols) = (Vec::new(), Vec::new());
        let rate = None;
        let mut rule =
            Table { answer, to, ports, protocols, direction, rate, comment, has_mistake: false };
        let mut has_to = false;
        for (key, value) in keys {
            match key.get_ref().as_ref() {
                "to" => {
                    has_to = true;
                    rule.to = self.texts(value, "to");
                }
                "ports" => rule.ports = self.ports(value),
                "protocol" => {
                    let all = self.texts(value, "protocol");
                    let words = all.iter().filter_map(|text| self.word(text, &PROTOCOLS));
                    rule.protocols = words.collect();
                }
                "direction" => {
                    let text = self.text(value, "direction");
                    rule.direction = text.and_then(|text| self.word(&text, &DIRECTIONS));
                }
                "comment" => rule.comment = self.text(value, "comment").map(|t| t.text.into()),
                "rate" if answer.is_none() => {
                    let text = self.text(value, "rate");
                    rule.rate = text.and_then(|text| {
                        let speed = text.text.parse::<Speed>();
                        speed.map_err(|error| self.found.note(text.at, error)).ok()
                    });
                }
                "rate" => self.note(key, "'rate' is for [[allow]]"),
                "answer" if answer.is_some() => {
                    let text = self.text(value, "answer");
                    rule.answer = text.and_then(|text| self.word(&text, &ANSWERS)).or(answer);
                }
                "answer" => self.note(key, "'answer' is for [[deny]]"),
                other if answer.is_some() => self.note(key, unknown("key", other, DENY)),
                other => self.note(key, unknown("key", other, ALLOW)),
            }
        }
        if !has_to {
            self.note(table, "the table lacks 'to'");
        }
        rule.has_mistake = self.found.0.len() > before || self.found.is_full();
        rule
    }

    /// A text, or a list of texts that has one at least.
    fn texts(&mut self, value: Value<'_, '_>, key: &str) -> Vec<Text> {
        match value.get_ref() {
            DeValue::Array(list) if !list.is_empty() => {
                list.iter().filter_map(|value| self.text(value, key)).collect()
            }
            DeValue::Array(_) => {
                self.note(value, format_args!("'{key}' is empty"));
                Vec::new()
            }
            _ => self.text(value, key).into_iter().collect(),
        }
    }

    fn text(&mut self, value: Value<'_, '_>, key: &str) -> Option<Text> {
        let text = value.get_ref().as_str();
        if text.is_none() {
            let kind = value.get_ref().type_str();
            self.note(value, format_args!("'{key}' has text, and no {kind}"));
        }
        Some(Text { text: text?.to_owned(), at: self.at(value) })
    }

    /// The meaning of a word.
    fn word<T: Copy, const N: usize>(&mut self, text: &Text, words: &[(&str, T); N]) -> Option<T> {
        let found = words.iter().find(|(word, _)| *word == text.text);
        if found.is_none() {
            self.found.note(text.at, unknown("word", &text.text, words.map(|(word, _)| word)));
        }
        found.map(|(_, meaning)| *meaning)
    }

    fn ports(&mut self, value: Value<'_, '_>) -> Vec<Ports> {
        match value.get_ref() {
            DeValue::Array(list) => self.port_list(value, list),
            _ => self.port(value).into_iter().collect(),
        }
    }

    fn port_list(&mut self, value: Value<'_, '_>, list: &DeArray<'_>) -> Vec<Ports> {
        if list.is_empty() {
            self.note(value, "'ports' is empty");
        }
        list.iter().filter_map(|value| self.port(value)).collect()
    }

    fn port(&mut self, value: Value<'_, '_>) -> Option<Ports> {
        let ports = match value.get_ref() {
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse(),
            DeValue::String(text) => text.parse::<Ports>(),
            _ => {
                self.note(value, "'ports' has numbers, and texts such as \"8000-8999\"");
                return None;
            }
        };
        ports.map_err(|error| self.note(value, error)).ok()
    }
}

/// The message about a word that is not known, with the nearest one.
pub(super) fn unknown<'w>(
    kind: &str,
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> String {
    // Longer ones are near to none, and take time to compare.
    let short: String = word.chars().take(64).collect();
    let distance = |known: &&str| strsim::damerau_levenshtein(&short, known);
    match known.into_iter().min_by_key(distance) {
        Some(nearest) => format!("unknown {kind} '{word}'; the nearest is '{nearest}'"),
        None => format!("unknown {kind} '{word}'"),
    }
}
