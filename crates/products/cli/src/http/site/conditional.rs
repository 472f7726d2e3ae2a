//! Validators of files, and requests that depend on them (RFC 9110 sections 8.8 and 13).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::http::message::request::Conditions;
use crate::limits::SETTLE_TIME;

/// Validators of one state of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validators {
    /// The entity tag, quotes and `W/` included.
    pub(crate) etag: String,
    /// The time of the last change, in whole seconds as HTTP has them; `None`: before 1970.
    pub(crate) modified: Option<SystemTime>,
    /// The date is strong enough for a byte-range request.
    date_is_strong: bool,
}

/// The result of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Proceed,
    NotModified,
    Failed,
}

impl Validators {
    /// Validators of a file. Times (modified, changed) are nanoseconds since 1970; `identity` differs for
    /// another file of the same name.
    pub(crate) fn new(
        len: u64,
        mtime_ns: i128,
        ctime_ns: i128,
        identity: u64,
        now: SystemTime,
    ) -> Self {
        let now_ns = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i128);
        let newest = mtime_ns.max(ctime_ns);
        // RFC 9110 section 8.8.1: "a validator is weak if it is shared by two or more
        // representations … at the same time", which a clock with ticks cannot rule out at once.
        let settled = now_ns.saturating_sub(newest) >= SETTLE_TIME.as_nanos() as i128;
        let weak = if settled { "" } else { "W/" };
        let etag = format!("{weak}\"{len:x}-{mtime_ns:x}-{ctime_ns:x}-{identity:x}\"");
        let modified = u64::try_from(mtime_ns.div_euclid(1_000_000_000))
            .ok()
            .filter(|_| mtime_ns >= 0)
            .and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s)))
            // RFC 9110 section 8.8.2.1: a date in the future is replaced by the message's own.
            .map(|m| m.min(now));
        // RFC 9110 section 8.8.2.2: the date is strong if it lies at least one second before the
        // time of the response; two, because both were cut to whole seconds.
        let date_is_strong = now_ns.saturating_sub(newest) >= 2_000_000_000;
        Self { etag, modified, date_is_strong }
    }

    /// `Last-Modified`'s value. Years beyond 9999 have no form in HTTP.
    pub(crate) fn last_modified(&self) -> Option<String> {
        let last = UNIX_EPOCH + Duration::from_secs(253_402_300_799);
        self.modified.filter(|&m| m <= last).map(httpdate::fmt_http_date)
    }

    /// Decides the conditions in the order of RFC 9110 section 13.2.2.
    pub(crate) fn decide(&self, conditions: &Conditions) -> Decision {
        if let Some(list) = &conditions.if_match {
            if !self.matches(list, false) {
                return Decision::Failed;
            }
        } else if let Some(date) = conditions.if_unmodified_since.as_deref().and_then(date)
            && self.modified.is_some_and(|m| seconds(m) > seconds(date))
        {
            return Decision::Failed;
        }
        // "A recipient MUST ignore If-Modified-Since if the request contains an If-None-Match".
        if let Some(list) = &conditions.if_none_match {
            if self.matches(list, true) {
                return Decision::NotModified;
            }
        } else if let Some(date) = conditions.if_modified_since.as_deref().and_then(date)
            && self.modified.is_some_and(|m| seconds(m) <= seconds(date))
        {
            return Decision::NotModified;
        }
        Decision::Proceed
    }

    /// Whether a `Range` holds: there is no `If-Range`, or it names exactly this state.
    pub(crate) fn range_holds(&self, conditions: &Conditions) -> bool {
        let Some(value) = conditions.if_range.as_deref().map(str::trim) else { return true };
        // RFC 9110 section 13.1.5: entity tags are compared strongly; a date is strong and equal.
        if value.starts_with('"') || value.starts_with("W/") {
            return !value.starts_with("W/") && value == self.etag;
        }
        self.date_is_strong
            && date(value).is_some_and(|d| self.modified.is_some_and(|m| seconds(m) == seconds(d)))
    }

    /// Whether a list has this state's tag; in a weak comparison, a weak tag counts, too.
    fn matches(&self, list: &str, weakly: bool) -> bool {
        if list.trim() == "*" {
            return true;
        }
        let ours_weak = self.etag.starts_with("W/");
        let ours = self.etag.trim_start_matches("W/");
        tags(list).any(|(weak, tag)| tag == ours && (weakly || !(weak || ours_weak)))
    }
}

/// The entity tags of a list up to the first invalid one, each with whether it is weak.
fn tags(list: &str) -> impl Iterator<Item = (bool, &str)> {
    let mut rest = list;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (weak, opaque) = match rest.strip_prefix("W/") {
            Some(opaque) => (true, opaque),
            None => (false, rest),
        };
        let close = opaque.strip_prefix('"')?.find('"')? + 2;
        let (tag, after) = opaque.split_at_checked(close)?;
        rest = after;
        Some((weak, tag))
    })
}

fn date(value: &str) -> Option<SystemTime> {
    httpdate::parse_http_date(value.trim()).ok()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
