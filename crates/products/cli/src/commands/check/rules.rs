//! `pagewire check rules`: mistakes of files with rules, and what the rules would decide.

use pagewire_gateway::{Proof, Protocol, Question, Reason, Rules, RulesEntry, RulesFile, Verdict};

use crate::args::system::CheckRulesOptions;
use crate::failure::{Failure, say};

/// Prints the mistakes, or the number of rules and an answer to each question.
pub(super) fn run(options: &CheckRulesOptions) -> Result<(), Failure> {
    let mut read = Vec::new();
    let mut mistakes = 0;
    for path in &options.files {
        match RulesFile::read(path) {
            Ok(file) => read.push(file),
            Err(found) => {
                mistakes += found.mistakes().len();
                found.mistakes().iter().for_each(say);
            }
        }
    }
    if mistakes > 0 {
        let what = if mistakes == 1 { "mistake" } else { "mistakes" };
        return Err(Failure::Failed(format!("{mistakes} {what} in the rules")));
    }
    let all = read.iter().fold(Rules::default(), |all, file| file.apply(all));
    let all = all.checked().map_err(|error| Failure::Failed(error.to_string()))?;
    let entries: Vec<&RulesEntry> = read.iter().flat_map(RulesFile::entries).collect();
    if options.would.is_empty() {
        let n = entries.len();
        let open = if all.is_restricted() { "" } else { "; what is not denied is permitted" };
        say(format!("{n} {}, no mistake{open}", if n == 1 { "rule" } else { "rules" }));
        return Ok(());
    }
    let mut refused = 0;
    for question in &options.would {
        let (permitted, lines) = answer(question, &all, &entries);
        refused += usize::from(!permitted);
        lines.into_iter().for_each(say);
    }
    match refused {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{refused} of {} would be refused", options.would.len()))),
    }
}

/// The answer to a question: whether it is yes, and its lines.
fn answer(question: &Question, rules: &Rules, entries: &[&RulesEntry]) -> (bool, Vec<String>) {
    let (direction, protocol) = (question.ask().direction, question.ask().protocol);
    // The rules' numbers count those of one direction and kind.
    let entry = |n: usize, denies: bool| {
        let of_kind = |entry: &&&RulesEntry| {
            entry.rule.direction == direction && entry.answer.is_some() == denies
        };
        entries.iter().filter(of_kind).nth(n).copied()
    };
    let told = |n, denies| entry(n, denies).map(by).unwrap_or_default();
    let decision = question.answer(rules);
    let proofs = rules.proofs(question.ask());
    let (word, why) = match decision.reason {
        Reason::Permission(n) if proofs.is_empty() => ("yes", told(n, false)),
        Reason::Permission(_) => {
            let ways = proofs.iter().filter_map(|n| entry(*n, false));
            let ways =
                ways.map(|entry| format!("{}; it must {}", by(entry), proof(entry, protocol)));
            ("yes", ways.collect::<Vec<_>>().join("\n    or "))
        }
        Reason::Open => {
            ("yes", "there are no permissions, so all is permitted that is not denied".to_owned())
        }
        Reason::Mapped => ("yes", "it is mapped".to_owned()),
        Reason::Denial(n) => ("no", told(n, true)),
        Reason::NotPermitted => ("no", "no permission is for it".to_owned()),
        Reason::Closed => {
            let why =
                "loopback, link-local and metadata addresses are closed unless a rule names them";
            ("no", why.to_owned())
        }
        Reason::NoHost => ("no", "the address is no host's".to_owned()),
        Reason::Offline => ("no", "everything is forbidden".to_owned()),
    };
    let permitted = matches!(decision.verdict, Verdict::Allow | Verdict::To(_));
    let text = format!("{word:<3} {question}: {why}");
    (permitted, text.lines().map(str::to_owned).collect())
}

/// A rule with its place, what a guest gets and the comment.
fn by(RulesEntry { rule, answer, comment, place }: &RulesEntry) -> String {
    let what = match answer {
        None => "allow",
        Some(Verdict::Refuse) => "deny (refuse)",
        Some(Verdict::Unreachable) => "deny (unreachable)",
        Some(Verdict::Drop) => "deny (drop)",
        Some(_) => "deny",
    };
    let comment = comment.iter().flat_map(|comment| [" # ", &**comment]).collect::<String>();
    let comment: String = comment.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("{place}: {what} {rule}{comment}")
}

/// What a flow must do to go on by this permission.
fn proof(entry: &RulesEntry, protocol: Protocol) -> &'static str {
    match entry.rule.proof {
        Proof::Shown if protocol == Protocol::Udp => "show the name by QUIC",
        Proof::Shown => "show the name by TLS or HTTP",
        Proof::Tls => "show the name by TLS",
        Proof::Http => "show the name by HTTP",
        Proof::Encrypted if protocol == Protocol::Udp => "show the name by QUIC, encrypted or not",
        Proof::Encrypted => "show the name by TLS, encrypted or not",
        Proof::Ssh => "be SSH",
        Proof::Address => "show nothing",
    }
}
