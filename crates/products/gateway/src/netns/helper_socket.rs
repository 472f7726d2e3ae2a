//! The socket between a process and its helper: one message a packet, with the kind in the first byte.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::limits::{HELPER_FDS, HELPER_MESSAGE};

/// To the helper: an [`InsideNetwork`](super::InsideNetwork).
pub(super) const NETWORK: u8 = b'n';
/// The helper asks for its user map; the answer is the same.
pub(super) const MAPS: u8 = b'm';
/// The tap is there: a [`Ready`], and its descriptors.
pub(super) const READY: u8 = b'r';
/// To the helper: begin.
pub(super) const GO: u8 = b'g';
/// The helper could not do its part: a text.
pub(super) const FAILED: u8 = b'f';
/// The program could not be executed: the error's number.
pub(super) const NOT_EXECUTED: u8 = b'x';
/// The helper is in the namespace and takes requests: which of the port tables it passes, and their descriptors.
pub(super) const SERVES: u8 = b's';
/// To the helper: a request for a socket. The answer is the same, with the descriptor.
pub(super) const SOCKET: u8 = b'k';
/// There is no such socket: the error's number.
pub(super) const ERRNO: u8 = b'e';

/// An end of the socket.
#[derive(Debug)]
pub(super) struct Wire(OwnedFd);

pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Message {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// An end, and the other as a descriptor for the helper.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(ours), its))
    }

    pub(super) fn send(&self, kind: u8, body: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELPER_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let body = body.get(..HELPER_MESSAGE - 1).unwrap_or(body);
        let kind = [kind];
        let parts = [IoSlice::new(&kind), IoSlice::new(body)];
        sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// From now on, [`receive`](Self::receive) fails with `WouldBlock` after this time.
    pub(super) fn limit_time(&self, limit: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(&self.0, Timeout::Recv, Some(limit))?)
    }

    /// Waits for a message. `None`: the other end is closed.
    pub(super) fn receive(&self) -> io::Result<Option<Message>> {
        let mut bytes = vec![0; HELPER_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELPER_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let len = loop {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            match recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received.bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        };
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                fds.extend(passed);
            }
        }
        bytes.truncate(len);
        Ok(bytes.split_first().map(|(&kind, body)| Message { kind, body: body.to_vec(), fds }))
    }
}

/// The helper's report about the tap that it made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) name: String,
    pub(super) kernel_mac: [u8; 6],
    pub(super) mtu: usize,
    /// Settings that failed and are not essential; a line each.
    pub(super) notes: Vec<String>,
}

impl Ready {
    pub(super) fn encode(&self) -> String {
        let mac = self.kernel_mac.map(|byte| format!("{byte:02x}")).concat();
        let notes: String = self.notes.iter().map(|note| format!("\n{note}")).collect();
        format!("{} {mac} {}{notes}", self.name, self.mtu)
    }

    pub(super) fn decode(text: &str) -> Option<Self> {
        let (first, notes) = text.split_once('\n').unwrap_or((text, ""));
        let mut words = first.split(' ');
        let (name, mac, mtu) = (words.next()?, words.next()?, words.next()?);
        let kernel_mac = super::mac(mac)?;
        let notes = notes.lines().map(str::to_owned).collect();
        Some(Self { name: name.to_owned(), kernel_mac, mtu: mtu.parse().ok()?, notes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_is_described_as_it_is() {
        let ready = Ready {
            name: "pw0".into(),
            kernel_mac: [0, 1, 2, 0xab, 0xcd, 0xff],
            mtu: 65_520,
            notes: vec!["one thing".into(), "another".into()],
        };
        assert_eq!(Ready::decode(&ready.encode()), Some(ready));
        assert_eq!(Ready::decode("pw0 0102 1500"), None);
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors_and_the_end_is_seen() {
        let (ours, its) = Wire::pair().expect("a socket pair");
        let its = Wire::new(its);
        let passed = [std::fs::File::open("/dev/null").expect("a file").into()];
        its.send(READY, b"text", &passed).expect("room");
        its.send(GO, b"", &[]).expect("room");
        drop(its);
        let first = ours.receive().expect("a message").expect("the other end is there");
        assert_eq!((first.kind, &*first.text(), first.fds.len()), (READY, "text", 1));
        let second = ours.receive().expect("a message").expect("the other end is there");
        assert_eq!((second.kind, second.body.len(), second.fds.len()), (GO, 0, 0));
        assert!(ours.receive().expect("the end").is_none());
    }
}
