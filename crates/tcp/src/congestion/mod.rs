//! Congestion control.

/// Which congestion control a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionKind {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and 6582.
    NewReno,
}
