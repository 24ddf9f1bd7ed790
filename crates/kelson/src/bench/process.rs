//! What processes cost, read from /proc.

use std::fs;
use std::time::Duration;

/// CPU time and memory of some processes at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub cpu: Duration,
    pub pss_bytes: u64,
}

impl Cost {
    /// The sum over the processes; those that are gone count nothing.
    pub fn of(pids: &[u32]) -> Self {
        pids.iter().fold(Self::default(), |sum, pid| Self {
            cpu: sum.cpu + cpu(&read(*pid, "stat")),
            pss_bytes: sum.pss_bytes + pss(&read(*pid, "smaps_rollup")),
        })
    }

    pub fn mebibytes(&self) -> f64 {
        self.pss_bytes as f64 / f64::from(1 << 20)
    }
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

fn cpu(stat: &str) -> Duration {
    // The name in parentheses may hold spaces; fields are counted after it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // The kernel counts in hundredths of a second, on every machine that Linux runs on today.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

fn pss(rollup: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 5 1000 10";
        assert_eq!(cpu(stat), Duration::from_secs(2));
        assert_eq!(pss("00400000-7fff r--p\nRss:   20 kB\nPss:    12 kB\nPss_Anon: 3 kB\n"), 12 * 1024);
        assert_eq!(pss(""), 0);
    }
}
