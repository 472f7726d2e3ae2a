//! Files with rules: what they mean, and what is said about their mistakes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::tables::{ALLOW, ANSWERS, DENY, DIRECTIONS, FILE, PROTOCOLS};
use super::{RulesEntry, RulesFile};
use crate::limits::{RULES, RULES_FILE_BYTES, RULES_FILE_MISTAKES};
use crate::policy::{Question, Rules};
use crate::request::Verdict;

/// Rules in the words of options.
fn words(file: &RulesFile) -> Vec<String> {
    let word = |RulesEntry { rule, answer, .. }: &RulesEntry| match answer {
        None => format!("allow {rule}"),
        Some(Verdict::Prohibit) => format!("deny {rule}"),
        Some(answer) => format!("deny {rule}={answer:?}"),
    };
    file.entries().iter().map(word).collect()
}

fn parse(text: &str) -> Vec<String> {
    words(&RulesFile::parse(text).unwrap_or_else(|mistakes| panic!("{mistakes}")))
}

fn mistakes(text: &str) -> Vec<String> {
    let mistakes = RulesFile::parse(text).expect_err(text);
    mistakes.mistakes().iter().map(ToString::to_string).collect()
}

#[test]
fn a_table_has_the_words_of_the_options() {
    let text = r#"
        [[allow]]
        to = "*.debian.org:443/tcp"

        [[allow]]
        to = ["ssh:github.com", "tcp:db.example:5432", "10.0.0.0/8", "host:8080", "bücher.example"]

        [[deny]]
        to = "10.0.0.1"

        [[deny]]
        to = "evil.example"
        answer = "drop"
        comment = "known"

        [[allow]]
        to = "from:10.0.0.0/8:8080"
    "#;
    assert_eq!(
        parse(text),
        [
            "allow *.debian.org:443/tcp",
            "allow ssh:github.com",
            "allow tcp:db.example:5432",
            "allow 10.0.0.0/8",
            "allow host:8080",
            "allow xn--bcher-kva.example",
            "allow from:10.0.0.0/8:8080",
            "deny 10.0.0.1",
            "deny evil.example=Drop",
        ]
    );
    assert_eq!(parse(""), [""; 0]);
}

#[test]
fn ports_protocol_and_direction_of_a_table_are_for_all_of_its_texts() {
    let text = r#"
        [[allow]]
        to = ["a.org", "fd00::/8"]
        ports = [443, "8000-8001"]
        protocol = ["tcp", "udp"]
        [[allow]]
        to = "ssh:b.org"
        ports = 2222
        [[deny]]
        to = ["10.0.0.0/8", "from:fd00::1"]
        ports = 80
        direction = "in"
        [[deny]]
        to = "c.org/udp"
        ports = "1-9"
        direction = "out"
    "#;
    assert_eq!(
        parse(text),
        [
            "allow a.org:443/tcp",
            "allow a.org:443/udp",
            "allow a.org:8000-8001/tcp",
            "allow a.org:8000-8001/udp",
            "allow [fd00::/8]:443/tcp",
            "allow [fd00::/8]:443/udp",
            "allow [fd00::/8]:8000-8001/tcp",
            "allow [fd00::/8]:8000-8001/udp",
            "allow ssh:b.org:2222",
            "deny from:10.0.0.0/8:80",
            "deny from:[fd00::1]:80",
            "deny c.org:1-9/udp",
        ]
    );
}

#[test]
fn a_group_stands_for_its_texts() {
    let text = r#"
        [groups]
        forges = ["github.com", "ssh:gitlab.com"]
        one = "a.org"
        [[allow]]
        to = ["@forges", "@one"]
        comment = "code"
    "#;
    assert_eq!(parse(text), ["allow github.com", "allow ssh:gitlab.com", "allow a.org"]);
    let file = RulesFile::parse(text).unwrap();
    let [first, ..] = file.entries() else { panic!("no entries") };
    // The place where the group is used.
    assert_eq!(first.place.to_string(), "rules:6:15");
    assert_eq!(first.comment.as_deref(), Some("code"));
}

#[test]
fn every_mistake_is_told_with_its_place() {
    let text = r#"
[[allow]]
to = ["10.0.0.1/99", "a.org:x"]
port = 80
[[allow]]
ports = 80
[[deny]]
to = "@forge"
answer = "deny"
comment = 7
[[allow]]
to = []
answer = "drop"
[[allow]]
to = "a.org:443/tcp"
ports = 80
[[allow]]
to = "tls:a.org"
protocol = "udp"
[[allow]]
to = "a.org"
direction = "in"
[[allow]]
to = "from:10.0.0.1"
direction = "out"
[[allow]]
to = "10.0.0.1"
ports = [0, 70000, "9-1", true]
[[allow]]
to = "10.0.0.1"
ports = 80
protocol = ["tcp", "icmp", "tpc"]
[[allow]]
to = "10.0.0.1"
ports = 80
protocol = ["tcp", "icmp"]
[groups]
forges = ["github.com", "@one", "git hub"]
[alow]
"#;
    assert_eq!(
        mistakes(text),
        [
            "rules:3:7: '10.0.0.1/99' is neither an address, nor a network, nor a name",
            "rules:3:22: 'x' is no port and no range of ports: write it as in 443 or 8000-8999",
            "rules:4:1: unknown key 'port'; the nearest is 'ports'",
            "rules:5:1: the table lacks 'to'",
            "rules:8:6: unknown group 'forge'; the nearest is 'forges'",
            "rules:9:10: unknown word 'deny'; the nearest is 'drop'",
            "rules:10:11: 'comment' has text, and no integer",
            "rules:12:6: 'to' is empty",
            "rules:13:1: 'answer' is for [[deny]]",
            "rules:15:6: 'a.org:443/tcp' has ports of its own, and so has the table",
            "rules:18:6: 'tls:a.org' has a protocol of its own, and so has the table",
            "rules:21:6: 'a.org': a rule for clients has their addresses, as in from:10.0.0.0/8:8080",
            "rules:24:6: 'from:10.0.0.1' has a direction of its own, and so has the table",
            "rules:28:10: '0' is no port and no range of ports: write it as in 443 or 8000-8999",
            "rules:28:13: '70000' is no port and no range of ports: write it as in 443 or 8000-8999",
            "rules:28:20: '9-1' is no port and no range of ports: write it as in 443 or 8000-8999",
            "rules:28:27: 'ports' has numbers, and texts such as \"8000-8999\"",
            "rules:32:28: unknown word 'tpc'; the nearest is 'tcp'",
            "rules:34:6: '10.0.0.1': icmp has no ports",
            "rules:38:25: a group has no other groups",
            "rules:38:33: 'git hub' is neither an address, nor a network, nor a name",
            "rules:39:2: unknown key 'alow'; the nearest is 'allow'",
        ]
    );
    for (text, said) in [
        ("allow = 1", "write [[allow]]"),
        ("[deny]\nto = 'a.org'", "write [[deny]]"),
        ("allow = [1]", "'allow' has tables"),
        ("groups = 1", "'groups' is a table"),
        ("include = 1", "'include' has text, and no integer"),
        ("include = 'x.toml'", "only a file can include others"),
        ("[groups]\na = []", "'a' is empty"),
    ] {
        let [mistake] = &mistakes(text)[..] else { panic!("{text}: {:?}", mistakes(text)) };
        assert!(mistake.contains(said), "{mistake}");
    }
}

#[test]
fn a_text_that_is_no_toml_has_its_place_and_further_mistakes_are_told() {
    let all = mistakes(
        "[[allow]]\nto = \"a.org\nports = 80\n[[deny]]\nto = 'ü', x\n[[deny]]\nporst = 1\n",
    );
    assert!(all.iter().any(|m| m.starts_with("rules:2:")), "{all:?}");
    assert!(
        all.iter().any(|m| m.starts_with("rules:5:9: ")),
        "the column counts characters: {all:?}"
    );
    assert!(all.iter().any(|m| m.starts_with("rules:7:1: unknown key 'porst'")), "{all:?}");
    let all = mistakes("[[allow]]\nto = 'a.org'\nto = 'b.org'\n");
    assert!(all.iter().any(|m| m.starts_with("rules:3:1: ")), "{all:?}");
    // One line each, and nothing that a terminal would obey.
    let all = mistakes("[[allow]]\nto = \"a\\u001b[2J\\norg\"\n");
    assert!(all.len() == 1 && !all[0].contains(char::is_control), "{all:?}");
}

#[test]
fn files_and_their_mistakes_are_bounded() {
    let long = "#".repeat(RULES_FILE_BYTES + 1);
    assert!(mistakes(&long)[0].contains("bytes"));
    assert!(parse(&long[1..]).is_empty());
    let ports: Vec<String> = (1..=RULES).map(|n| n.to_string()).collect();
    let table = format!("[[allow]]\nto = 'a.org'\nports = [{}]\n", ports.join(","));
    assert_eq!(parse(&table).len(), RULES);
    let all = mistakes(&format!("{table}{table}"));
    assert!(all.len() == 1 && all[0].contains("more than"), "{all:?}");
    let wrong = "[[deny]]\n".repeat(RULES_FILE_MISTAKES + 9);
    assert_eq!(mistakes(&wrong).len(), RULES_FILE_MISTAKES);
    let deep = format!("allow = {}", "[".repeat(100_000));
    assert!(!mistakes(&deep).is_empty());
}

#[test]
fn a_file_prints_as_one_with_the_same_rules() {
    let text = r#"
        [groups]
        g = ["a.org", "[from]:443"]
        [[allow]]
        to = "@g"
        comment = "a \"b\" \\ \u0000\n\u0085 ü"
        [[deny]]
        to = ["10.0.0.0/8", "from:fd00::1"]
        answer = "unreachable"
        [[deny]]
        to = "b.org"
    "#;
    let file = RulesFile::parse(text).unwrap();
    let again = RulesFile::parse(&file.to_string()).unwrap();
    let rules = |file: &RulesFile| {
        let parts = |e: &RulesEntry| (e.rule.clone(), e.answer, e.comment.clone());
        file.entries().iter().map(parts).collect::<Vec<_>>()
    };
    assert_eq!(rules(&file), rules(&again));
    assert_eq!(file.entries().len(), 5);
}

/// A directory with these files.
fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn read(dir: &tempfile::TempDir) -> Result<RulesFile, Vec<String>> {
    let base = format!("{}/", dir.path().display());
    RulesFile::read(&dir.path().join("main.toml")).map_err(|mistakes| {
        mistakes.mistakes().iter().map(|m| m.to_string().replace(&base, "")).collect()
    })
}

#[test]
fn a_file_includes_others_beside_it() {
    let dir = dir(&[
        (
            "main.toml",
            "include = ['sub/team.toml', 'groups.toml']\n[[deny]]\nto = '10.0.0.1'\n[[allow]]\nto = '@g'",
        ),
        ("sub/team.toml", "include = '../groups.toml'\n[[allow]]\nto = ['@g', 'b.org']"),
        ("groups.toml", "groups.g = 'a.org'\n[[allow]]\nto = 'c.org'"),
    ]);
    let file = read(&dir).unwrap();
    // The including file's rules are the first, and no file is read twice.
    assert_eq!(
        words(&file),
        ["allow a.org", "deny 10.0.0.1", "allow a.org", "allow b.org", "allow c.org"]
    );
    let names = file.files().iter().map(|path| path.strip_prefix(dir.path()).unwrap());
    let names: Vec<_> = names.map(|path| path.to_str().unwrap()).collect();
    assert_eq!(names, ["main.toml", "sub/team.toml", "sub/../groups.toml"]);
}

#[test]
fn includes_end() {
    let circle = dir(&[
        ("main.toml", "include = 'sub/a.toml'"),
        ("sub/a.toml", "\ninclude = ['b.toml']"),
        ("sub/b.toml", "include = '../main.toml'"),
    ]);
    assert_eq!(read(&circle).unwrap_err(), ["sub/b.toml:1:11: the file includes itself"]);
    let long: Vec<(String, String)> = (1..10)
        .map(|n| (format!("{n}.toml"), format!("include = '{}.toml'", n + 1)))
        .chain([("main.toml".into(), "include = '1.toml'".into())])
        .collect();
    let long: Vec<(&str, &str)> = long.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let all = read(&dir(&long)).unwrap_err();
    assert!(all.len() == 1 && all[0].starts_with("7.toml:1:11: "), "{all:?}");
    let many: Vec<String> = (0..100).map(|n| format!("{n}.toml")).collect();
    let list = format!("include = ['{}']", many.join("','"));
    let mut files: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    files.push(("main.toml", &list));
    let all = read(&dir(&files)).unwrap_err();
    assert!(all.len() == 37 && all[0].contains("more than 64 files"), "{all:?}");
}

#[test]
fn mistakes_of_all_files_are_told_together() {
    let dir = dir(&[
        ("main.toml", "include = ['a.toml', 'gone.toml', 'bytes.toml']\n[[allow]]\nx = 1"),
        ("a.toml", "[[allow]]\nto = '@none'\n[groups]\ng = 'a.org'"),
    ]);
    fs::write(dir.path().join("bytes.toml"), b"# \xff").unwrap();
    let mistakes = read(&dir).unwrap_err();
    let gone = mistakes.iter().position(|mistake| mistake.contains("gone.toml:")).unwrap();
    assert!(mistakes[gone].starts_with("main.toml:1:22: "), "{mistakes:?}");
    for start in [
        "main.toml:2:1: the table lacks 'to'",
        "main.toml:3:1: unknown key 'x'",
        "a.toml:2:6: unknown group 'none'",
        "bytes.toml:1:3: the file is not UTF-8",
    ] {
        assert!(mistakes.iter().any(|mistake| mistake.starts_with(start)), "{mistakes:?}");
    }
    let missing = RulesFile::read(Path::new("/nonexistent/rules.toml")).unwrap_err();
    let told = missing.to_string();
    assert!(told.starts_with("/nonexistent/rules.toml: No such file"), "{told}");
    assert_eq!(missing.files(), [Path::new("/nonexistent/rules.toml")]);
}

/// The keys of an object of the schema.
fn keys(object: &Value) -> BTreeSet<&str> {
    object["properties"].as_object().unwrap().keys().map(String::as_str).collect()
}

fn enumerated(value: &Value) -> BTreeSet<&str> {
    value["enum"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

fn set<T>(words: &[(&'static str, T)]) -> BTreeSet<&'static str> {
    words.iter().map(|(word, _)| *word).collect()
}

#[test]
fn a_rate_is_for_what_guests_reach() {
    let rules = parse("[[allow]]\nto = ['a.org', 'b.org']\nrate = '10mbit'\nports = 443\n");
    assert_eq!(rules.len(), 2);
    assert!(rules[1].contains("b.org:443@10mbit"), "{rules:?}");
    for (text, why) in [
        ("[[deny]]\nto = 'a.org'\nrate = '10mbit'", "rules:3:1: 'rate' is for [[allow]]"),
        ("[[deny]]\nto = 'a.org@10mbit'", "is no speed"),
        ("[[allow]]\nto = 'a.org@1mbit'\nrate = '10mbit'", "has a rate of its own"),
        ("[[deny]]\nto = 'ech:a.org'", "'ech:a.org' denies by a proof"),
        ("[[allow]]\nto = '10.0.0.1'\nrate = '10mbit'\ndirection = 'in'", "is no speed"),
        ("[[allow]]\nto = '10.0.0.1'\nrate = 10", "'rate' has text"),
        ("[[allow]]\nto = '10.0.0.1'\nrate = 'quick'", "rules:3:8: 'quick' is no speed"),
    ] {
        let all = mistakes(text);
        assert!(all.len() == 1 && all[0].contains(why), "{text}: {all:?}");
    }
}

#[test]
fn the_schema_has_the_keys_and_words_of_the_parser() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/rules.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let of = &schema["definitions"];
    assert_eq!(keys(&schema), FILE.into());
    assert_eq!(keys(&of["allow"]), ALLOW.into());
    assert_eq!(keys(&of["deny"]), DENY.into());
    assert_eq!(enumerated(&of["protocol"]), set(&PROTOCOLS));
    assert_eq!(enumerated(&of["direction"]), set(&DIRECTIONS));
    assert_eq!(enumerated(&of["answer"]), set(&ANSWERS));
    for object in [&schema, &of["allow"], &of["deny"]] {
        assert_eq!(object["additionalProperties"], Value::Bool(false));
    }
    // The parser knows its own lists: each key is taken, and no other.
    for (table, keys) in [("allow", &ALLOW[..]), ("deny", &DENY[..])] {
        for key in keys {
            let value = match *key {
                "ports" => "80",
                "protocol" => "'tcp'",
                "direction" => "'out'",
                "rate" => "'10mbit'",
                "answer" => "'drop'",
                _ => "'10.0.0.1'",
            };
            let to = if *key == "to" { "" } else { "to = '10.0.0.1'\n" };
            parse(&format!("[[{table}]]\n{to}{key} = {value}\n"));
        }
        let all = mistakes(&format!("[[{table}]]\nto = '10.0.0.1'\nnone = 1"));
        assert!(all.len() == 1 && all[0].contains("unknown key 'none'"), "{all:?}");
    }
    for key in FILE.into_iter().filter(|key| *key != "include") {
        parse(&format!("{key} = {}", if key == "groups" { "{}" } else { "[]" }));
    }
}

#[test]
fn the_example_of_the_book_means_what_it_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/RULES.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, block) = page.split_once("```toml\n").unwrap();
    let (example, _) = block.split_once("```").unwrap();
    let file = RulesFile::parse(example).unwrap();
    let rules = file.apply(Rules::default());
    for (question, permitted) in [
        ("api.anthropic.com:443", true),
        ("github.com:22", true),
        ("gist.github.com:443", false),
        ("pypi.org:443", true),
        ("pypi.org:80", false),
        ("security.debian.org:80", true),
        ("10.20.0.5:5432", true),
        ("10.20.0.6:5432", false),
        ("from:10.20.1.1:8080", true),
        ("from:10.21.1.1:8080", false),
    ] {
        let asked: Question = question.parse().unwrap();
        assert_eq!(asked.answer(&rules).verdict == Verdict::Allow, permitted, "{question}");
    }
    let pypi = file.entries().iter().find(|entry| entry.rule.to_string() == "pypi.org:443/tcp");
    let place = pypi.unwrap().place.to_string().replace("rules", "agent.toml");
    assert!(
        page.contains(&format!("yes pypi.org:443: {place}: ")),
        "the page has another place than {place}"
    );
}
