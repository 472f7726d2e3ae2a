//! `bench stream --via-proxy`: with a proxy between sender and receiver.
//!
//! Over the pair link the left host has both ends of the stream, and the right one forwards: each
//! byte makes two hops. On two threads, each does as much as both stacks of a direct hop together.
//! Over a tap, kernel sockets are both ends, in one network namespace.
//!
//! What to expect: frames are sent and received twice, on the same processors. Where no byte is
//! touched and one processor bounds the rate, it was eight tenths of a direct hop's
//! (`crates/lab/testkit/tests/suite/forwarding/single.rs` holds it to that); on two threads it is less. With a
//! reader that touches every byte the second hop is the smaller part.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use pagewire::proxy::Proxy;
use pagewire::{Host, TcpStream};

use super::{StreamBench, StreamSample};
use crate::failure::Failure;
use crate::kit::hosts::{self, LEFT, PORT, RIGHT, accept, hosts_in_turns, never_wait, patient};
use crate::kit::kernel;
use crate::kit::machine::{joined, pin};
use crate::kit::namespace::enter_with_tap;
use crate::kit::source::Reader;

/// Where the proxy listens.
const PROXY_PORT: u16 = 9001;

impl StreamBench {
    pub(super) fn pair_via_proxy(
        &self,
        reader: Reader,
        threads: usize,
    ) -> Result<StreamSample, Failure> {
        pin(self.sides.left);
        let (left, right, mtu) = hosts_in_turns(self.options.link_mtu.mtu)?;
        let proxy = proxy(&right, RIGHT.into(), SocketAddr::from((LEFT, PORT)))?;
        let stop = AtomicBool::new(false);
        let round = std::thread::scope(|scope| {
            let forwarding = (threads > 1).then(|| {
                scope.spawn(|| -> Result<(), Failure> {
                    pin(self.sides.right);
                    while !stop.load(Ordering::Relaxed) {
                        if !right.turn() {
                            std::hint::spin_loop();
                        }
                    }
                    Ok(())
                })
            });
            let turn = || left.turn() | (threads == 1 && right.turn());
            let round = connect_through(&left, &turn)
                .and_then(|(sender, receiver)| self.in_turns(&sender, &receiver, reader, turn));
            stop.store(true, Ordering::Relaxed);
            forwarding.map_or(Ok(()), joined)?;
            round
        })?;
        drop(proxy);
        Ok(self.finish(round, mtu, &[&left, &right]))
    }

    /// Kernel sockets as both ends.
    pub(super) fn tap_via_proxy(&self, reader: Reader) -> Result<StreamSample, Failure> {
        pin(self.sides.left);
        let (tap, mtu) = enter_with_tap(RIGHT, self.options.link_mtu.mtu)?;
        let host = hosts::on(tap, LEFT).start()?;
        let (listener, to) = kernel::listen(RIGHT)?;
        let proxy = proxy(&host, LEFT.into(), to)?;
        let on = SocketAddr::from((LEFT, PROXY_PORT));
        let round = std::thread::scope(|scope| {
            let sending = scope.spawn(move || kernel::peer_sends(on, &self.source, self.sides));
            let receiving = scope.spawn(move || self.kernel_receives(&listener, reader));
            let round = joined(receiving);
            proxy.abort_all();
            joined(sending)?;
            round
        })?;
        Ok(self.finish(round, mtu, &[&host]))
    }
}

fn proxy(host: &Host, ip: std::net::IpAddr, to: SocketAddr) -> Result<Proxy, Failure> {
    let proxy = Proxy::new(host, Default::default());
    proxy.listen((ip, PROXY_PORT), 1, to)?;
    Ok(proxy)
}

/// A stream from the host to itself through the proxy; calls on both ends do not wait.
fn connect_through(
    host: &Host,
    turn: &impl Fn() -> bool,
) -> Result<(TcpStream, TcpStream), Failure> {
    let listener = host.listen((LEFT, PORT))?;
    let sender = host.start_connect(SocketAddr::from((RIGHT, PROXY_PORT)));
    let receiver = patient(accept(&listener, || {
        turn();
    }))?;
    let sender = patient(sender)?;
    never_wait(&sender)?;
    never_wait(&receiver)?;
    Ok((sender, receiver))
}
