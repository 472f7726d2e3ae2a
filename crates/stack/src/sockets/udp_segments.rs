//! Byte path, step S3 for datagrams: one call that sends many of one size (what Linux calls
//! segmentation offload of UDP, `UDP_SEGMENT`). They are cut here, and by reference: the payload is
//! only sliced, and with a notification all of them complete under one id.

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::{Frag, FragVec, Instant};

use super::handles::Udp;
use super::udp::Ends;
use crate::error::Error;
use crate::limits::UDP_MAX_SEGMENTS;
use crate::net::wire::udp;
use crate::net::wire::{ipv4, ipv6};

/// Where one call sends to, and how it cuts what it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpTarget {
    /// To whom; `None`: where the socket is connected.
    pub remote: Option<SocketAddr>,
    /// Payload bytes of each datagram but the last, 0 for one datagram only; `None`: as is
    /// [set](Udp::set_segment) on the socket.
    pub segment: Option<u16>,
    /// The data of the next call belongs to the same datagram, which waits for it (Linux's
    /// `MSG_MORE`). What the first call says of `remote` and `segment` counts.
    pub more: bool,
    /// The address of ours that it is from (`IP_PKTINFO`); `None`: the socket's, or the one that suits.
    pub source: Option<IpAddr>,
}

impl From<Option<SocketAddr>> for UdpTarget {
    fn from(remote: Option<SocketAddr>) -> Self {
        Self { remote, ..Self::default() }
    }
}

impl Ends {
    /// Whether `len` bytes may be sent so where packets of `mtu` bytes go in one piece.
    pub(super) fn check_segments(&self, len: usize, mtu: usize) -> Result<(), Error> {
        let ip = if self.remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        // As Linux: what is cut to fit is not cut again.
        if ip + udp::LEN + len.min(self.segment) > mtu {
            return Err(Error::MessageTooLong);
        }
        if len > self.segment * UDP_MAX_SEGMENTS {
            return Err(Error::InvalidInput);
        }
        Ok(())
    }
}

impl Udp<'_> {
    /// Has calls that send more than `bytes` of payload send datagrams of so many bytes each, the
    /// last one shorter if need be; 0: each call is one datagram, the default.
    pub fn set_segment(&mut self, bytes: u16) {
        self.socket.segment = bytes;
    }
}

impl Udp<'_> {
    /// Sends the payload cut in datagrams. If the first cannot be sent, none is; what is dropped
    /// behind it is counted, and is to the caller as what the network loses.
    pub(super) fn output_segments(
        &mut self,
        now: Instant,
        ends: Ends,
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let (size, one) = (ends.segment, Ends { segment: 0, ..ends });
        let (mut pieces, mut rest, mut sent) = (data.into_iter(), Frag::empty(), 0);
        while sent < len {
            let n = size.min(len - sent);
            let (mut part, mut missing) = (FragVec::new(), n);
            while missing > 0 {
                if rest.is_empty() {
                    let Some(next) = pieces.next() else { break };
                    rest = next;
                }
                let slice = rest.split_to(missing);
                missing -= slice.len();
                part.push(slice);
            }
            let done = self.output(now, one, part, n);
            if sent == 0 {
                done?;
            }
            sent += n;
        }
        Ok(len)
    }
}
