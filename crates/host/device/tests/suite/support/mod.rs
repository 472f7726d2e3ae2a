//! What the tap's tests share: a network namespace to work in, and just
//! enough TCP, made by hand, to talk to a kernel socket over a link that loses nothing.
#![allow(unreachable_pub)]

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant as Wall};

use pagewire_device::{Device, Tap};
use pagewire_mem::checksum::Checksum;
use pagewire_mem::{CopyLedger, Frag, Gso, GsoKind, Instant, PacketBuf, TxChecksum};
use pagewire_testkit::frames::{arp, ip, received};
use pagewire_testkit::{Need, Netns, built, can, ip as ip_command};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

/// How long a test waits for a frame before it gives up.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

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

/// A TCP segment by hand.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub from: Host,
    pub to: Host,
    pub ports: (u16, u16),
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub options: &'a [u8],
}

impl Segment<'_> {
    /// The frame, its checksum left to the device; a super-frame if the payload exceeds `mss`.
    pub fn frame(&self, payload: Option<Frag>, mss: u16) -> PacketBuf {
        let mut packet = PacketBuf::for_tx();
        let payload = payload.unwrap_or_default();
        let data = payload.len();
        packet.push_frag(payload).unwrap();
        let tcp_len = 20 + self.options.len();
        let tcp = packet.push(tcp_len).unwrap();
        tcp[0..2].copy_from_slice(&self.ports.0.to_be_bytes());
        tcp[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = (tcp_len as u8 / 4) << 4;
        tcp[13] = self.flags;
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        tcp[20..].copy_from_slice(self.options);
        let mut sum = Checksum::new();
        let (kind, start) = match (self.from.ip, self.to.ip) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                sum.add_bytes(&from.octets());
                sum.add_bytes(&to.octets());
                let ip = packet.push(20).unwrap();
                ip[0] = 0x45;
                ip[2..4].copy_from_slice(&((20 + tcp_len + data) as u16).to_be_bytes());
                ip[4..6].copy_from_slice(&0xfffe_u16.to_be_bytes());
                ip[6] = 0x40;
                ip[8] = 64;
                ip[9] = 6;
                ip[12..16].copy_from_slice(&from.octets());
                ip[16..20].copy_from_slice(&to.octets());
                let mut header = Checksum::new();
                header.add_bytes(ip);
                ip[10..12].copy_from_slice(&header.finish().to_be_bytes());
                packet.push(14).unwrap()[12..].copy_from_slice(&[8, 0]);
                (GsoKind::TcpV4, 34)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                sum.add_bytes(&from.octets());
                sum.add_bytes(&to.octets());
                let ip = packet.push(40).unwrap();
                ip[0] = 0x60;
                ip[4..6].copy_from_slice(&((tcp_len + data) as u16).to_be_bytes());
                ip[6] = 6;
                ip[7] = 64;
                ip[8..24].copy_from_slice(&from.octets());
                ip[24..40].copy_from_slice(&to.octets());
                packet.push(14).unwrap()[12..].copy_from_slice(&[0x86, 0xdd]);
                (GsoKind::TcpV6, 54)
            }
            _ => panic!("one family"),
        };
        sum.add_u16(6);
        sum.add_u16((tcp_len + data) as u16);
        let head = packet.head_mut();
        head[0..6].copy_from_slice(&self.to.mac);
        head[6..12].copy_from_slice(&self.from.mac);
        head[start + 16..start + 18].copy_from_slice(&sum.sum().to_be_bytes());
        packet.tx_checksum = TxChecksum::Partial { start: start as u16, offset: 16 };
        if data > usize::from(mss) {
            let header_len = packet.head().len() as u16;
            packet.gso = Some(Gso { kind, size: mss, header_len });
        }
        packet
    }
}

/// The fields of a received TCP segment that the tests look at.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub ports: (u16, u16),
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    pub data: usize,
    /// The time stamp, if any.
    pub stamp: Option<u32>,
    pub window_scale: Option<u8>,
}

/// Reads a frame as TCP over IPv4 or IPv6.
pub fn hear(packet: &PacketBuf) -> Option<Heard> {
    let f = packet.head();
    let tcp = match f.get(12..14)? {
        [8, 0] if f.get(23) == Some(&6) => 34,
        [0x86, 0xdd] if f.get(20) == Some(&6) => 54,
        _ => return None,
    };
    let u16_at = |at: usize| u16::from_be_bytes([f[at], f[at + 1]]);
    let u32_at = |at: usize| u32::from_be_bytes([f[at], f[at + 1], f[at + 2], f[at + 3]]);
    let header = usize::from(f[tcp + 12] >> 4) * 4;
    let (mut stamp, mut window_scale) = (None, None);
    let mut at = tcp + 20;
    while at < tcp + header {
        match f[at] {
            0 => break,
            1 => at += 1,
            kind => {
                match kind {
                    3 => window_scale = Some(f[at + 2]),
                    8 => stamp = Some(u32_at(at + 2)),
                    _ => {}
                }
                at += usize::from(f[at + 1]);
            }
        }
    }
    Some(Heard {
        ports: (u16_at(tcp), u16_at(tcp + 2)),
        seq: u32_at(tcp + 4),
        ack: u32_at(tcp + 8),
        flags: f[tcp + 13],
        window: u16_at(tcp + 14),
        data: packet.len() - tcp - header,
        stamp,
        window_scale,
    })
}

/// A connection over a link that loses nothing: acknowledges at once, never retransmits.
pub struct Conn {
    pub me: Host,
    pub peer: Host,
    pub ports: (u16, u16),
    pub mss: u16,
    pub snd_nxt: u32,
    pub snd_una: u32,
    pub rcv_nxt: u32,
    pub send_window: usize,
    /// The window that we advertise, unscaled.
    pub window: u16,
    scale: u8,
    stamp: Option<u32>,
}

static NEXT_PORT: AtomicU16 = AtomicU16::new(50_000);

/// Our window scale.
const OUR_SCALE: u8 = 8;

/// Our window, unscaled: 704 KiB, less than five hundred of the smallest full segments. A tap queues a
/// thousand frames and drops what is beyond, and a kernel that sends segments one by one to a reader
/// that a busy machine holds up would otherwise come to that.
const OUR_WINDOW: u16 = 0x0b00;

impl Conn {
    /// Waits for a kernel socket to connect to us, on any port.
    pub fn accept(link: &mut Link, me: Host, peer: Host, mss: u16, stamps: bool) -> Self {
        let syn = link.wait(&me, |p| hear(p).is_some_and(|h| h.flags & (SYN | ACK) == SYN));
        let heard = hear(&syn).unwrap();
        let mut conn = Self {
            me,
            peer,
            ports: (heard.ports.1, heard.ports.0),
            mss,
            snd_nxt: 1000,
            snd_una: 1000,
            rcv_nxt: heard.seq.wrapping_add(1),
            send_window: 0,
            window: OUR_WINDOW,
            scale: heard.window_scale.unwrap_or(0),
            stamp: heard.stamp.filter(|_| stamps),
        };
        let segment = conn.syn(SYN | ACK);
        link.send(segment);
        conn.snd_nxt += 1;
        conn.await_ack(link);
        conn
    }

    /// Connects to a kernel socket.
    pub fn connect(link: &mut Link, me: Host, peer: Host, port: u16, mss: u16) -> Self {
        let mut conn = Self {
            me,
            peer,
            // A port of its own: the kernel may still remember the last connection.
            ports: (NEXT_PORT.fetch_add(1, Ordering::Relaxed), port),
            mss,
            snd_nxt: 1000,
            snd_una: 1000,
            rcv_nxt: 0,
            send_window: 0,
            window: OUR_WINDOW,
            scale: 0,
            stamp: Some(0),
        };
        let syn = conn.syn(SYN);
        link.send(syn);
        conn.snd_nxt += 1;
        let answer = link.wait(&me, |p| hear(p).is_some_and(|h| h.flags & SYN != 0));
        let heard = hear(&answer).unwrap();
        assert_eq!(heard.flags & (SYN | ACK), SYN | ACK);
        conn.rcv_nxt = heard.seq.wrapping_add(1);
        conn.snd_una = heard.ack;
        conn.scale = heard.window_scale.unwrap_or(0);
        conn.stamp = heard.stamp;
        conn.send_window = usize::from(heard.window);
        let ack = conn.ack();
        link.send(ack);
        conn
    }

    fn syn(&self, flags: u8) -> PacketBuf {
        let [m0, m1] = self.mss.to_be_bytes();
        let mut options = vec![2, 4, m0, m1, 1, 3, 3, OUR_SCALE];
        options.extend(self.stamp_option());
        self.segment(self.snd_nxt, flags, &options).frame(None, self.mss)
    }

    fn stamp_option(&self) -> Vec<u8> {
        let Some(echo) = self.stamp else { return Vec::new() };
        let mut option = vec![1, 1, 8, 10, 0, 0, 0, 1];
        option.extend_from_slice(&echo.to_be_bytes());
        option
    }

    fn segment<'a>(&self, seq: u32, flags: u8, options: &'a [u8]) -> Segment<'a> {
        let ack = if flags & ACK != 0 { self.rcv_nxt } else { 0 };
        let (from, to, ports) = (self.me, self.peer, self.ports);
        Segment { from, to, ports, seq, ack, flags, window: self.window, options }
    }

    /// An acknowledgement of everything so far.
    pub fn ack(&self) -> PacketBuf {
        self.segment(self.snd_nxt, ACK, &self.stamp_option()).frame(None, self.mss)
    }

    /// Data, which must fit the window.
    pub fn data(&mut self, payload: Frag) -> PacketBuf {
        let n = payload.len() as u32;
        let options = self.stamp_option();
        let mss = self.mss - options.len() as u16;
        let packet = self.segment(self.snd_nxt, ACK | PSH, &options).frame(Some(payload), mss);
        self.snd_nxt = self.snd_nxt.wrapping_add(n);
        packet
    }

    pub fn fin(&mut self) -> PacketBuf {
        let packet =
            self.segment(self.snd_nxt, ACK | FIN, &self.stamp_option()).frame(None, self.mss);
        self.snd_nxt = self.snd_nxt.wrapping_add(1);
        packet
    }

    /// Bytes that may be sent now.
    pub fn room(&self) -> usize {
        self.send_window.saturating_sub(self.inflight())
    }

    /// Bytes sent and not yet acknowledged.
    pub fn inflight(&self) -> usize {
        self.snd_nxt.wrapping_sub(self.snd_una) as usize
    }

    /// Takes note of a frame; `Some` with how many of its last data bytes are new if it is this
    /// connection's. A busy machine can make the kernel repeat itself.
    pub fn hear(&mut self, packet: &PacketBuf) -> Option<usize> {
        let heard = hear(packet)?;
        if heard.ports != (self.ports.1, self.ports.0) {
            return None;
        }
        if heard.ack.wrapping_sub(self.snd_una).cast_signed() >= 0 {
            self.snd_una = heard.ack;
        }
        self.send_window = usize::from(heard.window) << self.scale;
        if self.stamp.is_some() {
            self.stamp = heard.stamp;
        }
        let repeated = self.rcv_nxt.wrapping_sub(heard.seq).cast_signed();
        assert!(repeated >= 0, "nothing is lost here");
        if repeated as usize > heard.data {
            return Some(0);
        }
        let end = heard.data as u32 + u32::from(heard.flags & FIN != 0);
        self.rcv_nxt = heard.seq.wrapping_add(end);
        Some(heard.data - repeated as usize)
    }

    /// Waits for an acknowledgement of everything sent.
    pub fn await_ack(&mut self, link: &mut Link) {
        while self.snd_una != self.snd_nxt {
            let me = self.me;
            let packet = link.wait(&me, |p| hear(p).is_some());
            self.hear(&packet);
        }
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
            None => (0, 0, 0),
        };
        // CWR in a super-frame is announced, so that it is not copied to every segment.
        let cwr = packet.head()[usize::from(start) + 13] & 0x80 != 0 && kind != 0;
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
