//! The measurements, each with its arguments, its table, and the engines that it compares.

pub(crate) mod cores;
pub(crate) mod datagrams;
pub(crate) mod gateway;
pub(crate) mod idle;
pub(crate) mod load;
pub(crate) mod path;
pub(crate) mod port;
pub(crate) mod receive;
pub(crate) mod ring;
pub(crate) mod rr;
pub(crate) mod send;
pub(crate) mod share;
pub(crate) mod sim;
pub(crate) mod stream;
