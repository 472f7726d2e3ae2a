//! Closed connections in TIME-WAIT: small, bounded in number, and replaceable.

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::{SegmentOut, Seq, TcpHeader, TimeWaitStep};

use super::TcpSockets;
use super::input::Segment;
use super::socket::{Owner, SocketFlags};
use crate::config::TimeWaitReuse;
use crate::counters::DropReason;
use crate::limits::TIME_WAIT_CONNECTIONS;
use crate::sockets::Context;
use crate::sockets::listen::{Listeners, OldConnection};
use crate::sockets::table::{Socket, TimeWaitSocket};
use crate::sockets::tuple::Tuple;

impl TcpSockets {
    /// Records the end of the connection at `index`, which is in TIME-WAIT. If its application has closed it,
    /// a [`TimeWaitSocket`] replaces it; beyond the limit, the oldest one goes.
    pub(super) fn enter_time_wait(&mut self, cx: &mut Context, index: u32) {
        cx.note_lifecycle(index, true);
        let Some(socket) = cx.table.tcp_mut(index) else { return };
        // `TimeWaitSocket` has no link to be bound to.
        if socket.owner != Owner::Closed || socket.bound().is_some() {
            return;
        }
        let tuple = socket.tuple;
        let Some(tcp) =
            socket.conn.time_wait().filter(|_| socket.flags.contains(SocketFlags::DEMUX))
        else {
            // A new connection between the same ends has replaced it.
            return self.remove_connection(cx, index);
        };
        let until = tcp.until();
        socket.release_charges(&mut cx.net.mem);
        cx.table.replace(index, Socket::TimeWait(Box::new(TimeWaitSocket { tuple, tcp })));
        cx.wheel.schedule(index, until);

        self.time_wait.extend(cx.table.id_of(index));
        while let Some(first) = self.time_wait.front()
            && !matches!(cx.table.get(*first), Ok(Socket::TimeWait(_)))
        {
            self.time_wait.pop_front();
        }
        if self.time_wait.len() > TIME_WAIT_CONNECTIONS
            && let Some(oldest) = self.time_wait.pop_front()
            && matches!(cx.table.get(oldest), Ok(Socket::TimeWait(_)))
        {
            cx.net.counters.tcp_time_wait_evicted += 1;
            self.remove_connection(cx, oldest.index());
        }
    }

    /// Processes a segment of a connection in TIME-WAIT.
    pub(super) fn time_wait_input(
        &mut self,
        cx: &mut Context,
        listeners: &Listeners,
        now: Instant,
        index: u32,
        segment: &Segment<'_>,
        payload_len: usize,
    ) {
        let Some(Socket::TimeWait(time_wait)) = cx.table.at_mut(index) else { return };
        let tuple = time_wait.tuple;
        let step = time_wait.tcp.handle_segment(now, segment.header, payload_len as u32);
        // The timer stays; when it fires it is set again.
        match step {
            TimeWaitStep::Noted => {}
            TimeWaitStep::Ignored(reason) => cx.net.counters.drop_tcp(reason),
            TimeWaitStep::Answered(answer, dropped) => {
                if let Some(reason) = dropped {
                    cx.net.counters.drop_tcp(reason);
                }
                cx.answer_in_time_wait(now, &tuple, answer);
            }
            TimeWaitStep::Over => self.remove_connection(cx, index),
            TimeWaitStep::Reopens { iss_above } => {
                let answer = time_wait.tcp.acknowledgement(now);
                let old = OldConnection { index, last: iss_above };
                if !self.reopen_by(cx, listeners, now, tuple, segment, old) {
                    cx.net.counters.drop_one(DropReason::TcpNoSocket);
                    cx.answer_in_time_wait(now, &tuple, answer);
                }
            }
        }
    }

    /// The timer of a connection in TIME-WAIT at `index` has fired.
    pub(crate) fn time_wait_timeout(&mut self, cx: &mut Context, now: Instant, index: u32) {
        let Some(Socket::TimeWait(time_wait)) = cx.table.at(index) else { return };
        let until = time_wait.tcp.until();
        if until <= now {
            self.remove_connection(cx, index);
        } else {
            cx.wheel.schedule(index, until);
        }
    }
}

impl Context {
    /// Answers a segment of a connection in TIME-WAIT.
    fn answer_in_time_wait(&mut self, now: Instant, tuple: &Tuple, header: TcpHeader) {
        let segment = SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 };
        self.send_segment(now, tuple, segment);
    }
}

/// If a new connection may replace this one, the sequence number that its first has to exceed.
pub(crate) fn reusable(
    socket: Option<&Socket>,
    reuse: TimeWaitReuse,
    local: bool,
    now: Instant,
) -> Option<Seq> {
    let Some(Socket::TimeWait(time_wait)) = socket else { return None };
    match reuse {
        TimeWaitReuse::On => time_wait.tcp.reusable(now),
        TimeWaitReuse::Loopback if local => time_wait.tcp.reusable(now),
        TimeWaitReuse::Loopback | TimeWaitReuse::Off => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::tcp::socket::TcpSocket;

    #[test]
    fn what_is_left_of_a_connection_is_small() {
        let (left, whole) = (size_of::<TimeWaitSocket>(), size_of::<TcpSocket>());
        println!("{left} bytes of {whole}");
        assert!(left <= 128, "{left}");
        assert!(left * 4 <= whole, "{left} of {whole}");
    }
}
