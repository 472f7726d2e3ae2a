//! Errors of a writer, and reasons for lost frames.

/// Why a frame was not taken. Except for [`WouldBlock`](Self::WouldBlock) and
/// [`Again`](Self::Again) it is dropped, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortError {
    /// The writer's memory ended early, or cannot be read.
    #[error("the frame's memory could not be read to its end")]
    Fault,
    /// No page was free.
    #[error("no memory is free for the frame")]
    NoMemory,
    /// Shorter than an Ethernet header, longer than any frame, or no IP packet where one must be.
    #[error("a frame of {0} bytes is none that this port takes")]
    Length(usize),
    /// The virtio header contradicts itself or the frame.
    #[error("the frame's virtio header contradicts the frame")]
    Offload,
    /// Segments smaller than any connection's ([`MIN_GSO_SIZE`](crate::limits::MIN_GSO_SIZE)), or more
    /// datagrams than [`MAX_UDP_SEGMENTS`](crate::limits::MAX_UDP_SEGMENTS).
    #[error("a super-frame in segments of {0} bytes would become too many frames")]
    Segments(u16),
    /// The send buffer is full: the writer keeps the frame and waits for the port's `wake`.
    #[error("the send buffer is full: wait for room")]
    WouldBlock,
    /// The send buffer is full and the writer does not wait: it keeps the frame.
    #[error("the send buffer is full")]
    Again,
    /// The port is down.
    #[error("the port is down")]
    Down,
    /// A send buffer of no bytes.
    #[error("a send buffer has at least one byte")]
    SendBuffer,
}

impl PortError {
    /// Linux's number for it, as a tap returns it for a write (`drivers/net/tun.c`).
    pub const fn errno(self) -> i32 {
        match self {
            Self::Fault => libc::EFAULT,
            Self::NoMemory => libc::ENOMEM,
            Self::Length(_) | Self::Offload | Self::Segments(_) | Self::SendBuffer => libc::EINVAL,
            Self::WouldBlock | Self::Again => libc::EAGAIN,
            Self::Down => libc::EIO,
        }
    }

    /// Whether the writer keeps the frame.
    pub const fn is_full(self) -> bool {
        matches!(self, Self::WouldBlock | Self::Again)
    }

    pub(super) const fn reason(self) -> Option<PortDrop> {
        Some(match self {
            Self::Fault => PortDrop::Fault,
            Self::NoMemory => PortDrop::NoMemory,
            Self::Length(_) => PortDrop::Length,
            Self::Offload => PortDrop::Offload,
            Self::Segments(_) => PortDrop::Segments,
            Self::Down => PortDrop::Down,
            Self::WouldBlock | Self::Again | Self::SendBuffer => return None,
        })
    }
}

pagewire_mem::reasons! {
    PortDrop: "Why a port dropped a frame.";

    /// The writer's memory could not be read to the frame's end.
    Fault = "fault",
    /// No page was free.
    NoMemory = "no_memory",
    /// Too short, too long, or no IP packet.
    Length = "length",
    /// The virtio header contradicts the frame.
    Offload = "offload",
    /// A super-frame of segments that are too small.
    Segments = "segments",
    /// The port is down.
    Down = "down",
    /// The hook dropped it.
    Hook = "hook",
    /// The hook moved the frame's start beyond an offset of the virtio header.
    HookMoved = "hook_moved",
    /// Sent back to a writer whose queue is full.
    BackFull = "back_full",
    /// Redirected to an unknown port.
    RedirectUnknown = "redirect_unknown",
    /// Redirected to a port whose queue is full.
    RedirectFull = "redirect_full",
}
