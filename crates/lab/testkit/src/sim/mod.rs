//! A virtual network with a virtual clock: for the stack's own tests, and for programs to be tested
//! under packet loss without waiting.
//!
//! Read [`Sim`] first: nodes, links with faults, a clock that jumps from event to event. A seed
//! determines everything random, so a failure repeats for the same seed ([`run_seed`]).
//! [`Transfer`] is the scenario that the stack is tested with, and a model for others;
//! [`Bottleneck`] is many flows that share a queue.
//!
//! Two stacks, a connection between them, five packets in a hundred lost:
//!
//! ```
//! use pagewire_mem::Instant;
//! use pagewire_testkit::sim::{Sim, Verbs};
//! use pagewire_stack::Stack;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut sim = Sim::new(7);
//! let config = sim.stack_config("10.0.0.1/24".parse()?);
//! let server = Stack::new(sim.now(), config)?;
//! let server = sim.add(server, "loss=5%,delay=10ms".parse()?)?;
//! let config = sim.stack_config("10.0.0.2/24".parse()?);
//! let client = Stack::new(sim.now(), config)?;
//! let client = sim.add(client, "loss=0%".parse()?)?;
//!
//! let (now, here) = (sim.now(), "10.0.0.1:80".parse()?);
//! let listener = sim.node_mut(server).listen(here, 1)?;
//! let socket = sim.node_mut(client).connect(now, here, None)?;
//!
//! // Steps, and after each the programs of both sides do what they can.
//! let (mut accepted, mut asked, mut answer) = (None, false, Vec::new());
//! sim.run_until(Instant::from_millis(60_000), |sim| {
//!     let (now, mut buffer) = (sim.now(), [0; 100]);
//!     let node = sim.node_mut(server);
//!     accepted = accepted.or_else(|| node.accept(listener).ok());
//!     if let Some((socket, _)) = accepted
//!         && let Ok(n @ 1..) = node.recv(now, socket, &mut buffer[..])
//!     {
//!         let _ = node.send(now, socket, &buffer[..n]);
//!     }
//!     let node = sim.node_mut(client);
//!     asked = asked || node.send(now, socket, b"Anybody there?").is_ok();
//!     if let Ok(n) = node.recv(now, socket, &mut buffer[..]) {
//!         answer.extend_from_slice(&buffer[..n]);
//!     }
//!     Ok(answer == b"Anybody there?")
//! })?;
//! assert!(sim.now() >= Instant::from_millis(40), "two round trips of 20 ms");
//! # Ok(())
//! # }
//! ```

mod bottleneck;
pub mod limits;
mod network;
mod node;
mod seeds;
mod station;
mod stream;
#[cfg(test)]
mod tests;
mod transfer;
mod verbs;

pub use bottleneck::{Bottleneck, FlowReport, Group, Shares};
pub use network::{NodeId, Sim, SimError};
pub use node::Node;
pub use seeds::{Failure, SEED_VARIABLE, panic_text, run_seed, seed_from_env, target_dir};
pub use station::{App, Station};
pub use stream::{Mismatch, Stream};
pub use transfer::{Report, Transfer, transfer};
pub use verbs::Verbs;
