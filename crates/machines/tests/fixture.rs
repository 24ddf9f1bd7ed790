//! A directory for machines, and the few programs that their units run.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Output};
use std::time::{Duration, Instant};

use ::machines::cli::{Wanted, create};
use ::machines::cluster::{Cluster, Seen};
use ::machines::machine::exec;
use serde_json::{Value, json};

/// A test gets a fresh fixture.
pub type Test = fn(&Fixture);

/// Directories of machines; the second is for tests that need two clusters.
pub struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn dir(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    /// Makes and starts a machine.
    pub fn boot(&self, dir: &str, name: &str, config: &Value) -> Machine {
        let machine = self.create(dir, name, config);
        machine.cluster().start(name).unwrap();
        machine
    }

    /// Makes a machine.
    pub fn create(&self, dir: &str, name: &str, config: &Value) -> Machine {
        let wanted = Wanted {
            name: name.to_owned(),
            address: None,
            network: "192.168.126.0/24".parse().unwrap(),
            memory: 1024,
            cpus: 1,
            publish: Vec::new(),
        };
        let dir = self.dir(dir);
        create(&dir, &wanted, &serde_json::to_vec(config).unwrap()).unwrap();
        Machine { dir, name: name.to_owned() }
    }

    fn clusters(&self) -> Vec<Cluster> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        entries.filter_map(|entry| Cluster::open(&entry.unwrap().path()).ok()).collect()
    }

    pub fn explain(&self) {
        for cluster in self.clusters() {
            for place in cluster.places().unwrap() {
                println!("--- {} {:?}", place.name(), cluster.seen(&place));
                for file in ["monitor.log", "console.log", "var/log/journal/system.json", "../../network.log"]
                {
                    let text = std::fs::read_to_string(place.path().join(file)).unwrap_or_default();
                    println!("--- {file}\n{text}");
                }
            }
        }
    }

    pub fn finish(&self) {
        for cluster in self.clusters() {
            cluster.destroy().unwrap();
        }
    }
}

/// One machine.
pub struct Machine {
    pub dir: PathBuf,
    pub name: String,
}

impl Machine {
    pub fn cluster(&self) -> Cluster {
        Cluster::open(&self.dir).unwrap()
    }

    pub fn seen(&self) -> Seen {
        let cluster = self.cluster();
        cluster.seen(&cluster.place(&self.name).unwrap()).unwrap()
    }

    pub fn path(&self, inside: &str) -> PathBuf {
        self.cluster().place(&self.name).unwrap().path().join(inside.trim_start_matches('/'))
    }

    pub fn read(&self, inside: &str) -> String {
        std::fs::read_to_string(self.path(inside)).unwrap_or_default()
    }

    pub fn until_state(&self, state: &str) {
        until(&format!("{} is {state}", self.name), || self.seen().state == state);
    }

    pub fn exec(&self, program: &str, args: &[&str]) -> Output {
        let cluster = self.cluster();
        exec::output(&cluster.place(&self.name).unwrap(), &cluster.shared().id, program, args).unwrap()
    }

    pub fn say(&self, program: &str, args: &[&str]) -> String {
        let output = self.exec(program, args);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub fn journal(&self) -> String {
        self.read("var/log/journal/system.json")
    }
}

/// Waits for a condition with a deadline.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        rustix::event::poll(&mut [], Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 }))
            .unwrap();
    }
}

/// An ignition config with units, all enabled.
pub fn config(units: &[(&str, &str)], files: &[(&str, &str)]) -> Value {
    let unit = |(name, contents): &(&str, &str)| json!({"name": name, "enabled": true, "contents": contents});
    let file = |(path, text): &(&str, &str)| json!({"path": path, "mode": 420, "contents": {"source": ignition::encode_data_url(text.as_bytes())}});
    json!({
        "ignition": {"version": "3.4.0"},
        "systemd": {"units": units.iter().map(unit).collect::<Vec<_>>()},
        "storage": {"files": files.iter().map(file).collect::<Vec<_>>()},
    })
}

#[allow(clippy::zombie_processes)] // leaving one is what it is for
/// What the units of the tests run: this binary with a word.
pub fn program(args: &[OsString]) -> Option<ExitCode> {
    let words: Vec<&str> = args.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    match words[..] {
        // Adds a line to a file.
        ["t-append", path, line] => {
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
            writeln!(file, "{line}").unwrap();
            Some(ExitCode::SUCCESS)
        }
        ["t-fail"] => Some(ExitCode::FAILURE),
        ["t-cat", path] => {
            print!("{}", std::fs::read_to_string(path).unwrap_or_default());
            Some(ExitCode::SUCCESS)
        }
        // Writes to every file of a tree that should be read-only.
        ["t-write", path] => Some(match std::fs::write(path, "x") {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        }),
        // Answers every connection with a word; says when it is ready.
        ["t-serve", port, word] => {
            let listener = TcpListener::bind(("0.0.0.0", port.parse().unwrap())).unwrap();
            if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
                let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
                socket.send_to(b"READY=1\nSTATUS=serving", Path::new(&path)).unwrap();
            }
            for stream in listener.incoming().flatten() {
                let mut stream = stream;
                let _ = stream.write_all(word.as_bytes());
            }
            Some(ExitCode::SUCCESS)
        }
        // Prints what a server says.
        ["t-fetch", address] => Some(match std::net::TcpStream::connect(address) {
            Ok(mut stream) => {
                let mut text = String::new();
                let _ = stream.read_to_string(&mut text);
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("{error}");
                ExitCode::FAILURE
            }
        }),
        // Leaves a child without a parent, and another one that never ends.
        ["t-orphan"] => {
            let me = std::env::current_exe().unwrap();
            std::process::Command::new(&me).arg("t-forever").spawn().unwrap();
            println!("left a child");
            Some(ExitCode::SUCCESS)
        }
        ["t-forever"] => {
            rustix::event::pause();
            Some(ExitCode::SUCCESS)
        }
        _ => None,
    }
}
