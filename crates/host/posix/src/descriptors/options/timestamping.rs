//! `SO_TIMESTAMPING`: when sent data left and arrived, reported in the error queue.

use std::time::Duration;

use pagewire_stack::{TxMoment, TxTimestamp, TxTimestamping};

use super::Done;
use crate::Errno;
use crate::backend::Backend;
use crate::descriptors::SocketCall;
use crate::file::socket::{Kind, State};
use crate::message::ReceiveMessage;

/// Bits of `SO_TIMESTAMPING` that mean something for a stream here.
pub(crate) const TX_SOFTWARE: u32 = 1 << 1;
const SOFTWARE: u32 = 1 << 4;
const OPT_ID: u32 = 1 << 7;
const TX_SCHED: u32 = 1 << 8;
const TX_ACK: u32 = 1 << 9;
const OPT_TSONLY: u32 = 1 << 11;
const KNOWN: u32 = TX_SOFTWARE | SOFTWARE | OPT_ID | TX_SCHED | TX_ACK | OPT_TSONLY;

impl<B: Backend> SocketCall<'_, B> {
    /// Sets the option of a connected stream.
    ///
    /// # Errors
    /// `EINVAL` for bits without a meaning here (what is received, hardware), and for numbered
    /// bytes before there is a connection to number, as in Linux.
    pub(super) fn set_timestamping(&self, state: &State, bits: u32) -> Done {
        if self.kind != Kind::Stream {
            return Err(Errno::NOPROTOOPT);
        }
        let id = state.stage.connection();
        if bits & !KNOWN != 0 || (bits & OPT_ID != 0 && id.is_none()) {
            return Err(Errno::INVAL);
        }
        match id {
            Some(id) => self.runtime.with_tcp(id, |mut tcp, _| {
                tcp.set_timestamping(kinds(bits));
                Ok(())
            }),
            None => Ok(()),
        }
    }
}

/// Appends the ancillary data that comes before the error: the time of day. A `struct scm_timestamping`
/// has three `timespec`s, of which software fills in the first.
pub(crate) fn put_timestamp(message: &mut ReceiveMessage<'_, '_>, at: Duration) {
    let times = [at.as_secs(), at.subsec_nanos().into(), 0, 0, 0, 0];
    let data: Vec<u8> = times.iter().flat_map(|word| word.to_ne_bytes()).collect();
    message.put_control(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &data);
}

/// The times that the stack is to report.
fn kinds(bits: u32) -> TxTimestamping {
    // Without SOF_TIMESTAMPING_SOFTWARE they would be taken, and not reported.
    let pairs = [
        (TX_SCHED, TxTimestamping::SCHEDULED),
        (TX_SOFTWARE, TxTimestamping::SENT),
        (TX_ACK, TxTimestamping::ACKNOWLEDGED),
    ];
    let wanted = pairs.into_iter().filter(|&(bit, _)| bits & bit != 0 && bits & SOFTWARE != 0);
    wanted.map(|(_, kind)| kind).collect()
}

/// `ee_info` and `ee_data`: which moment (`SCM_TSTAMP_*`), and of which byte.
pub(crate) fn info_and_data(found: &TxTimestamp, bits: u32) -> (u32, u32) {
    let info = match found.moment {
        TxMoment::Sent => 0,
        TxMoment::Scheduled => 1,
        TxMoment::Acknowledged => 2,
    };
    (info, if bits & OPT_ID != 0 { found.byte } else { 0 })
}

/// Whether the timestamp returns the payload, for which there is never room here.
pub(crate) fn returns_payload(bits: u32) -> bool {
    bits & OPT_TSONLY == 0
}
