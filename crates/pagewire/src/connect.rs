//! How a connection is opened.

use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::Instant;
use pagewire_stack::{Error, LinkId, Stack, TcpId, TcpOption};

/// How a connection is opened: [`Host::connect_with`](crate::Host::connect_with).
///
/// ```
/// use pagewire::{ConnectOptions, Host, Pair, TcpOption};
/// use std::io::Write;
///
/// # let (left, right) = Pair::new(Default::default())?;
/// # let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// # let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
/// # let _listener = server.listen("10.0.0.1:9000")?;
/// let options = ConnectOptions::new().option(TcpOption::RecvBuffer(1 << 20)).fast_open();
/// let mut conn = client.connect_with("10.0.0.1:9000", &options)?;
/// conn.write_all(b"perhaps in the SYN")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ConnectOptions {
    local: Option<SocketAddr>,
    link: Option<LinkId>,
    /// Whether it needs no cookie.
    fast_open: Option<bool>,
    options: Vec<TcpOption>,
}

impl ConnectOptions {
    /// The host's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The local address, which may be unspecified (`0.0.0.0`), and port, which may be 0.
    pub fn local(mut self, address: SocketAddr) -> Self {
        self.local = Some(address);
        self
    }

    /// The only link that the connection uses.
    pub fn link(mut self, link: LinkId) -> Self {
        self.link = Some(link);
        self
    }

    /// A setting that counts from the SYN on, such as the size of a buffer.
    pub fn option(mut self, option: TcpOption) -> Self {
        self.options.push(option);
        self
    }

    /// With TCP Fast Open (RFC 7413). If the host has a cookie of the server, `connect_with` returns at
    /// once and the first write sends its data in the SYN: write before you read. Else the connection
    /// opens as usual and asks for a cookie. The server may get the data of a SYN twice.
    /// A shutdown before the server has answered ends the connection, as on Linux.
    pub fn fast_open(mut self) -> Self {
        self.fast_open = Some(false);
        self
    }

    /// [`fast_open`](Self::fast_open) without a cookie, for servers that need none.
    pub fn fast_open_without_cookie(mut self) -> Self {
        self.fast_open = Some(true);
        self
    }

    /// Begins to open a connection.
    pub(crate) fn start(
        &self,
        (stack, now): (&mut Stack, Instant),
        remote: SocketAddr,
    ) -> Result<TcpId, Error> {
        let (mut config, mut later) = (stack.default_config(), Vec::new());
        for option in &self.options {
            if !option.apply(Arc::make_mut(&mut config)) {
                later.push(*option);
            }
        }
        let Self { local, link, fast_open, .. } = *self;
        let config = Some(config);
        let options = pagewire_stack::ConnectOptions { local, link, fast_open, config };
        let id = stack.connect(now, remote, options)?;
        for option in later {
            let set = stack.tcp(id).and_then(|mut tcp| tcp.set_option(now, option));
            if let Err(error) = set {
                stack.close(now, id);
                return Err(error);
            }
        }
        Ok(id)
    }
}
