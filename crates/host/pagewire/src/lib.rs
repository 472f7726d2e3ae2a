//! A TCP/IP stack for Linux programs that moves pages instead of copying bytes.
//!
//! Start a [`Host`] on a device, then use [`TcpStream`], [`TcpListener`] and [`UdpSocket`] as
//! those of `std::net`. Beyond `std::net`, [`TcpStream::send`] queues owned memory by reference, and
//! [`TcpStream::recv_chunks`] receives by reference; a received [`Chunk`] can be sent on another
//! connection as it is; [`TcpStream::map`] gives received pages as contiguous memory;
//! [`TcpStream::send_zc`] also reports when the memory may be used again; a [`Proxy`](proxy::Proxy)
//! forwards whole connections; `rings` (feature) receive into memory that the application registered.
//!
//! Tasks use the same sockets in the forms of the module [`net`], which are shaped as tokio's and work on
//! any executor. Names are found by the host's own resolver (`Dns`, feature `dns`). Received memory is a
//! [`bytes::Buf`], and becomes [`bytes::Bytes`] without a
//! copy where nobody else can change it ([`Chunks`]).
//!
//! ```
//! use std::io::{Read, Write};
//! use pagewire::{Host, Pair};
//!
//! let (left, right) = Pair::new()?;
//! let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
//! let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
//!
//! let listener = server.listen("10.0.0.1:9000")?;
//! let mut conn = client.connect("10.0.0.1:9000")?;
//! let (mut peer, _) = listener.accept()?;
//!
//! conn.send(b"by reference")?;
//! let chunks = peer.recv_chunks(1 << 20)?;
//! assert_eq!(chunks.len(), 12);
//! peer.write_all(b"thanks")?;
//! let mut answer = [0; 6];
//! conn.read_exact(&mut answer)?;
//! assert_eq!(client.stats().ledger.get(pagewire::memory::CopyReason::AppRead), 6);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Devices
//!
//! `Tap` joins the kernel's network (`Tap::open("pw0")?`, or `Tap::builder("pw0")` to give the kernel's
//! side an address; root or CAP_NET_ADMIN), [`Pair`] links two hosts of one process. [`mod@device`] lists
//! all, with the features that they need.
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `tap` (default) | `Tap`: the kernel's network |
//! | `tokio` | tokio's traits for the sockets of [`net`]; a host that a task of a runtime drives |
//! | `dns` | `Dns`: names, from a DNS server |
//! | `rings` | the module `rings`: receive into registered memory |
//! | `vhost-user` | `device::VhostUser`: a virtual machine's port |
//! | `sockets` | `device::StreamLink`, `device::DatagramLink`: virtual machines on Unix sockets |
//! | `dhcp` | `device::Dhcp`: addresses for the guest behind a device |
//! | `pcap` | `device::Pcap`: a capture of any device |
//! | `fault` | `device::Fault`: a bad link, repeatably |
//!
//! Adapters are crates of their own: `pagewire-axum`, `pagewire-hyper`, `pagewire-tonic`, `pagewire-quinn`.
//!
//! # Modules
//!
//! The root has the names that most programs need. Other names are in modules by topic, each in one of them:
//!
//! - [`mod@device`]: devices, their settings, and what a device of your own is made of;
//! - [`memory`]: memory that is sent and received by reference, and the ledger of copies;
//! - [`tcp`], [`udp`]: settings, state and limits of connections and datagrams;
//! - [`net`]: sockets of the shape of tokio's;
//! - [`proxy`]: connections that are forwarded within the host;
//! - [`counts`]: counts and sockets of a host;
//! - [`services`]: programs that run inside a host, on its stack.
//!
//! # Files
//!
//! A file is sent from its memory map, without a copy: [`Region::file`](memory::Region::file) maps it,
//! [`Region::frag`](memory::Region::frag) names the part, and the map stays until the peer has
//! acknowledged the data.
//!
//! ```
//! use std::{fs::File, net::Shutdown, thread};
//! use pagewire::memory::Region;
//! use pagewire::{Host, Pair};
//!
//! # let path = std::env::temp_dir().join(format!("pagewire-doc-{}", std::process::id()));
//! # std::fs::write(&path, vec![7u8; 100_000])?;
//! let (left, right) = Pair::new()?;
//! let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
//! let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
//!
//! let listener = server.listen("10.0.0.1:9000")?;
//! let file = File::open(&path)?;
//! let sender = thread::spawn(move || -> std::io::Result<()> {
//!     let (conn, _) = listener.accept()?;
//!     let len = file.metadata()?.len() as usize;
//!     let region = Region::file(&file, 0, len).map_err(std::io::Error::other)?;
//!     conn.send(region.frag(0, len).map_err(std::io::Error::other)?)?;
//!     conn.shutdown(Shutdown::Write)
//! });
//!
//! let conn = client.connect("10.0.0.1:9000")?;
//! let mut content = Vec::new();
//! loop {
//!     let chunks = conn.recv_chunks(1 << 20)?;
//!     if chunks.is_empty() {
//!         break;
//!     }
//!     chunks.for_each_piece(|piece| content.extend_from_slice(piece));
//! }
//! sender.join().expect("the sender is done")?;
//! assert_eq!(content, std::fs::read(&path)?);
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//!
//! A host is one stack behind one mutex, with one driver thread that waits on the device and the
//! next deadline. A thread that calls a socket does its work inline under the lock. A thread that has
//! to wait polls the device for a short while ([`HostBuilder::spin`]), then sleeps. Several hosts, each with
//! a device of its own, use several cores.
//!
//! With [`HostBuilder::manual`] there is no thread: the caller drives with [`Host::turn`], or in an event loop
//! of its own, on one descriptor ([`Host::event_fd`]). A [`Service`](services::Service) is a program without
//! a thread, which the host calls when something happens, also on descriptors of its own
//! ([`Service::wait_fd`](services::Service::wait_fd)).
//!
//! # The end
//!
//! A kernel closes the sockets that a process leaves, and so does a host ([`Host::shutdown`]):
//! queued data is delivered, and connections that cannot deliver are reset. That happens when a
//! host and its sockets are dropped, when `main` returns or panics, and at [`std::process::exit`],
//! within two seconds ([`HostBuilder::shutdown_limit`]). A process that a signal kills sends nothing.
//!
//! A device that is lost for good (a deleted tap, a pair whose other end is dropped) ends its
//! connections with [`NetworkDown`]; the last device ends all sockets: [`Host::failed`] waits for that, and
//! [`Host::check`] reports it.
//!
//! # Settings
//!
//! [`HostBuilder`] has the settings of a host. [`HostBuilder::tcp_config`] and
//! [`HostBuilder::tcp_option`] set the defaults of its connections, [`ConnectOptions`] are of one
//! connection from its SYN on, [`TcpStream::set_option`] changes one connection,
//! [`TcpListener::set_option`] those it will accept. What `std` and `socket2` have is a method with the
//! same name ([`TcpStream::set_linger`], [`TcpStream::set_keepalive`],
//! [`UdpSocket::set_recv_buffer_size`]).
//!
//! A [`UdpSocket`] may broadcast ([`UdpSocket::set_broadcast`]), learn the addresses of received
//! packets, and answer from there ([`UdpSocket::recv_message`], [`UdpSocket::send_from`]).
//!
//! Path MTU discovery uses ICMP reports by default ([`MtuDiscover`], for datagrams
//! [`UdpSocket::set_mtu_discover`]); `mtu_probing` of [`TcpConfig`](tcp::TcpConfig) is for paths that
//! send none. TCP Fast Open is accepted if the host ([`HostBuilder::fast_open`]) and the listener
//! ([`TcpListener::set_fast_open`]) turn it on, or the host alone for all;
//! [`ConnectOptions::fast_open`], or `pagewire-posix`, open a connection with data in its SYN.
//!
//! # Linux's system calls
//!
//! The crate `pagewire-posix` has a [`Host`]'s sockets as descriptors, with poll and epoll.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(unsafe_code)]

mod builder;
mod contain;
mod cores;
mod devices;
#[cfg(feature = "dns")]
mod dns;
mod down;
mod driver;
mod error;
mod event_fd;
mod exit;
mod host;
mod link;
mod names;
pub mod net;
pub mod proxy;
mod reentrancy;
#[cfg(feature = "rings")]
pub mod rings;
mod runtime;
mod service;
mod shared;
mod spin;
mod stats;
mod timer;
mod topics;
mod turn;
mod wait;
mod waiters;

/// A TCP connection, for threads: [`pagewire_sockets::blocking::TcpStream`] on a [`Host`].
pub type TcpStream = pagewire_sockets::blocking::TcpStream<Host>;
/// A socket that listens for connections, for threads: [`pagewire_sockets::blocking::TcpListener`] on a
/// [`Host`].
pub type TcpListener = pagewire_sockets::blocking::TcpListener<Host>;
/// A UDP socket, for threads: [`pagewire_sockets::blocking::UdpSocket`] on a [`Host`].
pub type UdpSocket = pagewire_sockets::blocking::UdpSocket<Host>;

pub use builder::HostBuilder;
pub use cores::{Cores, CoresBuilder, CoresListener, CoresStats, CoresUdp};
#[cfg(feature = "dns")]
pub use dns::Dns;
pub use down::Failed;
pub use error::{NetworkDown, StartError};
pub use event_fd::EventFd;
pub use host::{Host, Resolver, Resolving, WeakHost};
pub use link::{IntoCidr, Link};
#[cfg(feature = "tap")]
pub use pagewire_device::Tap;
pub use pagewire_device::{Device, Pair};
pub use pagewire_sockets::{
    BindOptions, Chunk, Chunks, Completion, ConnectOptions, Datagram, MapAvailable, Mapping,
    SendBuf, Sent, by_reference,
};
pub use pagewire_stack::{Cidr, CidrError, KeepAlive, LinkId, MtuDiscover, SocketOption};
pub use runtime::Entered;
#[cfg(feature = "bench")]
#[doc(hidden)]
pub use topics::bench;
#[doc(hidden)]
pub use topics::parts;
pub use topics::{counts, device, memory, services, tcp, udp};
