//! A client without a read timeout: the server loses power between request and answer, and comes
//! back. Nobody tells the client, so it waits for ever. turmoil's crash drops the server's streams,
//! which tells the client that they have ended.

mod ours;
mod theirs;
