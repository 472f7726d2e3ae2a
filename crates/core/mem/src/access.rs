//! Who may write a range of bytes.

/// Whether anything outside this process's safe code may change the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing may: a `&[u8]` may be formed.
    Private,
    /// Another process, a guest or a thread may: the bytes are only copied, never borrowed.
    Shared,
}
