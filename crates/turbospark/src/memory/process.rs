//! What this process has in memory, by the system's own account.

/// Bytes that are in memory now: pages of mapped files too, where the system counts them so.
pub fn resident_bytes() -> u64 {
    status("VmRSS:").or_else(elsewhere).unwrap_or(64 << 20)
}

/// The most bytes that were in memory at once, mapped files included; `None` where the system doesn't tell.
pub fn peak_bytes() -> Option<u64> {
    status("VmHWM:")
}

fn status(key: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(any(target_os = "macos", windows))]
fn elsewhere() -> Option<u64> {
    use sysinfo::{ProcessesToUpdate, System};
    let own = sysinfo::get_current_pid().ok()?;
    let mut system = System::new().ok()?;
    system.refresh_processes(ProcessesToUpdate::Some(&[own]), false);
    system.process(own).map(sysinfo::Process::memory)
}

#[cfg(not(any(target_os = "macos", windows)))]
fn elsewhere() -> Option<u64> {
    None
}
