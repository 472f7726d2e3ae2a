//! Operations on sockets of every kind.

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::{CompletionQueue, Instant, Returns};

use super::Stack;
use crate::net::is_link_local;
use crate::sockets::{Socket, with_scope};
use crate::{Error, ErrorEntry, LifecycleEvent, Notification, Readiness, SocketId};

impl Stack {
    /// Closes a socket: `id` is stale from here on. A connection still delivers what is queued; if
    /// received data is unread, it resets the peer (RFC 9293 section 3.10.4, RFC 2525 section
    /// 2.17). A listener resets the connections that were not accepted.
    pub fn close(&mut self, now: Instant, id: impl Into<SocketId>) {
        let id = id.into();
        let cx = &mut self.cx;
        match cx.table.get(id) {
            Ok(Socket::Tcp(_)) => self.tcp.close(cx, now, id),
            Ok(Socket::Listener(_)) => self.listeners.close(cx, id.index()),
            Ok(Socket::Udp(_)) => self.udp.close(cx, now, id.index()),
            Ok(Socket::TimeWait(_)) | Err(_) => {}
        }
    }

    /// Resets a connection; its id stays until [`close`](Self::close). Closes other sockets.
    pub fn abort(&mut self, now: Instant, id: impl Into<SocketId>) {
        let id = id.into();
        match self.cx.table.get(id) {
            Ok(Socket::Tcp(_)) => self.cx.abort(id.index()),
            _ => self.close(now, id),
        }
    }

    /// The address and port of this side.
    pub fn local_addr(&self, id: impl Into<SocketId>) -> Result<SocketAddr, Error> {
        Ok(match self.cx.table.get(id.into())? {
            Socket::Tcp(socket) => {
                let scope = self.cx.net.scope_of_local(socket.tuple.local);
                with_scope(socket.tuple.local_addr(), scope)
            }
            Socket::Listener(socket) => socket.local,
            Socket::Udp(socket) => socket.local,
            Socket::TimeWait(_) => return Err(Error::NoSuchSocket),
        })
    }

    /// The address and port of the other side; `NotConnected` if there is none.
    pub fn remote_addr(&self, id: impl Into<SocketId>) -> Result<SocketAddr, Error> {
        match self.cx.table.get(id.into())? {
            Socket::Tcp(socket) => {
                let scope = self.cx.net.scope_of_local(socket.tuple.local);
                let remote = socket.tuple.remote_addr();
                Ok(if is_link_local(remote.ip()) { with_scope(remote, scope) } else { remote })
            }
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(socket) => socket.remote.ok_or(Error::NotConnected),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    /// The readiness of a socket.
    pub fn readiness(&self, id: impl Into<SocketId>) -> Result<Readiness, Error> {
        Ok(self.cx.table.get(id.into())?.readiness())
    }

    /// Takes the socket's error.
    pub fn take_error(&mut self, id: impl Into<SocketId>) -> Option<Error> {
        match self.cx.table.get_mut(id.into()).ok()? {
            Socket::Tcp(socket) => socket.take_error(),
            Socket::Listener(_) | Socket::TimeWait(_) => None,
            Socket::Udp(socket) => {
                let down = socket.down.then_some(Error::NetworkDown);
                socket.take_error().or(down)
            }
        }
    }

    /// Takes the oldest entry of the socket's error queue: completions of zero-copy sends,
    /// timestamps, and with [`SocketOption::QueueErrors`](crate::SocketOption) or
    /// [`Udp::queue_errors`](crate::Udp::queue_errors), errors.
    pub fn poll_error_queue(&mut self, id: impl Into<SocketId>) -> Option<ErrorEntry> {
        let id = id.into();
        self.cx.drain_completions();
        let entry = self.cx.table.get_mut(id).ok()?.errors_mut()?.pop();
        self.cx.after_error_read(id);
        entry
    }

    /// Opts a socket, or a listener's later connections, in to zero-copy sends, or out again.
    pub fn set_zerocopy(&mut self, id: impl Into<SocketId>, on: bool) -> Result<(), Error> {
        if let Some(reporting) = self.cx.table.get_mut(id.into())?.reporting() {
            reporting.zerocopy = on;
        }
        Ok(())
    }

    /// Whether a socket has opted in to zero-copy sends.
    pub fn zerocopy(&self, id: impl Into<SocketId>) -> Result<bool, Error> {
        Ok(match self.cx.table.get(id.into())? {
            Socket::Tcp(socket) => socket.reporting.zerocopy,
            Socket::Listener(socket) => socket.reporting.zerocopy,
            Socket::Udp(socket) => socket.reporting.zerocopy,
            Socket::TimeWait(_) => false,
        })
    }

    /// Takes the oldest notification from the socket's error queue.
    pub fn poll_notification(&mut self, id: impl Into<SocketId>) -> Option<Notification> {
        let id = id.into();
        self.cx.drain_completions();
        let notification = self.cx.table.get_mut(id).ok()?.errors_mut()?.pop_notification()?;
        self.cx.after_error_read(id);
        Some(notification)
    }

    /// Outstanding notifications of a socket, without unread ones.
    pub fn sends_outstanding(&self, id: impl Into<SocketId>) -> Result<usize, Error> {
        Ok(self.cx.table.get(id.into())?.errors().map_or(0, |errors| errors.sends.live))
    }

    /// The queue of completions; [`CompletionQueue::set_waker`] lets it wake the driver.
    pub fn completions(&self) -> &Arc<CompletionQueue> {
        &self.cx.work.completions
    }

    /// The queue of kept memory that was released. It wakes the driver ([`Returns::set_waker`]).
    pub fn returns(&self) -> &Arc<Returns> {
        &self.cx.work.returns
    }

    /// Begins to record when connections are established and end, or stops, and forgets what nobody has
    /// polled. Nothing is recorded by default.
    pub fn record_lifecycle(&mut self, record: bool) {
        self.cx.lifecycle = record.then(Box::default);
    }

    /// The next connection that was established or has ended, in the order in which that happened. An
    /// established connection ends once. A connection whose handshake fails is not there.
    ///
    /// At most [`LIFECYCLE_EVENTS`](crate::limits::LIFECYCLE_EVENTS) wait to be polled; further ones are only counted
    /// ([`unrecorded_lifecycle`](Self::unrecorded_lifecycle)).
    pub fn poll_lifecycle(&mut self) -> Option<LifecycleEvent> {
        self.cx.lifecycle.as_mut()?.poll()
    }

    /// Number of events that were not recorded, because too many waited to be polled.
    pub fn unrecorded_lifecycle(&self) -> u64 {
        self.cx.lifecycle.as_ref().map_or(0, |lifecycle| lifecycle.unrecorded())
    }
}
