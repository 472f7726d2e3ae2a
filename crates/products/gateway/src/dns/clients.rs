//! TCP connections of the guest to its resolver, each with one query at a time (RFC 7766).

use pagewire::services::{
    Error, Instant, ListenOptions, ListenerId, RecvFlags, SendFlags, SocketBind, SocketId, Stack,
    TcpId,
};
use slab::Slab;
use std::net::SocketAddr;

use super::upstream::{framed, unframed};
use crate::limits::{DNS_CLIENT_TIME, DNS_CLIENTS, DNS_QUERY};
use crate::tally::{Item, Tally};

/// Bytes of the longest query with its length in front.
const ROOM: usize = 2 + DNS_QUERY;

/// The identity of a connection, valid also after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientId {
    index: usize,
    number: u64,
}

#[derive(Debug)]
struct Client {
    id: TcpId,
    number: u64,
    /// Received bytes that were not taken yet.
    read: Vec<u8>,
    busy: bool,
    /// The unsent rest of an answer.
    out: Vec<u8>,
    /// The guest sends nothing more.
    ended: bool,
    until: Instant,
}

/// The TCP connections of one guest.
#[derive(Debug)]
pub(super) struct Clients {
    listeners: Vec<ListenerId>,
    all: Slab<Client>,
    next: u64,
    /// Connections beyond the limit, and those with a query that is too long.
    pub(super) refused: u64,
    tally: Tally,
}

impl Clients {
    pub(super) fn new(tally: Tally) -> Self {
        Self { listeners: Vec::new(), all: Slab::new(), next: 0, refused: 0, tally }
    }

    pub(super) fn listen(
        &mut self,
        stack: &mut Stack,
        local: SocketAddr,
        options: SocketBind,
    ) -> Result<(), Error> {
        let (reserved, local) = stack.reservations().reserve(local, options)?;
        let reservation = Some(reserved);
        let options = ListenOptions { backlog: DNS_CLIENTS, reservation, ..Default::default() };
        let listener = stack.listen(local, options);
        stack.reservations().release(reserved);
        self.listeners.push(listener?);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Handles an event, if it is of a socket here.
    pub(super) fn handle_event(&mut self, now: Instant, stack: &mut Stack, socket: SocketId) {
        if let Some(listener) = self.listeners.iter().copied().find(|id| *id == socket) {
            while let Ok((id, _)) = stack.listener(listener).and_then(|mut it| it.accept()) {
                self.accept(now, stack, id);
            }
            return;
        }
        let found = self.all.iter().find(|(_, client)| client.id == socket);
        if let Some(index) = found.map(|(index, _)| index) {
            self.read(now, stack, index);
            self.write(now, stack, index);
        }
    }

    fn accept(&mut self, now: Instant, stack: &mut Stack, id: TcpId) {
        if self.tally.is_full(Item::DnsClients, self.all.len(), DNS_CLIENTS) {
            self.refused += 1;
            return reset(now, stack, id);
        }
        self.next += 1;
        let index = self.all.insert(Client {
            id,
            number: self.next,
            read: Vec::new(),
            busy: false,
            out: Vec::new(),
            ended: false,
            until: now + DNS_CLIENT_TIME,
        });
        self.read(now, stack, index);
    }

    /// The next query of any client that waits for no answer.
    pub(super) fn poll_query(
        &mut self,
        now: Instant,
        stack: &mut Stack,
    ) -> Option<(ClientId, Vec<u8>)> {
        let (index, message) = self.all.iter().find_map(|(index, client)| {
            let waits = client.busy || !client.out.is_empty();
            let message = unframed(&client.read).filter(|_| !waits)?;
            Some((index, message.to_vec()))
        })?;
        let client = self.all.get_mut(index)?;
        client.busy = true;
        client.until = now + DNS_CLIENT_TIME;
        client.read.drain(..2 + message.len());
        let id = ClientId { index, number: client.number };
        // The buffer has room again.
        self.read(now, stack, index);
        Some((id, message))
    }

    /// Sends the answer to a client's query; `false`: the client is gone.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: ClientId,
        message: &[u8],
    ) -> bool {
        let Some(client) = self.all.get_mut(id.index).filter(|one| one.number == id.number) else {
            return false;
        };
        client.busy = false;
        client.out = framed(message);
        client.until = now + DNS_CLIENT_TIME;
        self.write(now, stack, id.index);
        true
    }

    /// Ends the connection of a client that sent no query.
    pub(super) fn turn_away(&mut self, now: Instant, stack: &mut Stack, id: ClientId) {
        if self.all.get(id.index).is_some_and(|client| client.number == id.number) {
            self.refused += 1;
            self.remove(now, stack, id.index);
        }
    }

    /// Takes received bytes, up to one query of the greatest length.
    fn read(&mut self, now: Instant, stack: &mut Stack, index: usize) {
        let Some(client) = self.all.get_mut(index) else { return };
        let mut buffer = [0; ROOM];
        let lost = loop {
            let room = ROOM - client.read.len();
            let Some(space) = buffer.get_mut(..room).filter(|_| room > 0 && !client.ended) else {
                break false;
            };
            match stack.tcp(client.id).and_then(|mut tcp| tcp.recv(now, space, RecvFlags::empty()))
            {
                Ok(0) => client.ended = true,
                Ok(n) => client.read.extend_from_slice(buffer.get(..n).unwrap_or_default()),
                Err(Error::WouldBlock) => break false,
                Err(_) => break true,
            }
        };
        let too_long = client.read.len() == ROOM && unframed(&client.read).is_none();
        if lost || too_long {
            self.refused += u64::from(too_long);
            return self.remove(now, stack, index);
        }
        self.close_if_over(now, stack, index);
    }

    fn write(&mut self, now: Instant, stack: &mut Stack, index: usize) {
        let Some(client) = self.all.get_mut(index) else { return };
        while !client.out.is_empty() {
            let sent = stack
                .tcp(client.id)
                .and_then(|mut tcp| tcp.send(now, client.out.as_slice(), SendFlags::empty()));
            match sent {
                Ok(n) => drop(client.out.drain(..n)),
                Err(Error::WouldBlock | Error::NoBuffers) => return,
                Err(_) => return self.remove(now, stack, index),
            }
        }
        self.close_if_over(now, stack, index);
    }

    /// Closes a connection whose guest has ended it and has all its answers.
    fn close_if_over(&mut self, now: Instant, stack: &mut Stack, index: usize) {
        let over = |client: &Client| {
            let idle = !client.busy && client.out.is_empty();
            client.ended && idle && unframed(&client.read).is_none()
        };
        if self.all.get(index).is_some_and(over) {
            let client = self.all.remove(index);
            stack.close(now, client.id);
        }
    }

    fn remove(&mut self, now: Instant, stack: &mut Stack, index: usize) {
        if let Some(client) = self.all.try_remove(index) {
            reset(now, stack, client.id);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.all.iter().map(|(_, client)| client.until).min()
    }

    /// Resets connections that were silent for too long, or do not take their answer.
    pub(super) fn handle_timeout(&mut self, now: Instant, stack: &mut Stack) {
        let late = |(index, client): (usize, &Client)| (client.until <= now).then_some(index);
        while let Some(index) = self.all.iter().find_map(late) {
            self.remove(now, stack, index);
        }
    }

    pub(super) fn close(&mut self, now: Instant, stack: &mut Stack) {
        for listener in self.listeners.drain(..) {
            stack.close(now, listener);
        }
        for client in self.all.drain() {
            reset(now, stack, client.id);
        }
    }
}

fn reset(now: Instant, stack: &mut Stack, id: TcpId) {
    stack.abort(now, id);
    stack.close(now, id);
}
