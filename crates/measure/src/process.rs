//! What processes cost, read from /proc.

use std::fs;
use std::time::Duration;

/// One or several processes that are measured together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processes(Vec<u32>);

impl Processes {
    /// These processes.
    pub fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self(pids.into_iter().collect())
    }

    /// The process of this machine and network namespace that listens on a TCP port, if we may look into it.
    pub fn listening_on(port: u16) -> Self {
        let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .iter()
            .filter_map(|table| fs::read_to_string(table).ok())
            .flat_map(|table| listeners(&table, port))
            .map(|inode| format!("socket:[{inode}]"))
            .collect();
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let holds = |pid: &u32| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files
                .filter_map(|file| fs::read_link(file.path()).ok())
                .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
        };
        let own = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(if sockets.is_empty() { Vec::new() } else { own.filter(holds).take(1).collect() })
    }

    /// Whether there is nothing to measure.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPU time that they have used so far; nothing if one of them is gone.
    pub fn cpu(&self) -> Option<Duration> {
        let ticks = self.sum(|pid| cpu_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))?;
        Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// Bytes of memory that they hold, pages that they share with others divided by the number of sharers.
    pub fn memory(&self) -> Option<u64> {
        let field = |pid: u32, file: &str, name: &str| {
            kibibytes(&fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?, name)
        };
        self.sum(|pid| field(pid, "smaps_rollup", "Pss:").or_else(|| field(pid, "status", "VmRSS:")))
            .map(|kibibytes| kibibytes << 10)
    }

    fn sum(&self, part: impl Fn(u32) -> Option<u64>) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        self.0.iter().map(|pid| part(*pid)).sum()
    }
}

/// User and system time in /proc/PID/stat.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name in parentheses may hold spaces and parentheses; fields are counted after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The inodes of the sockets that listen on a port, in a table like /proc/net/tcp.
fn listeners(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let wanted = format!(":{port:04X}");
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields.get(1)?.ends_with(&wanted) && *fields.get(3)? == LISTEN;
            listens.then(|| fields.get(9)?.parse().ok())?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_the_port_it_listens_on() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let own = Processes::listening_on(listener.local_addr().unwrap().port());
        assert_eq!(own, Processes::new([std::process::id()]));
        assert!(own.memory().unwrap() > 0);
        assert!(own.cpu().is_some());
        assert_eq!(Processes::default().memory(), None);
    }

    #[test]
    fn names_with_spaces_do_not_move_the_fields() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 12 30 0 0 20 0 4 0 5 6 7";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(kibibytes("Rss: 10 kB\nPss:   8 kB\n", "Pss:"), Some(8));
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n\
             1: 0100007F:192B 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n";
        assert_eq!(listeners(table, 6443), [4711]);
        assert_eq!(listeners(table, 6444), [0; 0]);
    }
}
