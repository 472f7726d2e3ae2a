//! The public modules by topic: names of the crates underneath, chosen so that their other names can change.

/// Devices: what moves frames between a host and a network.
///
/// Every device implements [`Device`](crate::Device), and so does a box of one, for a device that is chosen
/// at run time. A program can bring its own, with [`PacketBuf`](device::PacketBuf)s over
/// [`PagePool`](device::PagePool)s.
///
/// | feature | devices |
/// |---|---|
/// | always | [`Pair`](crate::Pair), [`Frames`](device::Frames), [`Queues`](device::Queues) |
/// | `tap` | `Tap` |
/// | `vhost-user` | `VhostUser`: a port for a virtual machine |
/// | `sockets` | `StreamLink`, `DatagramLink`: virtual machines on Unix sockets |
/// | `dhcp` | `Dhcp`, around a device: gives the guest behind it an address |
/// | `pcap` | `Pcap`, around a device: writes a capture |
/// | `fault` | `Fault`, around a device: a bad link, repeatably |
pub mod device {
    pub use pagewire_device::offload;
    pub use pagewire_device::{
        BindError, Capabilities, DeviceCounters, DeviceError, FrameError, Frames, FramesConfig,
        FramesEnd, HeaderSplit, Level, Medium, PairConfig, PairEnd, Protocol, QueueMemory, Queues,
        Rule, SharedDevice, Steering,
    };
    pub use pagewire_mem::{
        Gso, GsoKind, HEAD_CAPACITY, PacketBuf, PagePool, PageWriter, RxChecksum, TxChecksum,
    };

    #[cfg(any(feature = "sockets", feature = "vhost-user"))]
    pub use pagewire_device::bind_listener;
    #[cfg(feature = "fault")]
    pub use pagewire_device::{
        Aqm, Chance, Fault, FaultConfig, FaultConfigError, FaultCounters, FaultDirection,
        FaultLine, FaultPath, FaultRng, FaultWatch, Passed,
    };
    #[cfg(feature = "sockets")]
    pub use pagewire_device::{DatagramLink, DatagramLinkBuilder, StreamLink, StreamLinkBuilder};
    #[cfg(feature = "dhcp")]
    pub use pagewire_device::{Dhcp, DhcpConfig, DhcpCounters, DhcpLease, DhcpWatch};
    #[cfg(feature = "pcap")]
    pub use pagewire_device::{
        Pcap, PcapConfig, PcapCounters, PcapDirection, PcapInterface, PcapWriter,
    };
    #[cfg(feature = "tap")]
    pub use pagewire_device::{
        TapBuilder,
        tap::{TapParts, loopback_up},
    };
    #[cfg(feature = "vhost-user")]
    pub use pagewire_device::{
        VhostUser, VhostUserBuilder,
        port::{
            EarlyHook, FirstBytes, OutOfBounds, Port, PortConfig, RawFrame, SendBuffer, Verdict,
        },
        vhost_user::{FrontEndLimits, VhostCounters, VhostMonitor},
    };
}

/// Memory that is sent and received by reference, below the [`Chunk`](crate::Chunk)s and
/// [`SendBuf`](crate::SendBuf)s of sockets, and the ledger of copies.
///
/// A [`Region`](memory::Region) is memory that the program has, or a file's; a [`Frag`](memory::Frag) is a
/// part of one. Payload is copied only with a [`CopyReason`](memory::CopyReason), which a
/// [`CopyLedger`](memory::CopyLedger) counts.
pub mod memory {
    pub use pagewire_mem::{
        Access, CopyLedger, CopyReason, Frag, FragVec, MAX_FRAGS, MemError, PAGE_SIZE, PoolAudit,
        Region, Spare,
    };

    pub use pagewire_sockets::{CompletionStream, Completions, IntoChunks};
    pub use pagewire_stack::MapError;
}

/// Settings and state of connections.
pub mod tcp {
    pub use pagewire_stack::{
        CaState, CongestionKind, EcnCounts, EcnMode, EcnOption, FastOpenConfig, FastOpenKeys,
        FastOpenMode, MAX_PAYLOAD_PAGES, MtuProbing, SlowStartExit, TcpConfig, TcpInfo, TcpState,
        mss_of_pages, mtu_of_pages,
    };

    pub use pagewire_sockets::blocking::Incoming;
}

/// Datagrams: where a socket sends them, and how long they may be.
pub mod udp {
    pub use pagewire_stack::UdpTarget;
    pub use pagewire_stack::limits::{UDP_MAX_PAYLOAD_V4, UDP_MAX_PAYLOAD_V6, UDP_MAX_SEGMENTS};
}

/// The state of a host: its counts ([`Host::stats`](crate::Host::stats)), its sockets
/// ([`Host::sockets`](crate::Host::sockets)), and the life of its connections
/// ([`Stack::poll_lifecycle`](services::Stack::poll_lifecycle)).
pub mod counts {
    pub use pagewire_stack::{
        Counters, DropReason, LifecycleEvent, LifecycleKind, SocketCounts, SocketPage, SocketView,
        TcpView, ViewOf,
    };

    pub use crate::contain::Contained;
    pub use crate::shared::shutdown::ShutdownReport;
    pub use crate::stats::{LinkStats, Stats};
}

/// Programs that run inside a host, without a thread, on its stack: a [`Service`](services::Service)
/// gets the [`Stack`](services::Stack) in each of its turns, and the time as an
/// [`Instant`](services::Instant) of the host's clock.
pub mod services {
    pub use pagewire_mem::Instant;
    pub use pagewire_stack::{
        Answer, BindOptions as SocketBind, Cancel, ConnectOptions as TcpConnect,
        Datagram as OneDatagram, DatagramKind, Error, Event, EveryPort, Flow, Lend, ListenOptions,
        Listener, ListenerId, Message, Parts, Readiness, RecvFlags, RequestId, SendFlags, SocketId,
        Stack, StackError, SynEvent, SynRequest, Tcp, TcpId, Udp, UdpId, UdpMessage, Unreachable,
    };

    pub use crate::service::{HostWaker, Service};
}

/// Hooks for the measurements of this project. Not part of the interface: they change without notice.
#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench {
    #[cfg(feature = "vhost-user")]
    pub use pagewire_device::vhost_user::double;
    pub use pagewire_stack::StackConfig;
}

/// Macros that this project's crates share. Not part of the interface: they change without notice.
#[doc(hidden)]
pub mod parts {
    pub use pagewire_device::{forward_device, intercept};
    pub use pagewire_mem::{counters, setters};
}
