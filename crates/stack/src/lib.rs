//! Link, IP, ICMP, UDP and sockets of the Pagewire stack: everything between a device's frames and
//! an application's verbs, without a clock, a random source, a thread or a system call.
//!
//! Read [`Stack`] first: it has inputs (`handle_*`), outputs (`poll_*`) and views of sockets with
//! their verbs ([`Tcp`], [`Udp`], [`Listener`]), and says in which order to call them. Then, as
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
pub use net::{Flow, LinkConfig, LinkId, Unreachable};
pub use pagewire_tcp::limits::MAX_PAYLOAD_PAGES;
pub use pagewire_tcp::{
    CaState, Config as TcpConfig, CongestionKind, EcnCounts, EcnMode, EcnOption, FastOpenKeys,
    FastOpenMode, Info as TcpInfo, KeepAlive, MtuProbing, Parts, RecvFlags, SendFlags,
    SlowStartExit, State as TcpState, defer_accept_time, defer_accept_timeouts, mss_of_pages,
    mtu_of_pages,
};
pub use sockets::application::ConnectOptions;
pub use sockets::bind::{BindOptions, PortReservation, PortReservations};
pub use sockets::fast_open::FastOpen;
pub use sockets::handles::{Listener, Tcp, Udp};
pub use sockets::ids::{ListenerId, SocketId, TcpId, UdpId};
pub use sockets::leaving::Leftovers;
pub use sockets::lifecycle::{LifecycleEvent, LifecycleKind};
pub use sockets::listen::ListenOptions;
pub use sockets::mapping::{Map, MapAvailable, MapError, MapPages, MapSealed, MapWith};
pub use sockets::marks::{MtuDiscover, PacketMarks};
pub use sockets::memberships::{GroupLink, Memberships, MulticastSettings};
pub use sockets::options::{
    LinuxOption, OptionKey, OptionName, SocketOption, SocketOptions, option,
};
pub use sockets::recv::{Chunks, Discard, Lend, Taker};
pub use sockets::request_table::{Cancel, RequestId, SynEvent, SynRequest};
pub use sockets::requests::Answer;
pub use sockets::send::{Clock, Payload};
pub use sockets::sends::ZeroCopyCall;
pub use sockets::timestamping::TxTimestamping;
pub use sockets::udp::DatagramKind;
pub use sockets::udp_recv::{Datagram, DatagramTaker, Message, UdpMessage};
pub use sockets::udp_send::DatagramPayload;
pub use sockets::udp_target::UdpTarget;
pub use sockets::view::{SocketCounts, SocketPage, SocketView, TcpView, ViewOf};
pub use stack::Stack;
