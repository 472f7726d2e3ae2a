//! Bare datagrams, as many in each call as it takes (`UDP_SEGMENT`, `UDP_GRO`).

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use pagewire::Host;
use pagewire::net::UdpSocket as HostSocket;
use tokio::time::timeout;

use super::{DatagramsSample, Run};
use crate::failure::{Because, Failure};
use crate::kit::kernel::{PATIENCE, SOCKET};
use crate::sys::set_socket_option;

/// Most payload bytes of one call.
const CALL: usize = 65_507;

/// Frames that may be sent before the driver has a turn.
const CALLS: usize = 8;

impl Run<'_> {
    /// Payload bytes of a call: whole datagrams.
    fn call(&self) -> usize {
        CALL - CALL % usize::from(self.datagram())
    }
}

pub(super) fn kernel_sends(run: Run<'_>, to: SocketAddr) -> Result<(), Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).because(SOCKET)?;
    let size = i32::from(run.datagram());
    set_socket_option(&socket, libc::IPPROTO_UDP, libc::UDP_SEGMENT, size).because(SOCKET)?;
    for piece in run.source.pieces(run.call()) {
        if run.is_done() {
            break;
        }
        match socket.send_to(piece, to) {
            Ok(_) => {}
            // The receiver does not listen yet, or a queue is full.
            Err(e) if e.kind() == ErrorKind::ConnectionRefused => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => std::thread::yield_now(),
            Err(e) => return Err(Failure::because(SOCKET, e)),
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
    let (mut meter, mut buffer) = (run.meter(), vec![0; 1 << 16]);
    loop {
        let n = socket.recv(&mut buffer).because(SOCKET)?;
        if let Some(sample) = meter.add(n) {
            return Ok(sample);
        }
    }
}

pub(super) async fn host_sends(run: Run<'_>, host: &Host, to: SocketAddr) -> Result<(), Failure> {
    let socket = HostSocket::bind_on(host, "0.0.0.0:0").await?;
    socket.set_segment_size(run.datagram())?;
    for (n, piece) in run.source.pieces(run.call()).enumerate() {
        if run.is_done() {
            break;
        }
        match socket.send_to(piece, to).await {
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(e) => return Err(e.into()),
        }
        if n % CALLS == 0 {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

pub(super) async fn host_receives<'s>(
    run: Run<'_>,
    host: &Host,
    at: SocketAddr,
    start: impl FnOnce() -> ScopedJoinHandle<'s, Result<(), Failure>>,
) -> Result<(DatagramsSample, ScopedJoinHandle<'s, Result<(), Failure>>), Failure> {
    let socket = HostSocket::bind_on(host, at).await?;
    socket.set_gro(true)?;
    let (mut meter, sending) = (run.meter(), start());
    loop {
        let late = |_| Failure::Failed("nothing came from the kernel's socket".into());
        let received = timeout(Duration::from_secs(5), socket.recv_message()).await;
        let received = received.map_err(late)??;
        if let Some(sample) = meter.add(received.payload.len()) {
            return Ok((sample, sending));
        }
    }
}
