//! Words that are no command here: programs called `kubectl-word` on the path, or a suggestion.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::error::CliError;
use crate::session::Session;

/// Becomes the plug-in with the longest name that the words make: `a b c` is `kubectl-a-b-c`, `kubectl-a-b`, or `kubectl-a`.
pub fn run(session: &Session, words: Vec<OsString>) -> Result<(), CliError> {
    let texts: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let names: Vec<String> =
        texts.iter().take_while(|word| !word.starts_with('-')).map(|word| word.replace('-', "_")).collect();
    let prefixes: &[&str] =
        if session.program == crate::Program::Oc { &["oc", "kubectl"] } else { &["kubectl"] };
    for count in (1..=names.len()).rev() {
        for prefix in prefixes {
            let name = format!("{prefix}-{}", names[..count].join("-"));
            if let Some(file) = on_path(&name) {
                let error = Command::new(&file).args(&words[count..]).exec();
                return Err(CliError::Message(format!("cannot run {}: {error}", file.display())));
            }
        }
    }
    let program = session.program.name();
    let word = texts.first().cloned().unwrap_or_default();
    let mut said = format!("error: unknown command {word:?} for {program:?}\n");
    let near: Vec<&str> = KNOWN
        .iter()
        .copied()
        .filter(|known| distance(&word, known) <= 2 || known.starts_with(&word))
        .collect();
    if !near.is_empty() {
        said.push_str("\nDid you mean this?\n");
        near.iter().for_each(|known| said.push_str(&format!("\t{known}\n")));
    }
    eprint!("{said}");
    Err(CliError::Exit(1))
}

const KNOWN: &[&str] = &[
    "annotate",
    "api-resources",
    "api-versions",
    "apply",
    "attach",
    "auth",
    "autoscale",
    "certificate",
    "cluster-info",
    "completion",
    "config",
    "cordon",
    "cp",
    "create",
    "debug",
    "delete",
    "describe",
    "diff",
    "drain",
    "edit",
    "events",
    "exec",
    "explain",
    "expose",
    "get",
    "label",
    "logs",
    "options",
    "patch",
    "plugin",
    "port-forward",
    "proxy",
    "replace",
    "rollout",
    "run",
    "scale",
    "set",
    "taint",
    "top",
    "uncordon",
    "version",
    "wait",
];

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_program(file))
}

fn is_program(file: &std::path::Path) -> bool {
    std::fs::metadata(file).is_ok_and(|kind| kind.is_file() && kind.permissions().mode() & 0o111 != 0)
}

/// How many letters must be changed to make one word the other.
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let old = row[j + 1];
            row[j + 1] = (before + usize::from(x != *y)).min(old + 1).min(row[j] + 1);
            before = old;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_near() {
        assert_eq!(distance("gte", "get"), 2);
        assert_eq!(distance("aply", "apply"), 1);
        assert!(distance("xyzzy", "get") > 2);
    }
}
