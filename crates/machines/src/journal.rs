//! A machine's journal: one line of JSON per message, with the field names of journalctl's JSON output, in files of
//! bounded size and number. Who reads needs no running machine: the files are on its disk.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Below the machine's root.
pub const DIRECTORY: &str = "var/log/journal";
const FILE: &str = "system.json";
/// A file is closed at this size.
const LARGEST_FILE: u64 = 8 << 20;
/// So many closed files are kept.
const KEPT: usize = 3;
/// A longer line is cut into several messages, as journald does.
pub const LONGEST_LINE: usize = 48 << 10;
/// A unit may say so much within [`RATE_INTERVAL`]; what is more is counted and dropped.
const RATE_BURST: u32 = 10_000;
const RATE_INTERVAL: Duration = Duration::from_secs(30);

/// One message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in microseconds since 1970.
    #[serde(rename = "__REALTIME_TIMESTAMP")]
    pub realtime: String,
    /// In which boot.
    #[serde(rename = "_BOOT_ID")]
    pub boot: String,
    /// Of which unit.
    #[serde(rename = "_SYSTEMD_UNIT", default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// As syslog counts.
    #[serde(rename = "PRIORITY")]
    pub priority: String,
    /// Who speaks.
    #[serde(rename = "SYSLOG_IDENTIFIER")]
    pub identifier: String,
    /// Which process.
    #[serde(rename = "_PID", default, skip_serializing_if = "String::is_empty")]
    pub pid: String,
    /// What is said.
    #[serde(rename = "MESSAGE")]
    pub message: String,
}

impl Entry {
    /// As journalctl shows it: time, who, what.
    pub fn line(&self, machine: &str) -> String {
        let micros = self.realtime.parse().unwrap_or_default();
        let time = Timestamp::from_microsecond(micros).unwrap_or_default();
        let pid = if self.pid.is_empty() { String::new() } else { format!("[{}]", self.pid) };
        format!("{} {machine} {}{pid}: {}", time.strftime("%b %d %H:%M:%S"), self.identifier, self.message)
    }
}

/// Splits a syslog level (`<3>`) from the front of a line.
pub fn level(line: &str) -> (u8, &str) {
    let bytes = line.as_bytes();
    match bytes {
        [b'<', digit @ b'0'..=b'7', b'>', ..] => (digit - b'0', &line[3..]),
        _ => (6, line),
    }
}

/// Writes the journal of a running machine.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    file: File,
    size: u64,
    boot: String,
    rates: BTreeMap<String, Rate>,
}

#[derive(Debug)]
struct Rate {
    since: Instant,
    count: u32,
}

impl Journal {
    /// Opens the journal below a root for a boot.
    pub fn open(root: &Path, boot: &str) -> io::Result<Self> {
        let directory = root.join(DIRECTORY);
        fs::create_dir_all(&directory)?;
        let (file, size) = open_file(&directory)?;
        Ok(Self { directory, file, size, boot: boot.to_owned(), rates: BTreeMap::new() })
    }

    /// Adds a message. A unit that says too much is not heard for a while, and that is said.
    pub fn write(&mut self, unit: &str, identifier: &str, pid: Option<i32>, priority: u8, message: &str) {
        let now = Instant::now();
        let rate = self.rates.entry(unit.to_owned()).or_insert(Rate { since: now, count: 0 });
        if now.duration_since(rate.since) > RATE_INTERVAL {
            let dropped = rate.count.saturating_sub(RATE_BURST);
            *rate = Rate { since: now, count: 0 };
            if dropped > 0 {
                self.append(unit, "journal", None, 4, &format!("suppressed {dropped} messages from {unit}"));
            }
        }
        if let Some(rate) = self.rates.get_mut(unit) {
            rate.count = rate.count.saturating_add(1);
            if rate.count > RATE_BURST {
                return;
            }
        }
        self.append(unit, identifier, pid, priority, message);
    }

    fn append(&mut self, unit: &str, identifier: &str, pid: Option<i32>, priority: u8, message: &str) {
        let entry = Entry {
            realtime: Timestamp::now().as_microsecond().to_string(),
            boot: self.boot.clone(),
            unit: unit.to_owned(),
            priority: priority.to_string(),
            identifier: identifier.to_owned(),
            pid: pid.map(|pid| pid.to_string()).unwrap_or_default(),
            message: message.to_owned(),
        };
        // A struct of strings always serialises.
        let mut line = serde_json::to_vec(&entry).unwrap_or_default();
        line.push(b'\n');
        if self.size + line.len() as u64 > LARGEST_FILE {
            self.rotate();
        }
        // A full disk loses messages; stopping the machine for them would be worse.
        if self.file.write_all(&line).is_ok() {
            self.size += line.len() as u64;
        }
    }

    fn rotate(&mut self) {
        let numbered = |number: usize| self.directory.join(format!("system.{number}.json"));
        for number in (1..KEPT).rev() {
            // Missing ones are no loss.
            let _ = fs::rename(numbered(number), numbered(number + 1));
        }
        let _ = fs::rename(self.directory.join(FILE), numbered(1));
        if let Ok((file, size)) = open_file(&self.directory) {
            (self.file, self.size) = (file, size);
        }
    }
}

fn open_file(directory: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(directory.join(FILE))?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// What a reader wants to see.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Filter {
    pub units: Vec<String>,
    pub boot: Option<String>,
}

impl Filter {
    fn takes(&self, entry: &Entry) -> bool {
        (self.units.is_empty() || self.units.contains(&entry.unit))
            && self.boot.as_ref().is_none_or(|boot| *boot == entry.boot)
    }
}

/// Reads a journal from its oldest message on, and then what is added.
#[derive(Debug)]
pub struct Reader {
    directory: PathBuf,
    filter: Filter,
    /// The newest file: which, and how far it was read.
    place: Option<(u64, u64)>,
}

impl Reader {
    /// Of the journal below a root.
    pub fn new(root: &Path, filter: Filter) -> Self {
        Self { directory: root.join(DIRECTORY), filter, place: None }
    }

    /// Gives each message that was not given before.
    pub fn read(&mut self, take: &mut dyn FnMut(&Entry)) -> io::Result<()> {
        let newest = self.directory.join(FILE);
        let file = match File::open(&newest) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let inode = file.metadata()?.ino();
        let mut from = 0;
        match self.place {
            Some((known, place)) if known == inode => from = place,
            known => {
                // The file we knew was closed and is an older one now; without one, all older ones are new.
                for number in (1..=KEPT).rev() {
                    let Ok(older) = File::open(self.directory.join(format!("system.{number}.json"))) else {
                        continue;
                    };
                    match known {
                        None => drop(self.read_from(older, 0, take)?),
                        Some((inode, place)) if older.metadata()?.ino() == inode => {
                            self.read_from(older, place, take)?;
                        }
                        Some(_) => {}
                    }
                }
            }
        }
        let end = self.read_from(file, from, take)?;
        self.place = Some((inode, end));
        Ok(())
    }

    fn read_from(&self, mut file: File, from: u64, take: &mut dyn FnMut(&Entry)) -> io::Result<u64> {
        file.seek(SeekFrom::Start(from))?;
        let mut reader = BufReader::new(file);
        let mut place = from;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.by_ref().take(1 << 20).read_until(b'\n', &mut line)?;
            // A line that is still being written is read again next time.
            if read == 0 || !line.ends_with(b"\n") {
                return Ok(place);
            }
            place += read as u64;
            if let Ok(entry) = serde_json::from_slice::<Entry>(&line)
                && self.filter.takes(&entry)
            {
                take(&entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_each_message_once_also_over_a_change_of_files() {
        let root = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(root.path(), "boot").unwrap();
        let mut reader = Reader::new(root.path(), Filter { units: vec!["a.service".into()], boot: None });
        let seen = |reader: &mut Reader| {
            let mut seen = Vec::new();
            reader.read(&mut |entry| seen.push(entry.message.clone())).unwrap();
            seen
        };
        journal.write("a.service", "a", Some(7), 6, "one");
        journal.write("b.service", "b", None, 6, "other");
        assert_eq!(seen(&mut reader), ["one"]);
        journal.write("a.service", "a", None, 6, "two");
        journal.rotate();
        journal.write("a.service", "a", None, 6, "three");
        assert_eq!(seen(&mut reader), ["two", "three"]);
        assert!(seen(&mut reader).is_empty());
        let mut late = Reader::new(root.path(), Filter { units: vec!["a.service".into()], boot: None });
        assert_eq!(seen(&mut late), ["one", "two", "three"]);
    }

    #[test]
    fn a_unit_that_says_too_much_is_bounded() {
        let root = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(root.path(), "boot").unwrap();
        for _ in 0..RATE_BURST + 50 {
            journal.write("a.service", "a", None, 6, "x");
        }
        let mut count = 0;
        Reader::new(root.path(), Filter::default()).read(&mut |_| count += 1).unwrap();
        assert_eq!(count, RATE_BURST);
        for _ in 0..KEPT + 3 {
            journal.rotate();
        }
        assert_eq!(fs::read_dir(root.path().join(DIRECTORY)).unwrap().count(), KEPT + 1);
    }

    #[test]
    fn levels_stand_in_front() {
        assert_eq!(level("<3>bad"), (3, "bad"));
        assert_eq!(level("<9>x"), (6, "<9>x"));
        assert_eq!(level("plain"), (6, "plain"));
    }
}
