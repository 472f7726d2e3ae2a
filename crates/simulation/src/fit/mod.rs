//! Adapters: what other crates ask of a socket. Each is a feature of its crate's name.
//!
//! What is generic over `AsyncRead + AsyncWrite` (rustls by tokio-rustls, redis, tungstenite) needs
//! none.

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "openraft")]
pub mod openraft;
#[cfg(feature = "quinn")]
pub mod quinn;
#[cfg(feature = "tonic")]
pub mod tonic;
