//! A program that runs a guest itself, and gives it a network: frames in memory on one side, this
//! process's sockets on the other. No root, no tap, no second process.
//!
//! The guest here is a stack of its own, to have one. A virtual machine's network device calls
//! `send` for what the guest's driver sent, and `receive` for what it is to get.

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagewire::Host;
use pagewire::device::{FrameError, Frames, FramesConfig, FramesEnd};
use pagewire_gateway::{Gateway, GuestConfig, Log, Rules};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    // Something to reach: a server on this machine's loopback, which guests reach only by an
    // address that stands for it.
    let server = TcpListener::bind("127.0.0.1:0")?;
    let port = server.local_addr()?.port();
    let rules = Rules::default()
        .map("10.0.2.2".parse()?, "127.0.0.1".parse()?)
        .deny("10.0.0.0/8:25".parse()?);

    let gateway = Gateway::builder().rules(rules).journal(Log::new(std::io::stderr())?).start();
    let (device, mut line) = Frames::new(FramesConfig::default())?;
    let guest = gateway.add(device, GuestConfig::new().network("10.0.2.2/24")?)?;

    // The guest, and its network card.
    let config = FramesConfig { mac: [0x52, 0x54, 0, 0, 0, 1], ..Default::default() };
    let (card, mut driver) = Frames::new(config)?;
    let inside =
        Host::builder().device(card).address("10.0.2.15/24").gateway("10.0.2.2").start()?;

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                pass(&mut driver, &mut line);
                pass(&mut line, &mut driver);
                // A virtual machine would wait for its driver's doorbell and for `wait_fd`.
                line.wait(Some(Duration::from_millis(1)));
            }
        });
        let result = visit(&inside, &server, port);
        over.store(true, Ordering::Relaxed);
        result
    })?;
    println!("the guest received {} bytes", guest.counters().bytes_in);
    Ok(())
}

/// The guest connects to the server, which says something.
fn visit(inside: &Host, server: &TcpListener, port: u16) -> Result<(), Box<dyn Error>> {
    let mut connection = inside.connect(("10.0.2.2", port))?;
    let (mut served, _) = server.accept()?;
    served.write_all(b"hello, guest")?;
    drop(served);
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    println!("{text}");
    Ok(())
}

/// Moves all frames from one side to the other. A line may lose what does not fit.
fn pass(from: &mut FramesEnd, to: &mut FramesEnd) {
    let mut frame = [0; 1514];
    while let Some(len) = from.receive(&mut frame) {
        if to.send(&frame[..len]) == Err(FrameError::Closed) {
            return;
        }
    }
}
