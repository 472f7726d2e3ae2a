//! Every limit of the control socket, with its unit and its reason.

use std::time::Duration;

/// Clients of the control socket that are connected at once, and as many of metrics: who may only read
/// metrics must not take slots of clients that may do more. One more of the control socket is closed at once, or takes the
/// place of one that may not change the process's gateway;
/// one more of metrics replaces the client that came first, because anybody may connect there
/// and say nothing. A person runs one or two programs, a Prometheus server uses one connection.
pub const CLIENTS: usize = 32;

/// Bytes of a request, its line end included: the longest rule has some 300.
pub const REQUEST_BYTES: usize = 4096;

/// Sockets in one answer: about a megabyte of text. More are asked for with `after`.
pub const SOCKETS_PER_ANSWER: u32 = 1024;

/// Sockets in one answer if the request does not say how many.
pub const SOCKETS_BY_DEFAULT: u32 = 256;

/// Flows of a gateway in one answer: about half a megabyte of text.
pub const FLOWS_PER_ANSWER: u32 = 1024;

/// Slots of a stack's table that are read before the host's lock is given back.
pub const PLACES_AT_ONCE: usize = 128;

/// Bytes of an answer that a client takes: several times [`SOCKETS_PER_ANSWER`].
pub const ANSWER_BYTES: usize = 8 << 20;

/// Time after which a client is closed that takes nothing of its answer. While it has one to take, its
/// next request is not read, so it makes us hold one answer at most.
pub const STALL: Duration = Duration::from_secs(5);

/// Time that the thread waits after the system refused a client, because descriptors are used up.
pub const RETRY: Duration = Duration::from_millis(100);

/// Time that a program waits for an answer, from its first byte to its last.
pub const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Time for which a program asks for further sockets: a million take a few seconds.
pub const ALL_TIME: Duration = Duration::from_secs(60);

/// Time between two comparisons of counters for events, and the longest that the end of a connection waits to be
/// reported.
pub const TRACE_LOOK: Duration = Duration::from_secs(1);
