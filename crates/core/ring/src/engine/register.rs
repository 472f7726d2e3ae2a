//! Registration of memory and rings: the checks, the resulting groups, and the ends that the application
//! gets.
//!
//! On a pair nothing places payload for free. [`Engine::register_lent`] therefore registers the sender's
//! memory, which nobody copies; a queue of `Queues` copies into the region, as the device.

use core::ops::Range;

use pagewire_mem::link::QueueMemory;
use pagewire_mem::{
    Access, CompletionQueue, Frag, GROUP_PAGES, Lease, MemError, PAGE_SIZE, PagePool, PageWriter,
    Region, SharedWords, View,
};

use super::Engine;
use crate::counters::Counters;
use crate::error::RegisterError;
use crate::group::{Group, Memory, lent};
use crate::handles::Handles;
use crate::layout::{COPY_GROUP, Completion, Entry, Fill, Submission, Words};
use crate::limits::{
    DEFAULT_REGION_BYTES, MAX_GROUPS, MAX_REGION_BYTES, MAX_RING_ENTRIES, MAX_SOCKETS,
};
use crate::ring::{Consumer, Producer, ring, words_for};

/// Settings of an engine.
#[derive(Debug)]
pub struct EngineConfig {
    /// Entries of the ring of submissions, a power of two.
    pub submissions: u32,
    /// Entries of the ring of completions, a power of two.
    pub completions: u32,
    /// Entries of the ring of entries, a power of two: the most pieces that may be unread.
    pub entries: u32,
    /// Memory of the copy group.
    pub copy: QueueConfig,
    /// Bytes of memory that all groups may register together.
    pub region_bytes: usize,
}

impl EngineConfig {
    /// Rings of 1,024 entries (of entries 4,096) and the copy group `copy`.
    pub fn new(copy: QueueConfig) -> Self {
        let (submissions, completions, entries) = (1024, 1024, 4096);
        let region_bytes = DEFAULT_REGION_BYTES;
        Self { submissions, completions, entries, copy, region_bytes }
    }
}

/// Memory to receive into, and the size of the ring that returns its buffers.
#[derive(Debug)]
pub struct QueueConfig {
    /// The memory: page-aligned, a multiple of 256 KiB, writable.
    pub region: Region,
    /// Entries of the fill ring, a power of two.
    pub fill_entries: u32,
    /// With fewer buffers than this, at most half, the application gets a notice and windows close.
    pub threshold: usize,
    /// Fill entries after which the application gets a notice; 0: never.
    pub notify_every: u32,
}

impl QueueConfig {
    /// `region` with a fill entry for each page, a threshold of an eighth, and no drain notices.
    pub fn new(region: Region) -> Self {
        let pages = region.len() / PAGE_SIZE;
        let fill_entries = u32::try_from(pages).unwrap_or(MAX_RING_ENTRIES);
        let fill_entries = fill_entries.next_power_of_two().min(MAX_RING_ENTRIES);
        Self { region, fill_entries, threshold: pages / 8, notify_every: 0 }
    }
}

/// The application's ends of its rings.
#[derive(Debug)]
pub struct Ends {
    /// The operations to submit.
    pub submissions: Producer<Submission>,
    /// Their results.
    pub completions: Consumer<Completion>,
    /// The places of received bytes.
    pub entries: Consumer<Entry>,
    /// The copy group: the stack has all its buffers from the start.
    pub copy: Registered,
}

/// The application's part of a group.
#[derive(Debug)]
pub struct Registered {
    /// The group's number.
    pub group: u16,
    /// The ring that returns buffers.
    pub fill: Producer<Fill>,
    /// The memory; none for a lent group.
    pub view: Option<View>,
    /// The number of buffers.
    pub buffers: u32,
}

impl Engine {
    /// An engine, and the application's ends of its rings.
    ///
    /// # Errors
    /// [`RegisterError`], if a number or the copy group's memory is invalid.
    pub fn new(config: EngineConfig) -> Result<(Self, Ends), RegisterError> {
        let EngineConfig { submissions, completions, entries, copy, region_bytes } = config;
        // 4: a close posts its own answer and those of the operations that it ends.
        if completions < 4 {
            return Err(RegisterError::Entries(completions));
        }
        let (submit, submissions) = new_ring("pagewire-submissions", submissions)?;
        let (completions, complete) = new_ring("pagewire-completions", completions)?;
        let (entries, entry) = new_ring("pagewire-entries", entries)?;
        let mut engine = Self {
            submissions,
            completions,
            entries,
            groups: Vec::new(),
            send_groups: Vec::new(),
            sockets: Handles::new(MAX_SOCKETS),
            handle_of: std::collections::HashMap::new(),
            ready: std::collections::VecDeque::new(),
            parked: Default::default(),
            unparking: false,
            full: false,
            sends: Handles::new(MAX_SOCKETS),
            connecting: Vec::new(),
            let_go: CompletionQueue::new(),
            drained: Vec::new(),
            waiting: std::collections::VecDeque::new(),
            gone: std::collections::VecDeque::new(),
            limit: region_bytes,
            counters: Counters::default(),
            jumps: [0; 3],
            scratch: Vec::new(),
            stuck: false,
        };
        engine.check(&copy.region)?;
        let (fill, taken) = new_ring("pagewire-copy", copy.fill_entries)?;
        let pool = PagePool::over(copy.region).map_err(in_use)?;
        let lease = Lease::none(&pool).map_err(RegisterError::System)?;
        let (view, buffers) = (Some(lease.view()), lease.pages() as u32);
        let memory = Memory::Copy { lease, pool, writer: PageWriter::new() };
        engine.groups.push(Some(Group::new(memory, taken, copy.threshold, copy.notify_every)));
        let copy = Registered { group: COPY_GROUP, fill, view, buffers };
        Ok((engine, Ends { submissions: submit, completions: complete, entries: entry, copy }))
    }

    /// Registers memory for a device's queue to receive into. The returned memory goes to the
    /// device ([`Steering::bind`](pagewire_mem::link::Steering::bind)); the application has all its
    /// buffers until it gives them. If the device refuses it, [`discard`](Self::discard).
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register_queue(
        &mut self,
        queue: usize,
        config: QueueConfig,
    ) -> Result<(Registered, QueueMemory), RegisterError> {
        let taken = self.groups.iter().flatten().any(|group| {
            matches!(group.memory, Memory::Queue { queue: other, .. } if other == queue)
                && !group.dying
        });
        if taken {
            return Err(RegisterError::QueueTaken(queue));
        }
        self.check(&config.region)?;
        if config.threshold > config.region.len() / PAGE_SIZE / 2 {
            return Err(RegisterError::Threshold(config.threshold));
        }
        let id = self.free_group()?;
        let (fill, taken) = new_ring("pagewire-fill", config.fill_entries)?;
        let mut pool = PagePool::over(config.region).map_err(in_use)?;
        let lease = Lease::all(&mut pool).map_err(RegisterError::System)?;
        let (view, buffers) = (Some(lease.view()), lease.pages() as u32);
        let device = QueueMemory::new(pool);
        let level = device.level().clone();
        let memory = Memory::Queue { lease, level, queue };
        let group = Group::new(memory, taken, config.threshold, config.notify_every);
        self.put(id, group);
        Ok((Registered { group: id, fill, view, buffers }, device))
    }

    /// Registers memory of a sender on this machine: bytes that arrive by reference and lie in it
    /// are delivered in place. Its buffers are made as pieces are delivered.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register_lent(
        &mut self,
        memory: Frag,
        fill_entries: u32,
    ) -> Result<Registered, RegisterError> {
        if memory.is_empty() {
            return Err(RegisterError::Length(0));
        }
        self.check_span(memory.addr()..memory.addr() + memory.len())?;
        let id = self.free_group()?;
        let (fill, taken) = new_ring("pagewire-lent", fill_entries)?;
        self.put(id, Group::new(lent(memory), taken, 0, 0));
        Ok(Registered { group: id, fill, view: None, buffers: 0 })
    }

    /// Registers memory that the application sends from; returns the send group's number. It counts
    /// as shared: the application may write it at any time, except what it has submitted.
    ///
    /// # Errors
    /// [`RegisterError`]; nothing is registered then.
    pub fn register_send(&mut self, region: Region) -> Result<u16, RegisterError> {
        if region.access() != Access::Shared {
            return Err(RegisterError::ReadOnly);
        }
        self.check_span(region.span())?;
        self.check_memory(region.len())?;
        let free = self.send_groups.iter().position(Option::is_none);
        let id = free.unwrap_or(self.send_groups.len());
        if id >= MAX_GROUPS {
            return Err(RegisterError::TooManyGroups);
        }
        // Claims the region, so that it cannot become a pool.
        region.frag(0, 0).map_err(RegisterError::InUse)?;
        match self.send_groups.get_mut(id) {
            Some(slot) => *slot = Some(region),
            None => self.send_groups.push(Some(region)),
        }
        Ok(id as u16)
    }

    /// Ends the registration of memory to send from: new sends from there are refused. Submitted
    /// sends go on, and their memory must not change until they complete.
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`].
    pub fn unregister_send(&mut self, group: u16) -> Result<(), RegisterError> {
        let found = self.send_groups.get_mut(usize::from(group)).and_then(Option::take);
        found.map(drop).ok_or(RegisterError::NoGroup(group))
    }

    /// Ends a registration. The caller has taken the memory from the device; flows are copied from
    /// now on. When the last buffer is back, the group is removed and the application gets a notice
    /// ([`Completion::UNREGISTERED`]).
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`]; the copy group cannot be unregistered.
    pub fn unregister(&mut self, group: u16) -> Result<(), RegisterError> {
        match self.groups.get_mut(usize::from(group)) {
            Some(Some(found)) if group != COPY_GROUP && !found.dying => {
                found.dying = true;
                Ok(())
            }
            _ => Err(RegisterError::NoGroup(group)),
        }
    }

    /// Undoes a registration that the device has refused, of which the application does not know.
    /// No notice follows: it would be taken for one of the next group with the number.
    ///
    /// # Errors
    /// [`RegisterError::NoGroup`], also for a group whose memory is in use.
    pub fn discard(&mut self, group: u16) -> Result<(), RegisterError> {
        match self.groups.get_mut(usize::from(group)) {
            Some(slot) if group != COPY_GROUP && slot.as_ref().is_some_and(Group::is_home) => {
                *slot = None;
                Ok(())
            }
            _ => Err(RegisterError::NoGroup(group)),
        }
    }

    /// The device's queues that fill groups.
    pub fn queues(&self) -> impl Iterator<Item = usize> + '_ {
        self.groups.iter().flatten().filter(|group| !group.dying).filter_map(|group| {
            match group.memory {
                Memory::Queue { queue, .. } => Some(queue),
                _ => None,
            }
        })
    }

    /// The device's queue that fills a group.
    pub fn queue_of(&self, group: u16) -> Option<usize> {
        match self.group(group)?.memory {
            Memory::Queue { queue, .. } => Some(queue),
            _ => None,
        }
    }

    /// Checks a region before anything is made of it.
    fn check(&self, region: &Region) -> Result<(), RegisterError> {
        let (span, len) = (region.span(), region.len());
        if !span.start.is_multiple_of(PAGE_SIZE) {
            return Err(RegisterError::Unaligned(span.start));
        }
        if len == 0 || len > MAX_REGION_BYTES || !len.is_multiple_of(GROUP_PAGES * PAGE_SIZE) {
            return Err(RegisterError::Length(len));
        }
        if !region.is_writable() {
            return Err(RegisterError::ReadOnly);
        }
        self.check_span(span)?;
        self.check_memory(len)
    }

    /// Refuses memory that overlaps a registered group.
    fn check_span(&self, span: Range<usize>) -> Result<(), RegisterError> {
        let groups = self.groups.iter().enumerate();
        let ours = groups.filter_map(|(id, group)| Some((id, group.as_ref()?.span())));
        let sends = self.send_groups.iter().enumerate();
        let all = ours.chain(sends.filter_map(|(id, region)| Some((id, region.as_ref()?.span()))));
        for (id, other) in all {
            if span.start < other.end && other.start < span.end {
                return Err(RegisterError::Overlap(id as u16));
            }
        }
        Ok(())
    }

    fn check_memory(&self, len: usize) -> Result<(), RegisterError> {
        let groups = self.groups.iter().flatten().map(|group| match group.memory {
            Memory::Lent { .. } => 0,
            _ => group.span().len(),
        });
        let sends = self.send_groups.iter().flatten().map(Region::len);
        let used: usize = groups.chain(sends).sum();
        match (used + len).checked_sub(self.limit) {
            None | Some(0) => Ok(()),
            Some(wanted) => Err(RegisterError::Memory { wanted, limit: self.limit }),
        }
    }

    fn free_group(&self) -> Result<u16, RegisterError> {
        let free = self.groups.iter().position(Option::is_none);
        let id = free.unwrap_or(self.groups.len());
        if id < MAX_GROUPS { Ok(id as u16) } else { Err(RegisterError::TooManyGroups) }
    }

    fn put(&mut self, id: u16, group: Group) {
        match self.groups.get_mut(usize::from(id)) {
            Some(slot) => *slot = Some(group),
            None => self.groups.push(Some(group)),
        }
    }
}

fn new_ring<E: Words>(
    name: &str,
    entries: u32,
) -> Result<(Producer<E>, Consumer<E>), RegisterError> {
    if entries == 0 || entries > MAX_RING_ENTRIES {
        return Err(RegisterError::Entries(entries));
    }
    if !entries.is_power_of_two() {
        return Err(RegisterError::NotPowerOfTwo(entries));
    }
    let words = SharedWords::new(name, words_for::<E>(entries)).map_err(RegisterError::System)?;
    Ok(ring(words, entries))
}

fn in_use(error: MemError) -> RegisterError {
    match error {
        MemError::Claimed(_) => RegisterError::InUse(error),
        error => RegisterError::System(error),
    }
}
