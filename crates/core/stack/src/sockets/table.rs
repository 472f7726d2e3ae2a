//! The sockets of a stack, by id.

use core::num::NonZeroU32;

use pagewire_tcp::TimeWait;

use super::error_queue::ErrorQueue;
use super::ids::SocketId;
use super::tuple::Tuple;
use crate::error::Error;
use crate::event::{Readiness, ReportState};
use crate::limits::{TABLE_GROWTH_DIVISOR, TABLE_GROWTH_LEAST};
use crate::sockets::listen::socket::ListenerSocket;
use crate::sockets::tcp::socket::{SocketFlags, TcpSocket};
use crate::sockets::udp::socket::UdpSocket;

/// A socket of any kind; boxed, so that a slot of the table is small.
pub(crate) enum Socket {
    Tcp(Box<TcpSocket>),
    Listener(Box<ListenerSocket>),
    Udp(Box<UdpSocket>),
    TimeWait(Box<TimeWaitSocket>),
}

/// A connection in TIME-WAIT that its application has closed. It has the connection's slot of the table.
pub(crate) struct TimeWaitSocket {
    pub(crate) tuple: Tuple,
    pub(crate) tcp: TimeWait,
}

impl Socket {
    #[inline]
    pub(crate) fn readiness(&self) -> Readiness {
        match self {
            Self::Tcp(socket) => socket.readiness(),
            Self::Listener(socket) => socket.readiness(),
            Self::Udp(socket) => socket.readiness(),
            Self::TimeWait(_) => Readiness::NONE,
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Tcp(socket) => socket.is_quiet(),
            Self::Listener(_) | Self::Udp(_) | Self::TimeWait(_) => true,
        }
    }

    pub(crate) fn errors(&self) -> Option<&ErrorQueue> {
        match self {
            Self::Tcp(socket) => socket.errors(),
            Self::Udp(socket) => socket.errors.as_deref(),
            Self::Listener(_) | Self::TimeWait(_) => None,
        }
    }

    pub(crate) fn errors_mut(&mut self) -> Option<&mut ErrorQueue> {
        match self {
            Self::Tcp(socket) => socket.extra.as_mut()?.errors.as_mut(),
            Self::Udp(socket) => socket.errors.as_deref_mut(),
            Self::Listener(_) | Self::TimeWait(_) => None,
        }
    }

    pub(crate) fn reporting(&mut self) -> Option<&mut ReportState> {
        match self {
            Self::Tcp(socket) => Some(&mut socket.reporting),
            Self::Listener(socket) => Some(&mut socket.reporting),
            Self::Udp(socket) => Some(&mut socket.reporting),
            Self::TimeWait(_) => None,
        }
    }
}

/// A slab with generations. Sockets are boxed: a slot costs 24 bytes. The stack uses indices alone.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<TableSlot>,
    free: Vec<u32>,
}

struct TableSlot {
    /// Generation of the socket in the slot, or of the next one to be there.
    generation: NonZeroU32,
    socket: Option<Socket>,
}

/// Makes room for another entry of a table that lasts.
pub(crate) fn grow<T>(entries: &mut Vec<T>) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact((entries.len() / TABLE_GROWTH_DIVISOR).max(TABLE_GROWTH_LEAST));
    }
}

impl Table {
    /// Inserts a socket; `None` when the table has `limit` sockets.
    pub(crate) fn insert(&mut self, socket: Socket, limit: usize) -> Option<SocketId> {
        if self.len() >= limit {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok().filter(|&i| i != u32::MAX)?;
                grow(&mut self.slots);
                self.slots.push(TableSlot { generation: NonZeroU32::MIN, socket: None });
                index
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.socket = Some(socket);
        Some(SocketId { index, generation: slot.generation })
    }

    /// Removes a socket; its id is stale from here on.
    pub(crate) fn remove(&mut self, index: u32) -> Option<Socket> {
        let slot = self.slots.get_mut(index as usize)?;
        let socket = slot.socket.take()?;
        // A slot whose generations are used up is never used again.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            self.free.push(index);
        }
        Some(socket)
    }

    /// Replaces the socket at `index`, if there is one; its id stays.
    pub(crate) fn replace(&mut self, index: u32, socket: Socket) {
        if let Some(place) = self.at_mut(index) {
            *place = socket;
        }
    }

    /// The ends of the connection at `index`, if the demux has it.
    pub(crate) fn tuple(&self, index: u32) -> Option<&Tuple> {
        match self.at(index)? {
            Socket::Tcp(socket) if socket.flags.contains(SocketFlags::DEMUX) => Some(&socket.tuple),
            Socket::TimeWait(time_wait) => Some(&time_wait.tuple),
            _ => None,
        }
    }

    /// Makes `id` stale although its socket stays.
    pub(crate) fn disown(&mut self, id: SocketId) {
        if let Some(slot) = self.slots.get_mut(id.index as usize)
            && slot.generation == id.generation
        {
            // At the very end of its generations a slot's last id stays good until it is empty.
            slot.generation = slot.generation.saturating_add(1);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn id_of(&self, index: u32) -> Option<SocketId> {
        let slot = self.slots.get(index as usize)?;
        slot.socket.as_ref()?;
        Some(SocketId { index, generation: slot.generation })
    }

    #[inline]
    pub(crate) fn get(&self, id: SocketId) -> Result<&Socket, Error> {
        let slot = self.slots.get(id.index as usize).filter(|s| s.generation == id.generation);
        slot.and_then(|s| s.socket.as_ref()).ok_or(Error::NoSuchSocket)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SocketId) -> Result<&mut Socket, Error> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation);
        slot.and_then(|s| s.socket.as_mut()).ok_or(Error::NoSuchSocket)
    }

    pub(crate) fn at(&self, index: u32) -> Option<&Socket> {
        self.slots.get(index as usize)?.socket.as_ref()
    }

    pub(crate) fn at_mut(&mut self, index: u32) -> Option<&mut Socket> {
        self.slots.get_mut(index as usize)?.socket.as_mut()
    }

    pub(crate) fn tcp(&self, index: u32) -> Option<&TcpSocket> {
        match self.at(index)? {
            Socket::Tcp(socket) => Some(socket),
            _ => None,
        }
    }

    pub(crate) fn tcp_mut(&mut self, index: u32) -> Option<&mut TcpSocket> {
        match self.at_mut(index)? {
            Socket::Tcp(socket) => Some(socket),
            _ => None,
        }
    }

    /// The connection at `index` and another, which `id` names.
    pub(crate) fn tcp_two_mut(&mut self, index: u32, id: SocketId) -> Option<[&mut TcpSocket; 2]> {
        let places = [index as usize, id.index as usize];
        let [one, other] = self.slots.get_disjoint_mut(places).ok()?;
        match (one.socket.as_mut()?, other.socket.as_mut()?) {
            (Socket::Tcp(a), Socket::Tcp(b)) if other.generation == id.generation => Some([a, b]),
            _ => None,
        }
    }

    pub(crate) fn listener(&self, index: u32) -> Option<&ListenerSocket> {
        match self.at(index)? {
            Socket::Listener(socket) => Some(socket),
            _ => None,
        }
    }

    pub(crate) fn listener_mut(&mut self, index: u32) -> Option<&mut ListenerSocket> {
        match self.at_mut(index)? {
            Socket::Listener(socket) => Some(socket),
            _ => None,
        }
    }

    pub(crate) fn udp(&self, index: u32) -> Option<&UdpSocket> {
        match self.at(index)? {
            Socket::Udp(socket) => Some(socket),
            _ => None,
        }
    }

    pub(crate) fn udp_mut(&mut self, index: u32) -> Option<&mut UdpSocket> {
        match self.at_mut(index)? {
            Socket::Udp(socket) => Some(socket),
            _ => None,
        }
    }

    /// Indices of all slots, those of free ones included.
    pub(crate) fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        0..self.slots.len() as u32
    }

    /// Places in the table, those of sockets that are gone included.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Iterates over the sockets, with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Socket)> {
        let sockets = self.slots.iter().enumerate();
        sockets.filter_map(|(i, slot)| Some((i as u32, slot.socket.as_ref()?)))
    }
}
