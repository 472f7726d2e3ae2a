//! The memory of this machine, or of the control group that the process is in: what hosts and devices take
//! by default is a part of it.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::limits::{LEAST_MEMORY, MEMORY_PART};

/// Bytes of memory that the sockets of a host may pin by default: a sixteenth of the machine's memory, or of
/// the limit of the process's control group if that is less, as Linux's `tcp_mem`; at least 32 MiB.
pub fn memory() -> usize {
    static MEMORY: OnceLock<usize> = OnceLock::new();
    *MEMORY.get_or_init(|| {
        let limits = machine().into_iter().chain(groups());
        share(limits.min().unwrap_or(u64::MAX))
    })
}

/// Bytes of memory that a device may receive into by default: what a host pins, and as much more as it keeps
/// for new frames.
#[cfg(feature = "tap")]
pub(crate) fn device_memory() -> usize {
    let (has, leaves) = crate::limits::DEVICE_MEMORY_PARTS;
    memory() / leaves * has
}

/// The default of a machine with `bytes` of memory.
fn share(bytes: u64) -> usize {
    let most = pagewire_mem::limits::MAX_POOL_PAGES as u64 * pagewire_mem::PAGE_SIZE as u64;
    (bytes / MEMORY_PART).clamp(LEAST_MEMORY, most / 2) as usize
}

/// Bytes of memory of the machine.
fn machine() -> Option<u64> {
    let info = read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The limits of the process's control group and of all above it, where there are any: those of version 2,
/// and of version 1's memory controller.
fn groups() -> Vec<u64> {
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    groups.lines().flat_map(|line| limits_of(line, Path::new("/sys/fs/cgroup"))).collect()
}

/// The limits of a group that a line of `/proc/self/cgroup` names.
fn limits_of(line: &str, root: &Path) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (root, file) = match controllers {
        "" => (root.to_path_buf(), "memory.max"),
        some if some.split(',').any(|name| name == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let group = root.join(group.trim_start_matches('/'));
    let all = group.ancestors().take_while(|above| above.starts_with(&root)).map(PathBuf::from);
    // A group without a limit says "max".
    all.filter_map(|group| read_to_string(group.join(file)).ok()?.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_is_a_sixteenth_within_bounds() {
        for (machine, default) in
            [(0, 32 << 20), (256 << 20, 32 << 20), (1 << 30, 64 << 20), (24 << 30, 1536 << 20)]
        {
            assert_eq!(share(machine), default, "{machine}");
        }
        assert_eq!(share(u64::MAX), 32 << 30);
    }

    #[test]
    fn limits_of_all_groups_above_count() {
        let root = std::env::temp_dir().join(format!("pagewire-groups-{}", std::process::id()));
        let (leaf, old) = (root.join("a/b"), root.join("memory/c"));
        for (group, file, limit) in [
            (&leaf, "memory.max", "max\n"),
            (&root.join("a"), "memory.max", "1073741824\n"),
            (&root, "memory.max", "nonsense"),
            (&old, "memory.limit_in_bytes", "536870912\n"),
        ] {
            std::fs::create_dir_all(group).expect("a directory");
            std::fs::write(group.join(file), limit).expect("a file");
        }
        for (line, limits) in [
            ("0::/a/b", &[1 << 30][..]),
            ("0::/a", &[1 << 30]),
            ("0::/", &[]),
            ("4:cpu,memory:/c", &[512 << 20]),
            ("5:cpu:/c", &[]),
            ("", &[]),
            ("0:", &[]),
        ] {
            assert_eq!(limits_of(line, &root), limits, "{line}");
        }
        std::fs::remove_dir_all(root).expect("the directory is there");
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(machine().is_some_and(|bytes| bytes > 1 << 20));
        assert!(memory() >= LEAST_MEMORY as usize);
    }
}
