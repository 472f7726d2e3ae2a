//! Cookies of Fast Open and the keys they are made with (RFC 7413 sections 4.1.1 and 4.1.2).

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher24;

use crate::limits::{FAST_OPEN_COOKIE_LEN, MAX_FAST_OPEN_COOKIE, MIN_FAST_OPEN_COOKIE};

/// A cookie as it stands in the option, or the request for one.
///
/// > RFC 7413 section 4.1.1: Length: 1 byte: range 6 to 18 (bytes); limited by remaining space in
/// > the options field. The number MUST be even. Cookie: 0, or 4 to 16 bytes (Length - 2)
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FastOpenCookie {
    bytes: [u8; MAX_FAST_OPEN_COOKIE],
    len: u8,
    experimental: bool,
}

impl FastOpenCookie {
    /// The request for a cookie: an option without one. `experimental`: in the form that came
    /// before the RFC, option 254 with the identifier 0xF989.
    pub const fn request(experimental: bool) -> Self {
        Self { bytes: [0; MAX_FAST_OPEN_COOKIE], len: 0, experimental }
    }

    /// Parses the bytes after kind, length and identifier; `None` if their number is wrong.
    pub fn from_option(data: &[u8], experimental: bool) -> Option<Self> {
        let mut cookie = Self::request(experimental);
        if data.is_empty() {
            return Some(cookie);
        }
        let fits = (MIN_FAST_OPEN_COOKIE..=MAX_FAST_OPEN_COOKIE).contains(&data.len());
        if !fits || !data.len().is_multiple_of(2) {
            return None;
        }
        cookie.bytes.get_mut(..data.len())?.copy_from_slice(data);
        cookie.len = data.len() as u8;
        Some(cookie)
    }

    /// The cookie's bytes; none in a request.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Whether this is only the request for a cookie.
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }

    /// Whether the option has the experimental form.
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// The cookie in the given form.
    #[must_use]
    pub const fn in_form(mut self, experimental: bool) -> Self {
        self.experimental = experimental;
        self
    }
}

impl core::fmt::Debug for FastOpenCookie {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.experimental { "FOEXP" } else { "FO" })?;
        if !self.is_request() {
            f.write_str(" ")?;
        }
        self.as_slice().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The keys of a server: cookies are made with the first, and accepted from both.
///
/// RFC 7413 section 4.1.2: a cookie expires after some time, for example because the server changes
/// its key; cookies of the key before are accepted for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastOpenKeys {
    primary: [u8; 16],
    backup: Option<[u8; 16]>,
}

/// The result of checking a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieCheck {
    /// The cookie was not made here, or was made for another client.
    Invalid,
    /// The cookie was made with the first key.
    Valid,
    /// The cookie was made with the backup key: send the client a new one.
    Outdated,
}

impl FastOpenKeys {
    /// From one secret of 128 random bits, and the one that it replaces.
    pub const fn new(primary: [u8; 16], backup: Option<[u8; 16]>) -> Self {
        Self { primary, backup }
    }

    /// The key that cookies are made with.
    pub const fn primary(&self) -> [u8; 16] {
        self.primary
    }

    /// The key whose cookies are still accepted.
    pub const fn backup(&self) -> Option<[u8; 16]> {
        self.backup
    }

    /// The cookie of the client at `client` for our address `server`; Linux makes the same.
    ///
    /// RFC 7413 section 4.1.2 asks that a cookie authenticates the client's address, and that only
    /// the server can make it: here a keyed hash of both addresses.
    pub fn cookie(&self, client: IpAddr, server: IpAddr) -> FastOpenCookie {
        cookie(&self.primary, client, server)
    }

    /// Whether `offered` is a cookie of that client's.
    pub fn check(&self, offered: &FastOpenCookie, client: IpAddr, server: IpAddr) -> CookieCheck {
        let is = |key| cookie(key, client, server).as_slice() == offered.as_slice();
        match &self.backup {
            _ if is(&self.primary) => CookieCheck::Valid,
            Some(backup) if is(backup) => CookieCheck::Outdated,
            _ => CookieCheck::Invalid,
        }
    }
}

impl core::fmt::Debug for FastOpenKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Keys are secrets.
        f.debug_struct("FastOpenKeys").finish_non_exhaustive()
    }
}

fn cookie(key: &[u8; 16], client: IpAddr, server: IpAddr) -> FastOpenCookie {
    let mut hasher = SipHasher24::new_with_key(key);
    for ip in [client, server] {
        match ip {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
    }
    let hash: [u8; FAST_OPEN_COOKIE_LEN] = hasher.finish().to_le_bytes();
    FastOpenCookie::from_option(&hash, false).unwrap_or_default()
}

#[cfg(test)]
#[path = "../tests/fast_open_cookie.rs"]
mod tests;
