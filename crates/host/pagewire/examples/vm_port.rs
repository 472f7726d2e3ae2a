//! A port for a virtual machine: a server on a vhost-user socket, which QEMU, Cloud Hypervisor and
//! others plug a guest's network card into. The guest gets its address by DHCP. No root is needed.
//!
//! ```sh
//! cargo run --package pagewire --features vhost-user,dhcp --example vm_port -- /tmp/pw.sock
//! scripts/guest/boot --vhost-user /tmp/pw.sock     # in another terminal; --check says what is missing
//! ```
//!
//! In the guest, `dhcp eth0` and then `wget -O - http://10.77.0.2/`. It prints who asks. Without an
//! argument it only opens a port and closes it again.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;

use pagewire::device::{Dhcp, DhcpConfig, DhcpWatch, VhostUser};
use pagewire::{Host, TcpListener};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn main() -> Result {
    match std::env::args().nth(1) {
        Some(path) => {
            let (host, leases) = open(Path::new(&path))?;
            println!("waiting for a guest at {path}, until Ctrl-C");
            serve(&host.listen("0.0.0.0:80")?, &leases)
        }
        None => demonstrate(),
    }
}

pub(crate) fn demonstrate() -> Result {
    let path = std::env::temp_dir().join(format!("pagewire-port-{}.sock", std::process::id()));
    let (host, leases) = open(&path)?;
    println!("a guest could be plugged in at {}, {} are", path.display(), leases.leases().len());
    assert!(path.exists());
    // The port goes with its host.
    host.shutdown(std::time::Duration::from_secs(1));
    assert!(!path.exists());
    Ok(())
}

/// A host behind a port at `path`, and the addresses that it has given to guests.
pub(crate) fn open(path: &Path) -> Result<(Host, DhcpWatch)> {
    let port = Dhcp::new(VhostUser::builder().listen(path)?, DhcpConfig::network(ADDRESS, 24)?)?;
    let leases = port.watch();
    let host = Host::builder().device(port).address(format!("{ADDRESS}/24")).start()?;
    Ok((host, leases))
}

/// Answers everybody; ends with its host.
pub(crate) fn serve(listener: &TcpListener, leases: &DhcpWatch) -> Result {
    loop {
        let (mut stream, peer) = listener.accept()?;
        println!("{peer} asks; {} guests have an address", leases.leases().len());
        // A guest that has gone meanwhile does not end the server.
        let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\nhello, {peer}\n");
    }
}
