//! The kit of the tap's tests: a network namespace to work in, an end of a link, and the kernel as an oracle
//! for offloads.
#![allow(unreachable_pub)]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant as Wall};

use pagewire_device::{Device, Tap};
use pagewire_mem::{CopyLedger, Gso, GsoKind, Instant, PacketBuf, TxChecksum};
use pagewire_testkit::frames::{arp, ip, received};
use pagewire_testkit::{Need, Netns, built, can, ip as ip_command};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

/// How long a test waits for a frame before it gives up.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A tap lives until the last descriptor of it is closed, and while one test starts a program, the
/// child holds those of every other test up to its `exec`. So tests with taps go one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `f` in a network namespace of its own. One at a time. Needs root.
pub fn in_namespace(f: impl FnOnce() + Send) {
    if !can(&[Need::Tap]) {
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Netns::new().inside(f);
}

/// Our end of the link and what it last received.
pub struct Link {
    pub tap: Tap,
    pub ledger: CopyLedger,
    pub inbox: VecDeque<PacketBuf>,
    pub outbox: VecDeque<PacketBuf>,
}

impl Link {
    pub fn new(tap: Tap) -> Self {
        Self { tap, ledger: CopyLedger::new(), inbox: VecDeque::new(), outbox: VecDeque::new() }
    }

    pub fn send(&mut self, packet: PacketBuf) {
        self.outbox.push_back(packet);
        self.flush();
    }

    pub fn flush(&mut self) {
        self.tap.transmit(Instant::ZERO, &mut self.outbox, &mut self.ledger).unwrap();
    }

    /// Takes what is there, without waiting.
    pub fn poll(&mut self) -> usize {
        self.tap.receive(Instant::ZERO, &mut self.inbox, 64, &mut self.ledger).unwrap()
    }

    /// The next frame that `wanted` likes; others are answered (ARP, NDP) or lost.
    pub fn wait(&mut self, me: &Host, mut wanted: impl FnMut(&PacketBuf) -> bool) -> PacketBuf {
        let end = Wall::now() + PATIENCE;
        loop {
            while let Some(packet) = self.inbox.pop_front() {
                if wanted(&packet) {
                    return packet;
                }
                if let Some(answer) = me.neighbour_answer(&packet) {
                    self.send(answer);
                }
            }
            if self.poll() == 0 {
                let left = end.checked_duration_since(Wall::now()).expect("the frame came in time");
                wait_readable(&self.tap, left);
            }
        }
    }
}

/// Waits until the device has something.
pub fn wait_readable(device: &dyn Device, timeout: Duration) {
    let fd = device.wait_fd().unwrap();
    let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap();
}

/// The addresses of an end of the link.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub mac: [u8; 6],
    pub ip: IpAddr,
}

impl Host {
    /// The answer to a question for our link address.
    pub fn neighbour_answer(&self, packet: &PacketBuf) -> Option<PacketBuf> {
        let f = packet.head();
        let asker = f.get(6..12)?.try_into().unwrap();
        let out = match self.ip {
            // An ARP request for us.
            IpAddr::V4(us) if f.len() >= 42 && f[12..14] == [8, 6] && f[20..22] == [0, 1] => {
                if f[38..42] != us.octets() {
                    return None;
                }
                arp(2, self.mac, us.octets(), asker, f[28..32].try_into().unwrap())
            }
            // A neighbour solicitation for us.
            IpAddr::V6(us) if f.len() >= 78 && f[12..14] == [0x86, 0xdd] && f[54] == 135 => {
                if f[62..78] != us.octets() {
                    return None;
                }
                let from: [u8; 16] = f[22..38].try_into().unwrap();
                let ip = ip([self.mac, asker], [self.ip, from.into()], 255);
                let answer = [&us.octets()[..], &[2, 1], &self.mac].concat();
                built!(ip.icmpv6_raw(136, 0, [0x60, 0, 0, 0]), &answer)
            }
            _ => return None,
        };
        Some(received(&out, out.len()))
    }
}

/// A tap without any offload and a packet socket on it: what goes in through the socket comes out
/// of the tap cut and summed by the kernel.
pub struct KernelOracle {
    out: std::os::fd::OwnedFd,
    socket: std::os::fd::OwnedFd,
}

impl KernelOracle {
    pub fn new() -> Self {
        use std::os::fd::{AsRawFd, OwnedFd};
        let file = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        let out = OwnedFd::from(file);
        // SAFETY: all zeroes is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(b"oracle0") {
            *to = *from as _;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as _;
        // SAFETY: TUNSETIFF reads and writes one `ifreq`.
        let set = unsafe { libc::ioctl(out.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
        assert_eq!(set, 0);
        rustix::io::ioctl_fionbio(&out, true).unwrap();
        ip_command("link set oracle0 up mtu 65521");
        let socket = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
        let index = name_to_index(&socket, "oracle0").unwrap();
        let on: libc::c_int = 1;
        // SAFETY: PACKET_VNET_HDR reads one `int`.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                15,
                (&raw const on).cast(),
                size_of_val(&on) as _,
            )
        };
        assert_eq!(set, 0);
        // SAFETY: all zeroes is a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as _;
        address.sll_ifindex = index as _;
        // SAFETY: reads one `sockaddr_ll`.
        let bound = unsafe {
            libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as _)
        };
        assert_eq!(bound, 0);
        Self { out, socket }
    }

    /// The wire frames that the kernel makes of a packet, whose bytes are `bytes`.
    pub fn cut(&self, packet: &PacketBuf, bytes: &[u8]) -> Vec<Vec<u8>> {
        let TxChecksum::Partial { start, offset } = packet.tx_checksum else { panic!("partial") };
        let (kind, header, size) = match packet.gso {
            Some(Gso { kind: GsoKind::TcpV4, size, header_len }) => (1, header_len, size),
            Some(Gso { kind: GsoKind::TcpV6, size, header_len }) => (4, header_len, size),
            Some(Gso { kind: GsoKind::Udp, size, header_len }) => (5, header_len, size),
            None => (0, 0, 0),
        };
        // CWR in a super-frame is announced, so that it is not copied to every segment.
        let cwr = [1, 4].contains(&kind) && packet.head()[usize::from(start) + 13] & 0x80 != 0;
        let mut message = vec![1, kind | if cwr { 0x80 } else { 0 }];
        for word in [header, size, start, offset] {
            message.extend(word.to_ne_bytes());
        }
        message.extend_from_slice(bytes);
        // Older frames, and what the kernel has to say itself, are not ours.
        while self.read().is_some() {}
        rustix::io::write(&self.socket, &message).unwrap();
        let ours = &bytes[6..12];
        std::iter::from_fn(|| self.read()).filter(|frame| &frame[6..12] == ours).collect()
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 70_000];
        let n = rustix::io::read(&self.out, &mut frame).ok()?;
        frame.truncate(n);
        Some(frame)
    }
}
