//! How much memory can be had without pushing anyone out.
//!
//! What a system has installed says nothing about it: other programs hold theirs, and a group (a container, a service)
//! may be given less than the machine has. What goes wrong unseen: a group counts the pages of files that it read, so
//! its use looks full although most of it is given back when asked; and a limit may be set on any group above one's own.

use std::path::{Path, PathBuf};

/// Memory that can be had, and what bounds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// The memory group that allows no more; `None` where it is what the whole system has free.
    pub group: Option<String>,
}

impl Free {
    /// The part that is left to everyone else: a sixteenth, from 64 MiB to 1 GiB.
    pub fn reserve(&self) -> u64 {
        (self.bytes / 16).clamp(64 << 20, 1 << 30)
    }
}

/// What this process can have beside what it holds already; `None` where the system doesn't tell.
pub fn free() -> Option<Free> {
    if cfg!(target_os = "linux") { free_under(Path::new("/")) } else { elsewhere() }
}

#[cfg(any(target_os = "macos", windows))]
fn elsewhere() -> Option<Free> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let bytes = system.available_memory();
    (bytes > 0).then_some(Free { bytes, group: None })
}

#[cfg(not(any(target_os = "macos", windows)))]
fn elsewhere() -> Option<Free> {
    None
}

/// As [`free`], from `proc` and the group file systems below `root`.
fn free_under(root: &Path) -> Option<Free> {
    let meminfo = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = available.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let mut free = Free { bytes: kib * 1024, group: None };
    for group in groups(root) {
        if let Some(bytes) = group.left()
            && bytes < free.bytes
        {
            free = Free { bytes, group: Some(group.name) };
        }
    }
    Some(free)
}

/// One memory group that this process is in.
struct Group {
    name: String,
    folder: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Group {
    /// What may still be taken, file pages given back; `None` without a limit.
    fn left(&self) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, used) = match self.version {
            Version::One => (number("memory.limit_in_bytes"), "memory.usage_in_bytes"),
            // Above `high` a group is slowed down until it gives back.
            Version::Two => (number("memory.max").into_iter().chain(number("memory.high")).min(), "memory.current"),
        };
        // Version one has no word for "none" but a number that no machine reaches.
        let limit = limit.filter(|&n| n < 1 << 60)?;
        let stat = read("memory.stat").unwrap_or_default();
        let of = |key: &str| {
            let value = |line: &str| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse::<u64>().ok();
            stat.lines().find_map(value)
        };
        // In version one `total_` includes the groups below; so does everything in version two.
        let both = |list: &str| of(&format!("total_{list}")).or_else(|| of(list)).unwrap_or(0);
        let files = both("inactive_file") + both("active_file");
        Some(limit.saturating_sub(number(used)?.saturating_sub(files)))
    }
}

/// This process's groups with all above them.
fn groups(root: &Path) -> Vec<Group> {
    let own = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mut all = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            some if some.split(',').any(|c| c == "memory") => Version::One,
            _ => continue,
        };
        for (mounted, at) in mounts.lines().filter_map(|mount| mount_of(mount, version)) {
            // Inside a container a part of the tree is mounted, and paths may be told from above it.
            let below = Path::new(path).strip_prefix(mounted).unwrap_or(Path::new(""));
            let outside = below.components().any(|part| part == std::path::Component::ParentDir);
            let below = if outside { Path::new("") } else { below };
            let top = root.join(at.trim_start_matches('/'));
            for part in below.ancestors() {
                let name = if part == Path::new("") { "/".into() } else { part.display().to_string() };
                all.push(Group { name, folder: top.join(part), version });
            }
        }
    }
    all
}

/// What part of a group tree a line of `mountinfo` mounts, and where.
fn mount_of(line: &str, version: Version) -> Option<(&str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (mounted, at) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
    let fits = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|o| o == "memory"),
        Version::Two => kind == "cgroup2",
    };
    fits.then_some((mounted, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of files below a temporary root.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       33554432 kB\nMemFree: 1024 kB\nMemAvailable:    8388608 kB\nBuffers: 1 kB\n");
    const MIB: u64 = 1 << 20;

    fn of(files: &[(&str, &str)]) -> Option<Free> {
        let root = tree(files);
        free_under(root.path())
    }

    #[test]
    fn without_groups_it_is_what_the_system_has_free() {
        assert_eq!(of(&[MEMINFO]), Some(Free { bytes: 8192 * MIB, group: None }));
        assert_eq!(of(&[("proc/meminfo", "MemTotal: 5 kB\n")]), None);
    }

    #[test]
    fn a_group_of_version_two_gives_its_limit_less_what_is_in_use_and_no_file_page() {
        let got = of(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/user/app\n"),
            ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/user/app/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/user/app/memory.high", "max\n"),
            ("sys/fs/cgroup/user/app/memory.current", "1073741824\n"),
            (
                "sys/fs/cgroup/user/app/memory.stat",
                "anon 1\ninactive_file 268435456\nactive_file 268435456\nfile 9999999999\n",
            ),
        ]);
        assert_eq!(got, Some(Free { bytes: 1536 * MIB, group: Some("user/app".into()) }));
    }

    #[test]
    fn the_tightest_group_above_counts_and_so_does_high() {
        let got = of(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/c/memory.current", "1\n"),
            ("sys/fs/cgroup/a/b/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/a/b/memory.current", "0\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.high", "1073741824\n"),
            ("sys/fs/cgroup/a/memory.current", "536870912\n"),
        ]);
        assert_eq!(got, Some(Free { bytes: 512 * MIB, group: Some("a".into()) }));
    }

    #[test]
    fn a_group_of_version_one_with_its_totals() {
        let got = of(&[
            MEMINFO,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/f00/job\n0::/\n"),
            (
                "proc/self/mountinfo",
                "35 31 0:32 /docker/f00 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "3221225472\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "3221225472\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "inactive_file 1\nactive_file 1\ntotal_inactive_file 1073741824\ntotal_active_file 0\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "5\n"),
        ]);
        assert_eq!(got, Some(Free { bytes: 1024 * MIB, group: Some("/".into()) }));
    }

    #[test]
    fn a_path_told_from_outside_a_container_is_looked_up_at_its_mount() {
        let got = of(&[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/outside/of/it\n"),
            ("proc/self/mountinfo", "35 31 0:32 /docker/f00 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648\n"),
        ]);
        assert_eq!(got, Some(Free { bytes: 0, group: Some("/".into()) }), "more than is allowed is in use");
    }

    #[test]
    fn the_reserve_grows_with_what_is_free() {
        let reserve = |bytes| Free { bytes, group: None }.reserve();
        assert_eq!(reserve(512 * MIB), 64 * MIB);
        assert_eq!(reserve(4096 * MIB), 256 * MIB);
        assert_eq!(reserve(64 << 30), 1 << 30);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_system_tells() {
        assert!(free().is_some_and(|f| f.bytes > 0));
    }
}
