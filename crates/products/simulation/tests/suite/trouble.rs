//! Faults on demand: each from outside, from inside, and scheduled.

use std::io::ErrorKind;
use std::time::Duration;

use pagewire_simulation::net::{TcpListener, TcpStream, UdpSocket};
use pagewire_simulation::{Chaos, Link, Pause, Queue, Rate, Sim, all, control, time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::common::{MS, S, ask, ask_on, echo_server, in_time, udp_echo_server};

#[test]
fn a_round_trip_takes_the_latency_of_both_directions() {
    let link = Link::new().latency(Duration::from_micros(2_345));
    let mut sim = Sim::builder().link(link).build();
    udp_echo_server(&mut sim, "server");
    sim.client("client", async {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        socket.send_to(b"ping", "server:7").await?;
        socket.recv_from(&mut [0; 8]).await?;
        assert_eq!(time::elapsed()?, Duration::from_micros(4_690), "to the nanosecond");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn bandwidth_is_what_a_transfer_gets() {
    let link = Link::new().latency(5 * MS).bandwidth(10_000_000);
    let mut sim = Sim::builder().link(link).build();
    echo_server(&mut sim, "server");
    sim.client("client", ask("server", 1_000_000));
    let report = sim.run().unwrap();
    // A million bytes each way at the same time, with headers: 0.84 s and some round trips.
    assert!((800 * MS..1_200 * MS).contains(&report.elapsed), "{report:?}");
}

#[test]
fn a_partition_stalls_a_stream_and_its_repair_lets_it_go_on() {
    let mut sim = Sim::builder().build();
    echo_server(&mut sim, "server");
    sim.client("client", async {
        let mut stream = TcpStream::connect("server:7").await?;
        ask_on(&mut stream, 100).await?;
        control::partition("client", "server");
        let stalled = timeout(S, ask_on(&mut stream, 100)).await;
        assert!(stalled.is_err());
        control::repair("client", "server");
        let mut got = [0; 100];
        stream.read_exact(&mut got).await?;
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_partition_in_one_direction_loses_what_goes_there() {
    let mut sim = Sim::builder().build();
    udp_echo_server(&mut sim, "server");
    sim.client("client", async {
        let socket = UdpSocket::bind("0.0.0.0:0").await?;
        let mut answers = Vec::new();
        for (from, to) in [("client", "server"), ("server", "client")] {
            control::partition_oneway(from, to);
            socket.send_to(b"lost", "server:7").await?;
            answers.push(timeout(S, socket.recv(&mut [0; 8])).await.is_ok());
            control::repair_oneway(from, to);
            socket.send_to(b"ping", "server:7").await?;
            answers.push(timeout(S, socket.recv(&mut [0; 8])).await.is_ok());
        }
        assert_eq!(answers, [false, true, false, true]);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_crash_leaves_the_peer_half_open_and_a_kill_closes_its_connections() {
    for power in [true, false] {
        let mut sim = Sim::builder().build();
        echo_server(&mut sim, "server");
        sim.client("client", async move {
            let mut stream = TcpStream::connect("server:7").await?;
            ask_on(&mut stream, 10).await?;
            if power {
                control::crash("server")
            } else {
                control::kill("server")
            }
            let end = timeout(60 * S, stream.read(&mut [0; 8])).await;
            match end {
                Err(_) => assert!(power, "it was told"),
                Ok(end) => assert_eq!((end?, power), (0, false)),
            }
            control::bounce("server");
            sleep(MS).await;
            ask("server", 10).await?;
            if power {
                // The new kernel knows nothing of the connection.
                stream.write_all(b"still there?").await?;
                let error = stream.read(&mut [0; 8]).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
            Ok(())
        });
        sim.run().unwrap();
    }
}

#[test]
fn a_paused_machine_answers_later_and_a_paused_process_has_a_kernel_that_answers() {
    for (what, connected) in [(Pause::Process, 17 * MS), (Pause::Machine, 501 * MS)] {
        let mut sim = Sim::builder().build();
        echo_server(&mut sim, "server");
        sim.client("client", async move {
            sleep(10 * MS).await;
            control::pause("server", what);
            sleep(5 * MS).await;
            let mut stream = TcpStream::connect("server:7").await?;
            assert_eq!(time::elapsed()?, connected, "{what:?}");
            ask_on(&mut stream, 10).await?;
            assert!(time::elapsed()? >= 500 * MS, "the answer has to wait");
            Ok(())
        });
        sim.at(500 * MS, |control| control.resume("server"));
        sim.run().unwrap();
    }
}

#[test]
fn an_address_that_no_host_has_is_unreachable_at_once() {
    let mut sim = Sim::builder().build();
    sim.client("client", async {
        let error = TcpStream::connect("10.1.2.3:80").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
        let error = TcpStream::connect("192.0.2.1:80").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostUnreachable);
        assert!(time::elapsed()? < 10 * MS);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_port_that_nobody_listens_on_refuses_and_a_host_without_power_is_silent() {
    let mut sim = Sim::builder().build();
    echo_server(&mut sim, "server");
    sim.client("client", async {
        let error = TcpStream::connect("server:99").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        control::crash("server");
        sleep(MS).await;
        let error = TcpStream::connect("server:7").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_path_with_a_smaller_mtu_is_learned_and_a_black_hole_swallows() {
    for hole in [false, true] {
        let mut sim = Sim::builder().limit(300 * S).build();
        echo_server(&mut sim, "server");
        sim.client("client", async move {
            let mut stream = TcpStream::connect("server:7").await?;
            ask_on(&mut stream, 100).await?;
            let bulk = timeout(20 * S, ask_on(&mut stream, 10_000)).await;
            assert_eq!(bulk.is_err(), hole);
            Ok(())
        });
        let link = if hole { Link::new().black_hole(1300) } else { Link::new().mtu(1300) };
        sim.control().link("client", "server", link);
        sim.run().unwrap();
    }
}

#[test]
fn a_router_in_front_of_the_receiver_is_a_latency_away_from_the_sender() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut sim = Sim::builder().timeline(file.path()).build();
    echo_server(&mut sim, "server");
    sim.client("client", ask("server", 20_000));
    sim.control().downlink("server", Link::new().mtu(1300));
    sim.run().unwrap();
    let lines = std::fs::read_to_string(file.path()).unwrap();
    let first = |words: &[&str]| {
        let line = lines.lines().find(|line| words.iter().all(|word| line.contains(word)));
        let at = line.expect("such a line").split_whitespace().next().expect("its time");
        (at.parse::<f64>().expect("seconds") * 1e6).round() as u64
    };
    let lost = first(&["lost: too long for the path, the sender is told", "client > server"]);
    assert_eq!(first(&["arrived", "> client", "ICMP"]) - lost, 1_000, "{lines}");
}

#[test]
fn a_link_for_every_pair_of_hundreds_of_hosts_takes_a_moment() {
    in_time(|| {
        let mut sim = Sim::builder().build();
        for n in 0..300 {
            sim.host(&format!("host{n}"), std::future::pending);
        }
        sim.control().link(all(), all(), Link::new().loss(0.01));
        sim.run_for(MS).unwrap();
        sim.control().link(all(), all(), Link::new().latency(5 * MS));
        sim.run_for(MS).unwrap();
    });
}

#[test]
fn an_uplink_is_the_common_bandwidth_of_all_that_a_host_sends() {
    let mut sim = Sim::builder().build();
    for n in 0..4 {
        let name = format!("sink{n}");
        sim.host(&name, || async {
            let listener = TcpListener::bind("0.0.0.0:9").await?;
            let (mut stream, _) = listener.accept().await?;
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await?;
            Ok(())
        });
    }
    sim.client("client", async {
        let sends = (0..4).map(|n| async move {
            let mut stream = TcpStream::connect((format!("sink{n}").as_str(), 9)).await?;
            stream.write_all(&vec![7; 250_000]).await?;
            stream.shutdown().await?;
            stream.read(&mut [0; 1]).await.map(|_| ())
        });
        let all: Vec<_> = sends.map(tokio::task::spawn_local).collect();
        for one in all {
            one.await??;
        }
        Ok(())
    });
    let queue = Queue::DropTail { frames: 100, bytes: None };
    sim.control().uplink("client", Link::new().bandwidth(8_000_000).queue(queue));
    let report = sim.run().unwrap();
    // A million bytes at a million bytes a second.
    assert!((S..2 * S).contains(&report.elapsed), "{report:?}");
}

#[test]
fn chaos_troubles_by_the_seed_and_has_healed_everything_at_its_end() {
    let rate = |every: u32, lasting: u32| {
        Rate::new(every * MS..2 * every * MS, lasting * MS..2 * lasting * MS)
    };
    let mut lost = Vec::new();
    let check = Sim::check(0..10, |sim| {
        for n in 0..3 {
            echo_server(sim, &format!("server{n}"));
        }
        let servers = ["server0", "server1", "server2"];
        sim.client("client", async move {
            let mut failed = 0;
            while time::elapsed()? < 20 * S {
                for server in servers {
                    let asked = timeout(500 * MS, ask(server, 500)).await;
                    failed += u32::from(!matches!(asked, Ok(Ok(()))));
                }
                sleep(50 * MS).await;
            }
            assert!(failed > 3, "{failed} failed");
            for server in servers {
                ask(server, 500).await?;
            }
            Ok(())
        });
        let slow = Link::new().latency(300 * MS);
        let chaos = Chaos::until(15 * S)
            .partition(rate(900, 800))
            .oneway(rate(1_300, 700))
            .crash(rate(2_000, 500))
            .kill(rate(3_000, 500))
            .pause(rate(2_500, 900), Pause::Process)
            .slow_link(rate(1_700, 2_000), slow);
        sim.chaos(servers, chaos);
        let cuts = Chaos::until(15 * S).oneway(rate(500, 700));
        sim.chaos(pagewire_simulation::all(), cuts);
        Ok(())
    });
    lost.extend(check.reports.iter().map(|report| report.counts.lost));
    check.assert();
    assert!(lost.iter().all(|&lost| lost > 0));
}

/// One slow link ends while another lasts: after the last, the link is as it was set.
#[test]
fn slow_links_that_overlap_heal_and_keep_the_link_that_was_set_meanwhile() {
    let every = |from: u32, to: u32| from * MS..to * MS;
    Sim::check(0..20, |sim| {
        echo_server(sim, "server");
        sim.client("client", async {
            sleep(3 * S).await;
            let begun = time::elapsed()?;
            ask("server", 100).await?;
            // A connection, a message and its answer, over 2 ms each way.
            let took = time::elapsed()? - begun;
            assert!(took < 20 * MS, "{took:?}");
            assert!(took >= 8 * MS, "{took:?}");
            Ok(())
        });
        let slow = |ms| Link::new().latency(ms * MS);
        let often = Rate::new(every(10, 60), every(100, 300));
        let chaos = Chaos::until(2 * S).slow_link(often.clone(), slow(300));
        sim.chaos(pagewire_simulation::all(), chaos.slow_link(often, slow(500)));
        sim.at(S, |control| control.default_link(Link::new().latency(2 * MS)));
        Ok(())
    })
    .assert();
}
