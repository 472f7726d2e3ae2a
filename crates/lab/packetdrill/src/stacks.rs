//! The stacks of a script's host ([`Stacks`]): one, or several that are its shards.

use std::collections::VecDeque;

use pagewire_mem::{Instant, PacketBuf};
use pagewire_stack::{Shard, Stack, StackConfig, StackError};

/// The first state of the draws.
const FIRST_DRAW: u64 = 0x9e37_79b9_7f4a_7c15;

/// The stacks of a host. All sockets are those of one; each packet comes to any.
#[derive(Debug)]
pub struct Stacks {
    /// The stack with the sockets.
    pub main: Stack,
    others: Vec<Stack>,
    /// The state of the draws of the stack that a packet comes to.
    draws: u64,
}

impl Stacks {
    /// `count` stacks with the same settings.
    ///
    /// # Errors
    /// Those of [`Stack::new`].
    pub fn new(now: Instant, config: &StackConfig, count: usize) -> Result<Self, StackError> {
        let mut places =
            Shard::all(count, &config.secret).filter(|_| count > 1).unwrap_or_default();
        let stack = |place: Option<Shard>| {
            let mut config = config.clone();
            config.shard = place;
            Stack::new(now, config)
        };
        // The last has the sockets, so that a packet which stays at the first is found out.
        let main = stack(places.pop())?;
        let others =
            places.into_iter().map(|place| stack(Some(place))).collect::<Result<_, _>>()?;
        Ok(Self { main, others, draws: FIRST_DRAW })
    }

    /// All stacks.
    pub fn all(&mut self) -> impl Iterator<Item = &mut Stack> {
        std::iter::once(&mut self.main).chain(&mut self.others)
    }

    /// Hands a packet to any of the stacks.
    pub fn handle_frame(&mut self, now: Instant, frame: PacketBuf) {
        // Xorshift: a fixed sequence, so that all runs are equal.
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        let stack = self.draws as usize % (self.others.len() + 1);
        match self.others.get_mut(stack) {
            Some(other) => other.handle_frame(now, frame),
            None => self.main.handle_frame(now, frame),
        }
        self.pass_strays(now);
    }

    /// When the next timer of any stack is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let others = self.others.iter().filter_map(Stack::poll_timeout);
        self.main.poll_timeout().into_iter().chain(others).min()
    }

    /// Runs what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        for stack in self.all() {
            if stack.poll_timeout().is_some_and(|due| due <= now) {
                stack.handle_timeout(now);
            }
        }
        self.pass_strays(now);
    }

    /// Takes what the stacks have to send; returns whether there may be more.
    pub fn poll_transmit(&mut self, now: Instant, frames: &mut VecDeque<PacketBuf>) -> bool {
        let more = self.all().fold(false, |more, stack| stack.poll_transmit(now, frames) | more);
        more | self.pass_strays(now)
    }

    /// Ends a turn of each stack.
    pub fn end_turn(&mut self) {
        self.all().for_each(Stack::end_turn);
    }

    /// Passes packets on to the stacks that they belong to; returns whether there was one.
    fn pass_strays(&mut self, now: Instant) -> bool {
        let (mut all, mut strays) = (Vec::new(), VecDeque::new());
        let mut any = false;
        loop {
            for stack in self.all() {
                while let Some(to) = stack.poll_strays(&mut strays) {
                    all.extend(strays.drain(..).map(|stray| (to, stray)));
                }
            }
            if all.is_empty() {
                return any;
            }
            any = true;
            for (to, mut stray) in all.drain(..) {
                self.others.get_mut(to).unwrap_or(&mut self.main).handle_stray(now, &mut stray);
            }
        }
    }
}

#[cfg(test)]
#[path = "stacks_tests.rs"]
mod tests;
