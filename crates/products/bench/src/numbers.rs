//! Numbers as people read them: rounded, with three digits and a unit.

/// A number rounded to `decimals` decimals.
pub(crate) fn rounded(x: f64, decimals: i32) -> f64 {
    let scale = 10f64.powi(decimals);
    (x * scale).round() / scale
}

/// A number as people read it, with three digits: `0.92`, `131`, `5.5k`, `1.2M`.
pub(crate) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 999_500_000.0 => (value / 1e9, "G"),
        v if v >= 999_500.0 => (value / 1e6, "M"),
        v if v >= 9_999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match scaled.abs() {
        0.0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v => (2.0 - v.log10().floor()).min(9.0) as usize,
    };
    let text = format!("{scaled:.decimals$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// A size or a count: 4K, 1M where it is a power of two, and otherwise as it is.
pub(crate) fn size_name(value: f64) -> String {
    let whole = value as u64;
    if whole as f64 != value || whole == 0 {
        return short(value);
    }
    match whole {
        _ if whole.is_multiple_of(1 << 20) => format!("{}M", whole >> 20),
        _ if whole.is_multiple_of(1 << 10) => format!("{}K", whole >> 10),
        _ => whole.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_the_unit_of_their_size() {
        let all = [0.0, 0.001_234, 0.92, 3.4, 131.4, 4979.0, 12_345.0, 1_234_567.0, 2.5e9];
        let texts = all.map(short);
        let expected = ["0", "0.00123", "0.92", "3.4", "131", "4979", "12.3k", "1.23M", "2.5G"];
        assert_eq!(texts, expected);
    }
}
