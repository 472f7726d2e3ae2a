//! Names of hosts to addresses.

use std::io;
use std::net::SocketAddr;

use super::addr::{ToSocketAddrs, resolve};
use crate::world::Here;

/// The addresses of a name: of a host of the simulation, `localhost`, or an address as text. Takes
/// no simulated time.
///
/// # Errors
/// For an unknown name, as the C library: "failed to lookup address information: Name or service
/// not known". `InvalidInput` for text that is no address.
pub async fn lookup_host<T>(host: T) -> io::Result<impl Iterator<Item = SocketAddr>>
where
    T: ToSocketAddrs,
{
    Ok(resolve(&Here::get()?, host)?.into_iter())
}
