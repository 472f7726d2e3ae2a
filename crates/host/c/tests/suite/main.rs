//! The C library as C programs use it: compiled here, linked with the archive, run on the kernel and on Pagewire.

#![allow(unreachable_pub, reason = "modules of one test")]

mod bindings;
mod header;
mod page;
mod programs;
mod support;
