//! [`Control`]: the handle of a process's view of its hosts, which is open to other programs while it lives.

use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use pagewire::{Cores, Host};
use rustix::event::{EventfdFlags, eventfd};

use crate::firewall::Firewall;
use crate::protocol::Stats;
use crate::server::Server;
use crate::snapshot::MemoryFile;
use crate::socket::{BindError, ControlSocket};
use crate::view::{ShownHost, View};

/// Settings: the hosts that a [`Control`] shows, and where.
#[must_use]
pub struct Builder {
    view: View,
    control: Option<ControlSocket>,
    metrics: Option<TcpListener>,
}

impl Builder {
    /// Shows nothing yet.
    pub fn new() -> Self {
        let view = View {
            hosts: Mutex::default(),
            sections: Vec::new(),
            firewall: None,
            began: Instant::now(),
            memory: MemoryFile::open(),
            command: std::env::args_os().map(|w| w.to_string_lossy().into_owned()).collect(),
        };
        Self { view, control: None, metrics: None }
    }

    /// Shows a host, under this name. It is not kept running for that.
    pub fn host(self, name: &str, host: &Host) -> Self {
        self.view.lock().push(ShownHost::one(name, host));
        self
    }

    /// Shows a host of several cores, under this name: sums, and the counts of each core. It is not kept running for
    /// that.
    pub fn cores(self, name: &str, cores: &Cores) -> Self {
        self.view.lock().push(ShownHost::several(name, cores));
        self
    }

    /// Shows counts of the program, which grow only, under this name. One whose name begins with `most_`
    /// is a maximum, and no counter in metrics. `read` is called for each request: it must be quick.
    pub fn section(
        mut self,
        name: &str,
        read: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static,
    ) -> Self {
        self.view.sections.push((name.to_owned(), Box::new(read)));
        self
    }

    /// Shows a gateway, and lets clients change it.
    pub fn firewall(mut self, firewall: Arc<dyn Firewall>) -> Self {
        self.view.firewall = Some(firewall);
        self
    }

    /// Answers on this socket.
    pub fn listen(mut self, socket: ControlSocket) -> Self {
        self.control = Some(socket);
        self
    }

    /// Answers `GET /metrics` on this socket of the kernel, in Prometheus's text format. Whoever can
    /// connect can read: bind it to an address that only those reach who may. At a loopback address a request
    /// has to name that address or `localhost`, so that no web page leads a browser there.
    #[cfg(feature = "prometheus")]
    pub fn metrics(mut self, listener: TcpListener) -> Self {
        self.metrics = Some(listener);
        self
    }

    /// Makes a control socket at `path`, and answers there.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn attach(self, path: impl AsRef<Path>) -> Result<Control, BindError> {
        let socket = ControlSocket::bind(path)?;
        Ok(self.listen(socket).start()?)
    }

    /// Answers, on a thread that sleeps until somebody asks; without a socket to answer on, only the
    /// program itself can ask, by [`Control::stats`].
    ///
    /// # Errors
    /// The system has no descriptor or thread left.
    pub fn start(self) -> io::Result<Control> {
        let view = Arc::new(self.view);
        let is_asked = self.control.is_some() || self.metrics.is_some();
        let (listener, file) = match self.control {
            Some(socket) => (Some(socket.listener.try_clone()?), Some(socket)),
            None => (None, None),
        };
        let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut server =
            Server::new(Arc::clone(&view), listener, self.metrics, Arc::clone(&wakeup))?;
        let thread = std::thread::Builder::new().name("control".into());
        let thread = is_asked.then(|| thread.spawn(move || server.run())).transpose()?;
        Ok(Control { view, wakeup, running: Mutex::new((thread, file)) })
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

/// Answers other programs' questions about hosts of this process, until it is dropped.
///
/// ```
/// use pagewire::{Host, Pair};
/// use pagewire_control::{Client, Control};
///
/// let (left, _right) = Pair::new()?;
/// let host = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// let _listener = host.listen("10.0.0.1:80")?;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("app.sock");
/// let control = Control::builder(&host).attach(&path)?;
/// let mut client = Client::connect(&path)?;      // in any process of this user
/// assert_eq!(client.stats()?.hosts[0].sockets.listeners, 1);
/// assert_eq!(client.sockets(None, None)?.sockets[0].state, "listen");
/// # drop(control);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Control {
    view: Arc<View>,
    wakeup: Arc<OwnedFd>,
    /// The thread that answers, and the file by which it is asked.
    running: Mutex<(Option<JoinHandle<()>>, Option<ControlSocket>)>,
}

impl Control {
    /// Shows one host; see [`Builder::host`] for more, and for names.
    pub fn builder(host: &Host) -> Builder {
        Builder::new().host("host", host)
    }

    /// Shows another host, under this name, until it is shut down.
    pub fn add_host(&self, name: &str, host: &Host) {
        self.view.lock().push(ShownHost::one(name, host));
    }

    /// Shows another host of several cores, under this name, until it is shut down.
    pub fn add_cores(&self, name: &str, cores: &Cores) {
        self.view.lock().push(ShownHost::several(name, cores));
    }

    /// All counters at this moment, as a client gets them.
    pub fn stats(&self) -> Stats {
        self.view.stats()
    }
}

impl Control {
    /// Ends it, and removes the control socket; as the drop does.
    pub fn end(&self) {
        // A full counter means that it is rung already.
        let _ = rustix::io::write(&self.wakeup, &1u64.to_ne_bytes());
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let (thread, file) = &mut *running;
        if let Some(thread) = thread.take() {
            // A panic of its own has been reported.
            let _ = thread.join();
        }
        // The file goes after the thread, which listens there.
        drop(file.take());
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}
