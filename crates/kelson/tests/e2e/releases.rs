//! Releases made from the binary, through a registry that is the binary too.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

struct Registry {
    process: Child,
    address: String,
    _root: tempfile::TempDir,
}

impl Registry {
    /// On a port that the kernel chooses; the first line of the log says which.
    fn start() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let mut process = Command::new(env!("CARGO_BIN_EXE_kelson"))
            .args(["registry", "serve", "--listen", "127.0.0.1:0", "--root"])
            .arg(root.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kelson runs");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut line = String::new();
        log.read_line(&mut line).expect("a line of the log");
        let address = line.split("address=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
        // Whatever it says later must not block it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { process, address, _root: root }
    }

    fn release(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
        command.args(["adm", "release"]).args(words).arg("--insecure");
        command.env("SOURCE_DATE_EPOCH", "1700000000").output().expect("kelson runs")
    }

    fn said(&self, words: &[&str]) -> String {
        let output = self.release(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_release_is_made_from_the_binary_and_made_again_from_itself() {
    let registry = Registry::start();
    let place = |tag: &str| format!("{}/team/release:{tag}", registry.address);
    let repository = format!("{}/team/release", registry.address);
    let (first, again, second) = (place("first"), place("again"), place("0.1.1"));
    let make =
        |to: &str| registry.said(&["new", "--from-built-in", "--mirror", &repository, "--to-image", to]);
    let made = make(&first);
    assert_eq!(made, make(&again), "the same inputs make the same bytes");
    let digest = made.split_whitespace().next().expect("a digest");

    let page = registry.said(&["info", &first]);
    assert!(page.contains(digest) && page.contains("  kubernetes 1.36.0 Kubernetes"), "{page}");
    let etcd = registry.said(&["info", &first, "--image-for", "etcd"]);
    assert!(etcd.starts_with(&format!("{repository}@sha256:")), "{etcd}");
    let absent = registry.release(&["info", &first, "--image-for", "nothing"]);
    assert!(
        String::from_utf8_lossy(&absent.stderr)
            .contains("no image tag \"nothing\" exists in the release image")
    );
    registry.said(&["info", &first, "--verify"]);
    // Without any change a release from a release is that release, or the command fails.
    assert!(registry.said(&["new", "--from-release", &first]).starts_with(digest));

    let from =
        ["new", "--from-release", &first, "--name", "0.1.1", "--previous", "0.1.0", "--to-image", &second];
    let proxy = registry.said(&["info", &first, "--image-for", "kube-proxy"]);
    registry.said(&[&from[..], &[&format!("etcd={}", proxy.trim())]].concat());
    let differences = registry.said(&["info", &first, &second]);
    assert!(differences.contains("Images Rebuilt:\n  etcd ") && differences.contains("Yes"), "{differences}");

    let directory = tempfile::tempdir().expect("a directory");
    let to = directory.path().to_str().expect("a path");
    registry.said(&["extract", &second, "--to", to]);
    let read =
        |name: &str| std::fs::read_to_string(directory.path().join(name)).expect("a file of the release");
    assert!(read("release-metadata").contains("\"version\": \"0.1.1\""));
    for entry in std::fs::read_dir(directory.path()).expect("a directory") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let text = read(&name);
        assert!(!text.contains("0.0.1-snapshot") && !text.contains("image: kelson.local/"), "{name}");
    }
    let other = registry.release(&["info", &format!("{repository}:0.1.0-etcd")]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("did not contain any image-references"));
}
