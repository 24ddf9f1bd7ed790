//! What the shim knows of one container: its streams, its log, who listens, how it ended.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::pipe::PipeFlags;

use super::log::{Lines, LogFile};
use super::process::Streams;
use crate::records;
use crate::spec::{ContainerSpec, Exit, Run, files};
use crate::sys::Pid;

/// Which of a container's streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A stream that the container writes to and the shim reads.
pub struct Output {
    pub fd: OwnedFd,
    pub stream: Stream,
    lines: Lines,
    /// The container closed it; nothing more will come.
    ended: bool,
}

/// Someone who attached to the container's output.
pub struct Tap {
    pub fd: OwnedFd,
    stream: Stream,
    /// Read from the container but not yet taken. While it is not empty, the stream is not read further.
    pending: Vec<u8>,
}

/// One container.
pub struct Container {
    pub spec: ContainerSpec,
    pub directory: PathBuf,
    pub run: Option<Run>,
    pub exit: Option<Exit>,
    pub outputs: Vec<Output>,
    pub taps: Vec<Tap>,
    /// The end that attach writes to.
    pub stdin: Option<OwnedFd>,
    /// The other end of its terminal.
    pub terminal: Option<OwnedFd>,
    log: Option<LogFile>,
}

impl Container {
    /// Reads the spec that the runtime left, and opens the log.
    pub fn load(directory: PathBuf) -> Result<Self, String> {
        let spec: ContainerSpec =
            records::read(&directory.join(files::SPEC)).map_err(|error| error.to_string())?;
        let log = spec.log.as_deref().map(LogFile::open).transpose();
        let log = log.map_err(|error| format!("cannot open the log {:?}: {error}", spec.log))?;
        Ok(Self {
            spec,
            directory,
            run: None,
            exit: None,
            outputs: Vec::new(),
            taps: Vec::new(),
            stdin: None,
            terminal: None,
            log,
        })
    }

    /// The container's ends of new pipes; ours are kept. `None` when it runs on a terminal.
    pub fn make_streams(&mut self) -> io::Result<Option<Streams>> {
        if self.spec.process.terminal {
            return Ok(None);
        }
        let stdin = if self.spec.stdin {
            let (theirs, ours) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            self.stdin = Some(ours);
            theirs
        } else {
            fs::File::open("/dev/null")?.into()
        };
        let mut output = |stream, name| -> io::Result<OwnedFd> {
            let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            // Only our end: a program does not expect a stdout that would block.
            rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
            self.outputs.push(Output { fd: ours, stream, lines: Lines::of(name), ended: false });
            Ok(theirs)
        };
        let stdout = output(Stream::Stdout, "stdout")?;
        let stderr = output(Stream::Stderr, "stderr")?;
        Ok(Some(Streams([stdin, stdout, stderr])))
    }

    /// The container runs.
    pub fn started(&mut self, pid: Pid, terminal: Option<OwnedFd>, now: i64) -> io::Result<&Run> {
        if let Some(terminal) = terminal {
            let reader = terminal.try_clone()?;
            rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
            self.outputs.push(Output {
                fd: reader,
                stream: Stream::Stdout,
                lines: Lines::of("stdout"),
                ended: false,
            });
            self.terminal = Some(terminal);
        }
        let run = Run { pid, started_at: now, start_ticks: records::start_ticks(pid).unwrap_or(0) };
        records::write(&self.directory.join(files::RUN), &run)?;
        Ok(self.run.insert(run))
    }

    /// The container ended. What it wrote is in the log before its end is on record.
    pub fn ended(&mut self, exit: Exit, buffer: &mut [u8]) -> io::Result<&Exit> {
        for index in 0..self.outputs.len() {
            while self.has_more(index) {
                self.pump(index, buffer);
            }
        }
        let time = timestamp();
        let mut text = Vec::new();
        for output in &mut self.outputs {
            output.lines.finish(&time, &mut text);
        }
        if let Some(log) = &mut self.log {
            log.write(&text);
        }
        self.outputs.clear();
        self.taps.retain(|tap| !tap.pending.is_empty());
        self.stdin = None;
        self.terminal = None;
        self.log = None;
        records::write(&self.directory.join(files::EXIT), &exit)?;
        Ok(self.exit.insert(exit))
    }

    fn has_more(&self, index: usize) -> bool {
        let output = &self.outputs[index];
        let mut fds = [rustix::event::PollFd::new(&output.fd, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        !output.ended && matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(count) if count > 0)
    }

    /// Moves what one output has to the log and to those who listen.
    pub fn pump(&mut self, index: usize, buffer: &mut [u8]) {
        let output = &mut self.outputs[index];
        let count = match rustix::io::read(&output.fd, &mut *buffer) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            // End of file; or EIO, when the last user of a terminal is gone.
            Ok(0) | Err(_) => {
                output.ended = true;
                return;
            }
            Ok(count) => count,
        };
        let bytes = &buffer[..count];
        if let Some(log) = &mut self.log {
            let mut text = Vec::with_capacity(count + 128);
            output.lines.push(bytes, &timestamp(), &mut text);
            log.write(&text);
        }
        let stream = output.stream;
        for tap in self.taps.iter_mut().filter(|tap| tap.stream == stream) {
            tap.pending.extend_from_slice(bytes);
        }
        self.taps.retain_mut(Tap::flush);
    }

    /// Whether an output is to be read: not once it has ended, nor while someone who listens to it lags.
    pub fn wants(&self, output: &Output) -> bool {
        !output.ended && !self.taps.iter().any(|tap| tap.stream == output.stream && tap.is_behind())
    }

    /// Adds a listener.
    pub fn tap(&mut self, stream: Stream, fd: OwnedFd) -> io::Result<()> {
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
        self.taps.push(Tap { fd, stream, pending: Vec::new() });
        Ok(())
    }

    /// Delivers what listeners have pending, and drops those that went away or have all of an ended container.
    pub fn flush_taps(&mut self) {
        let over = self.exit.is_some();
        self.taps.retain_mut(|tap| tap.flush() && !(over && tap.pending.is_empty()));
    }

    pub fn reopen_log(&mut self) -> io::Result<()> {
        self.log.as_mut().map_or(Ok(()), LogFile::reopen)
    }
}

impl Tap {
    pub fn is_behind(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes what fits; false when the listener is gone.
    fn flush(&mut self) -> bool {
        while !self.pending.is_empty() {
            match rustix::io::write(&self.fd, &self.pending) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

fn timestamp() -> String {
    format!("{:.9}", jiff::Timestamp::now())
}

/// The directory of a container inside its sandbox's.
pub fn directory(sandbox: &Path, id: &str) -> PathBuf {
    sandbox.join(id)
}
