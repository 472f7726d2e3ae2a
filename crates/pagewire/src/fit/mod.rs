//! Adapters: what other crates ask of sockets, implemented on those of [`tokio`](crate::tokio).
//!
//! | feature | crate | what it adds |
//! |---|---|---|
//! | `axum` | axum 0.8 | [`axum::serve`](::axum::serve()) takes a `TcpListener`; handlers ask for their `Peer` |
//! | `hyper` | hyper 1, hyper-util | a `Connector` for the client; a server takes streams in `TokioIo` |
//! | `tonic` | tonic 0.14 | `Connected`, `Incoming` for `serve_with_incoming`, and hyper's `Connector` |
//! | `quinn` | quinn 0.11 | `AsyncUdpSocket`, with segmentation, joining and congestion marks |
//! | `futures-io` | futures-io 0.3 | a stream with the traits of futures |
//!
//! Nothing is needed for tokio-rustls, tungstenite and others that take `AsyncRead + AsyncWrite`, nor for
//! rustls, which takes `std::io::Read` and `Write`.
//!
//! These interfaces show payload as plain slices, which are copied. With
//! [`by_reference`](crate::tokio::by_reference) memory of the program goes by reference all the same;
//! `axum` and `hyper` have it as a body.

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(any(feature = "axum", feature = "hyper"))]
pub mod body;
#[cfg(feature = "futures-io")]
pub mod futures_io;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "quinn")]
pub mod quinn;
#[cfg(feature = "tonic")]
pub mod tonic;
