//! How tests say that they cannot run, and what `make test` says at its end.

mod skip;
mod summary;
