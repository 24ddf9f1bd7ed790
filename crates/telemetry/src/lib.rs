//! Logs and error chains: how every part of Kelson speaks.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Mutex;
use std::{fmt, io};

use tracing_subscriber::EnvFilter;

/// Shows an error with all its sources, outermost first: `a: b: c`.
pub fn chain<'a>(error: &'a (dyn Error + 'a)) -> Chain<'a> {
    Chain(error)
}

/// An error and its sources, printed once each.
pub struct Chain<'a>(&'a (dyn Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(source) = next {
            write!(out, ": {source}")?;
            next = source.source();
        }
        Ok(())
    }
}

/// A log larger than this at start is moved aside, to the same name with `.1`.
const LARGEST_LOG: u64 = 32 << 20;

/// Appends logs to a file, without colours. `filter` as for [`log_to_stderr`].
pub fn log_to_file(path: &Path, filter: &str) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|log| log.len() > LARGEST_LOG) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    // As below, a second call keeps the first subscriber.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(parse(filter))
        .with_ansi(false)
        .with_writer(Mutex::new(file))
        .try_init();
    Ok(())
}

fn parse(filter: &str) -> EnvFilter {
    EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Writes logs to standard error. `filter` has the form of tracing's directives (`info,etcd=debug`).
pub fn log_to_stderr(filter: &str) {
    // A second call (tests, several components in one process) keeps the first subscriber: that is wanted.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(parse(filter))
        // Colours are for eyes; in a journal or a container's log they are noise.
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_names_every_cause_once() {
        let cause = std::io::Error::other("disk on fire");
        let error = std::io::Error::other(Wrapped(cause));
        assert_eq!(chain(&error).to_string(), "wrapped: disk on fire");
    }

    #[derive(Debug)]
    struct Wrapped(std::io::Error);
    impl fmt::Display for Wrapped {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("wrapped")
        }
    }
    impl Error for Wrapped {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
}
