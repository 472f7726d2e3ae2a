//! What `--version` says: the version, then what this build is.

use std::env::consts::ARCH;
use std::fmt::Write;
use std::sync::LazyLock;

/// The commit that this was built from, where the build says it: a package's does.
const COMMIT: Option<&str> = option_env!("PAGEWIRE_COMMIT");

/// The C library that this was built with.
const LIBRARY: &str = if cfg!(target_env = "musl") { "musl" } else { "gnu" };

/// The version on its first line, and one line for each other fact.
pub(crate) static LONG: LazyLock<String> = LazyLock::new(|| {
    let named = [("full", cfg!(feature = "full")), ("quinn", cfg!(feature = "quinn"))];
    let features: Vec<&str> = named.iter().filter(|(_, on)| *on).map(|(name, _)| *name).collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let mut text = env!("CARGO_PKG_VERSION").to_owned();
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    for (what, value) in [
        ("commit", commit),
        ("target", Some(format!("{ARCH}-linux-{LIBRARY}").as_str())),
        ("features", Some(features.as_str())),
    ] {
        if let Some(value) = value {
            let _ = write!(text, "\n{what}: {value}");
        }
    }
    text
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_alone_on_its_line_and_the_build_below() {
        let lines: Vec<&str> = LONG.lines().collect();
        assert_eq!(lines.first(), Some(&env!("CARGO_PKG_VERSION")));
        assert!(lines.iter().any(|line| line.starts_with("target: ")), "{lines:?}");
        assert!(lines.contains(&"features: full"), "{lines:?}");
    }
}
