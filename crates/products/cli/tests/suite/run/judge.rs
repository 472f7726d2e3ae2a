//! `--judge`: a program decides about what rules leave open. It permits one name, is slow, or dies.

use std::process::Stdio;

use crate::lab::{Lab, Running, V4, text};

/// A program that judges by the latest name of a flow, and prints each question.
const JUDGE: &str = r#"
import json, socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind("judge.sock")
listener.listen()
print("ready", flush=True)
while True:
    client = listener.accept()[0]
    client.sendall(b'no answer\n{"id":7000,"verdict":"allow"}\n')
    for line in client.makefile():
        asked = json.loads(line)
        print(line, end="", flush=True)
        name = (asked["names"] or [""])[0]
        say = lambda how, client=client, id=asked["id"]: client.sendall(
            (json.dumps({"id": id, **how}) + "\n").encode())
        if name == "good.example":
            say({"verdict": "allow"})
        elif name == "late.example":
            threading.Timer(1.0, say, [{"verdict": "allow"}]).start()
        elif name == "any.example":
            say({"verdict": "allow", "shown": False})
        elif name == "rules.example":
            say({"verdict": "rules"})
        elif name == "silent.example":
            pass
        elif name == "last.example":
            client.shutdown(socket.SHUT_RDWR)
            break
        else:
            say({"verdict": "refuse"})
"#;

/// curl's status for a connection that was refused, or whose end is unreachable.
const NO_CONNECTION: &str = "7";

struct World {
    lab: Lab,
    judge: Running,
    _servers: [Running; 2],
}

impl World {
    /// `None`: the test is skipped.
    fn new() -> Option<Self> {
        let lab = Lab::new(&["curl", "python3"])?;
        let judge = lab.server("python3", &["-c", JUDGE]);
        let servers = lab.serve("file", b"content");
        Some(Self { lab, judge, _servers: servers })
    }

    /// The statuses of curl for each of these hosts in turn, with further arguments, and what the gateway says.
    fn curl(&self, options: &[&str], hosts: &[&str]) -> (Vec<String>, String) {
        let names = ["good", "late", "any", "rules", "silent", "last", "evil"];
        let named: Vec<String> = names.iter().map(|name| format!("{name}.example={V4}")).collect();
        let named = named.iter().flat_map(|name| ["--name", name]);
        let all: Vec<&str> = ["--judge", "judge.sock"].into_iter().chain(named).collect();
        let tries = hosts.iter().map(|host| {
            let (host, more) = host.split_once(' ').unwrap_or((host, ""));
            format!("curl -so /dev/null --max-time 20 {more} http://{host}:8000/file; echo $?; ")
        });
        let script: String = tries.collect();
        let mut command = self.lab.run(&[&all, options].concat(), &["sh", "-c", &script]);
        let output = command.stderr(Stdio::piped()).output().expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout).lines().map(str::to_owned).collect(), text(&output.stderr))
    }

    /// The next question.
    fn asked(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.judge.line()).expect("an object")
    }
}

#[test]
fn a_program_permits_one_name_and_refuses_others() {
    let Some(mut world) = World::new() else { return };
    let (statuses, _) = world.curl(&[], &["good.example"]);
    assert_eq!(statuses, ["0"]);
    let asked = world.asked();
    assert_eq!(asked["names"], serde_json::json!(["good.example"]));
    assert_eq!(
        (&asked["id"], &asked["guest"], &asked["protocol"]),
        (&1.into(), &1.into(), &"tcp".into())
    );
    assert_eq!(asked["to"], format!("{V4}:8000"));

    assert_eq!(world.curl(&[], &["evil.example", V4]).0, [NO_CONNECTION, NO_CONNECTION]);
    let names = [world.asked(), world.asked()].map(|asked| asked["names"].clone());
    let evil = serde_json::json!(["evil.example"]);
    assert_eq!(names, [evil.clone(), evil], "the address has the name");
    // A permitted connection shows the name, unless the answer lets the address decide.
    let forged = "good.example -H Host:evil.example";
    let (statuses, _) = world.curl(&[], &[forged]);
    assert_ne!(statuses, ["0"]);
    assert_eq!(world.curl(&[], &["any.example -H Host:evil.example"]).0, ["0"]);
}

#[test]
fn rules_decide_before_the_program_and_where_it_has_no_opinion() {
    let Some(world) = World::new() else { return };
    assert_eq!(world.curl(&[], &["rules.example"]).0, ["0"]);
    let allow = ["--allow", "203.0.113.1"];
    assert_eq!(world.curl(&allow, &["rules.example"]).0, [NO_CONNECTION]);
    assert_eq!(world.curl(&allow, &["good.example"]).0, ["0"], "the program adds to permissions");
    assert_eq!(world.curl(&["--allow", V4], &["evil.example"]).0, ["0"]);
    assert_eq!(world.curl(&["--deny", V4], &["good.example"]).0, [NO_CONNECTION]);
}

#[test]
fn a_slow_program_has_its_time_and_a_silent_one_no_more() {
    let Some(world) = World::new() else { return };
    assert_eq!(world.curl(&["--judge-time", "20s"], &["late.example"]).0, ["0"]);
    let short = ["--judge-time", "100ms"];
    assert_eq!(world.curl(&short, &["late.example", "silent.example"]).0, [NO_CONNECTION; 2]);
    let open = [&short[..], &["--judge-default", "allow"]].concat();
    assert_eq!(world.curl(&open, &["silent.example"]).0, ["0"]);
}

#[test]
fn after_the_programs_end_the_default_holds_and_is_told_once() {
    let Some(world) = World::new() else { return };
    let options = ["--judge-time", "20s"];
    let (statuses, said) = world.curl(&options, &["good.example", "last.example", "good.example"]);
    assert_eq!(statuses, ["0", NO_CONNECTION, NO_CONNECTION]);
    assert_eq!(said.matches("the program has ended the connection").count(), 1, "{said}");
}

#[test]
fn a_program_that_is_not_there_is_a_mistake() {
    let Some(lab) = Lab::new(&[]) else { return };
    let failed = lab.fails(&["--judge", "nobody.sock"], &["true"]);
    assert!(text(&failed.stderr).contains("--judge nobody.sock"), "{}", text(&failed.stderr));
}
