//! Linux's names for settings of the stack; [`Settings::apply`] is the list.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use pagewire_stack::{
    FastOpenKeys, FastOpenMode, StackConfig, SynCookies, TcpConfig, TimeWaitReuse,
};
use pagewire_tcp::{CongestionKind, EcnMode, EcnOption, MtuProbing};

use crate::limits::SETTINGS_BYTES;

/// The settings of a file: one `name=value` in a line, as `sysctl` takes them; the last one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Reads the text of a file. Lines without `=` are passed over.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| {
            let line = line.split('#').next().unwrap_or_default();
            let (name, value) = line.split_once('=')?;
            let value = value.trim().trim_matches('"').trim();
            Some((name.trim().replace('/', "."), value.to_owned()))
        });
        Self(lines.collect())
    }

    /// The value of a setting.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether the device's queue refuses all packets.
    pub fn drops_output(&self) -> bool {
        self.get("pagewire.drop_output") == Some("1")
    }

    /// The route that was set: its destination, the path's MTU, and the initial window.
    pub fn route(&self) -> Option<(IpAddr, Option<usize>, Option<u32>)> {
        let words: Vec<_> = self.get("pagewire.route")?.split_whitespace().collect();
        let behind = |word: &str| {
            let at = words.iter().position(|w| *w == word)?;
            let value = words.get(at + 1).filter(|v| **v != "lock").or(words.get(at + 2))?;
            value.parse().ok()
        };
        let to = words.iter().position(|w| *w == "change")?;
        let to = words.get(to + 1)?.split('/').next()?.parse().ok()?;
        Some((to, behind("mtu").map(|mtu: u32| mtu as usize), behind("initcwnd")))
    }

    /// A change of these clears what is remembered of paths and peers.
    pub fn forgets(&self) -> [Option<&str>; 2] {
        ["pagewire.flush_metrics", "net.ipv4.tcp_fastopen_cookies"].map(|name| self.get(name))
    }

    /// Applies the settings to `config`; unknown names and invalid values are ignored.
    pub fn apply(&self, config: &mut StackConfig) {
        for (name, value) in &self.0 {
            match name.strip_prefix("net.ipv4.").unwrap_or(name) {
                "net.core.optmem_max" => {
                    set(&mut config.zerocopy.notification_bytes, number(value));
                }
                "tcp_syncookies" => {
                    use SynCookies::{Always, Off, WhenFull};
                    set(&mut config.syn_cookies, choice(value, [Off, WhenFull, Always]));
                }
                "tcp_fastopen" => {
                    let mode = number(value).map(FastOpenMode::from_bits_retain);
                    set(&mut config.fast_open.mode, mode);
                }
                "tcp_fastopen_key" => {
                    set(&mut config.fast_open.keys, fast_open_keys(value).map(Some));
                }
                "tcp_fastopen_blackhole_timeout_sec" => {
                    set(&mut config.fast_open.rest, seconds(value));
                }
                "tcp_mtu_probing" => config.tcp.mtu_probing = self.mtu_probing(value),
                "tcp_tw_reuse" => {
                    use TimeWaitReuse::{Loopback, Off, On};
                    set(&mut config.time_wait_reuse, choice(value, [Off, On, Loopback]));
                }
                "tcp_challenge_ack_limit" => {
                    // Linux: no limit is the largest number.
                    let limit = number(value).map(|n: u32| (n != i32::MAX as u32).then_some(n));
                    set(&mut config.challenge_acks_per_second, limit);
                }
                name => apply_tcp(&mut config.tcp, name, value),
            }
        }
    }

    fn mtu_probing(&self, value: &str) -> Option<MtuProbing> {
        let when = number(value).filter(|when| (1u8..=2).contains(when))?;
        let mut probing = MtuProbing { from_start: when == 2, ..MtuProbing::default() };
        let value = |name| self.get(name);
        set(&mut probing.base_mss, value("net.ipv4.tcp_base_mss").and_then(number));
        set(&mut probing.floor, value("net.ipv4.tcp_mtu_probe_floor").and_then(number));
        set(&mut probing.threshold, value("net.ipv4.tcp_probe_threshold").and_then(number));
        set(&mut probing.interval, value("net.ipv4.tcp_probe_interval").and_then(seconds));
        Some(probing)
    }
}

/// Applies a setting of connections.
fn apply_tcp(tcp: &mut TcpConfig, name: &str, value: &str) {
    let millis = |value| number(value).map(Duration::from_millis);
    match name {
        "tcp_rmem" => {
            if let Some([_, initial, most]) = triple(value) {
                (tcp.recv_buffer_initial, tcp.recv_buffer) = (initial, most);
            }
        }
        "tcp_wmem" => {
            if let Some([_, initial, most]) = triple(value) {
                (tcp.send_buffer_initial, tcp.send_buffer) = (initial, most);
            }
        }
        "tcp_shrink_window" => set(&mut tcp.shrink_window, flag(value)),
        "tcp_timestamps" => set(&mut tcp.timestamps, flag(value)),
        "tcp_sack" => set(&mut tcp.sack, flag(value)),
        "tcp_dsack" => set(&mut tcp.dsack, flag(value)),
        "tcp_ecn" => {
            use EcnMode::{Accept, AcceptAccurate, Accurate, Off, Request, RequestAcceptAccurate};
            let modes = [Off, Request, Accept, Accurate, RequestAcceptAccurate, AcceptAccurate];
            set(&mut tcp.ecn, choice(value, modes));
        }
        "tcp_ecn_option" => {
            use EcnOption::{Always, Off, Persistent, Sparing};
            set(&mut tcp.ecn_option, choice(value, [Off, Sparing, Always, Persistent]));
        }
        "tcp_reordering" => set(&mut tcp.reordering, number(value)),
        // 3 and 4 are tail loss probes, the others what they replaced.
        "tcp_early_retrans" => set(&mut tcp.tail_loss_probe, number(value).map(|n: u8| n >= 3)),
        "tcp_frto" => set(&mut tcp.frto, flag(value)),
        "tcp_tso_win_divisor" => set(&mut tcp.super_frame_divisor, number(value)),
        "tcp_min_tso_segs" => set(&mut tcp.min_super_segments, number(value)),
        "tcp_notsent_lowat" => set(&mut tcp.notsent_lowat, number(value)),
        "tcp_rfc1337" => set(&mut tcp.rfc1337, flag(value)),
        "tcp_window_scaling" => set(&mut tcp.window_scaling, flag(value)),
        "tcp_syn_retries" => set(&mut tcp.syn_retries, number(value)),
        "tcp_syn_linear_timeouts" => set(&mut tcp.syn_linear_retries, number(value)),
        "tcp_synack_retries" => set(&mut tcp.synack_retries, number(value)),
        "tcp_retries2" => set(&mut tcp.data_retries, number(value)),
        "tcp_orphan_retries" => {
            // Linux: 0 stands for 8.
            let retries = number(value).map(|n: u8| if n == 0 { 8 } else { n });
            set(&mut tcp.orphan_retries, retries);
        }
        "tcp_slow_start_after_idle" => set(&mut tcp.slow_start_after_idle, flag(value)),
        "tcp_fin_timeout" => set(&mut tcp.fin_wait2, seconds(value)),
        "tcp_rto_min_us" => set(&mut tcp.rto_min, number(value).map(Duration::from_micros)),
        "tcp_rto_max_ms" => set(&mut tcp.rto_max, millis(value)),
        "tcp_congestion_control" => match value {
            "cubic" => tcp.congestion = CongestionKind::Cubic,
            "reno" => tcp.congestion = CongestionKind::NewReno,
            _ => {}
        },
        "tcp_invalid_ratelimit" => set(&mut tcp.challenge_interval, millis(value)),
        _ => {}
    }
}

/// The file, and what was in it when it was last read.
#[derive(Debug)]
pub struct SettingsFile {
    path: PathBuf,
    seen: Option<FileState>,
    settings: Settings,
}

/// Length and time of the file, from which a change is noticed. Appending changes the length within one tick of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    len: u64,
    modified: SystemTime,
}

impl SettingsFile {
    /// A file that need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seen: None, settings: Settings::default() }
    }

    /// Where counters are written: beside it.
    pub fn counters(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".counters");
        path.into()
    }

    /// Reads the file if it has changed; returns the settings, if they have changed.
    ///
    /// # Errors
    /// The file is there but cannot be read.
    pub fn changed(&mut self) -> io::Result<Option<&Settings>> {
        let seen = match fs::metadata(&self.path) {
            Ok(found) => FileState { len: found.len(), modified: found.modified()? },
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(why),
        };
        if self.seen == Some(seen) {
            return Ok(None);
        }
        let settings = Settings::parse(&read(&self.path)?);
        self.seen = Some(seen);
        let new = settings != self.settings;
        self.settings = settings;
        Ok(new.then_some(&self.settings))
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(SETTINGS_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

/// A number as the kernel reads them: decimal, or hexadecimal behind `0x`.
fn number<T: FromStr + TryFrom<u64>>(value: &str) -> Option<T> {
    match value.strip_prefix("0x") {
        Some(digits) => T::try_from(u64::from_str_radix(digits, 16).ok()?).ok(),
        None => value.parse().ok(),
    }
}

/// The member of a list that the number stands for.
fn choice<T, const N: usize>(value: &str, of: [T; N]) -> Option<T> {
    of.into_iter().nth(number(value)?)
}

fn flag(value: &str) -> Option<bool> {
    number::<u32>(value).map(|n| n != 0)
}

fn seconds(value: &str) -> Option<Duration> {
    number(value).map(Duration::from_secs)
}

/// Keys as Linux writes them: four words in hexadecimal, and perhaps four more behind a comma.
fn fast_open_keys(value: &str) -> Option<FastOpenKeys> {
    let key = |text: &str| {
        let mut key = [0; 16];
        let mut words = text.trim().split('-');
        for place in key.chunks_mut(4) {
            let word = u32::from_str_radix(words.next()?, 16).ok()?;
            place.copy_from_slice(&word.to_le_bytes());
        }
        words.next().is_none().then_some(key)
    };
    match value.split_once(',') {
        Some((primary, backup)) => Some(FastOpenKeys::new(key(primary)?, Some(key(backup)?))),
        None => Some(FastOpenKeys::new(key(value)?, None)),
    }
}

/// Least, default and most bytes of a buffer.
fn triple(value: &str) -> Option<[u32; 3]> {
    let mut words = value.split_whitespace().map(number);
    let triple = [words.next()??, words.next()??, words.next()??];
    words.next().is_none().then_some(triple)
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
