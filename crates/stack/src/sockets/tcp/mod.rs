//! Connections, as the stack keeps them: their state is in `socket.rs`, their input in `input.rs`, their output
//! in `output.rs`, their verbs in `connect.rs`, `send.rs` and `recv.rs`.

mod connect;
pub(crate) mod demux;
pub(crate) mod fast_open;
pub(crate) mod lifecycle;
mod map;
pub(crate) mod output;
mod recv;
mod send;
pub(crate) mod socket;
pub(crate) mod time_wait;
mod timestamping;

pub use connect::ConnectOptions;
pub use fast_open::FastOpen;
pub use lifecycle::{LifecycleEvent, LifecycleKind};
pub use map::{Map, MapAvailable, MapError, MapPages, MapSealed, MapWith};
pub use recv::{Chunks, Discard, Lend, Taker};
pub use send::{Clock, Payload};
pub use timestamping::TxTimestamping;
