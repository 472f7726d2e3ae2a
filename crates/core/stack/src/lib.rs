//! Link, IP, ICMP, UDP and sockets of the Pagewire stack: everything between a device's frames and
//! an application's operations, without a clock, a random source, a thread or a system call.
//!
//! Read [`Stack`] first: it has inputs (`handle_*`), outputs (`poll_*`) and views of sockets with
//! for operations ([`Tcp`], [`Udp`], [`Listener`]); its documentation gives the order of calls. Then, as
//! needed: [`StackConfig`], [`SocketOption`] (settings), [`ZeroCopyCall`] (sends
//! with a notification), [`MapAvailable`] (received pages as one slice), [`Forwarder`] (connections
//! joined by reference) and [`Counters`]. Programs with threads and a clock use the crate
//! `pagewire`, which puts a host around a stack.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod bench;
mod cidr;
mod config;
mod counters;
mod error;
mod event;
mod forward;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod limits;
mod net;
mod random;
mod rate_limit;
mod shards;
mod sockets;
mod stack;
mod timer_wheel;

pub use cidr::{Cidr, CidrError};
pub use config::{
    Coalescing, FastOpenConfig, PoolMemory, StackConfig, SynCookies, TimeWaitReuse, ZeroCopyConfig,
};
pub use counters::{Counters, DropReason};
pub use error::{Error, StackError};
pub use event::{
    ErrorEntry, ErrorOrigin, Event, Notification, QueuedError, Readiness, TxMoment, TxTimestamp,
};
pub use forward::{ForwardConfig, ForwardCounters, Forwarder, Refusal};
pub use net::{Flow, LinkConfig, LinkId, Stray, Unreachable};
pub use pagewire_tcp::limits::MAX_PAYLOAD_PAGES;
pub use pagewire_tcp::{
    CaState, Config as TcpConfig, CongestionKind, EcnCounts, EcnMode, EcnOption, FastOpenKeys,
    FastOpenMode, Info as TcpInfo, KeepAlive, MtuProbing, Parts, RecvFlags, SendFlags,
    SlowStartExit, State as TcpState, defer_accept_time, defer_accept_timeouts, mss_of_pages,
    mtu_of_pages,
};
pub use shards::Shard;
pub use sockets::bind::{BindOptions, EveryPort, PortReservation};
pub use sockets::ids::{ListenerId, SocketId, TcpId, UdpId};
pub use sockets::listen::ListenOptions;
pub use sockets::listen::requests::Answer;
pub use sockets::listen::requests::table::{Cancel, RequestId, SynEvent, SynRequest};
pub use sockets::marks::{MtuDiscover, PacketMarks};
pub use sockets::options::{
    LinuxOption, OptionKey, OptionName, SocketOption, SocketOptions, option,
};
pub use sockets::tcp::{
    Chunks, ConnectOptions, Discard, FastOpen, Filled, Lend, LifecycleEvent, LifecycleKind, Map,
    MapAvailable, MapError, MapPages, MapSealed, MapWith, Payload, Taker, TimeSource, ToCopy,
    TxTimestamping,
};
pub use sockets::udp::{
    Datagram, DatagramKind, DatagramPayload, DatagramTaker, GroupLink, Memberships, Message,
    UdpMessage, UdpTarget,
};
pub use sockets::zerocopy::sends::ZeroCopyCall;
pub use sockets::{Listener, Tcp, Udp};
pub use stack::Stack;
pub use stack::reservations::PortReservations;
pub use stack::shutdown::Leftovers;
pub use stack::view::{SocketCounts, SocketPage, SocketView, TcpView, ViewOf};
