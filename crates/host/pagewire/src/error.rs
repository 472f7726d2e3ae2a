//! The errors of a host: [`StartError`], and [`NetworkDown`] within errors of `std::io`.

use std::io;

use pagewire_stack::MAX_PAYLOAD_PAGES;
use pagewire_stack::limits::MAX_SHARDS;

/// The reason why a host can send and receive nothing any more: within errors of kind `NetworkDown`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("network is down: {cause}")]
pub struct NetworkDown {
    /// The device's error, or that the host was shut down.
    pub cause: String,
}

/// The reason why a host did not start; the text also says how to mend it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No device was given.
    #[error("a host needs a device: call `.device(..)` before `.start()`")]
    NoDevice,
    /// No runtime runs on this thread, or it has no I/O driver.
    #[cfg(feature = "tokio")]
    #[error(
        "a host in a runtime has to be started in one: within a task or `block_on` of tokio, with I/O enabled"
    )]
    NoRuntime,
    /// An address or a gateway that cannot be parsed.
    #[error("address {text:?}: {why}")]
    Address {
        /// The text.
        text: String,
        /// The reason why the text is no address.
        why: String,
    },
    /// Segments of that many pages do not fit the link.
    #[error(
        "payload of {pages} pages needs an MTU of {needs} bytes, and the link has {has}: choose 1 to \
         {MAX_PAYLOAD_PAGES} pages, and a larger MTU"
    )]
    PayloadPages {
        /// The pages that were requested.
        pages: u8,
        /// The link's MTU, in bytes.
        has: usize,
        /// The MTU that this many pages need, or the largest possible number.
        needs: usize,
    },
    /// That many cores are none, or too many.
    #[error("a host has 1 to {MAX_SHARDS} cores, not {0}")]
    Cores(usize),
    /// There are more queues than cores to receive from them, or the queues are of different devices.
    #[error(
        "{queues} queues for {cores} cores: give each core one queue at most, all of one device (with the same \
         MTU and link address)"
    )]
    Queues {
        /// The queues that were given.
        queues: usize,
        /// The cores of the host.
        cores: usize,
    },
    /// A link was to be added to one of a host's several cores.
    #[error("a link belongs to all cores of a host: use `Cores::add_link`")]
    LinkOfCores,
    /// A setting that new connections cannot begin with; the text names it.
    #[error("{0} is no setting of new connections: set it on each connection or listener")]
    Option(String),
    /// The stack refused the settings.
    #[error(transparent)]
    Stack(#[from] pagewire_stack::StackError),
    /// The system refused a descriptor, a thread or random bytes.
    #[error("starting a host: {0}")]
    System(#[from] io::Error),
}

/// The same text as `Display`: a program whose `main` returns the error prints this form.
impl std::fmt::Debug for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::System(error) => error,
            other => Self::new(io::ErrorKind::InvalidInput, other),
        }
    }
}

pub(crate) fn parse_all<T: std::str::FromStr>(texts: &[String]) -> Result<Vec<T>, StartError>
where
    T::Err: std::fmt::Display,
{
    texts.iter().map(|text| parse(text)).collect()
}

pub(crate) fn parse<T: std::str::FromStr>(text: &str) -> Result<T, StartError>
where
    T::Err: std::fmt::Display,
{
    let why = |e: T::Err| StartError::Address { text: text.to_owned(), why: e.to_string() };
    text.parse().map_err(why)
}
