//! The ways out of `--via`: proxies, their addresses, and the credentials for them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use pagewire_gateway::{Credentials, Proxy, ProxyUrl, Via, Vias};

use crate::args::guest::GuestOptions;
use crate::failure::{Failure, reason};
use crate::limits::CREDENTIALS_FILE;

/// Opens the ways of these options: reads files, and resolves names of proxies.
pub(super) fn open(options: &GuestOptions) -> Result<Vias, Failure> {
    let parsed = options.via.iter().map(|text| {
        // The text is not repeated where it may have a password.
        text.parse::<Via>().map_err(|e| Failure::misused("--via", e))
    });
    let all: Vec<Via> = parsed.collect::<Result<_, _>>()?;
    let mut proxies: HashMap<ProxyUrl, Proxy> = HashMap::new();
    for url in all.iter().filter_map(|via| via.proxy.as_ref()) {
        if !proxies.contains_key(url) {
            let proxy = Proxy::resolve(url.clone());
            let proxy = proxy.map_err(|e| {
                Failure::because(
                    format!("--via {url}"),
                    format!("{}; give its address", reason(&e)),
                )
            })?;
            proxies.insert(url.clone(), proxy);
        }
    }
    for text in &options.via_credentials {
        let wrong = |why: &str| Failure::misused("--via-credentials", why);
        let (url, path) = credentials_of(text)?;
        let url = match (url, proxies.len()) {
            (Some(url), _) => url,
            (None, 1) => proxies.keys().next().cloned().ok_or_else(|| wrong("no proxy"))?,
            (None, 0) => return Err(wrong("they are for a proxy of --via, and there is none")),
            (None, _) => return Err(wrong("there are several proxies: write URL=FILE for each")),
        };
        let Some(proxy) = proxies.remove(&url) else {
            return Err(wrong(&format!("{url} is no proxy of --via")));
        };
        let proxy = proxy.credentials(read(path)?);
        proxies.insert(url, proxy);
    }
    let proxies: HashMap<ProxyUrl, Arc<Proxy>> =
        proxies.into_iter().map(|(url, proxy)| (url, Arc::new(proxy))).collect();
    all.into_iter().try_fold(Vias::default(), |vias, Via { rule, proxy }| {
        let proxy = proxy.and_then(|url| proxies.get(&url).cloned());
        vias.add(rule, proxy).map_err(|e| Failure::misused("--via", e))
    })
}

/// The two parts of `[URL=]FILE`.
fn credentials_of(text: &OsStr) -> Result<(Option<ProxyUrl>, &Path), Failure> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').unwrap_or(0);
    let (url, file) = bytes.split_at(at);
    match str::from_utf8(url) {
        Ok(url) if url.contains("://") => {
            let url = url.parse().map_err(|e| Failure::misused("--via-credentials", e))?;
            Ok((Some(url), Path::new(OsStr::from_bytes(file.get(1..).unwrap_or_default()))))
        }
        _ => Ok((None, Path::new(text))),
    }
}

/// The credentials in a file, which has one line.
fn read(path: &Path) -> Result<Credentials, Failure> {
    let what = || format!("--via-credentials {}", path.display());
    let failed = |e: io::Error| Failure::because(what(), reason(&e));
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(CREDENTIALS_FILE).read_to_string(&mut text).map_err(failed)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    line.strip_suffix('\r').unwrap_or(line).parse().map_err(|e| Failure::because(what(), e))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn opened(args: &[&str]) -> Result<Vias, String> {
        let words = ["pagewire", "run"].iter().chain(args).chain(&["--", "true"]);
        let Ok(Cli { command: Command::Run(options), .. }) = Cli::try_parse_from(words) else {
            panic!("{args:?}");
        };
        open(&options.guest).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn what_is_wrong_is_said_without_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (good, bad) = (file("good", "user:secret\n"), file("bad", "user:secret\nsecret\n"));
        let (one, two) = ("socks5://192.0.2.1:1080", "a.example=http://192.0.2.2:3128");
        assert!(opened(&["--via", one, "--via-credentials", &good]).is_ok());
        let of_two = format!("http://192.0.2.2:3128={good}");
        assert!(opened(&["--via", two, "--via", one, "--via-credentials", &of_two]).is_ok());
        let gone = dir.path().join("gone").display().to_string();
        let wrong: [(&[&str], &str); 8] = [
            (&["--via", "http://user:secret@192.0.2.1:1"], "given apart"),
            (&["--via", "https://192.0.2.1:1"], "TLS to a proxy is not supported"),
            (&["--via", "tls:a.example=direct"], "no prefix"),
            (&["--via", one, "--via-credentials", &bad], "one line"),
            (&["--via", one, "--via-credentials", &gone], "No such file"),
            (&["--via", one, "--via", two, "--via-credentials", &good], "several proxies"),
            (&["--via", one, "--via-credentials", &of_two], "no proxy of --via"),
            (&["--via-credentials", &good], "there is none"),
        ];
        for (args, why) in wrong {
            let said = opened(args).unwrap_err();
            assert!(said.contains(why) && !said.contains("secret"), "{args:?}: {said}");
        }
    }
}
