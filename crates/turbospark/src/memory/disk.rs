//! How fast weights can be read again: measured in a moment, and remembered.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use turbospark_device::Device;
use turbospark_weights::{Checkpoint, DirectFile, DirectRead, Pace, read_together};

use crate::Result;

/// What direct reads of a checkpoint's files reach.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DiskSpeed {
    /// Bytes a second, with several reads in flight as a streamed model makes them.
    pub bytes_per_s: f64,
    /// Since when it is known; zero where it was measured now.
    pub age: Duration,
    /// The file system that it was measured on.
    pub device: String,
}

/// After so long a drive is measured again: it fills up, ages or is replaced.
const STALE: Duration = Duration::from_secs(30 * 24 * 3600);
/// Bytes that a measurement reads at once, and how often.
const PIECE: usize = 32 << 20;
const PIECES: u64 = 12;

/// The speed of the disk that a checkpoint lies on: as remembered in `memory` (a file of the cache folder) unless that
/// is stale or it is to be found `anew`, else measured; `None` where there is no file on a disk.
///
/// Of two measurements the faster is remembered: what makes a disk seem slow is other work.
///
/// # Errors
/// The disk's.
pub(crate) fn speed(
    checkpoint: &Checkpoint,
    device: &dyn Device,
    memory: Option<&Path>,
    anew: bool,
) -> Result<Option<DiskSpeed>> {
    let Some(file) = checkpoint.files().iter().filter(|f| f.path().is_some()).max_by_key(|f| f.length()) else {
        return Ok(None);
    };
    let name = file.path().map(|path| device_of(Path::new("/"), path)).unwrap_or_default();
    let known = memory.and_then(|memory| remembered(memory, &name, SystemTime::now()));
    if let Some(known) = known.clone().filter(|_| !anew) {
        return Ok(Some(known));
    }
    let Some(bytes_per_s) = measure(device, &file.direct()?, file.length())? else { return Ok(None) };
    if let Some(memory) = memory.filter(|_| known.is_none_or(|known| known.bytes_per_s < bytes_per_s)) {
        remember(memory, &name, bytes_per_s, SystemTime::now());
    }
    Ok(Some(DiskSpeed { bytes_per_s, age: Duration::ZERO, device: name }))
}

/// Bytes a second of up to 384 MiB, from places all over the file.
///
/// Into the device's own memory, as weights are: direct reads into huge pages were twice as fast as into small ones.
fn measure(device: &dyn Device, file: &DirectFile, length: u64) -> Result<Option<f64>> {
    let buffer = device.alloc("room for measuring the disk", PIECE)?;
    let mut speed = None;
    device.fill(buffer.bytes(), &mut |memory| {
        // Memory that was never touched is slower than most disks.
        memory.fill(1);
        let began = Instant::now();
        let mut read = 0u64;
        for i in 0..PIECES {
            let offset = length / PIECES * i / DirectFile::ALIGN as u64 * DirectFile::ALIGN as u64;
            let needed = (length - offset).min(PIECE as u64) as usize;
            if needed == 0 || read >= length {
                break;
            }
            let out = &mut memory[..needed.next_multiple_of(DirectFile::ALIGN)];
            let reads = vec![DirectRead { file, offset, needed, out }];
            read_together(reads, Pace::Full, &|| false).map_err(std::io::Error::other)?;
            read += needed as u64;
        }
        speed = (read > 0).then(|| read as f64 / began.elapsed().as_secs_f64());
        Ok(())
    })?;
    Ok(speed)
}

/// The file system that `path` lies on, by the longest mount that leads to it; below `root`, `proc` tells of mounts.
fn device_of(root: &Path, path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let at = before.split(' ').nth(4)?.replace("\\040", " ");
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?, after.next()?);
        path.starts_with(&at).then(|| (at.len(), format!("{kind} {source}")))
    };
    let found = mounts.lines().filter_map(mount).max_by_key(|(length, _)| *length);
    // Elsewhere each folder is measured for itself.
    let folder = || path.parent().unwrap_or(&path).display().to_string();
    found.map_or_else(folder, |(_, name)| name)
}

/// Where speeds are remembered.
pub(crate) fn memory() -> Option<PathBuf> {
    Some(crate::folders::cache().ok()?.join("disks.json"))
}

fn remembered(memory: &Path, device: &str, now: SystemTime) -> Option<DiskSpeed> {
    let all: Value = serde_json::from_str(&std::fs::read_to_string(memory).ok()?).ok()?;
    let bytes_per_s = all[device]["bytes_per_s"].as_f64().filter(|n| n.is_finite() && *n > 0.0)?;
    let age = now.duration_since(UNIX_EPOCH + Duration::from_secs(all[device]["at"].as_u64()?)).ok()?;
    (age < STALE).then(|| DiskSpeed { bytes_per_s, age, device: device.to_owned() })
}

/// Writes it down; where that can't be done it is measured again next time.
fn remember(memory: &Path, device: &str, bytes_per_s: f64, now: SystemTime) {
    let text = std::fs::read_to_string(memory).ok();
    let mut all =
        text.and_then(|t| serde_json::from_str::<Value>(&t).ok()).filter(Value::is_object).unwrap_or(json!({}));
    let at = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    all[device] = json!({"bytes_per_s": bytes_per_s.round(), "at": at});
    let partial = memory.with_extension(format!("partial-{}", std::process::id()));
    let folder = memory.parent().map(std::fs::create_dir_all);
    let written = folder.is_some_and(|made| made.is_ok()) && std::fs::write(&partial, all.to_string()).is_ok();
    if !written || std::fs::rename(&partial, memory).is_err() {
        let _ = std::fs::remove_file(&partial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_remembered_by_device_until_it_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("new/disks.json");
        let now = SystemTime::now();
        assert_eq!(remembered(&memory, "ext4 /dev/a", now), None);
        remember(&memory, "ext4 /dev/a", 1e9, now);
        remember(&memory, "xfs /dev/b", 3e9, now);
        let later = now + Duration::from_secs(3600);
        let known = remembered(&memory, "ext4 /dev/a", later).unwrap();
        assert_eq!((known.bytes_per_s, known.device.as_str()), (1e9, "ext4 /dev/a"));
        assert!(known.age >= Duration::from_secs(3600));
        assert_eq!(remembered(&memory, "ext4 /dev/c", later), None);
        assert_eq!(remembered(&memory, "xfs /dev/b", now + STALE + Duration::from_secs(2)), None);
        assert_eq!(remembered(&memory, "xfs /dev/b", UNIX_EPOCH), None, "from the future");
        std::fs::write(&memory, "no json").unwrap();
        assert_eq!(remembered(&memory, "xfs /dev/b", now), None);
        remember(&memory, "xfs /dev/b", 2e9, now);
        assert!(remembered(&memory, "xfs /dev/b", later).is_some());
    }

    #[test]
    fn the_device_is_that_of_the_longest_mount() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let mounts = "27 1 254:0 / / rw - ext4 /dev/vda rw\n\
                      40 27 8:1 / /data rw,relatime shared:2 - xfs /dev/sdb1 rw\n\
                      41 27 8:2 / /data/my\\040models rw - btrfs /dev/sdc rw\n\
                      42 27 8:3 / /dat rw - vfat /dev/sdd rw\n";
        std::fs::write(root.path().join("proc/self/mountinfo"), mounts).unwrap();
        let of = |path: &str| device_of(root.path(), Path::new(path));
        assert_eq!(of("/nowhere/model.safetensors"), "ext4 /dev/vda");
        assert_eq!(of("/data/model.safetensors"), "xfs /dev/sdb1");
        assert_eq!(of("/data/my models/model.safetensors"), "btrfs /dev/sdc");
    }

    #[test]
    fn a_small_file_is_measured_too() {
        let folder = tempfile::tempdir().unwrap();
        let header = br#"{"a":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}}"#;
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([7; 4096]);
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        let checkpoint = turbospark_weights::Folder::open(folder.path()).unwrap().checkpoint().unwrap();
        let memory = folder.path().join("disks.json");
        let device = turbospark_device::ReferenceDevice;
        let first = speed(&checkpoint, &device, Some(&memory), false).unwrap().unwrap();
        assert!(first.bytes_per_s > 0.0 && first.age.is_zero());
        let second = speed(&checkpoint, &device, Some(&memory), false).unwrap().unwrap();
        assert_eq!(second.bytes_per_s, first.bytes_per_s.round());
        // Something was in the way when it was measured.
        remember(&memory, &first.device, 1.0, SystemTime::now());
        let anew = speed(&checkpoint, &device, Some(&memory), true).unwrap().unwrap();
        let known = speed(&checkpoint, &device, Some(&memory), false).unwrap().unwrap();
        assert_eq!(known.bytes_per_s, anew.bytes_per_s.round());
    }
}
