//! Access: whether others may write a range of bytes. A fragment, region or pool has one for good.

/// Whether anything outside this process's safe code may change the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing may: a `&[u8]` may be formed.
    Private,
    /// Another process, a guest or a thread may: the bytes are only copied, never borrowed.
    Shared,
}
