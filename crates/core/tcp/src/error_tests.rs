//! Names are an interface: they are unique, in one style, and carry the crate's prefix.

use std::collections::HashSet;

use super::{DropReason, TcpError};
use crate::{HeaderError, OptionError};

#[test]
fn every_drop_reason_has_a_stable_snake_case_name_of_its_own() {
    let names: HashSet<_> = DropReason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), DropReason::COUNT);
    for name in names {
        assert!(name.starts_with("tcp_"), "{name}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
    }
}

#[test]
fn a_drop_reason_is_its_index_in_the_table_of_all() {
    for (i, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, i);
    }
}

#[test]
fn header_errors_and_option_errors_have_names_of_their_own() {
    let headers = [
        HeaderError::Truncated,
        HeaderError::DataOffsetTooSmall,
        HeaderError::DataOffsetBeyondSegment,
    ];
    let options =
        [OptionError::LengthMissing, OptionError::LengthTooShort, OptionError::LengthBeyondHeader];
    let mut names: HashSet<_> = headers.iter().map(|e| e.reason().name()).collect();
    names.extend(options.iter().map(|e| e.name()));
    assert_eq!(names.len(), 6);
}

/// Numbers of `asm-generic/errno.h`.
#[test]
fn errors_have_linuxs_numbers() {
    for (error, errno) in [
        (TcpError::WouldBlock, 11),
        (TcpError::InvalidInput, 22),
        (TcpError::BrokenPipe, 32),
        (TcpError::ProtocolUnreachable, 92),
        (TcpError::NetworkUnreachable, 101),
        (TcpError::ConnectionAborted, 103),
        (TcpError::ConnectionReset, 104),
        (TcpError::NoBuffers, 105),
        (TcpError::AlreadyConnected, 106),
        (TcpError::NotConnected, 107),
        (TcpError::TimedOut, 110),
        (TcpError::ConnectionRefused, 111),
        (TcpError::HostUnreachable, 113),
    ] {
        assert_eq!(error.errno(), errno, "{error}");
    }
}
