//! [`to_ascii`]: names outside of ASCII, as rules have them, in the form of DNS.

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// Characters that end a label (UTS 46 section 2.3).
const DOTS: [char; 4] = ['.', '\u{3002}', '\u{ff0e}', '\u{ff61}'];

/// The name with A-labels for its labels outside of ASCII (UTS 46, non-transitional). ASCII labels stay as they are,
/// and may have `*`, which no other label has. `None`: IDNA has no such name.
pub(super) fn to_ascii(name: &str) -> Option<String> {
    let label = |label: &str| {
        if label.is_ascii() {
            return Some(label.to_owned());
        }
        let hyphens = Hyphens::Check;
        let ascii = Uts46::new().to_ascii(
            label.as_bytes(),
            AsciiDenyList::STD3,
            hyphens,
            DnsLength::Verify,
        );
        ascii.ok().map(|label| label.into_owned())
    };
    let labels: Option<Vec<String>> = name.split(DOTS).map(label).collect();
    Some(labels?.join("."))
}
