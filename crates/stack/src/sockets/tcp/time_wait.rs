//! Closed connections in TIME-WAIT: small, bounded in number, and replaceable.

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::{SegmentOut, Seq, TcpHeader, TimeWaitStep};

use super::socket::{Lists, Owner};
use crate::config::TimeWaitReuse;
use crate::counters::DropReason;
use crate::limits::TIME_WAIT_CONNECTIONS;
use crate::net::Received;
use crate::sockets::listen::requests::requests_timeout;
use crate::sockets::listen::{Old, ToListener};
use crate::sockets::table::{Remains, Socket};
use crate::sockets::tuple::Tuple;
use crate::stack::Core;

impl Core {
    /// Of the connection at `index`, in TIME-WAIT, the end is recorded. If its application has closed it, its
    /// remains replace it; beyond the limit, the oldest remains go.
    pub(crate) fn rest(&mut self, index: u32) {
        self.sockets.note_lifecycle(&self.net, index, true);
        let Some(socket) = self.sockets.table.tcp_mut(index) else { return };
        // The remains would not know a link.
        if socket.owner != Owner::Closed || socket.bound().is_some() {
            return;
        }
        let tuple = socket.tuple;
        let Some(tcp) = socket.conn.time_wait().filter(|_| socket.lists.contains(Lists::DEMUX))
        else {
            // A new connection between the same ends has replaced it.
            return self.remove_connection(index);
        };
        let until = tcp.until();
        socket.leave(&mut self.mem);
        self.sockets.table.replace(index, Socket::TimeWait(Box::new(Remains { tuple, tcp })));
        self.sockets.wheel.schedule(index, until);

        let sockets = &mut self.sockets;
        sockets.time_wait.extend(sockets.table.id_of(index));
        let table = &sockets.table;
        while let Some(first) = sockets.time_wait.front()
            && !matches!(table.get(*first), Ok(Socket::TimeWait(_)))
        {
            sockets.time_wait.pop_front();
        }
        if sockets.time_wait.len() > TIME_WAIT_CONNECTIONS
            && let Some(oldest) = sockets.time_wait.pop_front()
            && matches!(sockets.table.get(oldest), Ok(Socket::TimeWait(_)))
        {
            self.net.counters.tcp_time_wait_evicted += 1;
            self.remove_connection(oldest.index());
        }
    }

    /// Processes a segment of a connection in TIME-WAIT.
    pub(crate) fn time_wait_input(
        &mut self,
        now: Instant,
        index: u32,
        header: &TcpHeader,
        payload_len: usize,
        received: &Received,
    ) {
        let Some(Socket::TimeWait(remains)) = self.sockets.table.at_mut(index) else { return };
        let tuple = remains.tuple;
        let step = remains.tcp.handle_segment(now, header, payload_len as u32);
        // The timer stays; when it fires it is set again.
        match step {
            TimeWaitStep::Noted => {}
            TimeWaitStep::Ignored(reason) => self.net.counters.drop_tcp(reason),
            TimeWaitStep::Answered(answer, dropped) => {
                if let Some(reason) = dropped {
                    self.net.counters.drop_tcp(reason);
                }
                self.answer_late(now, &tuple, answer);
            }
            TimeWaitStep::Over => self.remove_connection(index),
            TimeWaitStep::Reopens { iss_above } => {
                let answer = remains.tcp.acknowledgement(now);
                let (segment, old) =
                    (ToListener::new(tuple, header, received), Old { index, last: iss_above });
                if !self.reopen_by(now, segment, received, old) {
                    self.net.counters.drop_one(DropReason::TcpNoSocket);
                    self.answer_late(now, &tuple, answer);
                }
            }
        }
    }

    fn answer_late(&mut self, now: Instant, tuple: &Tuple, header: TcpHeader) {
        let segment = SegmentOut { header, payload: FragVec::new(), gso_size: None, ecn: 0 };
        self.send_segment(now, tuple, segment);
    }

    /// The timer of a socket at `index` has fired, which is no connection.
    pub(crate) fn other_timeout(&mut self, now: Instant, index: u32) {
        let until = match self.sockets.table.at(index) {
            Some(Socket::TimeWait(remains)) => remains.tcp.until(),
            Some(Socket::Listener(_)) => return requests_timeout(self, now, index),
            _ => return,
        };
        if until <= now {
            self.remove_connection(index);
        } else {
            self.sockets.wheel.schedule(index, until);
        }
    }
}

/// If a new connection may replace this one, the sequence number that its first has to exceed.
pub(crate) fn reusable(
    socket: Option<&Socket>,
    reuse: TimeWaitReuse,
    local: bool,
    now: Instant,
) -> Option<Seq> {
    let Some(Socket::TimeWait(remains)) = socket else { return None };
    match reuse {
        TimeWaitReuse::On => remains.tcp.reusable(now),
        TimeWaitReuse::Loopback if local => remains.tcp.reusable(now),
        TimeWaitReuse::Loopback | TimeWaitReuse::Off => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::tcp::socket::TcpSocket;

    #[test]
    fn what_is_left_of_a_connection_is_small() {
        let (left, whole) = (size_of::<Remains>(), size_of::<TcpSocket>());
        println!("{left} bytes of {whole}");
        assert!(left <= 128, "{left}");
        assert!(left * 4 <= whole, "{left} of {whole}");
    }
}
