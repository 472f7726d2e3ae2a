//! The command line of the measurements: each has its own arguments beside it.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::Options;
use crate::measure::cores::CoresOptions;
use crate::measure::datagrams::DatagramsOptions;
use crate::measure::gateway::GatewayOptions;
use crate::measure::idle::IdleOptions;
use crate::measure::load::{ConnectionsOptions, CrowdOptions, RequestsOptions};
use crate::measure::path::PathOptions;
use crate::measure::port::PortOptions;
use crate::measure::receive::ReceiveOptions;
use crate::measure::ring::RingOptions;
use crate::measure::rr::RrOptions;
use crate::measure::send::SendOptions;
use crate::measure::share::ShareOptions;
use crate::measure::sim::SimOptions;
use crate::measure::stream::StreamOptions;

/// The end of `pagewire bench --help`.
pub const EXAMPLES: &str = "\
Examples:
  pagewire bench stream                 bulk rate over the pair link, beside kernel loopback
  pagewire bench stream --link tap      to and from a kernel socket, beside veth (root)
  pagewire bench stream --link vhost-user --socket /tmp/pw.sock
                                        to and from a virtual machine
  pagewire bench stream --via-proxy     and forwarded by reference, beside direct
  pagewire bench send --plot send.svg   CPU time of a sender, by copy and by reference
  pagewire bench path                   goodput over lossy paths, beside kernel to kernel (root)
  pagewire bench share                  a bottleneck shared with the kernel's flows (root)
  pagewire bench receive --flows 8      CPU of receiving by copy, mapped, in chunks
  pagewire bench ring                   receive through rings, by copy and by reference
  pagewire bench datagrams              many datagrams and QUIC over a tap (root)
  pagewire bench rr                     64 bytes there and back
  pagewire bench idle --connections 100000
  pagewire bench requests --link tap    small requests over 1, 64 and 1,000 connections (root)
  pagewire bench connections            connect, one request, close
  pagewire bench crowd --link tap       1,000 clients that move a MiB each, all at once (root)
  pagewire bench gateway --plot gateway.svg
                                        a guest's network, beside pasta and others (root)
  pagewire bench sim                    simulated programs, beside turmoil
  pagewire bench cores                  a host on one core and on two
  pagewire bench stream --json          one object per line
  pagewire bench rr --plot rr.svg       an image of the results
  pagewire bench --report out --quick   a page with plots of everything that can run here";

/// `pagewire bench`
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct BenchOptions {
    /// Write a page with plots of all results, and the results beside it, to the directory DIR
    ///
    /// DIR/index.html needs no network. Without a measurement, all run that can run here, which takes
    /// some twenty minutes; those with --link tap, and path, share and gateway, need root.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,

    /// Draw the results of one measurement, with their spread, as an SVG image
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// With --report and without a measurement: short rounds and few cases, in a few minutes
    #[arg(long, requires = "report")]
    pub(crate) quick: bool,

    /// Write one object per line, with the spread, to FILE
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub(crate) rows: Option<PathBuf>,

    /// Name of this measurement among several
    #[arg(long, global = true, hide = true, value_name = "TEXT")]
    pub(crate) part: Option<String>,

    #[command(subcommand)]
    pub(crate) bench: Option<Bench>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    Stream(StreamOptions),
    Send(SendOptions),
    Path(PathOptions),
    Share(ShareOptions),
    Receive(ReceiveOptions),
    Ring(RingOptions),
    Datagrams(DatagramsOptions),
    Rr(RrOptions),
    Idle(IdleOptions),
    Port(PortOptions),
    Requests(RequestsOptions),
    Connections(ConnectionsOptions),
    Crowd(CrowdOptions),
    Gateway(GatewayOptions),
    Sim(SimOptions),
    Cores(CoresOptions),
}

impl Bench {
    pub(crate) fn options(&self) -> &dyn Options {
        match self {
            Self::Stream(options) => options,
            Self::Send(options) => options,
            Self::Path(options) => options,
            Self::Share(options) => options,
            Self::Receive(options) => options,
            Self::Ring(options) => options,
            Self::Datagrams(options) => options,
            Self::Rr(options) => options,
            Self::Idle(options) => options,
            Self::Port(options) => options,
            Self::Requests(options) => options,
            Self::Connections(options) => options,
            Self::Crowd(options) => options,
            Self::Gateway(options) => options,
            Self::Sim(options) => options,
            Self::Cores(options) => options,
        }
    }
}
