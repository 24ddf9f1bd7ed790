//! Logs and error chains: how every part of Kelson speaks.

use std::error::Error;
use std::fmt;

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

/// Writes logs to standard error. `filter` has the form of tracing's directives (`info,etcd=debug`).
pub fn log_to_stderr(filter: &str) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call (tests, several components in one process) keeps the first subscriber: that is wanted.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
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
