//! Files with rules: `check rules`, and `--rules` of `run`.

use std::fs;
use std::path::Path;

use crate::lab::{Lab, pagewire, text};

const RULES: &str = r#"
include = "packages.toml"

[[allow]]
to = ["github.com", "ssh:github.com"]
comment = "code"

[[allow]]
to = "10.1.0.0/16"
ports = 5432
protocol = "tcp"

[[deny]]
to = "10.1.9.0/24"
answer = "refuse"

[[allow]]
to = "192.168.0.0/16"
direction = "in"
"#;

const WRONG: &str = "[[allow]]\nto = 'a.org'\nport = 443\n\n[[deny]]\nto = 'a.org:x'\n";

/// Answers about the rules: the status, and the lines of the answers.
fn check(dir: &Path, would: &[&str]) -> (Option<i32>, String) {
    fs::write(dir.join("agent.toml"), RULES).unwrap();
    fs::write(dir.join("packages.toml"), "[[allow]]\nto = '*.debian.org:443'\n").unwrap();
    let file = dir.join("agent.toml").display().to_string();
    let asked = would.iter().flat_map(|one| ["--would", one]);
    let args: Vec<&str> = ["check", "rules", &file].into_iter().chain(asked).collect();
    let output = pagewire(&args);
    let said = text(&output.stdout).replace(&format!("{}/", dir.display()), "");
    (output.status.code(), said)
}

#[test]
fn check_rules_says_by_which_rule_something_is_permitted() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(check(dir.path(), &[]), (Some(0), "6 rules, no mistake\n".to_owned()));
    for (question, status, answer) in [
        (
            "deb.debian.org:443/udp",
            0,
            "packages.toml:2:6: allow *.debian.org:443; it must show the name by QUIC\n",
        ),
        (
            "github.com:22",
            0,
            "agent.toml:5:7: allow github.com # code; it must show the name by TLS or HTTP\n    \
             or agent.toml:5:21: allow ssh:github.com # code; it must be SSH\n",
        ),
        ("10.1.2.3:5432", 0, "agent.toml:9:6: allow 10.1.0.0/16:5432/tcp\n"),
        ("10.1.9.3:5432", 1, "agent.toml:14:6: deny (refuse) 10.1.9.0/24\n"),
        ("10.1.2.3:5432/udp", 1, "no permission is for it\n"),
        ("from:192.168.1.1:80", 0, "agent.toml:18:6: allow from:192.168.0.0/16\n"),
        ("from:10.1.2.3:80", 1, "no permission is for it\n"),
    ] {
        let word = if status == 0 { "yes" } else { "no " };
        let expected = format!("{word} {question}: {answer}");
        assert_eq!(check(dir.path(), &[question]), (Some(status), expected));
    }
    // One refusal is enough.
    let (status, said) = check(dir.path(), &["github.com:443", "evil.org:443"]);
    assert!(status == Some(1) && said.contains("\nno  evil.org:443: "), "{said}");
}

#[test]
fn a_question_without_a_port_is_wrong_usage() {
    let output = pagewire(&["check", "rules", "agent.toml", "--would", "github.com"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("example.org:443"), "{}", text(&output.stderr));
}

#[test]
fn check_rules_tells_every_mistake() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.toml").display().to_string();
    fs::write(&wrong, WRONG).unwrap();
    let gone = dir.path().join("gone.toml").display().to_string();
    let output = pagewire(&["check", "rules", &wrong, &gone]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let [key, ports, missing] = lines[..] else { panic!("{said}") };
    assert_eq!(key, format!("{wrong}:3:1: unknown key 'port'; the nearest is 'ports'"));
    assert!(ports.starts_with(&format!("{wrong}:6:6: 'x' is no port")), "{ports}");
    assert!(missing.starts_with(&format!("{gone}: No such file")), "{missing}");
    assert_eq!(text(&output.stderr), "pagewire: 3 mistakes in the rules\n");
}

#[test]
fn run_tells_every_mistake_of_its_rules_and_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.toml").display().to_string();
    fs::write(&wrong, WRONG).unwrap();
    let output = pagewire(&["run", "--rules", &wrong, "--", "echo", "started"]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(125), ""));
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().collect();
    let [key, ports, last] = lines[..] else { panic!("{said}") };
    assert!(key.starts_with(&format!("{wrong}:3:1: ")), "{key}");
    assert!(ports.starts_with(&format!("{wrong}:6:6: ")), "{ports}");
    assert_eq!(last, format!("pagewire: --rules {wrong}: 2 mistakes"));
    let output = pagewire(&["gateway", "--link", "stream", "--socket", "/x", "--rules", &wrong]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(2), said));
}

#[test]
fn a_program_has_the_rules_of_files_and_options() {
    let Some(lab) = Lab::new(&["bash"]) else { return };
    let deny = |n: u8| format!("[[deny]]\nto = '203.0.113.{n}'\nanswer = 'refuse'\n");
    fs::write(lab.path("one.toml"), format!("include = 'two.toml'\n{}", deny(1))).unwrap();
    fs::write(lab.path("two.toml"), deny(2)).unwrap();
    fs::write(lab.path("three.toml"), deny(3)).unwrap();
    let options = ["--rules", "one.toml", "--rules", "three.toml", "--deny", "203.0.113.4=refuse"];
    let program = "for n in 1 2 3 4; do (: </dev/tcp/203.0.113.$n/9) || true; done 2>&1";
    let said = lab.inside(&options, &["bash", "-c", program]);
    assert_eq!(said.matches("/9: Connection refused\n").count(), 4, "{said}");
}

#[test]
fn a_file_that_permits_and_denies_nothing_is_told() {
    let Some(lab) = Lab::new(&[]) else { return };
    fs::write(lab.path("empty.toml"), "[groups]\ncode = 'github.com'\n").unwrap();
    let file = lab.path("empty.toml").display().to_string();
    let said = text(&pagewire(&["check", "rules", &file]).stdout);
    assert_eq!(said, "0 rules, no mistake; what is not denied is permitted\n");
    let output = lab.run(&["--rules", "empty.toml"], &["true"]).output().unwrap();
    let told = text(&output.stderr);
    assert!(told.contains("empty.toml: there is no rule in the file\n"), "{told}");
}
