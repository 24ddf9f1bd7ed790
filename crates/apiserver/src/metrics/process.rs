//! What the kernel says of this process.

use super::page::Page;

/// Clock ticks a second, as the kernel counts them for programs.
const TICKS: f64 = 100.0;
const PAGE: u64 = 4096;

/// Adds the process's metrics; what cannot be read is left out.
pub fn print(page: &mut Page) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in brackets may hold anything; the numbers come after it.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok());
    if let (Some(user), Some(system)) = (number(11), number(12)) {
        page.one(
            "process_cpu_seconds_total",
            "counter",
            "Processor time so far, in seconds.",
            (user + system) / TICKS,
        );
    }
    if let (Some(started), Some(boot)) = (number(19), boot_time()) {
        page.one("process_start_time_seconds", "gauge", "When the process began.", boot + started / TICKS);
    }
    if let Some(size) = number(20) {
        page.one("process_virtual_memory_bytes", "gauge", "Address space in use.", size);
    }
    if let Some(pages) = number(21) {
        page.one("process_resident_memory_bytes", "gauge", "Memory in use.", pages as u64 * PAGE);
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        page.one("process_open_fds", "gauge", "Open file descriptors.", open.count());
    }
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = |name: &str| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    if let Some(most) = limit("Max open files") {
        page.one("process_max_fds", "gauge", "The most file descriptors that may be open.", most);
    }
    let most =
        limit("Max address space").map_or_else(|| "18446744073709551615".to_owned(), |own| own.to_string());
    page.one("process_virtual_memory_max_bytes", "gauge", "The most address space.", most);
    let network = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let bytes = |index: usize| -> u64 {
        let lines = network.lines().filter_map(|line| line.split_once(':'));
        lines.filter_map(|(_, rest)| rest.split_whitespace().nth(index)?.parse::<u64>().ok()).sum()
    };
    page.one("process_network_receive_bytes_total", "counter", "Bytes received in its network.", bytes(0));
    page.one("process_network_transmit_bytes_total", "counter", "Bytes sent in its network.", bytes(8));
}

fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_answers() {
        let mut page = Page::default();
        print(&mut page);
        for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
            assert!(page.text.contains(&format!("\n{name} ")), "{name}: {}", page.text);
        }
    }
}
