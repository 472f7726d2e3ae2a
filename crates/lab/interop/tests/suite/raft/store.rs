//! A node's disk, and what is above it. The disk keeps what was synced when the power goes.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::{
    AnyError, EntryPayload, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageError, StorageIOError, StoredMembership,
};

use crate::raft::oracle::Oracle;
use crate::raft::types::{Entry, LogId, NodeId, Types, Vote};

type Done<T = ()> = Result<T, StorageError<NodeId>>;
type Membership = StoredMembership<NodeId, openraft::EmptyNode>;

/// The content of the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    pub(crate) vote: Option<Vote>,
    pub(crate) log: BTreeMap<u64, Entry>,
}

/// A disk: what is written, and of that, what is synced.
#[derive(Debug, Default)]
struct Disk {
    written: Written,
    synced: Written,
}

/// The store of one node; its disk outlives its host's power.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    disk: Arc<Mutex<Disk>>,
    /// The bug: a vote is not synced.
    forgets_votes: bool,
}

impl Store {
    pub(crate) fn new(forgets_votes: bool) -> Self {
        Self { disk: Arc::default(), forgets_votes }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    /// The host has power again: what was not synced is gone.
    pub(crate) fn power_on(&self) {
        let mut disk = self.disk();
        disk.written = disk.synced.clone();
    }

    /// The present content of the disk.
    pub(crate) fn written(&self) -> Written {
        self.disk().written.clone()
    }

    /// Syncs what is written now: it takes a millisecond.
    async fn sync(&self) {
        let written = self.disk().written.clone();
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.disk().synced = written;
    }
}

impl RaftLogReader<Types> for Store {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Done<Vec<Entry>> {
        Ok(self.disk().written.log.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Done<LogState<Types>> {
        let last_log_id = self.disk().written.log.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: None, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Done {
        self.disk().written.vote = Some(*vote);
        if !self.forgets_votes {
            self.sync().await;
        }
        Ok(())
    }

    async fn read_vote(&mut self) -> Done<Option<Vote>> {
        Ok(self.disk().written.vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Done
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let added = entries.into_iter().map(|entry| (entry.log_id.index, entry));
        {
            let mut disk = self.disk();
            disk.written.log.extend(added);
            if self.forgets_votes {
                // The log is synced all the same, without the vote.
                let log = disk.written.log.clone();
                disk.synced.log = log;
            }
        }
        if !self.forgets_votes {
            self.sync().await;
        }
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId) -> Done {
        self.disk().written.log.split_off(&from.index);
        self.sync_log().await;
        Ok(())
    }

    async fn purge(&mut self, _: LogId) -> Done {
        Ok(())
    }
}

impl Store {
    async fn sync_log(&self) {
        if self.forgets_votes {
            let mut disk = self.disk();
            disk.synced.log = disk.written.log.clone();
        } else {
            self.sync().await;
        }
    }
}

/// The registers, in memory: a node that starts applies its log again.
#[derive(Clone, Debug)]
pub(crate) struct Registers {
    node: NodeId,
    oracle: Oracle,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    applied: Option<LogId>,
    membership: Membership,
    values: BTreeMap<u8, u64>,
}

impl Registers {
    pub(crate) fn new(node: NodeId, oracle: Oracle) -> Self {
        Self { node, oracle, state: Arc::default() }
    }

    pub(crate) fn get(&self, key: u8) -> Option<u64> {
        self.state.lock().unwrap().values.get(&key).copied()
    }
}

impl RaftStateMachine<Types> for Registers {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Done<(Option<LogId>, Membership)> {
        let state = self.state.lock().unwrap();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Done<Vec<()>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.state.lock().unwrap();
        let mut answers = Vec::new();
        for entry in entries {
            self.oracle.applied(self.node, &entry);
            state.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(write) => _ = state.values.insert(write.key, write.value),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                }
            }
            answers.push(());
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Done<Box<std::io::Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        _: &SnapshotMeta<NodeId, openraft::EmptyNode>,
        _: Box<std::io::Cursor<Vec<u8>>>,
    ) -> Done {
        Err(no_snapshots())
    }

    async fn get_current_snapshot(&mut self) -> Done<Option<Snapshot<Types>>> {
        Ok(None)
    }
}

impl RaftSnapshotBuilder<Types> for Registers {
    async fn build_snapshot(&mut self) -> Done<Snapshot<Types>> {
        Err(no_snapshots())
    }
}

/// Logs are never purged here, so no node needs a snapshot.
fn no_snapshots() -> StorageError<NodeId> {
    StorageIOError::read_snapshot(None, AnyError::error("logs are whole here")).into()
}
