//! What users need of the crates underneath, by topic: chosen names, so that the rest can change.

/// Devices: what moves frames between a host and a network.
///
/// Every device implements [`Device`](crate::Device); a program can bring its own, with
/// [`PacketBuf`](device::PacketBuf)s over [`PagePool`](device::PagePool)s.
///
/// | feature | devices |
/// |---|---|
/// | always | [`Pair`](device::Pair), [`Frames`](device::Frames), [`Queues`](device::Queues) |
/// | `tap` | `Tap` |
/// | `vhost-user` | `VhostUser`: a port for a virtual machine |
/// | `sockets` | `StreamLink`, `DatagramLink`: virtual machines on Unix sockets |
/// | `dhcp` | `Dhcp`, around a device: gives the guest behind it an address |
/// | `pcap` | `Pcap`, around a device: writes a capture |
/// | `fault` | `Fault`, around a device: a bad link, repeatably |
pub mod device {
    pub use pagewire_device::offload;
    pub use pagewire_device::{
        BindError, Capabilities, Device, DeviceCounters, DeviceError, HeaderSplit, Level, Medium,
        Protocol, QueueMemory, Queues, Rule, Steering,
    };
    pub use pagewire_device::{FrameError, Frames, FramesConfig, FramesEnd};
    pub use pagewire_device::{Pair, PairConfig, PairEnd};
    pub use pagewire_mem::{
        Gso, GsoKind, HEAD_CAPACITY, PacketBuf, PagePool, PageWriter, RxChecksum, TxChecksum,
    };

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
        Tap, TapBuilder,
        tap::{TapParts, loopback_up},
    };
    #[cfg(feature = "vhost-user")]
    pub use pagewire_device::{
        VhostUser, VhostUserBuilder,
        port::{Port, PortConfig},
        vhost_user::{FrontEndLimits, VhostCounters, VhostMonitor},
    };
}

/// Memory that is sent and received by reference, and the ledger of copies.
pub mod memory {
    pub use pagewire_mem::{
        CopyLedger, CopyReason, Frag, FragVec, MAX_FRAGS, MemError, PAGE_SIZE, PoolAudit, Region,
    };

    pub use pagewire_sockets::{
        Chunk, Chunks, Completion, CompletionStream, Completions, IntoChunks, MapAvailable,
        Mapping, SendBuf, Sent,
    };
}

/// Settings and state of connections.
pub mod tcp {
    pub use pagewire_stack::{
        CaState, CongestionKind, EcnCounts, EcnMode, EcnOption, FastOpenConfig, FastOpenKeys,
        FastOpenMode, KeepAlive, MAX_PAYLOAD_PAGES, MtuDiscover, MtuProbing, RecvFlags, SendFlags,
        SlowStartExit, SocketOption, TcpConfig, TcpInfo, mss_of_pages, mtu_of_pages,
    };

    pub use pagewire_sockets::ConnectOptions;
    pub use pagewire_sockets::blocking::Incoming;
}

/// Datagrams: messages and settings.
pub mod udp {
    pub use pagewire_stack::MtuDiscover;
    pub use pagewire_stack::limits::{UDP_MAX_PAYLOAD_V4, UDP_MAX_PAYLOAD_V6, UDP_MAX_SEGMENTS};

    pub use pagewire_sockets::Datagram;
}

/// Counts of a host.
pub mod counts {
    pub use pagewire_device::DeviceCounters;
    pub use pagewire_mem::{CopyLedger, CopyReason, PoolAudit};
    pub use pagewire_stack::{Counters, DropReason, ForwardCounters};

    pub use crate::contain::Contained;
    pub use crate::shared::leave::ShutdownReport;
    pub use crate::stats::{LinkStats, Stats};
}

/// Programs that run inside a host, without a thread, on its stack: a [`Service`](services::Service)
/// gets the [`Stack`](services::Stack) in each of its turns.
pub mod services {
    pub use pagewire_stack::{
        Answer, BindOptions, Cancel, ConnectOptions, Error, Event, ListenOptions, Listener,
        ListenerId, Readiness, RecvFlags, RequestId, SendFlags, SocketId, SocketOption, Stack,
        StackError, SynEvent, SynRequest, Tcp, TcpId, Udp, UdpId, UdpMessage, UdpTarget,
    };

    pub use crate::service::{HostWaker, Service};
}

/// Doors for the other crates of this project. Not part of the interface: they change without notice.
#[doc(hidden)]
pub mod internals {
    pub use pagewire_device as device;
    pub use pagewire_mem as mem;
    #[cfg(feature = "rings")]
    pub use pagewire_ring as ring;
    pub use pagewire_stack as stack;
}
