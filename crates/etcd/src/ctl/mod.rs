//! `etcdctl` and `etcdutl`: the commands that people type, with upstream's flags, variables, forms of output and exit codes.
//!
//! [`args`] is the command line, [`session`] the way to the servers, [`print`] the forms of output; the commands are in [`commands`] (one call each),
//! [`watching`] (those that go on) and [`util`] (files).

mod args;
mod commands;
mod print;
mod session;
mod util;
mod watching;

use std::ffi::OsString;
use std::fmt;

use clap::Parser;
use lifecycle::Stop;

pub use args::{Ctl, Util};

/// What went wrong, with the exit code that scripts know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What to say.
    pub text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// A call failed.
    pub fn error(text: impl Into<String>) -> Self {
        Self { code: 1, text: text.into() }
    }

    /// What was given cannot be used.
    pub fn input(text: impl Into<String>) -> Self {
        Self { code: 3, text: text.into() }
    }

    /// The form of output is not there for this command.
    pub fn feature(form: &str) -> Self {
        Self { code: 4, text: format!("{form} not supported as output format") }
    }

    /// A file.
    pub fn file(path: &std::path::Path, error: &std::io::Error) -> Self {
        Self { code: 6, text: format!("{}: {error}", path.display()) }
    }

    /// The wrong number of arguments, or flags that exclude each other.
    pub fn arguments(text: impl Into<String>) -> Self {
        Self { code: 128, text: text.into() }
    }
}

fn parsed<P: Parser>(arguments: Vec<OsString>) -> Result<P, u8> {
    P::try_parse_from(arguments).map_err(|error| {
        let fine = !error.use_stderr();
        // Nobody reads what cannot be printed.
        let _ = error.print();
        if fine { 0 } else { 1 }
    })
}

fn ended(outcome: Result<(), Failure>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("Error: {failure}");
            failure.code
        }
    }
}

/// Runs `etcdctl` with its arguments, its name first; returns the exit code.
pub async fn etcdctl(arguments: Vec<OsString>, stop: Stop) -> u8 {
    match parsed::<Ctl>(arguments) {
        Ok(ctl) => ended(commands::run(ctl, &stop).await),
        Err(code) => code,
    }
}

/// Runs `etcdutl` with its arguments, its name first; returns the exit code.
pub fn etcdutl(arguments: Vec<OsString>) -> u8 {
    match parsed::<Util>(arguments) {
        Ok(util) => ended(util::run(util)),
        Err(code) => code,
    }
}
