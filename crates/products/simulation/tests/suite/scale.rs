//! Many hosts, many connections, one process.

use std::cell::Cell;
use std::rc::Rc;

use pagewire_simulation::net::TcpStream;
use pagewire_simulation::{Link, Sim};

use crate::common::{MS, S, ask_on, echo_server};

/// A line of `/proc/self/status`, in KiB.
fn status(name: &str) -> usize {
    let all = std::fs::read_to_string("/proc/self/status").expect("our status");
    let line = all.lines().find(|line| line.starts_with(name)).expect("a line");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number")
}

/// 900 servers, and 100 clients with a hundred connections each, all open at the same time.
#[test]
fn a_thousand_hosts_hold_ten_thousand_connections() {
    const CLIENTS: usize = 100;
    const EACH: usize = 100;
    const SERVERS: usize = 900;
    let before = status("VmRSS:");
    let mut sim = Sim::builder().link(Link::new().latency(10 * MS)).build();
    for n in 0..SERVERS {
        echo_server(&mut sim, &format!("server{n}"));
    }
    let open = Rc::new(Cell::new(0));
    for n in 0..CLIENTS {
        let open = open.clone();
        sim.client(&format!("client{n}"), async move {
            let connections = (0..EACH).map(|k| {
                let open = open.clone();
                tokio::task::spawn_local(async move {
                    let server = format!("server{}", (n * EACH + k) % SERVERS);
                    let stream = TcpStream::connect((server.as_str(), 7)).await;
                    let mut stream = stream.map_err(|e| e.to_string())?;
                    ask_on(&mut stream, 1_000).await.map_err(|e| e.to_string())?;
                    open.set(open.get() + 1);
                    Ok::<_, String>(stream)
                })
            });
            let mut streams = Vec::new();
            for connection in connections.collect::<Vec<_>>() {
                streams.push(connection.await??);
            }
            tokio::time::sleep(S).await;
            Ok(())
        });
    }
    sim.run_until(|_| open.get() == CLIENTS * EACH).unwrap();
    let used = status("VmRSS:") - before;
    assert!(used < 512 << 10, "{used} KiB for {} connections", open.get());
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    assert!(descriptors < 100, "{descriptors} descriptors");
    let report = sim.run().unwrap();
    assert!(report.counts.arrived >= 70_000 && report.counts.lost == 0, "{report:?}");
}
