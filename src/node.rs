//! The memory of the node that the ranks share: what they are about to take is held against what
//! there is before any of it is taken, since running out later kills the server.

use crate::error::{Result, bail};

/// The right to lock memory beyond the limit, as a bit of a process's capabilities.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// What one rank takes, in bytes, and how many ranks do the same on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Ranks on this node.
    pub ranks: u32,
    /// Memory lent to the pool, per rank.
    pub segment: u64,
    /// Staging memory of both directions, per rank.
    pub staging: u64,
}

impl Budget {
    /// Refuses with `NoMemory` and the sum what exceeds `available` bytes; `None` is not known and
    /// refuses nothing.
    pub fn check(&self, available: Option<u64>) -> Result<()> {
        let sum = self
            .segment
            .saturating_add(self.staging)
            .saturating_mul(u64::from(self.ranks));
        match available {
            Some(available) if sum > available => bail!(
                NoMemory,
                "{} ranks on this node need {sum} bytes (each {} for the pool's segment and {} for staging, as far as they are not taken yet), {available} are available; lower global_segment_size or staging_buffer_bytes",
                self.ranks,
                self.segment,
                self.staging
            ),
            _ => Ok(()),
        }
    }
}

/// What one process has its network's adapter keep in place, in bytes. The kernel counts registrations of RDMA (`ib_umem_get`), and
/// not what the CUDA driver pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locked {
    /// Memory lent to the pool.
    pub segment: u64,
    /// Staging memory of both directions.
    pub staging: u64,
}

impl Locked {
    /// Refuses with `NoMemory` and the sum what exceeds the limit of a process; `None` is not known and refuses nothing.
    pub fn check(&self, limit: Option<u64>) -> Result<()> {
        let sum = self.segment.saturating_add(self.staging);
        match limit {
            Some(limit) if sum > limit => bail!(
                NoMemory,
                "RDMA locks {sum} bytes ({} of the pool's segment, up to {} of staging), and this process may lock {limit}; raise the limit (ulimit -l, LimitMEMLOCK), or lower global_segment_size or staging_buffer_bytes",
                self.segment,
                self.staging
            ),
            _ => Ok(()),
        }
    }
}

/// Memory that new work can have without pushing others out, in bytes: `MemAvailable` of
/// `/proc/meminfo`. `None` where the kernel does not say.
pub fn available_memory() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// How much memory one process may lock, in bytes: `u64::MAX` without a limit, or with the right to go beyond it. `None`
/// where the kernel does not say.
pub fn locked_memory_limit() -> Option<u64> {
    if parse_capabilities(&std::fs::read_to_string("/proc/self/status").ok()?)? & CAP_IPC_LOCK != 0
    {
        return Some(u64::MAX);
    }
    parse_locked(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

/// The soft limit of "Max locked memory" in `/proc/self/limits`.
fn parse_locked(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

/// The effective capabilities in `/proc/self/status`.
fn parse_capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether the kernel has one of these modules loaded; built-in ones are not listed. `None` where it does not say.
pub fn has_module(names: &[&str]) -> Option<bool> {
    let modules = std::fs::read_to_string("/proc/modules").ok()?;
    Some(lists_module(&modules, names))
}

fn lists_module(modules: &str, names: &[&str]) -> bool {
    let mut loaded = modules
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    loaded.any(|module| names.contains(&module))
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn what_fits_passes_and_what_does_not_is_refused_with_the_sum() {
        let budget = Budget {
            ranks: 4,
            segment: 100,
            staging: 20,
        };
        assert!(budget.check(Some(480)).is_ok());
        assert!(budget.check(None).is_ok());
        let error = budget.check(Some(479)).unwrap_err();
        assert_eq!(error.kind(), Kind::NoMemory);
        for number in ["480", "479", "100", "20", "4 ranks"] {
            assert!(error.message().contains(number), "{error}");
        }
        let huge = Budget {
            ranks: u32::MAX,
            segment: u64::MAX,
            staging: u64::MAX,
        };
        assert!(huge.check(Some(u64::MAX - 1)).is_err());
    }

    #[test]
    fn what_may_not_be_locked_is_refused_with_the_sum() {
        let locked = Locked {
            segment: 100,
            staging: 20,
        };
        for enough in [Some(120), Some(u64::MAX), None] {
            locked.check(enough).unwrap();
        }
        let error = locked.check(Some(119)).unwrap_err();
        assert_eq!(error.kind(), Kind::NoMemory);
        for number in ["locks 120 bytes", "100", "20", "may lock 119", "ulimit -l"] {
            assert!(error.message().contains(number), "{error}");
        }
    }

    #[test]
    fn what_the_kernel_says_of_locked_memory_and_modules_is_read() {
        let limits = |value: &str| {
            let head = "Limit  Soft Limit  Hard Limit  Units\nMax processes 7 8 processes\n";
            parse_locked(&format!(
                "{head}Max locked memory         {value}   9999999 bytes\n"
            ))
        };
        assert_eq!(limits("8388608"), Some(8_388_608));
        assert_eq!(limits("unlimited"), Some(u64::MAX));
        assert_eq!(limits("much"), None);
        assert_eq!(parse_locked("Max processes 7 8 processes\n"), None);
        assert_eq!(
            parse_capabilities("Name:\tx\nCapEff:\t0000000000004000\n"),
            Some(CAP_IPC_LOCK)
        );
        assert_eq!(parse_capabilities("CapEff:\tmany\n"), None);
        let modules = "nvidia_uvm 1 0 - Live\nnvidia_peermem 16384 0 - Live 0x0\n";
        assert!(lists_module(modules, &["nv_peer_mem", "nvidia_peermem"]));
        assert!(!lists_module(modules, &["nvidia"]));
        assert!(locked_memory_limit().is_some());
    }

    #[test]
    fn the_kernels_figure_is_read() {
        let text = "MemTotal:       24 kB\nMemAvailable:       7 kB\n";
        assert_eq!(parse_available(text), Some(7 * 1024));
        assert_eq!(parse_available("MemTotal: 24 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: many kB\n"), None);
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
