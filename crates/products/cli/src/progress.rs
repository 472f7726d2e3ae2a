//! The style of the progress bar of a transfer, for `fetch` and `demo`.

use indicatif::ProgressStyle;

pub(crate) fn bar_style() -> ProgressStyle {
    let template = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
