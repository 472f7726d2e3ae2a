//! The names of turmoil: tests that come from there compile, and mean the same.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use pagewire_simulation::turmoil::{self, Builder, Sim, net};
use tokio::time::{sleep, timeout};

use crate::common::{MS, S};

fn echo(sim: &mut Sim<'_>, name: &str) {
    sim.host(name, || async {
        let socket = net::UdpSocket::bind("0.0.0.0:7").await?;
        let mut buffer = [0; 100];
        loop {
            let (n, from) = socket.recv_from(&mut buffer).await?;
            socket.send_to(&buffer[..n], from).await?;
        }
    });
}

/// The round trips of `count` datagrams, one after the other; `None` for one that was lost.
async fn round_trips(server: &str, count: usize) -> turmoil::Result<Vec<Option<Duration>>> {
    let socket = net::UdpSocket::bind("0.0.0.0:0").await?;
    let mut times = Vec::new();
    for _ in 0..count {
        let start = turmoil::elapsed();
        socket.send_to(b"ping", (server, 7)).await?;
        let answer = timeout(S, socket.recv_from(&mut [0; 8])).await;
        times.push(answer.is_ok().then(|| turmoil::elapsed() - start));
    }
    Ok(times)
}

#[test]
fn steps_end_with_an_error_after_the_duration_of_the_simulation() {
    for tick in [Duration::ZERO, MS, 30 * MS] {
        let mut builder = Builder::new();
        let mut sim = builder.simulation_duration(S).tick_duration(tick).build();
        echo(&mut sim, "server");
        sim.client("client", async { std::future::pending().await });
        let mut steps = 0;
        let error = loop {
            steps += 1;
            assert!(steps < 2_000, "no end");
            match sim.step() {
                Ok(done) => assert!(!done),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("not done: client"), "{error}");
        assert!(sim.elapsed() > S && sim.elapsed() < 1_040 * MS, "{:?}", sim.elapsed());
    }
}

#[test]
fn steps_may_go_on_after_the_clients_are_done() {
    let mut sim = Builder::new().simulation_duration(10 * MS).build();
    sim.client("client", async { Ok(()) });
    for _ in 0..50 {
        assert!(sim.step().unwrap());
    }
    assert_eq!(sim.elapsed(), 50 * MS);
}

#[test]
fn a_run_without_clients_ends_at_once() {
    let mut sim = Builder::new().build();
    echo(&mut sim, "server");
    sim.run().unwrap();
    assert_eq!(sim.elapsed(), Duration::ZERO);
}

#[test]
fn settings_of_a_link_do_not_undo_each_other() {
    let mut sim = Builder::new().rng_seed(1).build();
    echo(&mut sim, "server");
    let times = Rc::new(RefCell::new(Vec::new()));
    let out = times.clone();
    sim.client("client", async move {
        *out.borrow_mut() = round_trips("server", 1).await?;
        Ok(())
    });
    sim.set_link_fail_rate("client", "server", 1.0);
    sim.set_link_latency("client", "server", 7 * MS);
    sim.run().unwrap();
    assert_eq!(*times.borrow(), [None], "the latency left the fail rate alone");

    let mut sim = Builder::new().rng_seed(1).build();
    echo(&mut sim, "server");
    let out = times.clone();
    sim.client("client", async move {
        *out.borrow_mut() = round_trips("server", 3).await?;
        Ok(())
    });
    sim.set_link_latency("client", "server", 7 * MS);
    sim.set_link_fail_rate("client", "server", 0.0);
    // Settings of all links are not those of this one.
    sim.set_max_message_latency(S);
    sim.set_fail_rate(1.0);
    sim.run().unwrap();
    assert_eq!(*times.borrow(), [Some(14 * MS); 3]);
}

#[test]
fn the_largest_latency_of_a_link_leaves_the_least() {
    let mut builder = Builder::new();
    builder.min_message_latency(20 * MS).max_message_latency(20 * MS).rng_seed(3);
    let mut sim = builder.build();
    for name in ["near", "far"] {
        echo(&mut sim, name);
    }
    sim.client("client", async {
        let near = round_trips("near", 20).await?.into_iter().flatten().collect::<Vec<_>>();
        let far = round_trips("far", 20).await?.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!((near.len(), far.len()), (20, 20));
        assert!(near.iter().all(|time| (40 * MS..=60 * MS).contains(time)), "{near:?}");
        assert!(near.iter().any(|time| *time > 42 * MS), "{near:?}");
        assert!(far.iter().all(|time| *time >= 40 * MS), "{far:?}");
        assert!(far.iter().any(|time| *time > 60 * MS), "{far:?}");
        Ok(())
    });
    sim.set_link_max_message_latency("client", "near", 30 * MS);
    sim.set_max_message_latency(100 * MS);
    sim.run().unwrap();
}

#[test]
fn names_and_addresses_are_found_outside_and_inside() {
    let epoch = UNIX_EPOCH + 1_000 * S;
    let mut sim = Builder::new().epoch(epoch).build();
    echo(&mut sim, "server");
    let server = sim.lookup("server");
    assert_eq!(sim.lookup_many(["server"]), [server]);
    assert_eq!(sim.reverse_lookup(server).as_deref(), Some("server"));
    sim.client("client", async move {
        sleep(5 * MS).await;
        assert_eq!(turmoil::lookup("server"), server);
        assert_eq!(turmoil::reverse_lookup(server).as_deref(), Some("server"));
        assert_eq!(turmoil::reverse_lookup(IpAddr::from([1, 2, 3, 4])), None);
        assert_eq!(turmoil::since_epoch(), Some(1_000 * S + 5 * MS));
        Ok(())
    });
    let client = sim.lookup("client");
    assert_eq!(sim.reverse_lookup_pair((client, server)), ("client".into(), "server".into()));
    assert_eq!(turmoil::since_epoch(), None);
    sim.run().unwrap();
}
