//! The commands beside the real kubectl: each line of `transcripts/*.txt` is given to both, each at a cluster of its own, and
//! output, errors and exit code are the same but for times, names that servers make, and addresses.
//!
//! A line that begins with `? ` is run and not compared: it waits for something, or 1.36 answers otherwise than the kubectl that
//! can be had, as the comment before it says.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Cluster, in_own_network};

const LINES: &[(&str, &str)] = &[
    ("bootstrap", include_str!("transcripts/01-bootstrap.txt")),
    ("objects", include_str!("transcripts/02-objects.txt")),
];

/// One of the two programs, with its cluster and its home.
struct Side {
    cluster: Cluster,
    home: tempfile::TempDir,
    program: PathBuf,
}

impl Side {
    fn new(program: &Path, port: u16) -> Self {
        let cluster = Cluster::new();
        cluster.up_with(&["--control-plane-only", "--bind", &format!("127.0.0.1:{port}")]);
        let home = tempfile::Builder::new().prefix("kelson-home-").tempdir().expect("a home");
        std::fs::create_dir(home.path().join("bin")).expect("a directory for the program");
        symlink(program, home.path().join("bin/kubectl")).expect("a link to the program");
        Self { cluster, program: home.path().join("bin"), home }
    }

    fn run(&self, line: &str, directory: &Path) -> (Option<i32>, String, String) {
        let path = format!("{}:/usr/bin:/bin", self.program.display());
        let output = Command::new("bash")
            .args(["-c", line])
            .current_dir(directory)
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.home.path())
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .env("KUBE_EDITOR", "sed -i s/old/new/")
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .output()
            .expect("bash runs");
        let home = self.home.path().display().to_string();
        let text = |bytes: &[u8]| masked(&String::from_utf8_lossy(bytes).replace(&home, "HOME"));
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }
}

/// Takes out what differs from run to run, and what the kubectl that can be had prints and 1.36 does not.
fn masked(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let lines: Vec<&str> = text.split('\n').collect();
    let mut index = 0;
    while index < lines.len() {
        let line = lines[index];
        index += 1;
        // Log lines of Go's own, and fields that are written only while they are empty.
        let is_log = line.len() > 5
            && matches!(line.as_bytes()[0], b'E' | b'W' | b'I')
            && line[1..5].bytes().all(|byte| byte.is_ascii_digit());
        let empty = [
            "creationTimestamp: null",
            "\"creationTimestamp\": null,",
            "\"creationTimestamp\": null",
            "preferences: {}",
            "\"preferences\": {},",
        ];
        if is_log || empty.contains(&line.trim()) {
            continue;
        }
        // Metadata that held nothing else is empty now.
        let indent = |line: &str| line.len() - line.trim_start().len();
        if line.trim_end().ends_with("metadata:")
            && lines.get(index).is_some_and(|next| next.trim() == "creationTimestamp: null")
            && lines.get(index + 1).is_none_or(|after| indent(after) <= indent(line))
        {
            out.push(format!("{} {{}}", line.trim_end()));
            continue;
        }
        out.push(masked_line(line));
    }
    out.join("\n")
}

fn masked_line(line: &str) -> String {
    // The program of some distributions begins its complaints about flags with a capital.
    let line = line.strip_prefix("Error: ").map_or_else(|| line.to_owned(), |rest| format!("error: {rest}"));
    // Newer ones say where the deleted object was.
    let line = match line.split_once("deleted from ") {
        Some((before, rest)) => {
            format!("{before}deleted{}", rest.split_once(" namespace").map_or("", |(_, rest)| rest))
        }
        None => line,
    };
    let mut out = String::new();
    let mut aged = line.split_whitespace().any(|word| word == "AGE" || word == "LAST");
    let mut word = String::new();
    let mut flush = |word: &mut String, out: &mut String| {
        let masked = masked_word(word);
        aged |= masked == "<age>" && *word != masked;
        out.push_str(&masked);
        word.clear();
    };
    for letter in line.chars() {
        if letter.is_whitespace() || "\"'(),[]{}=".contains(letter) {
            flush(&mut word, &mut out);
            out.push(letter);
        } else {
            word.push(letter);
        }
    }
    flush(&mut word, &mut out);
    if !aged {
        return out;
    }
    // Columns beside an age are as wide as the age was.
    let mut squeezed = String::new();
    for letter in out.chars() {
        if letter != ' ' || !squeezed.ends_with(' ') {
            squeezed.push(letter);
        }
    }
    squeezed
}

fn masked_word(word: &str) -> String {
    if word.contains("127.0.0.1:264") {
        return word.replace("127.0.0.1:26443", "SERVER").replace("127.0.0.1:26444", "SERVER");
    }
    let hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if word.len() == 36
        && word.split('-').map(str::len).eq([8, 4, 4, 4, 12])
        && word.split('-').all(hexadecimal)
    {
        return "<uid>".to_owned();
    }
    if word.len() == 64 && hexadecimal(word) {
        return "<digest>".to_owned();
    }
    let time = word.trim_end_matches('Z');
    if word.ends_with('Z') && time.len() >= 19 && time.as_bytes()[4] == b'-' && time.as_bytes()[10] == b'T' {
        return "<time>".to_owned();
    }
    let units = |text: &str| text.trim_start_matches(|letter: char| letter.is_ascii_digit()).to_owned();
    let age = match word.find(|letter: char| !letter.is_ascii_digit()) {
        Some(end) if end > 0 => {
            let rest = &word[end..];
            ["s", "m", "h", "d", "y"].contains(&rest)
                || (["m", "h", "d", "y"].iter().any(|unit| rest.starts_with(unit))
                    && ["s", "m", "h", "d"].contains(&units(&rest[1..]).as_str())
                    && rest.len() > 2)
        }
        _ => false,
    };
    if age {
        return "<age>".to_owned();
    }
    word.to_owned()
}

#[test]
fn every_line_says_what_kubectl_says() {
    let Some(kubectl) = testing::program("kubectl") else { return };
    in_own_network(|| async {
        let theirs = Side::new(&kubectl.canonicalize().expect("kubectl"), 26443);
        let ours = Side::new(Path::new(env!("CARGO_BIN_EXE_kelson")), 26444);
        let directory = tempfile::tempdir().expect("a directory for files");
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/transcripts/files");
        for entry in std::fs::read_dir(files).expect("files") {
            let entry = entry.expect("a file");
            std::fs::copy(entry.path(), directory.path().join(entry.file_name())).expect("copied");
        }
        let mut differences = Vec::new();
        let mut count = 0;
        for (name, text) in LINES {
            for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
                let (line, compared) = line.strip_prefix("? ").map_or((line, true), |line| (line, false));
                let (wanted, found) = std::thread::scope(|scope| {
                    let wanted = scope.spawn(|| theirs.run(line, directory.path()));
                    let found = ours.run(line, directory.path());
                    (wanted.join().expect("the real one runs"), found)
                });
                count += 1;
                if compared && without_revisions(&wanted) != without_revisions(&found) {
                    differences
                        .push(format!("{name}: {line}\n--- kubectl: {wanted:#?}\n+++ ours: {found:#?}"));
                }
            }
        }
        assert!(
            differences.is_empty(),
            "{} of {count} lines differ:\n{}",
            differences.len(),
            differences.join("\n\n")
        );
    });
}

/// Revisions count the writes of a cluster, and two clusters write at their own pace.
fn without_revisions(said: &(Option<i32>, String, String)) -> (Option<i32>, String, String) {
    let clean = |text: &str| {
        let lines = text.lines().map(|line| match line.trim().trim_start_matches('"') {
            word if word.starts_with("resourceVersion") => "<revision>",
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    (said.0, clean(&said.1), clean(&said.2))
}
