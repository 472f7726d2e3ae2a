//! `pagewire ctl`: the rules, flows and ports of a running gateway.

use pagewire_control::protocol::{Answer, Ask, Change, FlowPage, Refusals, Rules};

use crate::args::view::{CtlOptions, CtlVerb};
use crate::commands::flows;
use crate::commands::processes::{self, Process};
use crate::failure::{Failure, ascii, plain, say, word};

/// Most flows that are shown.
const MOST: usize = 100_000;

pub(crate) fn run(options: &CtlOptions) -> Result<(), Failure> {
    let mut process = only_gateway(processes::find(&options.target)?)?;
    let name = process.name();
    let failed = |error| Failure::because(name, processes::why_not(&error));
    let client = &mut process.client;
    let change = match &options.verb {
        CtlVerb::Rules | CtlVerb::Flows | CtlVerb::Refused => None,
        CtlVerb::Allow { rule } => Some(Change::Allow { rule: rule.clone() }),
        CtlVerb::Deny { rule } => Some(Change::Deny { rule: rule.clone() }),
        CtlVerb::Remove { rule } => Some(Change::Remove { rule: rule.clone() }),
        CtlVerb::Publish { port } => Some(Change::Publish { port: port.clone() }),
        CtlVerb::Unpublish { port } => Some(Change::Unpublish { port: port.clone() }),
        CtlVerb::Kill { flow } => Some(Change::Kill { flow: *flow }),
        CtlVerb::Reload => Some(Change::Reload),
    };
    let answer = match (change, &options.verb) {
        (Some(change), _) => client.ask(&Ask::Change(change)),
        (None, CtlVerb::Flows) => {
            client.all_flows(MOST).map(|flows| Answer::Flows(FlowPage { flows, next: None }))
        }
        (None, CtlVerb::Refused) => client.ask(&Ask::Refusals),
        (None, _) => client.ask(&Ask::Rules),
    };
    let answer = answer.map_err(failed)?;
    if options.json {
        let text = serde_json::to_string(&answer).map_err(|e| Failure::Failed(e.to_string()))?;
        say(format_args!("{}", ascii(&text)));
        return Ok(());
    }
    // Root reads what the processes of other users say.
    for line in lines(&answer) {
        say(format_args!("{}", plain(&line)));
    }
    Ok(())
}

/// The gateway among the processes.
fn only_gateway(processes: Vec<Process>) -> Result<Process, Failure> {
    let named = processes.len() == 1;
    let mut gateways: Vec<Process> = processes
        .into_iter()
        .filter_map(|mut process| (named || process.client.rules().is_ok()).then_some(process))
        .collect();
    match (gateways.pop(), gateways.len()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(Failure::Failed(
            "no gateway runs that can be found by itself: name one that was started with --control \
             PATH by the same option"
                .to_owned(),
        )),
        (Some(last), _) => {
            let all: Vec<String> = gateways.iter().chain([&last]).map(Process::name).collect();
            let why = format!("{} run: say which by --control", all.join(", "));
            Err(Failure::Failed(why))
        }
    }
}

fn lines(answer: &Answer) -> Vec<String> {
    match answer {
        Answer::Rules(rules) => rule_lines(rules),
        Answer::Flows(page) => flows::of_gateway(&page.flows),
        Answer::Refusals(refusals) => refusal_lines(refusals),
        Answer::Done { text } => vec![text.clone()],
        _ => Vec::new(),
    }
}

fn rule_lines(Rules { rules, restricted, clients_restricted }: &Rules) -> Vec<String> {
    let line = |rule: &pagewire_control::protocol::Rule| {
        let answer = rule.answer.as_ref().filter(|answer| *answer != "prohibit");
        let answer = answer.map(|answer| format!("={answer}")).unwrap_or_default();
        format!("{:<5} {}{answer}", rule.effect, rule.rule)
    };
    let rest =
        if *restricted { "nothing else is permitted" } else { "everything else is permitted" };
    let clients =
        clients_restricted.then(|| "no other client of published ports is permitted".to_owned());
    rules.iter().map(line).chain([rest.to_owned()]).chain(clients).collect()
}

fn refusal_lines(refusals: &Refusals) -> Vec<String> {
    let line = |refusal: &pagewire_control::protocol::Refusal| {
        let permit = refusal.permission.as_ref();
        let permit =
            permit.map(|rule| format!("  pagewire ctl allow {}", word(rule))).unwrap_or_default();
        let times = match refusal.times {
            1 => "once".to_owned(),
            times => format!("{times} times"),
        };
        format!("{times:>12} {}{permit}", refusal.what)
    };
    if refusals.most.is_empty() {
        return vec!["nothing was refused".to_owned()];
    }
    refusals.most.iter().map(line).collect()
}
