//! The engines of `bench gateway`: gateways, each a process with a guest of its own, and two ways of the kernel
//! for comparison.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::json;
use tempfile::TempDir;

use super::shows::{FAR_NAME, query};
use super::world::{FAR, World, default_route, namespace, own_by_cubic};
use crate::args::name;
use crate::failure::{Because, Failure};
use crate::kit::machine::{nap, number_in};
use crate::kit::namespace::{NetNs, address, ip};

/// How long a gateway may take until its guest reaches the far side.
const START_TIME: Duration = Duration::from_secs(10);

/// Engines of this measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum GatewayEngine {
    /// `pagewire gateway` on a tap
    Pagewire,
    /// The same with --splice, for clients of a published port
    Spliced,
    /// The same where only a name permits what the guest reaches, with --names
    Named,
    /// passt's form for namespaces
    Pasta,
    /// The one of rootless containers
    Slirp4netns,
    /// gvisor-tap-vsock, with gvforwarder as its guest's end
    Gvproxy,
    /// The kernel's own forwarding, without a gateway
    Veth,
    /// No way at all: both ends in one namespace
    Loopback,
}

impl GatewayEngine {
    /// Another project's gateway, to be compared with.
    pub(super) const fn is_peer(self) -> bool {
        matches!(self, Self::Pasta | Self::Slirp4netns | Self::Gvproxy)
    }

    /// Whether clients reach a port of its guests here.
    pub(super) const fn publishes(self) -> bool {
        !matches!(self, Self::Gvproxy | Self::Named)
    }

    /// Whether its guest is measured by what it reaches, and not only by who reaches it.
    pub(super) const fn goes_out(self) -> bool {
        !matches!(self, Self::Spliced)
    }

    /// Programs that it needs.
    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Pasta => &["pasta", "unshare"],
            Self::Slirp4netns => &["slirp4netns"],
            Self::Gvproxy => &["gvproxy", "gvforwarder"],
            Self::Pagewire | Self::Spliced | Self::Named | Self::Veth | Self::Loopback => &[],
        }
    }

    /// The first of its programs that is not in `PATH`.
    pub(super) fn lacks(self) -> Option<&'static str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |name: &str| {
            std::env::split_paths(&path).any(|dir| {
                let file = dir.join(name);
                rustix::fs::access(&file, rustix::fs::Access::EXEC_OK).is_ok()
            })
        };
        self.programs().iter().copied().find(|name| !is_there(name))
    }
}

/// A guest behind an engine that runs.
#[derive(Debug)]
pub(super) struct EngineGuest {
    pub(super) engine: GatewayEngine,
    pub(super) mtu: u32,
    pub(super) ns: NetNs,
    inner: Ipv4Addr,
    /// The port of the guest that clients of the machine reach.
    pub(super) port: u16,
    processes: Vec<Child>,
    /// Files and sockets of the engine.
    files: TempDir,
}

/// Addresses of guests behind a gateway.
const INNER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The port that the guest with the number 0 has published; others follow, below the ports of [`EPHEMERAL`](super::world::EPHEMERAL).
const FIRST_PORT: u16 = 9_000;

/// The interface of every guest.
const LINK: &str = "tap0";

impl EngineGuest {
    /// Starts the engine, and waits until its guest reaches the far side; `number` is no other
    /// guest's.
    pub(super) fn start(
        world: &World,
        engine: GatewayEngine,
        mtu: u32,
        number: u8,
    ) -> Result<Self, Failure> {
        let files = tempfile::tempdir().because("a directory for an engine")?;
        let port = FIRST_PORT + u16::from(number);
        let mut guest = Self {
            engine,
            mtu,
            ns: namespace()?,
            inner: INNER,
            port,
            processes: Vec::new(),
            files,
        };
        let bytes = mtu.to_string();
        match engine {
            GatewayEngine::Pagewire => guest.pagewire(world, &bytes, &[])?,
            GatewayEngine::Spliced => guest.pagewire(world, &bytes, &["--splice"])?,
            GatewayEngine::Named => {
                let own = format!("{FAR_NAME}={FAR}");
                let udp = format!("udp:{FAR_NAME}");
                guest.pagewire(
                    world,
                    &bytes,
                    &["--name", &own, "--allow", FAR_NAME, "--allow", &udp],
                )?;
            }
            GatewayEngine::Pasta => guest.pasta(world, &bytes)?,
            GatewayEngine::Slirp4netns => guest.slirp4netns(world, &bytes)?,
            GatewayEngine::Gvproxy => guest.gvproxy(world, &bytes, number)?,
            GatewayEngine::Veth => guest.veth(world, number)?,
            GatewayEngine::Loopback => {
                guest.ns.inside(|| ip(&["link", "set", "lo", "mtu", &bytes]))?
            }
        }
        guest.wait(world)?;
        Ok(guest)
    }

    /// Where the far side of this guest is.
    pub(super) fn far<'a>(&'a self, world: &'a World) -> (&'a NetNs, Ipv4Addr) {
        match self.engine {
            GatewayEngine::Loopback => (&self.ns, Ipv4Addr::LOCALHOST),
            _ => (&world.far, FAR),
        }
    }

    /// Where clients of the machine reach the published port, and their namespace.
    ///
    /// The clients use loopback, where pasta splices them with the guest's own loopback, newer ones with its address, as
    /// ours does with `--splice`.
    pub(super) fn published<'a>(&'a self, world: &'a World) -> (&'a NetNs, SocketAddr) {
        let (ns, ip) = match self.engine {
            GatewayEngine::Veth => (&world.host, self.inner),
            GatewayEngine::Loopback => (&self.ns, Ipv4Addr::LOCALHOST),
            _ => (&world.host, Ipv4Addr::LOCALHOST),
        };
        (ns, (ip, self.port).into())
    }

    fn pagewire(&mut self, world: &World, mtu: &str, options: &[&str]) -> Result<(), Failure> {
        let (path, guest) = (self.ns.path(), INNER.to_string());
        let gateway = format!("{GATEWAY}/24");
        let args = ["gateway", "--link", "tap", "--netns", &path, "--tap", LINK, "--mtu", mtu];
        let publish = format!("127.0.0.1:{}", self.port);
        let more = ["--addr", &gateway, "--guest", &guest, "--publish", &publish];
        let program = std::env::current_exe().because("our program's file")?;
        self.processes.push(spawn(&world.host, program, &[&args[..], &more, options].concat())?);
        self.route_by(GATEWAY)
    }

    fn pasta(&mut self, world: &World, mtu: &str) -> Result<(), Failure> {
        let (guest, gateway) = (INNER.to_string(), GATEWAY.to_string());
        // pasta gives up the right to read our descriptors before it opens the namespace; as a file, in
        // a mount namespace of its own, it may open it.
        let file = self.files.path().join("namespace");
        fs::write(&file, "").because(file.display())?;
        let place = file.display().to_string();
        let mount = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
        let path = self.ns.path();
        let front = ["--mount", "sh", "-c", mount, "sh", &path, &place, "pasta", "-f", "-q"];
        let args = ["--runas", "0", "--config-net", "--netns-only", "--no-map-gw", "-I", LINK];
        let addresses = ["-a", &guest, "-n", "24", "-g", &gateway, "-m", mtu];
        let publish = format!("127.0.0.1/{}", self.port);
        let nothing = ["-t", &publish, "-u", "none", "-T", "none", "-U", "none", "--netns", &place];
        let args = [&front[..], &args, &addresses, &nothing].concat();
        self.processes.push(spawn(&world.host, "unshare", &args)?);
        self.route_by(GATEWAY)
    }

    fn slirp4netns(&mut self, world: &World, mtu: &str) -> Result<(), Failure> {
        let (path, mtu) = (self.ns.path(), format!("--mtu={mtu}"));
        let control = self.files.path().join("slirp4netns");
        let socket = format!("--api-socket={}", control.display());
        let args = ["--netns-type=path", "--configure", "--disable-host-loopback", &socket];
        let args = [&args[..], &[&mtu, &path, LINK]].concat();
        self.processes.push(spawn(&world.host, "slirp4netns", &args)?);
        self.route_by(GATEWAY)?;
        wait_until("slirp4netns's socket", || Ok(control.exists()))?;
        let arguments = json!({
            "proto": "tcp", "host_addr": "127.0.0.1", "host_port": self.port, "guest_port": self.port,
        });
        let ask = json!({ "execute": "add_hostfwd", "arguments": arguments }).to_string();
        let mut answer = String::new();
        let asked = UnixStream::connect(&control).and_then(|mut socket| {
            socket.write_all(ask.as_bytes())?;
            socket.shutdown(Shutdown::Write)?;
            socket.read_to_string(&mut answer)
        });
        asked.because("slirp4netns's socket")?;
        match answer.contains("error") {
            true => Err(Failure::Failed(format!("slirp4netns publishes no port: {answer}"))),
            false => Ok(()),
        }
    }

    /// The guest's end of gvproxy is a program inside that moves frames between a tap and gvproxy's socket.
    fn gvproxy(&mut self, world: &World, mtu: &str, number: u8) -> Result<(), Failure> {
        let socket = self.files.path().join("gvproxy");
        let url = format!("unix://{}", socket.display());
        let port = format!("{}", 9_500 + u16::from(number));
        let args = ["-listen", &url, "-mtu", mtu, "-ssh-port", &port];
        self.processes.push(spawn(&world.host, "gvproxy", &args)?);
        wait_until("gvproxy's socket", || Ok(socket.exists()))?;
        self.ns.inside(|| {
            ip(&["tuntap", "add", "dev", LINK, "mode", "tap"])?;
            ip(&["link", "set", LINK, "address", "5a:94:ef:e4:0c:ee", "mtu", mtu])?;
            address(LINK, Ipv4Addr::new(192, 168, 127, 2))
        })?;
        let args = ["-preexisting", "-iface", LINK, "-url", &url, "-mtu", mtu];
        self.processes.push(spawn(&self.ns, "gvforwarder", &args)?);
        self.route_by(Ipv4Addr::new(192, 168, 127, 1))
    }

    fn veth(&mut self, world: &World, number: u8) -> Result<(), Failure> {
        let (outer, inner) = (Ipv4Addr::new(10, 10, number, 1), Ipv4Addr::new(10, 10, number, 2));
        self.inner = inner;
        let here = (&*format!("g{number}"), outer);
        world.host.veth(here, (&self.ns, LINK, inner), Some(self.mtu))?;
        self.route_by(outer)
    }

    /// Waits for the guest's interface, and sends all by it, with CUBIC.
    fn route_by(&mut self, gateway: Ipv4Addr) -> Result<(), Failure> {
        let what = format!("the guest of {}", name(self.engine));
        let ns = &self.ns;
        let own = matches!(self.engine, GatewayEngine::Spliced | GatewayEngine::Pasta);
        let mut last = None;
        let waited = wait_until(&what, || {
            let routed = ns.inside(|| {
                // Clients of published ports are joined with this address, or the loopback's.
                if own {
                    own_by_cubic(&INNER.to_string(), LINK)?;
                }
                default_route(LINK, gateway.into())
            });
            last = routed.err();
            Ok(last.is_none())
        });
        // The reason why there is no route says more than that there is none.
        match (waited, last) {
            (Err(_), Some(error)) => Err(error),
            (waited, _) => waited,
        }
    }

    /// Waits until the guest reaches the far side.
    fn wait(&mut self, world: &World) -> Result<(), Failure> {
        let (far, ip) = self.far(world);
        let listener =
            far.inside(|| TcpListener::bind(SocketAddr::new(ip.into(), 0)).because("a listener"))?;
        let to = listener.local_addr().because("a listener")?;
        let what = format!("the guest of {}", name(self.engine));
        wait_until(&what, || {
            self.ask_for_name()?;
            self.ns.inside(|| {
                let tried = TcpStream::connect_timeout(&to, Duration::from_millis(300));
                Ok(tried.is_ok())
            })
        })
    }

    /// Has the guest of an engine with a rule by name ask for the address of the far side, which that permits for a
    /// while.
    pub(super) fn ask_for_name(&self) -> Result<(), Failure> {
        if self.engine != GatewayEngine::Named {
            return Ok(());
        }
        let asked = || {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.set_read_timeout(Some(Duration::from_secs(1)))?;
            socket.send_to(&query(), (GATEWAY, 53))?;
            socket.recv(&mut [0; 512])
        };
        self.ns.inside(|| {
            let mut last = asked();
            for _ in 0..2 {
                last = last.or_else(|_| asked());
            }
            last.map(drop).because("the gateway's resolver")
        })
    }

    /// CPU time of the engine so far; `None` if it is the kernel.
    pub(super) fn cpu(&self) -> Option<Duration> {
        let all = self.processes.iter().map(|child| ticks(child.id()));
        let ticks = all.sum::<Option<u64>>()?;
        (!self.processes.is_empty()).then(|| {
            Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
        })
    }

    /// Bytes of memory that the engine has; `None` if it is the kernel.
    pub(super) fn rss(&self) -> Option<u64> {
        let all = self.processes.iter().map(|child| rss(child.id()));
        let bytes = all.sum::<Option<u64>>()?;
        (!self.processes.is_empty()).then_some(bytes)
    }
}

impl Drop for EngineGuest {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a program of an engine in a namespace. The kernel ends the program with this thread, also
/// when this process is killed.
fn spawn(ns: &NetNs, program: impl AsRef<OsStr>, args: &[&str]) -> Result<Child, Failure> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "nsenter"]).arg(format!("--net={}", ns.path()));
    command.arg("--").arg(&program).args(args);
    // The output of an engine is of no interest unless it fails, and then its guest has no network.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().because(program.as_ref().display())
}

fn wait_until(what: &str, mut done: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let deadline = Instant::now() + START_TIME;
    while Instant::now() < deadline {
        if done()? {
            return Ok(());
        }
        for _ in 0..10 {
            nap();
        }
    }
    Err(Failure::Failed(format!("{what} was not ready in {} s", START_TIME.as_secs())))
}

/// User and system time of a process: fields 14 and 15 of `proc_pid_stat(5)`.
fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_ticks(&stat)
}

fn parse_ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, in which anything may be.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn rss(pid: u32) -> Option<u64> {
    Some(number_in(&format!("/proc/{pid}/smaps_rollup"), "Rss:")? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 1 0 100 0 0";
        assert_eq!(parse_ticks(stat), Some(46));
        assert_eq!(parse_ticks("nonsense"), None);
        assert!(ticks(std::process::id()).is_some());
        assert!(rss(std::process::id()) > Some(100_000));
    }
}
