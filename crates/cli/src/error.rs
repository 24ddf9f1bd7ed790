//! What can go wrong with a command, and the words and the exit code that tell it, which are kubectl's.

use std::io;

use serde_json::Value;
use thiserror::Error;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// The server answered with a `Status`.
    #[error("{}", .0.message())]
    Status(Box<Failure>),
    /// The command line makes no sense; the help of the command says more.
    #[error("{message}")]
    Usage { message: String, command: String },
    /// One sentence, after `error: `.
    #[error("{0}")]
    Message(String),
    /// Told as it stands.
    #[error("{0}")]
    Plain(String),
    /// Nothing is left to say; only the exit code counts.
    #[error("exit code {0}")]
    Exit(u8),
    /// Several things went wrong, each with its own words.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several(Vec<CliError>),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

/// A `Status` that tells of a failure.
#[derive(Debug, Clone)]
pub struct Failure {
    pub status: Value,
}

impl Failure {
    pub fn message(&self) -> &str {
        self.status["message"].as_str().unwrap_or("unknown")
    }

    pub fn reason(&self) -> &str {
        self.status["reason"].as_str().unwrap_or("")
    }
}

/// `error: …` of a sentence made by `format!`.
pub fn message(text: impl Into<String>) -> CliError {
    CliError::Message(text.into())
}

impl CliError {
    pub fn code(&self) -> Option<u64> {
        match self {
            Self::Status(failure) => failure.status["code"].as_u64(),
            _ => None,
        }
    }

    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Status(failure) if failure.reason() == "Conflict")
    }

    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// One of several, or none: what is left of a loop that goes on after a failure.
    pub fn all(mut errors: Vec<CliError>) -> Result<(), CliError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }

    /// Says which file the object came from, and what was tried with it.
    pub fn with_source(self, action: &str, source: &str) -> Self {
        if source.is_empty() {
            return self;
        }
        match self {
            Self::Status(mut failure) => {
                let text = format!("error when {action} {source:?}: {}", failure.message());
                failure.status["message"] = text.into();
                Self::Status(failure)
            }
            Self::Message(text) => Self::Message(format!("error when {action} {source:?}: {text}")),
            other => other,
        }
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exit(code) => *code,
            _ => 1,
        }
    }

    /// What stands on stderr: empty, or whole lines.
    pub fn shown(&self, program: &str) -> String {
        match self {
            Self::Exit(_) => String::new(),
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => String::new(),
            Self::Usage { message, command } => {
                format!("error: {message}\nSee '{program} {command} -h' for help and examples\n")
            }
            Self::Status(failure) if failure.reason() == "Invalid" => invalid(failure),
            Self::Several(errors) => errors.iter().map(|error| format!("{}\n", error.in_a_list())).collect(),
            Self::Status(failure) => format!("{}\n", of_status(failure)),
            Self::Plain(text) => format!("{text}\n"),
            Self::Message(text) if text.starts_with("error: ") => format!("{text}\n"),
            other => format!("error: {other}\n"),
        }
    }

    /// As one of several, an error stands without the word before it.
    pub fn in_a_list(&self) -> String {
        match self {
            Self::Status(failure) => of_status(failure),
            other => other.to_string(),
        }
    }
}

fn of_status(failure: &Failure) -> String {
    match failure.reason() {
        "Unauthorized" => format!("error: You must be logged in to the server ({})", failure.message()),
        "" => format!("Error from server: {}", failure.message()),
        reason => format!("Error from server ({reason}): {}", failure.message()),
    }
}

fn invalid(failure: &Failure) -> String {
    let details = &failure.status["details"];
    let prefix = match details["kind"].as_str() {
        Some(kind) if !kind.is_empty() => {
            format!("The {kind} {:?} is invalid", details["name"].as_str().unwrap_or(""))
        }
        _ => "The request is invalid".to_owned(),
    };
    let mut causes: Vec<String> = Vec::new();
    for cause in details["causes"].as_array().into_iter().flatten() {
        let text =
            format!("{}: {}", cause["field"].as_str().unwrap_or(""), cause["message"].as_str().unwrap_or(""));
        if !causes.contains(&text) {
            causes.push(text);
        }
    }
    match &causes[..] {
        [] if prefix.starts_with("The request") && !failure.message().is_empty() => {
            format!("{prefix}: {}\n", failure.message())
        }
        [] => format!("{prefix}\n"),
        [one] => format!("{prefix}: {one}\n"),
        several => {
            let lines: String = several.iter().map(|cause| format!("* {cause}\n")).collect();
            format!("{prefix}: \n{lines}")
        }
    }
}
