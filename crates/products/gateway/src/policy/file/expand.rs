//! [`entries`]: the rules of all tables, with their groups.

use std::collections::HashMap;
use std::sync::Arc;

use super::tables::{At, Table, Text, unknown};
use super::{Found, Place, RulesEntry, Source};
use crate::limits::RULES;
use crate::policy::rules::{Rule, RuleError, WrittenRule};
use crate::request::Verdict;

/// A rule whose place is not known as line and column yet.
pub(super) struct Entry {
    rule: Rule,
    answer: Option<Verdict>,
    comment: Option<Arc<str>>,
}

impl Entry {
    pub(super) fn into_entry(self, place: Place) -> RulesEntry {
        let Self { rule, answer, comment } = self;
        RulesEntry { rule, answer, comment, place }
    }
}

/// The texts of a group. One that is no rule has been noted.
type Group = Vec<(String, Option<WrittenRule>)>;

/// The rules of all files, which share their groups.
pub(super) fn entries(files: &[Source], found: &mut Found) -> Vec<(At, Entry)> {
    let groups = groups(files, found);
    let mut out = Vec::new();
    for table in files.iter().flat_map(|file| &file.tables.rules) {
        for text in &table.to {
            if found.is_full() || !add(table, text, &groups, &mut out, found) {
                return out;
            }
        }
    }
    out
}

fn groups<'f>(files: &'f [Source], found: &mut Found) -> HashMap<&'f str, Group> {
    let mut groups: HashMap<&str, Group> = HashMap::new();
    for group in files.iter().flat_map(|file| &file.tables.groups) {
        let mut texts = Vec::new();
        for Text { text, at } in &group.texts {
            let rule = match text.starts_with('@') {
                true => Err("a group has no other groups".to_owned()),
                false => WrittenRule::read(text).map_err(|error| error.to_string()),
            };
            let rule = rule.map_err(|why| found.note(*at, why)).ok();
            texts.push((text.clone(), rule));
        }
        let name = group.name.text.as_str();
        if groups.contains_key(name) {
            found.note(group.name.at, format_args!("there is another group '{name}'"));
        }
        groups.entry(name).or_insert(texts);
    }
    groups
}

/// Adds the rules of a text of a table. `false`: there are too many.
fn add(
    table: &Table,
    text: &Text,
    groups: &HashMap<&str, Group>,
    out: &mut Vec<(At, Entry)>,
    found: &mut Found,
) -> bool {
    let Some(name) = text.text.strip_prefix('@') else {
        return match WrittenRule::read(&text.text) {
            Ok(rule) => combine(table, text.at, (&text.text, &rule), out, found),
            Err(error) => {
                found.note(text.at, error);
                true
            }
        };
    };
    let Some(texts) = groups.get(name) else {
        let mut known: Vec<&str> = groups.keys().copied().collect();
        known.sort_unstable();
        found.note(text.at, unknown("group", name, known));
        return true;
    };
    texts.iter().all(|(of_group, rule)| {
        let Some(rule) = rule else { return true };
        !found.is_full() && combine(table, text.at, (of_group, rule), out, found)
    })
}

/// Adds a rule for each of the table's ports and protocols. `false`: there are too many.
fn combine(
    table: &Table,
    at: At,
    (text, written): (&str, &WrittenRule),
    out: &mut Vec<(At, Entry)>,
    found: &mut Found,
) -> bool {
    if table.has_mistake {
        return true;
    }
    let mut rule = written.rule.clone();
    let twice = |what: &str| format!("'{text}' has {what} of its own, and so has the table");
    let denied = table.answer.and_then(|_| rule.check_denial().err());
    let wrong = match table.direction {
        _ if denied.is_some() => denied.map(|error| error.to_string()),
        _ if written.has_ports && !table.ports.is_empty() => Some(twice("ports")),
        _ if rule.rate.is_some() && table.rate.is_some() => Some(twice("a rate")),
        _ if rule.rate.is_some() && table.answer.is_some() => {
            Some(RuleError::Speed(text.to_owned()).to_string())
        }
        _ if rule.protocol.is_some() && !table.protocols.is_empty() => Some(twice("a protocol")),
        Some(direction) if written.has_direction && direction != rule.direction => {
            Some(twice("a direction"))
        }
        Some(direction) => rule.turn(direction, text).err().map(|error| error.to_string()),
        None => None,
    };
    if let Some(why) = wrong {
        found.note(at, why);
        return true;
    }
    let all_ports = table.ports.iter().map(|ports| Some(*ports));
    let ports: Vec<_> = all_ports.chain(table.ports.is_empty().then_some(rule.ports)).collect();
    let all_protocols = table.protocols.iter().map(|protocol| Some(*protocol));
    let of_rule = table.protocols.is_empty().then_some(rule.protocol);
    let protocols: Vec<_> = all_protocols.chain(of_rule).collect();
    for (ports, protocol) in
        ports.iter().flat_map(|ports| protocols.iter().map(move |protocol| (*ports, *protocol)))
    {
        if out.len() >= RULES {
            found.note(at, format_args!("there are more than {RULES} rules from here on"));
            return false;
        }
        let rule = Rule { ports, protocol, rate: table.rate.or(rule.rate), ..rule.clone() };
        if let Err(error) = rule.check(text) {
            found.note(at, error);
            return true;
        }
        let (answer, comment) = (table.answer, table.comment.clone());
        out.push((at, Entry { rule, answer, comment }));
    }
    true
}
