//! How tests say that they cannot run, what `make test` says at its end, and what a run leaves behind.

mod isolate;
mod skip;
mod summary;
