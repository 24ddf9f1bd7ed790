//! What is wrong with an expression, shown as cel-go shows it: message, line, and a mark below the place.

use std::fmt;

/// One problem at one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// Byte offset in the source.
    pub at: usize,
    /// What is wrong.
    pub message: String,
}

impl Issue {
    /// A problem.
    pub fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// All problems of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issues {
    source: String,
    list: Vec<Issue>,
}

impl Issues {
    /// Problems of a source; in order of their places.
    pub fn new(source: &str, mut list: Vec<Issue>) -> Self {
        list.sort_by_key(|issue| issue.at);
        list.truncate(100);
        Self { source: source.to_owned(), list }
    }

    /// The problems.
    pub fn list(&self) -> &[Issue] {
        &self.list
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, issue) in self.list.iter().enumerate() {
            if number > 0 {
                out.write_str("\n")?;
            }
            let at = issue.at.min(self.source.len());
            let before = self.source.get(..at).unwrap_or_default();
            let line_start = before.rfind('\n').map_or(0, |end| end + 1);
            let line_number = before.matches('\n').count() + 1;
            let column =
                self.source[line_start..].get(..at - line_start).map_or(0, |text| text.chars().count());
            let line = self.source[line_start..].lines().next().unwrap_or_default();
            write!(out, "ERROR: <input>:{line_number}:{}: {}\n | {line}\n | ", column + 1, issue.message)?;
            write!(out, "{}^", ".".repeat(column))?;
        }
        Ok(())
    }
}

impl std::error::Error for Issues {}
