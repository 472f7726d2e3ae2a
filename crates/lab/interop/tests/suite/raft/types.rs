//! The types of the cluster: a register for each key.

use std::io::Cursor;

use pagewire_simulation::openraft::SimRuntime;
use serde::{Deserialize, Serialize};

/// A node's number.
pub(crate) type NodeId = u64;

/// A write to a register. Values are never written twice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Write {
    pub(crate) key: u8,
    pub(crate) value: u64,
}

openraft::declare_raft_types!(
    /// The types of the replicated log.
    pub(crate) Types:
        D = Write,
        R = (),
        NodeId = NodeId,
        Node = openraft::EmptyNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = SimRuntime,
);

pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type LogId = openraft::LogId<NodeId>;
pub(crate) type Vote = openraft::Vote<NodeId>;
