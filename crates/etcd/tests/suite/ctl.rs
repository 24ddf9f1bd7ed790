//! Our etcdctl beside Debian's: the same commands on two servers with the same history say the same, in every form, with the same exit codes.

#![allow(clippy::disallowed_methods, reason = "waits for programs outside of this process")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::crash::server_program;
use crate::server::{Running, free_port, program};

/// One of the two, with a server of its own.
struct Side {
    ctl: Vec<String>,
    url: String,
    /// What differs between the two and means nothing: ids, in all the forms that they are printed in.
    names: Vec<(String, &'static str)>,
    directory: std::path::PathBuf,
    _server: Running,
}

struct Said {
    code: Option<i32>,
    out: String,
    error: String,
}

impl Side {
    /// Tables are as wide as what is in them, so both need an id of all sixteen digits.
    fn new(directory: &Path, name: &str, ctl: &[String]) -> Self {
        let mut sides =
            (0..8).map(|number| Self::start(directory, &format!("{name}-{number}"), ctl.to_owned()));
        let wide = |side: &Self| side.names.iter().any(|(id, name)| *name == "MEMBER" && id.len() == 16);
        sides.find(wide).expect("an id of sixteen digits")
    }

    fn start(directory: &Path, name: &str, ctl: Vec<String>) -> Self {
        let url = format!("http://127.0.0.1:{}", free_port());
        let server = Command::new(server_program())
            .args(["etcd", "--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &format!("http://127.0.0.1:{}", free_port())])
            .args([
                "--initial-advertise-peer-urls",
                "http://127.0.0.1:1",
                "--initial-cluster",
                "default=http://127.0.0.1:1",
            ])
            .arg("--data-dir")
            .arg(directory.join(name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the server");
        let directory = directory.to_owned();
        let mut side =
            Self { ctl, url: url.clone(), names: vec![(url, "URL")], directory, _server: Running(server) };
        let deadline = Instant::now() + Duration::from_secs(30);
        while side.run(&["endpoint", "health"], "").code != Some(0) {
            assert!(Instant::now() < deadline, "the server does not answer");
        }
        let told = side.run(&["-w", "fields", "get", "x"], "").out;
        let number = |name: &str| -> u64 {
            let line = told.lines().find(|line| line.starts_with(name)).expect("a field");
            line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
        };
        for (id, name) in [(number("\"ClusterID\""), "CLUSTER"), (number("\"MemberID\""), "MEMBER")] {
            side.names.extend([(id.to_string(), name), (format!("{id:x}"), name)]);
        }
        side
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.ctl[0]);
        command.args(&self.ctl[1..]).args(arguments);
        command.env("ETCDCTL_ENDPOINTS", &self.url).env("ETCDCTL_API", "3");
        // A busy machine makes neither of them wrong.
        command
            .env("ETCDCTL_COMMAND_TIMEOUT", "60s")
            .env("ETCDCTL_DIAL_TIMEOUT", "30s")
            .current_dir(&self.directory);
        command
    }

    fn run(&self, arguments: &[&str], input: &str) -> Said {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        // One that needs no input may have ended.
        let _ = child.stdin.take().expect("stdin").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("output");
        let text = |bytes: &[u8]| {
            let mut text = String::from_utf8_lossy(bytes).into_owned();
            for (from, to) in &self.names {
                text = text.replace(from, to);
            }
            text
        };
        let error = text(&output.stderr);
        let error = error.lines().find(|line| line.starts_with("Error")).unwrap_or_default().to_owned();
        Said { code: output.status.code(), out: text(&output.stdout), error }
    }

    /// A lease, whose id is nobody's business.
    fn lease(&mut self) -> String {
        let said = self.run(&["lease", "grant", "600"], "");
        let id = said.out.split(' ').nth(1).expect("an id").to_owned();
        let number = i64::from_str_radix(&id, 16).expect("hexadecimal");
        self.names.extend([(id.clone(), "LEASE"), (number.to_string(), "LEASE")]);
        id
    }
}

/// One per line; what is in quotes is one word. L is a lease.
const COMMANDS: &str = r#"
put a 1 --prev-kv
put a 2 --prev-kv
put b "q\"u o"
put c leased --lease=L
get a
get a z --limit=1
get "" --prefix --keys-only
get "" --from-key --order=DESCEND --sort-by=MODIFY
get nothing
get a --print-value-only
get a --hex
get
get a b --prefix
get a --prefix --from-key
get a --consistency=x
get a --consistency=s
get a --order=x
get a --sort-by=x
get a --rev=100000
lease list
lease timetolive L
lease timetolive L --keys
lease keep-alive --once L
del c --prev-kv
lease revoke 1
lease revoke xyz
lease timetolive 1234
lease keep-alive --once 1234
lease grant
lease grant x
put a 1 --lease=1234
del a --prev-kv
del nothing
del
put
member list
member add
member add x
member remove 1
member remove xyz
member promote 1
endpoint status
endpoint hashkv
user add u:p
user add u:p
user add n --no-password
user list
user get u
user get zz
role add r
role list
role grant-permission r readwrite k --prefix
role grant-permission r read x
role grant-permission r write x z
role grant-permission r write y --from-key
role grant-permission r what x
role get r
user grant-role u r
user get u
user get u --detail
role revoke-permission r x
role revoke-permission r k --prefix
user revoke-role u r
role delete r
user delete u
user delete n
alarm list
defrag
move-leader
move-leader 1
move-leader xyz
auth enable
compaction 3
compaction 1
compaction
compaction x
"#;

const TRANSACTIONS: [&str; 4] = [
    "mod(\"a\") > \"0\"\n\nput a x\nget b\n\nput b y\nget a\n\n",
    "value(\"b\") = \"y\"\n\nput a x\nget b\ndel nothing\n\nput b y\n\n",
    "ver(\"b\") != \"0\"\n\nput a x\nput a y\n\n\n",
    "\n\n\n",
];

fn words(line: &str, lease: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, part) in line.replace("\\\"", "\u{1}").split('"').enumerate() {
        let part = part.replace('\u{1}', "\"");
        match number % 2 {
            0 => words.extend(part.split_whitespace().map(|word| word.replace("=L", &format!("={lease}")))),
            _ => words.push(part),
        }
    }
    words.into_iter().map(|word| if word == "L" { lease.to_owned() } else { word }).collect()
}

#[test]
fn every_command_says_what_etcdctl_says() {
    let Some(etcdctl) = program("etcdctl") else { return };
    let directory = tempfile::tempdir().expect("directory");
    let mut theirs = Side::new(directory.path(), "theirs", &[etcdctl.display().to_string()]);
    let ours = vec![server_program().display().to_string(), "etcdctl".to_owned()];
    let mut ours = Side::new(directory.path(), "ours", &ours);
    let mut different = Vec::new();
    let mut count = 0;
    let mut same = |what: &str, theirs: Said, ours: Said| {
        count += 1;
        if (theirs.code, &theirs.out, &theirs.error) != (ours.code, &ours.out, &ours.error) {
            different.push(format!(
                "{what}\n  theirs {:?} {:?} {:?}\n  ours   {:?} {:?} {:?}",
                theirs.code, theirs.out, theirs.error, ours.code, ours.out, ours.error
            ));
        }
    };
    for form in ["simple", "fields", "json", "table"] {
        let leases = [theirs.lease(), ours.lease()];
        for line in COMMANDS.lines().filter(|line| !line.is_empty()) {
            let say = |side: &Side, lease: &str| {
                let words = words(line, lease);
                let words: Vec<&str> =
                    ["-w", form].into_iter().chain(words.iter().map(String::as_str)).collect();
                side.run(&words, "")
            };
            // How much is left when it is asked is not the same for two.
            let seconds = |said: Said| {
                let passed = (540..600).map(|left: u32| left.to_string());
                let out = passed.fold(said.out, |out, left| out.replace(&left, "600"));
                Said { out, ..said }
            };
            same(
                &format!("{form}: {line}"),
                seconds(say(&theirs, &leases[0])),
                seconds(say(&ours, &leases[1])),
            );
        }
        for input in TRANSACTIONS {
            let words = ["-w", form, "txn"];
            same(&format!("{form}: txn {input:?}"), theirs.run(&words, input), ours.run(&words, input));
        }
        // A backup is made by one and looked at by both.
        let saved = theirs.run(&["snapshot", "save", "backup.db"], "");
        assert_eq!(saved.code, Some(0), "{}", saved.error);
        let words = ["-w", form, "snapshot", "status", "backup.db"];
        same(&format!("{form}: snapshot status"), theirs.run(&words, ""), ours.run(&words, ""));
        let revoke = |side: &Side, lease: &str| side.run(&["-w", form, "lease", "revoke", lease], "");
        same(&format!("{form}: lease revoke"), revoke(&theirs, &leases[0]), revoke(&ours, &leases[1]));
    }
    let saved = ours.run(&["snapshot", "save", "ours.db"], "");
    assert_eq!((saved.code, saved.out.as_str()), (Some(0), "Snapshot saved at ours.db\n"), "{}", saved.error);
    let words = ["snapshot", "status", "ours.db"];
    same("our own backup", theirs.run(&words, ""), ours.run(&words, ""));
    assert!(different.is_empty(), "{} of {count} differ:\n{}", different.len(), different.join("\n"));
    assert!(count > 250, "{count}");
}

/// What goes on: watches, locks, elections; and users.
#[test]
fn watches_locks_elections_and_users_work() {
    let directory = tempfile::tempdir().expect("directory");
    let ours = vec![server_program().display().to_string(), "etcdctl".to_owned()];
    let side = Side::new(directory.path(), "ours", &ours);
    let begin = |arguments: &[&str]| {
        let mut child =
            side.command(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("start");
        let lines = BufReader::new(child.stdout.take().expect("stdout"));
        (Running(child), lines.lines().map(|line| line.expect("a line")))
    };
    let (_watch, mut events) = begin(&["watch", "w", "--prefix", "--prev-kv", "--rev", "2"]);
    for arguments in [&["put", "w1", "a"][..], &["put", "w1", "b"], &["del", "w1"]] {
        assert_eq!(side.run(arguments, "").code, Some(0));
    }
    let seen: Vec<String> = (0..13).filter_map(|_| events.next()).collect();
    assert_eq!(seen, ["PUT", "w1", "a", "PUT", "w1", "a", "w1", "b", "DELETE", "w1", "b", "w1", ""],);
    // Who holds a lock keeps others out, until it ends.
    let (holder, mut key) = begin(&["lock", "mutex"]);
    let held = key.next().expect("the lock's key");
    assert!(held.starts_with("mutex/"), "{held}");
    let (_next, mut told) = begin(&["lock", "mutex", "sh", "-c", "echo got $ETCD_LOCK_KEY"]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while side.run(&["get", "mutex", "--prefix", "--keys-only"], "").out.matches("mutex/").count() < 2 {
        assert!(Instant::now() < deadline, "nobody waits for the lock");
    }
    let pid = holder.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().expect("kill").success());
    assert!(told.next().expect("its turn").starts_with("got mutex/"));
    let (_leader, mut elected) = begin(&["elect", "office", "me"]);
    assert!(elected.next().expect("a key").starts_with("office/"));
    assert_eq!(elected.next().as_deref(), Some("me"));
    let (_observer, mut observed) = begin(&["elect", "-l", "office"]);
    assert!(observed.next().expect("a key").starts_with("office/"));
    assert_eq!(observed.next().as_deref(), Some("me"));
    // Users.
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "add", "reader", "--new-user-password", "pw"],
        &["role", "add", "reads"],
        &["role", "grant-permission", "reads", "read", "w", "--prefix"],
        &["user", "grant-role", "reader", "reads"],
        &["user", "grant-role", "root", "root"],
        &["put", "w2", "x"],
        &["auth", "enable"],
    ] {
        let said = side.run(arguments, "");
        assert!(
            said.code == Some(0) || said.error.contains("role name not found"),
            "{arguments:?}: {}",
            said.error
        );
    }
    assert_eq!(side.run(&["get", "w2"], "").error, "Error: etcdserver: user name is empty");
    assert_eq!(side.run(&["--user", "reader:pw", "get", "w2"], "").out, "w2\nx\n");
    assert_eq!(side.run(&["--user", "reader", "--password", "pw", "get", "w2"], "").out, "w2\nx\n");
    let denied = side.run(&["--user", "reader:pw", "put", "w2", "y"], "");
    assert_eq!((denied.code, denied.error.as_str()), (Some(1), "Error: etcdserver: permission denied"));
    let wrong = side.run(&["--user", "reader:no", "get", "w2"], "");
    assert_eq!(wrong.error, "Error: etcdserver: authentication failed, invalid user ID or password");
    let nobody =
        side.run(&["--endpoints", "http://127.0.0.1:1", "--command-timeout", "300ms", "get", "a"], "");
    assert_eq!((nobody.code, nobody.error.as_str()), (Some(1), "Error: context deadline exceeded"));
}
