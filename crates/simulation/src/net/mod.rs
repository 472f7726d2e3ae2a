//! `tokio::net`, simulated.
