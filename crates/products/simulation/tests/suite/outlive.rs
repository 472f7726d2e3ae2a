//! Sockets that outlive the tasks of their process: the kernel closes them at its end.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagewire_simulation::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use pagewire_simulation::{Sim, control, time};
use tokio::io::AsyncReadExt;
use tokio::time::sleep;

use crate::common::{MS, S, in_time};

/// Sockets that a program keeps where its tasks' end does not reach them, as in a static or a cycle.
#[derive(Default)]
struct Kept {
    listeners: Vec<TcpListener>,
    streams: Vec<TcpStream>,
    datagrams: Vec<UdpSocket>,
    bound: Vec<TcpSocket>,
}

/// A server that keeps all its sockets for ever.
fn keeper(sim: &mut Sim, ends: bool) -> Rc<RefCell<Kept>> {
    let kept = Rc::new(RefCell::new(Kept::default()));
    let all = kept.clone();
    sim.host("server", move || {
        let kept = all.clone();
        async move {
            let listener = TcpListener::bind("0.0.0.0:80").await?;
            let datagrams = UdpSocket::bind("0.0.0.0:81").await?;
            kept.borrow_mut().datagrams.push(datagrams);
            let bound = TcpSocket::new_v4()?;
            bound.bind(SocketAddr::from(([0, 0, 0, 0], 82)))?;
            kept.borrow_mut().bound.push(bound);
            let (stream, _) = listener.accept().await?;
            kept.borrow_mut().streams.push(stream);
            kept.borrow_mut().listeners.push(listener);
            if ends {
                sleep(S.saturating_sub(time::elapsed()?)).await;
                return Ok(());
            }
            std::future::pending().await
        }
    });
    kept
}

/// A client that reads the end of its connection: the times of that.
fn told_of_the_end(sim: &mut Sim) -> Rc<RefCell<Vec<Duration>>> {
    let told = Rc::new(RefCell::new(Vec::new()));
    let out = told.clone();
    sim.client("client", async move {
        let mut stream = TcpStream::connect("server:80").await?;
        assert_eq!(stream.read(&mut [0; 4]).await?, 0, "the end");
        out.borrow_mut().push(time::elapsed()?);
        drop(stream);
        sleep(2 * S).await;
        control::bounce("server");
        sleep(MS).await;
        TcpStream::connect("server:80").await?;
        Ok(())
    });
    told
}

#[test]
fn the_end_of_a_process_closes_sockets_that_outlive_its_tasks_and_a_start_binds_their_ports() {
    in_time(|| {
        for ends_by_itself in [false, true] {
            let mut sim = Sim::builder().build();
            let kept = keeper(&mut sim, ends_by_itself);
            let told = told_of_the_end(&mut sim);
            if !ends_by_itself {
                sim.at(S, |control| control.kill("server"));
            }
            sim.run().unwrap();
            assert_eq!(*told.borrow(), [S + MS], "a latency after the end: {ends_by_itself}");
            assert_eq!(kept.borrow().datagrams.len(), 2, "bound again: {ends_by_itself}");
        }
    });
}

#[test]
fn a_bounce_closes_sockets_that_outlive_their_tasks() {
    in_time(|| {
        let mut sim = Sim::builder().build();
        let kept = keeper(&mut sim, false);
        sim.client("client", async {
            for _ in 0..3 {
                let mut stream = TcpStream::connect("server:80").await?;
                sleep(10 * MS).await;
                control::bounce("server");
                assert_eq!(stream.read(&mut [0; 4]).await?, 0, "the end");
            }
            Ok(())
        });
        sim.run().unwrap();
        assert_eq!(kept.borrow().listeners.len(), 3);
    });
}

#[test]
fn a_socket_of_a_process_that_has_ended_is_an_error_also_while_somebody_waits_for_it() {
    in_time(|| {
        let mut sim = Sim::builder().build();
        let shared: Arc<Mutex<Option<Arc<UdpSocket>>>> = Arc::default();
        let out = shared.clone();
        sim.host("server", move || {
            let out = out.clone();
            async move {
                let socket = Arc::new(UdpSocket::bind("0.0.0.0:81").await?);
                *out.lock().expect("no panic") = Some(socket);
                std::future::pending().await
            }
        });
        sim.client("thief", async move {
            sleep(MS).await;
            let socket = shared.lock().expect("no panic").clone().ok_or("none")?;
            let error = socket.recv(&mut [0; 4]).await.expect_err("the process ends");
            assert_eq!(time::elapsed()?, S);
            assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
            assert!(error.to_string().contains("process that has ended"), "{error}");
            assert!(socket.send_to(b"x", "server:81").await.is_err());
            Ok(())
        });
        sim.at(S, |control| control.kill("server"));
        sim.run().unwrap();
    });
}
