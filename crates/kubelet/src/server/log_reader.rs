//! Reads a container's log file: chooses the lines, strips what the runtime added, and goes on as it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use jiff::Timestamp;

use crate::beneath::Dir;
use crate::inotify::Watch;

const BLOCK: usize = 16 * 1024;

/// What of the log is wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    pub tail_lines: Option<u64>,
    pub since: Option<Timestamp>,
    pub timestamps: bool,
    pub limit_bytes: Option<u64>,
    /// Only `stdout` or `stderr`.
    pub stream: Option<&'static str>,
}

/// A log being read.
pub struct LogReader {
    path: PathBuf,
    file: File,
    options: Options,
    left: u64,
    /// The start of a line whose end was not written yet.
    partial: Vec<u8>,
    /// The last entry was a piece of a line: what follows continues it.
    inside_line: bool,
}

impl LogReader {
    pub fn open(path: &Path, options: Options) -> io::Result<Self> {
        let mut file = open(path)?;
        if let Some(lines) = options.tail_lines {
            let start = tail_start(&mut file, lines)?;
            file.seek(SeekFrom::Start(start))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            left: options.limit_bytes.unwrap_or(u64::MAX),
            options,
            partial: Vec::new(),
            inside_line: false,
        })
    }

    /// A watch for growth of the file that is read now.
    pub fn watch(&self) -> io::Result<Watch> {
        Watch::file(&self.path)
    }

    /// The next piece of text; empty when the end was reached (for now); `None` when no more is wanted.
    pub fn read(&mut self) -> io::Result<Option<Bytes>> {
        let mut out = Vec::new();
        let mut block = vec![0; BLOCK];
        while out.is_empty() && self.left > 0 {
            let count = self.file.read(&mut block)?;
            if count == 0 {
                break;
            }
            self.partial.extend_from_slice(&block[..count]);
            let mut rest = std::mem::take(&mut self.partial);
            let mut start = 0;
            while let Some(end) = rest[start..].iter().position(|byte| *byte == b'\n') {
                self.take_line(&rest[start..start + end], &mut out);
                start += end + 1;
            }
            self.partial = rest.split_off(start);
        }
        if self.left == 0 && out.is_empty() {
            return Ok(None);
        }
        if out.len() as u64 >= self.left {
            out.truncate(self.left as usize);
        }
        self.left -= out.len() as u64;
        Ok(Some(out.into()))
    }

    fn take_line(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(entry) = Entry::parse(line) else { return };
        let unwanted = self.options.stream.is_some_and(|wanted| wanted.as_bytes() != entry.stream)
            || self.options.since.is_some_and(|since| entry.time().is_some_and(|time| time < since));
        if unwanted {
            return;
        }
        if self.options.timestamps && !self.inside_line {
            out.extend_from_slice(entry.timestamp);
            out.push(b' ');
        }
        out.extend_from_slice(entry.text);
        self.inside_line = entry.partial;
        if !entry.partial {
            out.push(b'\n');
        }
    }

    /// Goes over to the new file if the old one was rotated away. True if there is one.
    pub fn follow_rotation(&mut self) -> bool {
        let (Ok(old), Ok(new)) = (self.file.metadata(), std::fs::metadata(&self.path)) else { return false };
        if old.ino() == new.ino() {
            return false;
        }
        match open(&self.path) {
            Ok(file) => {
                self.file = file;
                self.partial.clear();
                true
            }
            Err(_) => false,
        }
    }
}

/// Opens `<logs>/<pod>/<container>/<attempt>.log` or whatever the runtime names. The log, its directory and the pod's are
/// no links: whoever can write among the logs of the node can not show files of the host through them.
fn open(path: &Path) -> io::Result<File> {
    let base = path.ancestors().nth(3).or(path.parent()).ok_or(io::ErrorKind::InvalidInput)?;
    let below = path.strip_prefix(base).map_err(|_| io::ErrorKind::InvalidInput)?;
    Dir::trusted(base)?.open_file(below)
}

/// One line of CRI's log format: `time stream P|F text`.
struct Entry<'a> {
    timestamp: &'a [u8],
    stream: &'a [u8],
    partial: bool,
    text: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (timestamp, stream, tag) = (parts.next()?, parts.next()?, parts.next()?);
        let partial = tag.split(|byte| *byte == b':').next() == Some(b"P");
        Some(Self { timestamp, stream, partial, text: parts.next().unwrap_or_default() })
    }

    fn time(&self) -> Option<Timestamp> {
        std::str::from_utf8(self.timestamp).ok()?.parse().ok()
    }
}

/// Where the last `lines` lines begin.
fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if lines == 0 {
        return Ok(length);
    }
    let mut seen = 0;
    let mut end = length;
    let mut block = vec![0; BLOCK];
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        let part = &mut block[..(end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(part)?;
        for (index, byte) in part.iter().enumerate().rev() {
            // The last byte of the file ends the last line; it does not begin another.
            if *byte == b'\n' && start + index as u64 + 1 != length {
                seen += 1;
                if seen == lines {
                    return Ok(start + index as u64 + 1);
                }
            }
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const LOG: &str = "2026-01-01T00:00:00.000000001Z stdout F one\n\
                       2026-01-01T00:00:01.000000001Z stderr F two words\n\
                       2026-01-01T00:00:02.000000001Z stdout P thr\n\
                       2026-01-01T00:00:02.000000002Z stdout F ee\n";

    fn log() -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(LOG.as_bytes()).unwrap();
        file
    }

    fn read(options: Options) -> String {
        let file = log();
        let mut reader = LogReader::open(file.path(), options).unwrap();
        let mut all = String::new();
        while let Some(piece) = reader.read().unwrap().filter(|piece| !piece.is_empty()) {
            all.push_str(std::str::from_utf8(&piece).unwrap());
        }
        all
    }

    #[test]
    fn options_choose_what_is_read() {
        let all = Options::default;
        assert_eq!(read(all()), "one\ntwo words\nthree\n");
        assert_eq!(read(Options { tail_lines: Some(3), ..all() }), "two words\nthree\n");
        assert_eq!(read(Options { tail_lines: Some(0), ..all() }), "");
        assert_eq!(read(Options { tail_lines: Some(99), ..all() }), "one\ntwo words\nthree\n");
        assert_eq!(
            read(Options { since: "2026-01-01T00:00:01Z".parse().ok(), ..all() }),
            "two words\nthree\n"
        );
        assert_eq!(read(Options { limit_bytes: Some(5), ..all() }), "one\nt");
        assert_eq!(read(Options { stream: Some("stderr"), ..all() }), "two words\n");
        assert_eq!(
            read(Options { timestamps: true, tail_lines: Some(2), ..all() }),
            "2026-01-01T00:00:02.000000001Z three\n"
        );
    }

    #[test]
    fn growth_and_rotation_are_followed() {
        let mut file = log();
        let mut reader =
            LogReader::open(file.path(), Options { tail_lines: Some(0), ..Options::default() }).unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), "");
        file.write_all(b"2026-01-01T00:00:03Z stdout F fo").unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), "");
        file.write_all(b"ur\n").unwrap();
        assert_eq!(reader.read().unwrap().unwrap(), "four\n");
        assert!(!reader.follow_rotation());
        let path = file.path().to_owned();
        std::fs::rename(&path, path.with_extension("1")).unwrap();
        std::fs::write(&path, "2026-01-01T00:00:04Z stdout F five\n").unwrap();
        assert!(reader.follow_rotation());
        assert_eq!(reader.read().unwrap().unwrap(), "five\n");
        std::fs::remove_file(path.with_extension("1")).unwrap();
    }
}
