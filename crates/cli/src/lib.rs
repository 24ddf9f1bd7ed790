//! kubectl's and oc's commands.
//!
//! A command goes parse → plan → print: clap reads kubectl's flags, a pure part decides what to ask and what to send, and the
//! answer is printed to the writer given. It asks discovery and prints the server's tables, so no kind is named here but in what
//! kubectl itself knows only on the client's side (generators, describers, rollouts), one file per command.
//!
//! ```text
//! command::run ──► Session (kubeconfig, TLS, credentials, discovery) ──► commands::<verb>
//!                     resource: arguments, files and selectors to objects      print: all output forms
//! ```
//!
//! What stays true: words, exit codes and requests are kubectl's; a command that cannot do something says so and does nothing.

mod command;
mod commands;
mod error;
mod flags;
mod openapi;
mod patch;
mod print;
mod resource;
mod session;
mod stream;
mod write;

pub use command::{claims, run};

/// The name that the binary was called by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Kubectl,
    Oc,
    Kelson,
}

impl Program {
    /// By the name of the file that was called; `None` for any other.
    pub fn named(path: &std::ffi::OsStr) -> Option<Self> {
        match std::path::Path::new(path).file_name()?.to_str()? {
            "kubectl" => Some(Self::Kubectl),
            "oc" => Some(Self::Oc),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Kubectl => "kubectl",
            Self::Oc => "oc",
            Self::Kelson => "kelson",
        }
    }
}

/// An error of the file system in Go's words.
pub(crate) fn go_io(error: &std::io::Error, path: &str) -> String {
    let reason = match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        _ => error.to_string(),
    };
    format!("open {path}: {reason}")
}
