//! Stands in for what other files will define; goes when they land.
#![allow(missing_docs)]

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("would block")]
    WouldBlock,
    #[error("no such socket")]
    BadSocket,
}

impl Error {
    pub fn errno(self) -> i32 {
        match self {
            Self::WouldBlock => 11,
            Self::BadSocket => 9,
        }
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stub")]
pub struct StackError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub addr: std::net::IpAddr,
    pub prefix: u8,
}

impl std::str::FromStr for Cidr {
    type Err = StackError;
    fn from_str(_: &str) -> Result<Self, StackError> {
        Err(StackError)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Counters;

impl std::fmt::Display for Counters {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

/// `pagewire_tcp::Config`.
#[derive(Clone, Debug, Default)]
pub struct TcpConfig;
