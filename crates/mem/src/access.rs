//! Who may write a range of bytes.

/// Whether somebody outside this process's safe code may change the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nobody: a `&[u8]` may be formed.
    Private,
    /// Another process, a guest or a thread may: only copied or snapshotted, never borrowed.
    Shared,
}
