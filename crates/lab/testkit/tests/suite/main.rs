//! The kit itself: skipped tests, the summary of `make test`, runs that leave nothing behind. And whole
//! stacks on its virtual network: transfers, proxies, crowds, the corpora of the fuzz targets.

mod corpus;
mod crowd;
mod forwarding;
mod isolate;
mod sharing;
mod skip;
mod summary;
mod throughput;
mod transfers;
