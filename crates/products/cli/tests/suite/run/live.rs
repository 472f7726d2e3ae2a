//! A gateway that is seen and changed while its program runs: `pagewire ctl`, `pagewire ss --guests`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Stdio};

use serde_json::Value;

use super::url;
use crate::lab::{Lab, PAGEWIRE, Running, V4, text};

/// A shell under the gateway, which executes one line at a time.
struct Shell<'a> {
    lab: &'a Lab,
    child: Child,
    to: ChildStdin,
    from: BufReader<std::process::ChildStdout>,
}

impl<'a> Shell<'a> {
    fn new(lab: &'a Lab, options: &[&str]) -> Self {
        let all: Vec<&str> = options.iter().copied().chain(["--control", "c.sock"]).collect();
        let mut command = lab.run(&all, &["sh"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut shell = Self { lab, child, to, from };
        assert_eq!(shell.says("echo started"), "started");
        shell
    }

    /// The first line that a command says.
    fn says(&mut self, command: &str) -> String {
        writeln!(self.to, "{command}").expect("it reads");
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    /// The status of curl for this server.
    fn curl(&mut self, at: &str) -> String {
        self.says(&format!("curl -so /dev/null --max-time 20 {at}; echo $?"))
    }

    fn ctl(&self, words: &[&str]) -> Result<String, String> {
        self.asks("ctl", words)
    }

    /// What a command says that asks at the control socket.
    fn asks(&self, what: &str, words: &[&str]) -> Result<String, String> {
        let mut command = self.lab.command(PAGEWIRE);
        let said = command.arg(what).args(["--control", "c.sock"]).args(words).output();
        let said = said.expect("it runs");
        match said.status.success() {
            true => Ok(text(&said.stdout)),
            false => Err(text(&said.stderr)),
        }
    }
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rules_change_while_the_program_runs() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let site = url(V4, "file");
    let mut shell = Shell::new(&lab, &[]);
    assert_eq!(shell.curl(&site), "0");
    assert_eq!(shell.ctl(&["rules"]).as_deref(), Ok("everything else is permitted\n"));

    let denied = shell.ctl(&["deny", &format!("{V4}:8000=refuse")]).unwrap();
    assert_eq!(denied, "forbidden\n");
    assert_eq!(shell.curl(&site), "7", "refused");
    let rules = format!("deny  {V4}:8000=refuse\neverything else is permitted\n");
    assert_eq!(shell.ctl(&["rules"]), Ok(rules));
    let refused = shell.ctl(&["refused"]).unwrap();
    assert!(refused.contains(&format!("once {V4}:8000/tcp")), "{refused}");
    assert_eq!(shell.ctl(&["remove", &format!("{V4}:8000")]).as_deref(), Ok("taken back\n"));
    assert_eq!(shell.curl(&site), "0");

    let first = shell.ctl(&["allow", "203.0.113.1"]).unwrap();
    assert_eq!(first, "permitted: from now on nothing else is\n");
    assert_ne!(shell.curl(&site), "0");
    assert_eq!(shell.ctl(&["allow", V4]).as_deref(), Ok("permitted\n"));
    assert_eq!(shell.curl(&site), "0");
    for rule in [V4, "203.0.113.1"] {
        shell.ctl(&["remove", rule]).unwrap();
    }
    assert_ne!(shell.curl(&site), "0", "what is taken back leaves nothing permitted");
    assert_eq!(shell.ctl(&["rules"]).as_deref(), Ok("nothing else is permitted\n"));
    shell.ctl(&["reload"]).unwrap();
    assert_eq!(shell.curl(&site), "0", "the options permit everything");
    for (wrong, why) in [
        (vec!["allow", "a b"], "'a b' is neither an address, nor a network, nor a name"),
        (vec!["remove", "example.org"], "there is no rule example.org"),
        (vec!["kill", "999"], "there is no flow 999"),
        (vec!["unpublish", "8080"], "8080 is not published"),
    ] {
        let said = shell.ctl(&wrong).expect_err("a mistake");
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn flows_are_listed_and_ended_by_their_number_or_by_a_new_rule() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let mut shell = Shell::new(&lab, &[]);
    for end in ["kill", "deny"] {
        // A connection that says nothing, in the background.
        let script = format!(
            "import socket\ns=socket.create_connection(('{V4}',8000))\nprint('connected',flush=True)\n\
             try: print(s.recv(1) or 'end',flush=True)\nexcept ConnectionError: print('reset',flush=True)"
        );
        std::fs::write(lab.path("client.py"), script).expect("a file");
        assert_eq!(shell.says("python3 client.py &"), "connected");
        let flows = shell.ctl(&["--json", "flows"]).unwrap();
        let flows: Value = serde_json::from_str(&flows).expect("JSON");
        let all = flows["flows"].as_array().expect("a list");
        let is_it = |flow: &&Value| flow["to"] == format!("{V4}:8000") && flow["open"] == true;
        let flow = all.iter().find(is_it).expect("it is listed");
        let number = flow["flow"].to_string();
        let table = shell.ctl(&["flows"]).unwrap();
        assert!(table.starts_with("Flow ") && table.contains("tcp       out  open"), "{table}");
        let table = shell.asks("ss", &["-gt"]).unwrap();
        assert!(table.starts_with("Process ") && table.contains(&format!("{V4}:8000")), "{table}");
        assert_eq!(shell.asks("ss", &["-gu"]).unwrap().lines().count(), 1, "the heading alone");
        let list: Value = serde_json::from_str(&shell.asks("ss", &["-g", "--json"]).unwrap())
            .unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(list[0]["flows"][0]["flow"], flow["flow"], "{list}");
        let said = match end {
            "kill" => shell.ctl(&["kill", &number]),
            _ => shell.ctl(&["deny", V4]),
        };
        let wanted = match end {
            "kill" => format!("ended flow {number}\n"),
            _ => "forbidden; 1 flow was ended\n".to_owned(),
        };
        assert_eq!(said, Ok(wanted));
        assert_eq!(shell.says("wait"), "reset", "{end}");
    }
}

#[test]
fn ports_are_published_and_closed_while_the_program_runs() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let mut shell = Shell::new(&lab, &[]);
    std::fs::write(lab.path("file"), "from inside").expect("a file");
    let said = shell.says("python3 -um http.server 8000 2>/dev/null &");
    assert!(said.contains("Serving"), "{said}");
    let at = "127.0.0.1:8080";
    let fetch = || {
        lab.command("curl").args(["-s", "--max-time", "20", &format!("http://{at}/file")]).output()
    };
    assert!(!fetch().expect("it runs").status.success());
    let published = shell.ctl(&["publish", &format!("{at}:8000")]);
    assert_eq!(published, Ok(format!("published {at}\n")));
    assert_eq!(text(&fetch().expect("it runs").stdout), "from inside");
    assert!(shell.ctl(&["publish", &format!("{at}:8000")]).is_err(), "the port is taken");
    assert_eq!(shell.ctl(&["unpublish", &format!("{at}:8000")]), Ok(format!("closed {at}:8000\n")));
    assert!(!fetch().expect("it runs").status.success());
}

#[test]
fn a_program_inside_sees_its_rules_and_changes_none() {
    let Some(lab) = Lab::new(&["curl"]) else { return };
    let mut shell = Shell::new(&lab, &["--allow", "203.0.113.1"]);
    let pagewire = PAGEWIRE;
    let inside = |shell: &mut Shell<'_>, words: &str| {
        shell.says(&format!("{pagewire} ctl --control c.sock {words} 2>&1 | head -1"))
    };
    assert_eq!(inside(&mut shell, "rules"), "allow 203.0.113.1");
    for words in ["allow 0.0.0.0/0", "remove 203.0.113.1", "publish 8080", "reload", "kill 1"] {
        let said = inside(&mut shell, words);
        assert!(said.contains("only from the network namespace"), "{words}: {said}");
        // A namespace of its own making is another one, too.
        let said = shell
            .says(&format!("unshare -rn {pagewire} ctl --control c.sock {words} 2>&1 | head -1"));
        assert!(said.contains("only from the network namespace"), "{words}: {said}");
    }
    let rules = "allow 203.0.113.1\nnothing else is permitted\n";
    assert_eq!(shell.ctl(&["rules"]).as_deref(), Ok(rules));
}

#[test]
fn rules_in_a_file_are_read_again_when_it_changes() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let site = url(V4, "file");
    std::fs::create_dir(lab.path("rules")).expect("a folder");
    // As editors do: another file takes its place.
    let write = |text: &str| {
        std::fs::write(lab.path("rules/new"), text).expect("a file");
        std::fs::rename(lab.path("rules/new"), lab.path("rules/agent.toml")).expect("it moves");
    };
    write("[[allow]]\nto = \"203.0.113.1\"\n");
    let mut shell = Shell::new(&lab, &["--rules", "rules/agent.toml"]);
    assert_ne!(shell.curl(&site), "0");
    write(&format!("[[allow]]\nto = [\"203.0.113.1\", \"{V4}\"]\n"));
    assert_ne!(shell.curl(&site), "0", "nobody has asked for the new rules");
    assert_eq!(shell.ctl(&["reload"]).as_deref(), Ok("read again\n"));
    assert_eq!(shell.curl(&site), "0");
    write("[[allow]]\nto = \"a b\"\nfrom = 1\n");
    let said = shell.ctl(&["reload"]).expect_err("mistakes");
    assert!(said.contains("agent.toml:2:") && said.contains("agent.toml:3:"), "{said}");
    assert_eq!(shell.curl(&site), "0", "the rules are as they were");
    // A file that is cut off opens nothing.
    write("");
    shell.ctl(&["reload"]).unwrap();
    assert_eq!(shell.ctl(&["rules"]).as_deref(), Ok("nothing else is permitted\n"));
    assert_ne!(shell.curl(&site), "0");
    drop(shell);

    write("[[allow]]\nto = \"203.0.113.1\"\n");
    let mut shell = Shell::new(&lab, &["--rules", "rules/agent.toml", "--rules-watch"]);
    assert_ne!(shell.curl(&site), "0");
    write(&format!("[[allow]]\nto = \"{V4}\"\n"));
    eventually(|| shell.curl(&site) == "0");
    write(&format!("[[deny]]\nto = \"{V4}\"\nanswer = \"refuse\"\n"));
    eventually(|| shell.curl(&site) == "7");
}

#[test]
fn a_gateway_reads_its_rules_again_at_sighup() {
    let Some(lab) = Lab::new(&[]) else { return };
    std::fs::write(lab.path("rules.toml"), "[[deny]]\nto = \"203.0.113.1\"\n").expect("a file");
    let mut gateway = lab.command(PAGEWIRE);
    gateway.args(["gateway", "--link", "tap", "--tap", "pw9", "--control", "c.sock"]);
    gateway.args(["--ready-fd", "1"]);
    gateway.args(["--rules", "rules.toml"]).stderr(Stdio::piped());
    let gateway = Running::saying(&mut gateway, "1");
    let rules = || {
        let mut command = lab.command(PAGEWIRE);
        text(
            &command
                .args(["ctl", "--control", "c.sock", "rules"])
                .output()
                .expect("it runs")
                .stdout,
        )
    };
    assert!(rules().contains("deny  203.0.113.1"), "{}", rules());
    std::fs::write(lab.path("rules.toml"), "[[deny]]\nto = \"203.0.113.2\"\n").expect("a file");
    gateway.signal("HUP");
    eventually(|| rules().contains("deny  203.0.113.2"));
}

#[test]
fn what_a_program_does_is_learned_and_the_rules_permit_the_same() {
    let Some(lab) = Lab::new(&["curl", "python3"]) else { return };
    let _servers = lab.serve("file", b"content");
    let names = ["--name", "good.example=198.51.100.1"];
    let script = format!(
        "curl -sS --max-time 20 http://good.example:8000/file && curl -sS --max-time 20 {}",
        url(V4, "file")
    );
    let program = ["sh", "-c", &script];
    let learn = [&names[..], &["--learn", "learned.toml"]].concat();
    assert_eq!(lab.inside(&learn, &program), "contentcontent");
    let learned = std::fs::read_to_string(lab.path("learned.toml")).expect("a file");
    assert!(learned.contains("\"good.example:8000\", # 1 flow\n"), "{learned}");
    // The address is one of the name's: the rule opens it for that name, and no others.
    assert!(learned.contains("\"tcp:good.example:8000\", # 1 flow\n"), "{learned}");
    let again = lab.run(&learn, &["true"]).output().expect("it runs");
    assert!(text(&again.stderr).contains("the file has content"), "{}", text(&again.stderr));

    let under = [&names[..], &["--rules", "learned.toml"]].concat();
    assert_eq!(lab.inside(&under, &program), "contentcontent");
    // What was not learned is refused; an audit tells of it, and lets it pass.
    let other = [
        "curl",
        "-sS",
        "--max-time",
        "20",
        "http://good.example:8000/file",
        "-H",
        "Host: evil.example",
    ];
    let refused =
        lab.fails(&[&names[..], &["--rules", "learned.toml", "--deny", V4]].concat(), &other);
    assert!(text(&refused.stderr).contains("refused"), "{}", text(&refused.stderr));
    let audit = [&under[..], &["--audit", "--log", "log", "--deny", V4]].concat();
    let audited = lab.run(&audit, &other).output().expect("it runs");
    assert_eq!(text(&audited.stdout), "content");
    assert!(text(&audited.stderr).contains("would have been refused"), "{}", text(&audited.stderr));
    let log = std::fs::read_to_string(lab.path("log")).expect("a log");
    let line = log.lines().find(|line| line.contains("\"event\":\"audit\"")).expect("it is there");
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((&line["by"], &line["shown"]), (&"http".into(), &"evil.example".into()));
}

#[test]
fn a_program_inside_keeps_nobody_from_the_control_socket() {
    let Some(lab) = Lab::new(&["python3"]) else { return };
    let mut shell = Shell::new(&lab, &[]);
    let script = "import socket,time\nall=[]\nfor i in range(40):\n s=socket.socket(socket.AF_UNIX)\n \
                  s.connect('c.sock')\n all.append(s)\nprint('connected',flush=True)\ntime.sleep(60)";
    std::fs::write(lab.path("crowd.py"), script).expect("a file");
    assert_eq!(shell.says("python3 crowd.py &"), "connected");
    for _ in 0..3 {
        assert_eq!(shell.ctl(&["rules"]).as_deref(), Ok("everything else is permitted\n"));
    }
    shell.ctl(&["deny", "203.0.113.1"]).unwrap();
}

/// Waits until something is true, which nobody announces.
fn eventually(mut is_true: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !is_true() {
        assert!(std::time::Instant::now() < until, "it never came true");
        std::thread::yield_now();
    }
}
