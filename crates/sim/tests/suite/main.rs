//! Whole stacks on a virtual network: transfers, proxies, crowds, the corpora of the fuzz targets.

mod corpus;
mod crowd;
mod forwarding;
mod sharing;
mod throughput;
mod transfers;
