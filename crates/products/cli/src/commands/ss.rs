//! `pagewire ss`: the sockets of running processes, as `ss -ti` shows the kernel's, or the flows of gateways' guests.

use std::fmt::Write;

use pagewire_control::AskError;
use pagewire_control::protocol::{Flow, Socket, Tcp};
use serde_json::{Value, json};

use crate::args::view::SsOptions;
use crate::commands::flows;
use crate::commands::processes::{self, Process};
use crate::failure::{Failure, ascii, plain, say};

/// Most sockets, or flows, of one process that are shown: those of a large server.
const MOST: usize = 1_000_000;

pub(crate) fn run(options: &SsOptions) -> Result<(), Failure> {
    let processes = processes::find(&options.target)?;
    match options.guests {
        true => show_flows(options, processes),
        false => show_sockets(options, processes),
    }
}

fn show_sockets(options: &SsOptions, mut processes: Vec<Process>) -> Result<(), Failure> {
    let mut all = Vec::new();
    for process in &mut processes {
        let name = process.name();
        let failed = |e| Failure::because(name, processes::why_not(&e));
        let mut sockets = process.client.all_sockets(MOST).map_err(failed)?;
        sockets.retain(|socket| is_wanted(options, socket));
        all.push(sockets);
    }
    if options.json {
        let of = |(process, sockets): (&Process, &Vec<Socket>)| json!({ "pid": process.info.pid, "command": process.info.command, "sockets": sockets });
        say_json(processes.iter().zip(&all).map(of).collect());
        return Ok(());
    }
    if processes.is_empty() {
        crate::failure::complain!("pagewire: {}", processes::none_found());
        return Ok(());
    }
    let rows = processes.iter().zip(&all).flat_map(|(process, sockets)| {
        let name = process.name();
        sockets.iter().map(move |socket| (name.clone(), socket))
    });
    say_lines(&table(&rows.collect::<Vec<_>>()));
    Ok(())
}

/// Shows the flows of the processes that have a gateway. Others refuse the request: those without one, and those of
/// versions that know no flows.
fn show_flows(options: &SsOptions, processes: Vec<Process>) -> Result<(), Failure> {
    let is_named = options.target.control.is_some();
    let mut all = Vec::new();
    for mut process in processes {
        match process.client.all_flows(MOST) {
            Ok(mut flows) => {
                flows.retain(|flow| is_wanted_flow(options, flow));
                all.push((process, flows));
            }
            Err(AskError::Refused(_)) if !is_named => {}
            Err(error) => {
                return Err(Failure::because(process.name(), processes::why_not(&error)));
            }
        }
    }
    if options.json {
        let of = |(process, flows): &(Process, Vec<Flow>)| json!({ "pid": process.info.pid, "command": process.info.command, "flows": flows });
        say_json(all.iter().map(of).collect());
        return Ok(());
    }
    if all.is_empty() {
        crate::failure::complain!("pagewire: no gateway runs: {}", processes::none_found());
        return Ok(());
    }
    let rows = all.iter().flat_map(|(process, flows)| {
        let name = process.name();
        flows.iter().map(move |flow| (name.clone(), flow))
    });
    say_lines(&flows::of_gateways(&rows.collect::<Vec<_>>()));
    Ok(())
}

fn say_json(list: Vec<Value>) {
    say(format_args!("{}", ascii(&format!("{:#}", Value::from(list)))));
}

fn say_lines(lines: &[String]) {
    for line in lines {
        // Root reads what the processes of other users say.
        say(format_args!("{}", plain(line)));
    }
}

fn is_wanted(options: &SsOptions, socket: &Socket) -> bool {
    let protocol = match socket.protocol.as_str() {
        "tcp" => !options.udp,
        _ => !options.tcp,
    };
    let listens = matches!(socket.state.as_str(), "listen" | "unconnected");
    protocol && (options.all || listens == options.listening)
}

fn is_wanted_flow(options: &SsOptions, flow: &Flow) -> bool {
    match flow.protocol.as_str() {
        "tcp" => !options.udp,
        "udp" => !options.tcp,
        _ => !options.tcp && !options.udp,
    }
}

/// A state as `ss` writes it.
pub(crate) fn state_name(state: &str) -> &str {
    match state {
        "established" => "ESTAB",
        "syn_sent" => "SYN-SENT",
        "syn_received" => "SYN-RECV",
        "fin_wait_1" => "FIN-WAIT-1",
        "fin_wait_2" => "FIN-WAIT-2",
        "close_wait" => "CLOSE-WAIT",
        "closing" => "CLOSING",
        "last_ack" => "LAST-ACK",
        "time_wait" => "TIME-WAIT",
        "closed" => "CLOSED",
        "listen" => "LISTEN",
        "unconnected" => "UNCONN",
        other => other,
    }
}

/// The lines: a heading, then one for each socket, and one more for a connection. There is a column of cores if a
/// host has several.
fn table(rows: &[(String, &Socket)]) -> Vec<String> {
    let ends = |socket: &Socket| {
        let remote = socket.remote.map_or_else(|| "*:*".to_owned(), |remote| remote.to_string());
        (socket.local.to_string(), remote)
    };
    let widths = rows
        .iter()
        .map(|(_, socket)| ends(socket))
        .fold((18, 17), |(a, b), (l, r)| (a.max(l.len()), b.max(r.len())));
    let has_cores = rows.iter().any(|(_, socket)| socket.core.is_some());
    let line = |cells: [&str; 9]| {
        let [net, state, recv, send, local, remote, link, core, process] = cells;
        let (local_width, remote_width) = widths;
        let core = if has_cores { format!("{core:<4} ") } else { String::new() };
        format!(
            "{net:<5} {state:<10} {recv:>8} {send:>8} {local:>local_width$} \
             {remote:>remote_width$} {link:<6} {core}{process}"
        )
    };
    let heading = line([
        "Netid",
        "State",
        "Recv-Q",
        "Send-Q",
        "Local Address:Port",
        "Peer Address:Port",
        "Link",
        "Core",
        "Process",
    ]);
    let mut lines = vec![heading];
    for (process, socket) in rows {
        let (local, remote) = ends(socket);
        lines.push(line([
            &socket.protocol,
            state_name(&socket.state),
            &socket.receive_queue.to_string(),
            &socket.send_queue.to_string(),
            &local,
            &remote,
            socket.link.as_deref().unwrap_or("-"),
            &socket.core.map_or_else(|| "-".to_owned(), |core| core.to_string()),
            process,
        ]));
        if let Some(tcp) = &socket.tcp {
            lines.push(format!("\t {}", details(tcp)));
        }
        if socket.dropped > 0 {
            lines.push(format!("\t dropped:{}", socket.dropped));
        }
    }
    lines
}

/// The details that `ss -i` shows, in the words of `ss` where it has them.
fn details(tcp: &Tcp) -> String {
    let ms = |micros: u64| format!("{:.3}", micros as f64 / 1000.0);
    let mut text = format!("{} rto:{}", tcp.congestion, tcp.rto_us / 1000);
    if tcp.rtt_us > 0 {
        let _ = write!(text, " rtt:{}/{}", ms(tcp.rtt_us), ms(tcp.rttvar_us));
        let _ = write!(text, " minrtt:{}", ms(tcp.min_rtt_us));
    }
    let _ = write!(text, " mss:{} cwnd:{}", tcp.mss, tcp.cwnd_segments);
    /// The threshold as long as nothing was lost.
    const NO_THRESHOLD: u64 = 0x7fff_ffff;
    if tcp.ssthresh_segments < NO_THRESHOLD {
        let _ = write!(text, " ssthresh:{}", tcp.ssthresh_segments);
    }
    let _ = write!(
        text,
        " bytes_sent:{} bytes_acked:{} bytes_received:{} segs_out:{} segs_in:{}",
        tcp.bytes_sent, tcp.bytes_acked, tcp.bytes_received, tcp.segments_out, tcp.segments_in
    );
    for (name, n) in [
        ("unacked", tcp.unacked_segments),
        ("lost", tcp.lost_segments),
        ("retrans", tcp.retransmits),
        ("bytes_retrans", tcp.bytes_retransmitted),
        ("timeouts", tcp.timeouts),
        ("notsent", tcp.unsent),
    ] {
        if n > 0 {
            let _ = write!(text, " {name}:{n}");
        }
    }
    if tcp.ecn {
        text.push_str(" ecn");
    }
    if tcp.ownerless {
        text.push_str(" ownerless");
    }
    let _ = write!(
        text,
        " lastsnd:{} lastrcv:{}",
        tcp.last_sent_us / 1000,
        tcp.last_received_us / 1000
    );
    let _ = write!(text, " age:{}s", tcp.age_seconds);
    if let Some(copies) = &tcp.copies {
        let _ = write!(text, " copied:{}", copies.values().sum::<u64>());
        let named: Vec<String> = copies.iter().map(|(reason, n)| format!("{reason}:{n}")).collect();
        if !named.is_empty() {
            let _ = write!(text, "({})", named.join(","));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::args::view::Target;

    fn socket(state: &str, tcp: Option<Tcp>) -> Socket {
        Socket {
            host: "pw0".to_owned(),
            protocol: "tcp".to_owned(),
            state: state.to_owned(),
            local: "10.77.0.2:80".parse().unwrap(),
            remote: tcp.as_ref().map(|_| "10.77.0.1:44444".parse().unwrap()),
            link: Some("link1".to_owned()),
            core: None,
            receive_queue: 0,
            send_queue: 1000,
            dropped: 0,
            tcp,
        }
    }

    #[test]
    fn a_connection_is_shown_as_ss_shows_it() {
        let tcp = Tcp {
            rtt_us: 411,
            rttvar_us: 20,
            min_rtt_us: 300,
            rto_us: 204_000,
            mss: 1448,
            congestion: "cubic".to_owned(),
            cwnd_segments: 10,
            ssthresh_segments: 0x7fff_ffff,
            bytes_sent: 5000,
            retransmits: 2,
            copies: Some(BTreeMap::from([("app_write".to_owned(), 200)])),
            ..Tcp::default()
        };
        let socket = socket("established", Some(tcp));
        let lines = table(&[("serve/7".to_owned(), &socket)]);
        assert_eq!(lines.len(), 3);
        let words: Vec<&str> = lines[1].split_whitespace().collect();
        let expected =
            ["tcp", "ESTAB", "0", "1000", "10.77.0.2:80", "10.77.0.1:44444", "link1", "serve/7"];
        assert_eq!(words, expected);
        for part in [
            "cubic rto:204 rtt:0.411/0.020 minrtt:0.300 mss:1448 cwnd:10 bytes_sent:5000",
            " retrans:2 ",
            " copied:200(app_write:200)",
        ] {
            assert!(lines[2].contains(part), "{}", lines[2]);
        }
        assert!(!lines[2].contains("ssthresh") && !lines[2].contains("lost:"), "{}", lines[2]);
    }

    #[test]
    fn sockets_have_a_column_of_cores_where_a_host_has_several() {
        let (one, other) = (socket("listen", None), socket("listen", None));
        let of_core = Socket { core: Some(1), ..other };
        let lines = table(&[("serve/7".to_owned(), &one), ("serve/8".to_owned(), &of_core)]);
        let last = |line: &String, n: usize| -> Vec<String> {
            let mut words: Vec<_> =
                line.split_whitespace().rev().take(n).map(str::to_owned).collect();
            words.reverse();
            words
        };
        assert_eq!(last(&lines[0], 3), ["Link", "Core", "Process"]);
        assert_eq!(last(&lines[1], 3), ["link1", "-", "serve/7"]);
        assert_eq!(last(&lines[2], 3), ["link1", "1", "serve/8"]);
        let lines = table(&[("serve/7".to_owned(), &one)]);
        assert_eq!(last(&lines[0], 2), ["Link", "Process"]);
    }

    #[test]
    fn options_choose_as_those_of_ss_do() {
        let (listens, talks) =
            (socket("listen", None), socket("established", Some(Tcp::default())));
        let udp = Socket { protocol: "udp".to_owned(), ..socket("unconnected", None) };
        for ((tcp, is_udp, listening, all), expected) in [
            ((false, false, false, false), [false, true, false]),
            ((false, false, true, false), [true, false, true]),
            ((true, false, false, true), [true, true, false]),
            ((false, true, false, true), [false, false, true]),
        ] {
            let target = Target { control: None };
            let options =
                SsOptions { target, tcp, udp: is_udp, listening, all, guests: false, json: false };
            let shown = [&listens, &talks, &udp].map(|socket| is_wanted(&options, socket));
            assert_eq!(shown, expected, "{options:?}");
        }
    }

    #[test]
    fn flows_are_chosen_by_their_protocol() {
        let of = |protocol: &str| Flow {
            protocol: protocol.to_owned(),
            ..flows::tests::flow(1, "203.0.113.1:443", (0, 0))
        };
        let all = ["tcp", "udp", "icmp"].map(of);
        for ((tcp, udp), expected) in [
            ((false, false), [true, true, true]),
            ((true, false), [true, false, false]),
            ((false, true), [false, true, false]),
        ] {
            let target = Target { control: None };
            let options = SsOptions {
                target,
                tcp,
                udp,
                listening: false,
                all: false,
                guests: true,
                json: false,
            };
            let shown = all.each_ref().map(|flow| is_wanted_flow(&options, flow));
            assert_eq!(shown, expected, "{options:?}");
        }
    }
}
