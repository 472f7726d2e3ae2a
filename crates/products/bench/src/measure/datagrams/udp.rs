//! Bare datagrams, as many in each call as it takes (`UDP_SEGMENT`, `UDP_GRO`). The receiver answers each
//! [`CREDIT`] bytes with a datagram, and the sender never has more than [`WINDOW`] on the way. A sender that
//! hears nothing takes them for lost.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use pagewire::Host;
use pagewire::net::UdpSocket as HostSocket;
use tokio::time::timeout;

use super::{DatagramsSample, Run, WINDOW};
use crate::failure::{Because, Failure};
use crate::kit::kernel::{PATIENCE, SOCKET};
use crate::sys::set_socket_option;

/// Most payload bytes of one call.
const CALL: usize = 65_507;

/// Bytes that an answer stands for.
const CREDIT: usize = WINDOW / 4;

/// How long a sender waits for an answer.
const LOST: Duration = Duration::from_millis(10);

impl Run<'_> {
    /// Payload bytes of a call: whole datagrams.
    fn call(&self) -> usize {
        CALL - CALL % usize::from(self.datagram())
    }
}

/// Answers that are due for received bytes.
fn due(unanswered: &mut usize, received: usize) -> usize {
    *unanswered += received;
    let answers = *unanswered / CREDIT;
    *unanswered %= CREDIT;
    answers
}

pub(super) fn kernel_sends(run: Run<'_>, to: SocketAddr) -> Result<(), Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).because(SOCKET)?;
    let size = i32::from(run.datagram());
    set_socket_option(&socket, libc::IPPROTO_UDP, libc::UDP_SEGMENT, size).because(SOCKET)?;
    socket.set_read_timeout(Some(LOST)).because(SOCKET)?;
    let mut on_the_way = 0;
    for piece in run.source.pieces(run.call()) {
        if run.is_done() {
            break;
        }
        on_the_way += socket.send_to(piece, to).because(SOCKET)?;
        while on_the_way + run.call() > WINDOW {
            let heard = socket.recv(&mut [0; 1]).is_ok();
            on_the_way = if heard { on_the_way.saturating_sub(CREDIT) } else { 0 };
        }
    }
    Ok(())
}

pub(super) fn kernel_receives(
    run: Run<'_>,
    socket: &UdpSocket,
) -> Result<DatagramsSample, Failure> {
    set_socket_option(socket, libc::IPPROTO_UDP, libc::UDP_GRO, 1).because(SOCKET)?;
    socket.set_read_timeout(Some(PATIENCE)).because(SOCKET)?;
    let (mut meter, mut buffer, mut unanswered) = (run.meter(), vec![0; 1 << 16], 0);
    loop {
        let (n, from) = socket.recv_from(&mut buffer).because(SOCKET)?;
        for _ in 0..due(&mut unanswered, n) {
            socket.send_to(&[1], from).because(SOCKET)?;
        }
        if let Some(sample) = meter.add(n) {
            return Ok(sample);
        }
    }
}

pub(super) async fn host_sends(run: Run<'_>, host: &Host, to: SocketAddr) -> Result<(), Failure> {
    let socket = HostSocket::bind_on(host, "0.0.0.0:0").await?;
    socket.set_segment_size(run.datagram())?;
    let mut on_the_way = 0;
    for piece in run.source.pieces(run.call()) {
        if run.is_done() {
            break;
        }
        on_the_way += socket.send_to(piece, to).await?;
        while on_the_way + run.call() > WINDOW {
            let heard = matches!(timeout(LOST, socket.recv(&mut [0; 1])).await, Ok(Ok(_)));
            on_the_way = if heard { on_the_way.saturating_sub(CREDIT) } else { 0 };
        }
    }
    Ok(())
}

pub(super) async fn host_receives(
    run: Run<'_>,
    host: &Host,
    at: SocketAddr,
    start: impl FnOnce(),
) -> Result<DatagramsSample, Failure> {
    let socket = HostSocket::bind_on(host, at).await?;
    socket.set_gro(true)?;
    start();
    let (mut meter, mut unanswered) = (run.meter(), 0);
    loop {
        let late = |_| Failure::Failed("nothing came from the kernel's socket".into());
        let message = timeout(PATIENCE, socket.recv_message()).await.map_err(late)??;
        for _ in 0..due(&mut unanswered, message.payload.len()) {
            socket.send_to(&[1], message.from).await?;
        }
        if let Some(sample) = meter.add(message.payload.len()) {
            return Ok(sample);
        }
    }
}
