//! Embedding: hosts on frames that a program has in its own memory, such as those of a guest that it
//! runs, of an emulator, or of a driver in user space. Here the program is the cable between two hosts.
//!
//! ```sh
//! cargo run --package pagewire --example frames
//! ```
//!
//! The program prints how many Ethernet frames of each type passed through the program's hands.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use pagewire::device::{FrameError, Frames, FramesConfig, FramesEnd};
use pagewire::{Host, TcpListener};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The longest frame: an IP packet of 1,500 bytes and its Ethernet header.
const FRAME: usize = 1514;
const LEN: usize = 100_000;
const HOST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub(crate) fn main() -> Result {
    let (device, mut near) = frames(HOST_MAC)?;
    let host = Host::builder().device(device).address("10.0.0.1/24").start()?;
    let (device, mut far) = frames(GUEST_MAC)?;
    let guest = Host::builder().device(device).address("10.0.0.2/24").start()?;

    let listener = host.listen("10.0.0.1:9000")?;
    let serving = thread::spawn(move || serve(&listener));
    let asking = thread::spawn(move || -> std::io::Result<Vec<u8>> {
        let mut answer = Vec::new();
        guest.connect("10.0.0.1:9000")?.read_to_end(&mut answer)?;
        Ok(answer)
    });
    let mut types = BTreeMap::new();
    while !asking.is_finished() {
        carry(&mut near, &mut far, &mut types)?;
        carry(&mut far, &mut near, &mut types)?;
    }
    serving.join().map_err(|_| "the server panicked")??;
    assert_eq!(asking.join().map_err(|_| "the guest panicked")??, [7; LEN]);
    for (ethertype, frames) in &types {
        println!("{frames} frames of type {ethertype:#06x}");
    }
    assert!(types[&0x0806] >= 2, "a question by ARP and its answer");
    assert!(types[&0x0800] >= LEN / FRAME, "and the data, by IPv4");
    Ok(())
}

/// A host's device, and the program's side of it.
fn frames(mac: [u8; 6]) -> Result<(Frames, FramesEnd)> {
    let config = FramesConfig { mac, ..Default::default() };
    Ok(Frames::new(config)?)
}

fn serve(listener: &TcpListener) -> std::io::Result<()> {
    listener.accept()?.0.write_all(&[7; LEN])
}

/// Moves the frames that are there. A program that runs a guest has its queues in the place of one end.
fn carry(from: &mut FramesEnd, to: &mut FramesEnd, types: &mut BTreeMap<u16, usize>) -> Result {
    from.wait(Some(Duration::from_micros(200)));
    let mut frame = [0; FRAME];
    while let Some(len) = from.receive(&mut frame) {
        *types.entry(u16::from_be_bytes([frame[12], frame[13]])).or_default() += 1;
        match to.send(&frame[..len]) {
            // A frame that finds no room is lost, as on any cable; TCP sends it again.
            Ok(()) | Err(FrameError::Full | FrameError::NoMemory) => {}
            // A host that has ended needs no more frames.
            Err(FrameError::Closed) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
