//! Container logs in the format of CRI: `<time> <stream> <F|P> <text>`, one line per line of output.
//!
//! A line longer than the buffer, or not ended when the stream ends, is written in parts tagged `P`; the last part
//! of an ended line is tagged `F`.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The longest text of one log line.
const MAX_TEXT: usize = 16 * 1024;

/// A log file that can be opened again under the same name.
pub struct LogFile {
    path: PathBuf,
    file: Option<File>,
}

impl LogFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut log = Self { path: path.to_path_buf(), file: None };
        log.reopen()?;
        Ok(log)
    }

    /// Opens the path again, after someone renamed the file there.
    pub fn reopen(&mut self) -> io::Result<()> {
        if let Some(parent) = self.path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut options = File::options();
        options.create(true).append(true).mode(0o640).custom_flags(libc::O_NOFOLLOW);
        self.file = Some(options.open(&self.path)?);
        Ok(())
    }

    /// Writes formatted lines. A full disk loses them: output must not stop the container.
    pub fn write(&mut self, lines: &[u8]) {
        if let Some(file) = &mut self.file {
            let _ = file.write_all(lines);
        }
    }
}

/// Cuts one stream into lines.
pub struct Lines {
    stream: &'static str,
    rest: Vec<u8>,
}

impl Lines {
    pub fn of(stream: &'static str) -> Self {
        Self { stream, rest: Vec::new() }
    }

    /// Appends the log lines for `output`, which arrived at `time`, to `log`.
    pub fn push(&mut self, output: &[u8], time: &str, log: &mut Vec<u8>) {
        for piece in output.split_inclusive(|byte| *byte == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let mut text = text;
            while self.rest.len() + text.len() > MAX_TEXT {
                let (now, later) = text.split_at(MAX_TEXT - self.rest.len());
                self.emit(now, b"P", time, log);
                text = later;
            }
            if ended {
                self.emit(text, b"F", time, log);
            } else {
                self.rest.extend_from_slice(text);
            }
        }
        if self.rest.is_empty() {
            self.rest = Vec::new(); // an idle stream holds no buffer
        }
    }

    /// Appends what is left when the stream has ended.
    pub fn finish(&mut self, time: &str, log: &mut Vec<u8>) {
        if !self.rest.is_empty() {
            self.emit(b"", b"P", time, log);
        }
    }

    fn emit(&mut self, text: &[u8], tag: &[u8], time: &str, log: &mut Vec<u8>) {
        for part in [time.as_bytes(), b" ", self.stream.as_bytes(), b" ", tag, b" ", &self.rest, text, b"\n"]
        {
            log.extend_from_slice(part);
        }
        self.rest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(chunks: &[&[u8]]) -> String {
        let (mut lines, mut log) = (Lines::of("stdout"), Vec::new());
        for chunk in chunks {
            lines.push(chunk, "T", &mut log);
        }
        lines.finish("T", &mut log);
        String::from_utf8(log).unwrap()
    }

    #[test]
    fn a_line_is_written_once_it_has_ended() {
        assert_eq!(logged(&[b"one\ntw", b"o\n\n"]), "T stdout F one\nT stdout F two\nT stdout F \n");
        assert_eq!(logged(&[b"no end"]), "T stdout P no end\n");
        assert_eq!(logged(&[]), "");
    }

    #[test]
    fn a_long_line_is_written_in_parts() {
        let long = vec![b'x'; MAX_TEXT + 10];
        let log = logged(&[&long[..100], &long[100..], b"\n"]);
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("T stdout P x") && lines[0].len() == "T stdout P ".len() + MAX_TEXT);
        assert_eq!(lines[1], "T stdout F xxxxxxxxxx");
    }
}
