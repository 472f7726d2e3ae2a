//! A process with a gateway, with real clients of its control socket.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pagewire_control::limits::FLOWS_PER_ANSWER;
use pagewire_control::protocol::{
    Answer, Ask, Change, Flow, FlowPage, Refusal, Refusals, Rule, Rules,
};
use pagewire_control::{AskError, Builder, Client, Control, Firewall};

/// A gateway with these flows, which keeps a record of its changes.
struct Gateway {
    is_open: bool,
    flows: Mutex<Vec<Flow>>,
    changes: Mutex<Vec<Change>>,
    clients: Mutex<Vec<u32>>,
}

impl Firewall for Gateway {
    fn may_change(&self, client: BorrowedFd<'_>) -> bool {
        let peer = rustix::net::sockopt::socket_peercred(client).expect("a Unix socket");
        self.clients.lock().unwrap().push(peer.pid.as_raw_nonzero().get().unsigned_abs());
        self.is_open
    }

    fn rules(&self) -> Rules {
        let rule = "example.org:443".to_owned();
        let allow = Rule { effect: "allow".to_owned(), rule, answer: None };
        Rules { rules: vec![allow], restricted: true, clients_restricted: false }
    }

    fn flows(&self) -> Vec<Flow> {
        self.flows.lock().unwrap().clone()
    }

    fn refusals(&self) -> Refusals {
        let permission = Some("example.com:443".to_owned());
        let refusal = Refusal { what: "example.com".to_owned(), times: 3, permission };
        Refusals { names: 1, addresses: 0, most: vec![refusal] }
    }

    fn change(&self, change: &Change) -> Result<String, String> {
        self.changes.lock().unwrap().push(change.clone());
        match change {
            Change::Kill { flow } => Err(format!("there is no flow {flow}")),
            _ => Ok("permitted".to_owned()),
        }
    }
}

fn flow(number: u64) -> Flow {
    Flow {
        flow: number,
        guest: 1,
        protocol: "tcp".to_owned(),
        direction: "out".to_owned(),
        from: "10.0.2.15:40000".parse().unwrap(),
        to: "192.0.2.1:443".parse().unwrap(),
        peer: "192.0.2.1:443".parse().unwrap(),
        names: vec!["example.org".to_owned()],
        shown: None,
        shown_by: None,
        bytes_out: number,
        bytes_in: 0,
        age_ms: 5,
        open: true,
    }
}

/// A process with a gateway that has flows of these numbers.
struct Lab {
    gateway: Arc<Gateway>,
    path: PathBuf,
    _control: Control,
    _directory: tempfile::TempDir,
}

impl Lab {
    fn new(numbers: impl Iterator<Item = u64>, is_open: bool) -> Self {
        let gateway = Arc::new(Gateway {
            is_open,
            flows: Mutex::new(numbers.map(flow).collect()),
            changes: Mutex::default(),
            clients: Mutex::default(),
        });
        let shown: Arc<dyn Firewall> = gateway.clone();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("control.sock");
        let control = Builder::new().firewall(shown).attach(&path).expect("a socket");
        Self { gateway, path, _control: control, _directory: directory }
    }

    fn client(&self) -> Client {
        Client::connect(&self.path).expect("it listens")
    }
}

fn page(client: &mut Client, after: Option<u64>, limit: Option<u32>) -> FlowPage {
    match client.ask(&Ask::Flows { after, limit }).expect("an answer") {
        Answer::Flows(page) => page,
        other => panic!("{other:?}"),
    }
}

fn numbers(flows: &[Flow]) -> Vec<u64> {
    flows.iter().map(|flow| flow.flow).collect()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, AskError>) -> String {
    match answer {
        Err(AskError::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn flows_come_in_pages_each_once_in_their_order() {
    let most = u64::from(FLOWS_PER_ANSWER);
    // Numbers of flows that have ended are missing.
    let all: Vec<u64> = (0..2 * most + 100).map(|n| 3 * n).collect();
    let lab = Lab::new(all.iter().copied(), false);
    let mut client = lab.client();
    assert_eq!(numbers(&client.all_flows(usize::MAX).expect("an answer")), all);

    let first = page(&mut client, None, Some(2));
    assert_eq!((numbers(&first.flows), first.next), (vec![0, 3], Some(6)));
    let second = page(&mut client, first.next, Some(2));
    assert_eq!((numbers(&second.flows), second.next), (vec![6, 9], Some(12)));
    for limit in [None, Some(u32::MAX)] {
        assert_eq!(page(&mut client, None, limit).flows.len(), FLOWS_PER_ANSWER as usize);
    }
    assert_eq!(page(&mut client, None, Some(0)).flows.len(), 1, "a page leads on");
    assert_eq!(page(&mut client, Some(u64::MAX), None), FlowPage::default());
}

#[test]
fn a_flow_that_ends_between_two_pages_hides_no_other() {
    let lab = Lab::new(1..=5, false);
    let mut client = lab.client();
    let next = page(&mut client, None, Some(2)).next;
    assert_eq!(next, Some(3));
    lab.gateway.flows.lock().unwrap().retain(|flow| flow.flow != 3);
    assert_eq!(numbers(&page(&mut client, next, Some(2)).flows), [4, 5]);
}

#[test]
fn a_client_takes_no_more_pages_than_it_needs() {
    let lab = Lab::new(0..3 * u64::from(FLOWS_PER_ANSWER), false);
    let flows = lab.client().all_flows(10).expect("an answer");
    assert_eq!(flows.len(), FLOWS_PER_ANSWER as usize);
}

#[test]
fn who_may_not_change_sees_the_gateway_and_changes_nothing() {
    let lab = Lab::new(1..=2, false);
    let mut client = lab.client();
    for change in [
        Change::Allow { rule: "example.org:443".to_owned() },
        Change::Deny { rule: "example.org".to_owned() },
        Change::Remove { rule: "example.org".to_owned() },
        Change::Publish { port: "8080:80".to_owned() },
        Change::Unpublish { port: "8080:80".to_owned() },
        Change::Kill { flow: 1 },
        Change::Reload,
    ] {
        let why = refused(client.change(change));
        assert!(why.contains("network namespace"), "{why}");
    }
    assert_eq!(*lab.gateway.changes.lock().unwrap(), []);
    let asked = lab.gateway.clients.lock().unwrap().clone();
    assert_eq!(asked, [std::process::id(); 7], "the client of each change is examined");
    assert!(client.rules().expect("an answer").restricted);
    assert_eq!(client.all_flows(10).expect("an answer").len(), 2);
    assert_eq!(client.refusals().expect("an answer").most[0].times, 3);
    assert_eq!(lab.gateway.clients.lock().unwrap().len(), 7, "questions are free");
}

#[test]
fn a_change_is_made_once_and_its_error_is_the_gateways() {
    let lab = Lab::new(0..0, true);
    let mut client = lab.client();
    let allow = Change::Allow { rule: "example.org:443".to_owned() };
    assert_eq!(client.change(allow.clone()).expect("it is made"), "permitted");
    let kill = Change::Kill { flow: 17 };
    assert_eq!(refused(client.change(kill.clone())), "there is no flow 17");
    assert_eq!(*lab.gateway.changes.lock().unwrap(), [allow, kill]);
}

#[test]
fn a_process_without_a_gateway_refuses_what_is_about_one_and_answers_the_rest() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control.sock");
    let _control = Builder::new().attach(&path).expect("a socket");
    let mut client = Client::connect(&path).expect("it listens");
    for why in [
        refused(client.rules()),
        refused(client.all_flows(10)),
        refused(client.refusals()),
        refused(client.change(Change::Reload)),
    ] {
        assert_eq!(why, "this process has no gateway");
    }
    assert!(client.stats().is_ok());
}
