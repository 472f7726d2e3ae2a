//! The `Range` field of a request (RFC 9110 section 14): which bytes of a file it selects.

/// The bytes of a file that a `Range` field selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// The whole file: there is no range, one that a server may ignore, or several.
    Whole,
    /// Bytes `first..end`, not empty.
    Part { first: u64, end: u64 },
    /// No byte of the file lies in the range.
    Unsatisfiable,
}

/// Reads the field's value for a file of `len` bytes.
///
/// RFC 9110 section 14.2: "A server MAY ignore the Range header field", and "A server that
/// supports range requests MAY ignore or reject a Range header field that contains an invalid
/// ranges-specifier". Several ranges in one request are answered with the whole file, which every
/// client must accept, rather than with multipart content, which few can read.
pub(crate) fn select(value: &str, len: u64) -> Selection {
    let Some(spec) = ranges_of_bytes(value) else { return Selection::Whole };
    if spec.contains(',') {
        return Selection::Whole;
    }
    let Some((first, last)) = spec.trim_matches([' ', '\t']).split_once('-') else {
        return Selection::Whole;
    };
    let (Some(first), Some(last)) = (position(first), position(last)) else {
        return Selection::Whole;
    };
    match (first, last) {
        // "If the selected representation is shorter than the specified suffix-length, the entire
        // representation is used."
        (None, Some(0)) => Selection::Unsatisfiable,
        (None, Some(suffix)) if len > 0 => {
            Selection::Part { first: len.saturating_sub(suffix), end: len }
        }
        // "An int-range is satisfiable if it has a first-pos that is less than the current length";
        // "if the last-pos value is absent, or if the value is greater than or equal to the current
        // length, the byte range is interpreted as the remainder".
        (Some(first), None) => from(first, len, len),
        (Some(first), Some(last)) if first <= last => {
            from(first, last.saturating_add(1).min(len), len)
        }
        // The last bytes of an empty file, a last position before the first, no numbers.
        _ => Selection::Whole,
    }
}

fn from(first: u64, end: u64, len: u64) -> Selection {
    if first < len { Selection::Part { first, end } } else { Selection::Unsatisfiable }
}

fn ranges_of_bytes(value: &str) -> Option<&str> {
    let (unit, spec) = value.trim_matches([' ', '\t']).split_once('=')?;
    unit.trim_end().eq_ignore_ascii_case("bytes").then_some(spec)
}

/// A position, which may be left out; `None`: the digits are no number. A number that does not fit counts as
/// the largest one, beyond any file.
fn position(digits: &str) -> Option<Option<u64>> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX)))
}
