//! The memory of the node that the ranks share: what they are about to take is held against what
//! there is before any of it is taken, since running out later kills the server.

use crate::error::{Result, bail};

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

/// Memory that new work can have without pushing others out, in bytes: `MemAvailable` of
/// `/proc/meminfo`. `None` where the kernel does not say.
pub fn available_memory() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
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
    fn the_kernels_figure_is_read() {
        let text = "MemTotal:       24 kB\nMemAvailable:       7 kB\n";
        assert_eq!(parse_available(text), Some(7 * 1024));
        assert_eq!(parse_available("MemTotal: 24 kB\n"), None);
        assert_eq!(parse_available("MemAvailable: many kB\n"), None);
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
