//! What init asks the machine: names, ids, conditions, accounts.

use std::fs;
use std::io;
use std::path::Path;

use crate::unit::condition::{Host, Test};
use crate::unit::install::matches;

/// The first line of a file, without its end; empty if it cannot be read.
pub fn read_line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().lines().next().unwrap_or_default().trim().to_owned()
}

/// Takes the name in /etc/hostname.
pub fn set_hostname() -> io::Result<()> {
    let name = read_line("/etc/hostname");
    if !name.is_empty() {
        rustix::system::sethostname(name.as_bytes())?;
    }
    Ok(())
}

/// The name the machine has now.
pub fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// /etc/machine-id, made at first boot.
pub fn machine_id() -> io::Result<String> {
    let known = read_line("/etc/machine-id");
    if known.len() == 32 {
        return Ok(known);
    }
    let fresh = read_line("/proc/sys/kernel/random/uuid").replace('-', "");
    fs::write("/etc/machine-id", format!("{fresh}\n"))?;
    Ok(fresh)
}

/// The machine that init runs on.
pub struct ThisMachine {
    /// Whether the ignition file was applied in this boot.
    pub first_boot: bool,
}

impl Host for ThisMachine {
    fn holds(&self, test: &Test) -> bool {
        match test {
            Test::PathExists(path) => Path::new(path).exists(),
            Test::PathExistsGlob(pattern) => glob(pattern),
            Test::PathIsDirectory(path) => Path::new(path).is_dir(),
            Test::PathIsSymbolicLink(path) => Path::new(path).is_symlink(),
            Test::PathIsMountPoint(path) => is_mount_point(path),
            Test::PathIsReadWrite(path) => rustix::fs::statvfs(path.as_str())
                .is_ok_and(|found| !found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY)),
            Test::DirectoryNotEmpty(path) => {
                fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some())
            }
            Test::FileNotEmpty(path) => {
                fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
            }
            Test::FileIsExecutable(path) => {
                use std::os::unix::fs::PermissionsExt as _;
                fs::metadata(path)
                    .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
            }
            Test::KernelCommandLine(word) => {
                let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
                line.split_whitespace().any(|found| {
                    found == word || (!word.contains('=') && found.split('=').next() == Some(word.as_str()))
                })
            }
            // As systemd says of what it is in: a container, of a kind it does not know.
            Test::Virtualization(kind) => {
                matches!(kind.as_str(), "container" | "container-other" | "yes" | "true" | "1")
            }
            Test::FirstBoot(wanted) => *wanted == self.first_boot,
            Test::Host(pattern) => matches(pattern, &hostname()) || *pattern == read_line("/etc/machine-id"),
            Test::Architecture(name) => {
                let machine = rustix::system::uname().machine().to_string_lossy().into_owned();
                let known = match machine.as_str() {
                    "x86_64" => "x86-64",
                    "aarch64" => "arm64",
                    other => other,
                };
                name == known || name == "native"
            }
        }
    }
}

fn glob(pattern: &str) -> bool {
    let Some((directory, last)) = pattern.rsplit_once('/') else { return false };
    let directory = if directory.is_empty() { "/" } else { directory };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| matches(last, &name.to_string_lossy()))
}

fn is_mount_point(path: &str) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    table.lines().any(|line| line.split(' ').nth(4) == Some(path))
}

/// uid, gid, home and shell of a user by name or number.
pub fn account(name: &str) -> Option<(u32, u32, String)> {
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.len() >= 6 && (fields[0] == name || fields[2] == name))
            .then(|| Some((fields[2].parse().ok()?, fields[3].parse().ok()?, fields[5].to_owned())))
            .flatten()
    });
    found.or_else(|| name.parse().ok().map(|uid| (uid, uid, "/".to_owned())))
}

/// The number of a group by name or number.
pub fn group(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let found = groups.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.len() >= 3 && fields[0] == name).then(|| fields[2].parse().ok()).flatten()
    });
    found.or_else(|| name.parse().ok())
}

/// The groups that a user is a member of besides its own.
pub fn memberships(user: &str, gid: u32) -> Vec<u32> {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let mut out = vec![gid];
    out.extend(groups.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let is_member = fields.get(3).is_some_and(|members| members.split(',').any(|one| one == user));
        is_member.then(|| fields[2].parse::<u32>().ok()).flatten()
    }));
    out
}
