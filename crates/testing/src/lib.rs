//! What a test needs of the machine, and what becomes of it where that is missing: it is skipped aloud, or it fails.
//!
//! A test that returns early looks green. So whoever misses something asks here: the reason is printed, written to the file
//! that `KELSON_SKIPPED` names (`cargo xtask test` shows it at the end), and where `KELSON_REQUIRE` names the thing, as CI does,
//! the test fails instead. `KELSON_REQUIRE` is a list with commas; `all` names everything.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

/// Whether this process is root; makes namespaces, mounts and cgroups.
pub fn root() -> bool {
    found("root", rustix::process::geteuid().is_root(), "only root makes namespaces, mounts and cgroups")
}

/// A program of the machine.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let file = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file());
    found(name, file.is_some(), "it is not installed");
    file
}

/// Whether the machine has a program.
pub fn has(name: &str) -> bool {
    program(name).is_some()
}

/// For what is looked for in another way: passes the finding on, after what has to be said about it.
pub fn found(need: &str, is_found: bool, why: &str) -> bool {
    if is_found {
        return true;
    }
    let required = std::env::var("KELSON_REQUIRE").unwrap_or_default();
    assert!(!is_named(&required, need), "KELSON_REQUIRE names {need}, which this machine lacks: {why}");
    let thread = std::thread::current();
    let test = [std::env::var("CARGO_PKG_NAME").ok().as_deref(), thread.name()]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ");
    let line = format!("{test}: needs {need}: {why}\n");
    eprint!("SKIPPED: {line}");
    if let Some(path) = std::env::var_os("KELSON_SKIPPED") {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        // One write, so that lines of several processes do not mix.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("cannot note a skipped test in {}: {error}", path.display()));
    }
    false
}

fn is_named(required: &str, need: &str) -> bool {
    required.split(',').map(str::trim).any(|name| name == "all" || name == need)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_whole() {
        assert!(is_named("etcd, kubectl", "kubectl"));
        assert!(is_named("all", "anything"));
        assert!(!is_named("etcdctl", "etcd"));
        assert!(!is_named("", "etcd"));
    }

    #[test]
    fn what_is_there_is_there() {
        assert!(has("sh"));
        assert!(found("nothing", true, "never said"));
    }

    /// In a process of its own: the environment belongs to all tests.
    #[test]
    fn what_is_missing_is_noted_or_fails() {
        let dir = std::env::temp_dir().join(format!("kelson-testing-{}", std::process::id()));
        let run = |require: &str| {
            let this = std::env::current_exe().unwrap();
            let mut command = std::process::Command::new(this);
            command.args(["--ignored", "--exact", "tests::misses_something"]);
            command.env("KELSON_REQUIRE", require).env("KELSON_SKIPPED", &dir);
            command.output().unwrap().status.success()
        };
        assert!(!run("root,no-such-program"));
        assert!(!dir.exists());
        assert!(run("root"));
        let said = std::fs::read_to_string(&dir).unwrap();
        std::fs::remove_file(&dir).unwrap();
        assert!(said.ends_with("misses_something: needs no-such-program: it is not installed\n"), "{said}");
    }

    #[test]
    #[ignore = "run by what_is_missing_is_noted_or_fails"]
    fn misses_something() {
        assert!(!has("no-such-program"));
    }
}
