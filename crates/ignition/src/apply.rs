//! Writing a resolved config below a root directory: users, directories, files, links, units, in that order.
//!
//! Disks, filesystems and kernel arguments belong to whoever owns the machine and are refused here, not ignored.
//! Ownership is by number or by the root's own /etc/passwd; changing it needs the right to do so.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::resource::{self, Fetch, ResourceError};
use crate::types::{Config, Directory, File, Link, Owner, Unit, User};

/// Why a config could not be applied.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// Not this crate's work.
    #[error("the config declares {0}, which is not applied to a directory")]
    Unsupported(&'static str),
    /// In the way.
    #[error("{} is there already and overwrite is not set", .0.display())]
    Exists(PathBuf),
    /// Someone unknown.
    #[error("there is no {kind} {name} in the root's /etc")]
    NoOwner {
        /// user or group.
        kind: &'static str,
        /// Who.
        name: String,
    },
    /// No content.
    #[error("no content for {path}")]
    Content {
        /// For which file.
        path: String,
        /// Why.
        #[source]
        source: ResourceError,
    },
    /// The system refused.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
}

/// Applies a config that refers to nothing else any more.
pub fn apply(config: &Config, root: &Path, fetch: &mut Fetch<'_>) -> Result<(), ApplyError> {
    let storage = &config.storage;
    for (list, name) in [
        (&storage.disks, "disks"),
        (&storage.raid, "raid"),
        (&storage.luks, "luks"),
        (&storage.filesystems, "filesystems"),
    ] {
        if !list.is_empty() {
            return Err(ApplyError::Unsupported(name));
        }
    }
    let references = &config.ignition.config;
    if references.replace.is_some() || !references.merge.is_empty() {
        return Err(ApplyError::Unsupported("configs that are still to be fetched"));
    }
    let tree = Tree { root };
    for group in &config.passwd.groups {
        tree.add_group(&group.name, group.gid)?;
    }
    for user in &config.passwd.users {
        tree.add_user(user)?;
    }
    let mut directories: Vec<&Directory> = storage.directories.iter().collect();
    directories.sort_by_key(|directory| directory.path.matches('/').count());
    for directory in directories {
        tree.write_directory(directory)?;
    }
    for file in &storage.files {
        tree.write_file(file, fetch)?;
    }
    for link in &storage.links {
        tree.write_link(link)?;
    }
    for unit in &config.systemd.units {
        tree.write_unit(unit)?;
    }
    tree.write_presets(&config.systemd.units)
}

struct Tree<'a> {
    root: &'a Path,
}

fn io_error<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> ApplyError + 'a {
    move |source| ApplyError::Io { operation, path: path.to_owned(), source }
}

impl Tree<'_> {
    /// The place of an absolute path below the root. Links on the way are read as the root's own, so that a link to
    /// `/` inside the tree never leads out of it.
    fn place(&self, path: &str) -> PathBuf {
        let mut resolved = PathBuf::new();
        let mut pending: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
        let mut links = 0;
        while let Some(part) = pending.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    resolved.pop();
                    continue;
                }
                _ => resolved.push(&part),
            }
            let is_last = pending.iter().all(|part| part.is_empty());
            let Ok(target) = fs::read_link(self.root.join(&resolved)) else { continue };
            if is_last || links > 40 {
                continue;
            }
            links += 1;
            resolved.pop();
            let target = target.to_string_lossy().into_owned();
            if target.starts_with('/') {
                resolved = PathBuf::new();
            }
            pending.extend(target.split('/').rev().map(str::to_owned));
        }
        self.root.join(resolved)
    }

    fn make_parents(&self, place: &Path) -> Result<(), ApplyError> {
        let parent = place.parent().unwrap_or(self.root);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(io_error("create directory", parent))
    }

    /// Clears the way for a node. `Ok(false)` means that something stays.
    fn clear(&self, place: &Path, overwrite: bool) -> Result<(), ApplyError> {
        let Ok(found) = fs::symlink_metadata(place) else { return Ok(()) };
        if !overwrite {
            return Err(ApplyError::Exists(place.to_owned()));
        }
        if found.is_dir() { fs::remove_dir_all(place) } else { fs::remove_file(place) }
            .map_err(io_error("remove", place))
    }

    fn write_directory(&self, directory: &Directory) -> Result<(), ApplyError> {
        let place = self.place(&directory.path);
        let is_directory = fs::symlink_metadata(&place).is_ok_and(|found| found.is_dir());
        let overwrite = directory.overwrite.unwrap_or(false);
        if !is_directory || overwrite {
            self.clear(&place, overwrite)?;
        }
        self.make_parents(&place.join("x"))?;
        self.set_mode(&place, directory.mode.unwrap_or(0o755))?;
        self.set_owner(&place, &directory.user, &directory.group)
    }

    fn write_file(&self, file: &File, fetch: &mut Fetch<'_>) -> Result<(), ApplyError> {
        let place = self.place(&file.path);
        let content_error = |source| ApplyError::Content { path: file.path.clone(), source };
        let replaces = file.contents.source.is_some();
        let mut content = if replaces {
            resource::read(&file.contents, fetch).map_err(content_error)?
        } else {
            fs::read(&place).unwrap_or_default()
        };
        for part in &file.append {
            content.extend(resource::read(part, fetch).map_err(content_error)?);
        }
        if replaces {
            self.clear(&place, file.overwrite.unwrap_or(false))?;
        }
        self.make_parents(&place)?;
        self.write_content(&place, &content, file.mode.unwrap_or(0o644))?;
        self.set_owner(&place, &file.user, &file.group)
    }

    fn write_content(&self, place: &Path, content: &[u8], mode: u32) -> Result<(), ApplyError> {
        use std::io::Write as _;
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode & 0o777)
            .open(place)
            .map_err(io_error("create", place))?;
        file.write_all(content).map_err(io_error("write", place))?;
        self.set_mode(place, mode)
    }

    fn write_link(&self, link: &Link) -> Result<(), ApplyError> {
        let place = self.place(&link.path);
        self.clear(&place, link.overwrite.unwrap_or(false))?;
        self.make_parents(&place)?;
        if link.hard.unwrap_or(false) {
            let target = self.place(&link.target);
            return fs::hard_link(&target, &place).map_err(io_error("link", &place));
        }
        symlink(&link.target, &place).map_err(io_error("link", &place))
    }

    fn write_unit(&self, unit: &Unit) -> Result<(), ApplyError> {
        let path = format!("/etc/systemd/system/{}", unit.name);
        let place = self.place(&path);
        self.make_parents(&place)?;
        if unit.mask.unwrap_or(false) {
            self.clear(&place, true)?;
            return symlink("/dev/null", &place).map_err(io_error("mask", &place));
        }
        if let Some(contents) = &unit.contents {
            self.write_content(&place, contents.as_bytes(), 0o644)?;
        }
        for dropin in &unit.dropins {
            if let Some(contents) = &dropin.contents {
                let place = self.place(&format!("{path}.d/{}", dropin.name));
                self.make_parents(&place)?;
                self.write_content(&place, contents.as_bytes(), 0o644)?;
            }
        }
        Ok(())
    }

    /// What starts at boot is said in one preset file, from which systemd makes the links at first boot.
    fn write_presets(&self, units: &[Unit]) -> Result<(), ApplyError> {
        let lines: String = units
            .iter()
            .filter_map(|unit| unit.enabled.map(|on| (on, &unit.name)))
            .map(|(on, name)| format!("{} {name}\n", if on { "enable" } else { "disable" }))
            .collect();
        if lines.is_empty() {
            return Ok(());
        }
        let place = self.place("/etc/systemd/system-preset/20-ignition.preset");
        self.make_parents(&place)?;
        self.write_content(&place, lines.as_bytes(), 0o644)
    }

    fn set_mode(&self, place: &Path, mode: u32) -> Result<(), ApplyError> {
        fs::set_permissions(place, fs::Permissions::from_mode(mode)).map_err(io_error("set mode of", place))
    }

    fn set_owner(&self, place: &Path, user: &Owner, group: &Owner) -> Result<(), ApplyError> {
        if *user == Owner::default() && *group == Owner::default() {
            return Ok(());
        }
        let uid = self.number_of("user", "passwd", user)?;
        let gid = self.number_of("group", "group", group)?;
        chown(place, uid, gid).map_err(io_error("give away", place))
    }

    fn number_of(
        &self,
        kind: &'static str,
        database: &str,
        owner: &Owner,
    ) -> Result<Option<u32>, ApplyError> {
        let Some(name) = owner.name.as_deref().filter(|name| !name.is_empty()) else { return Ok(owner.id) };
        self.entries(database)
            .iter()
            .find(|entry| entry.first().is_some_and(|first| first == name))
            .and_then(|entry| entry.get(2)?.parse().ok())
            .map(Some)
            .ok_or_else(|| ApplyError::NoOwner { kind, name: name.to_owned() })
    }

    /// Lines of a database in /etc, split at colons; an absent one has none.
    fn entries(&self, database: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.place(&format!("/etc/{database}"))).unwrap_or_default();
        text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
    }

    fn free_number(&self, database: &str) -> u32 {
        let taken = self.entries(database);
        let taken = taken.iter().filter_map(|entry| entry.get(2)?.parse::<u32>().ok());
        taken.filter(|number| (1000..60000).contains(number)).max().map_or(1000, |number| number + 1)
    }

    fn add_line(&self, database: &str, line: &str, mode: u32) -> Result<(), ApplyError> {
        let place = self.place(&format!("/etc/{database}"));
        self.make_parents(&place)?;
        let mut text = fs::read_to_string(&place).unwrap_or_default();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
        self.write_content(&place, text.as_bytes(), mode)
    }

    fn add_group(&self, name: &str, gid: Option<u32>) -> Result<(), ApplyError> {
        if self.entries("group").iter().any(|entry| entry.first().is_some_and(|first| first == name)) {
            return Ok(());
        }
        let gid = gid.unwrap_or_else(|| self.free_number("group"));
        self.add_line("group", &format!("{name}:x:{gid}:"), 0o644)
    }

    fn add_user(&self, user: &User) -> Result<(), ApplyError> {
        let known = self.entries("passwd").iter().any(|entry| entry.first() == Some(&user.name));
        if !known {
            let primary = user.primary_group.clone().unwrap_or_else(|| user.name.clone());
            self.add_group(&primary, None)?;
            let owner = Owner { id: None, name: Some(primary) };
            let gid = self.number_of("group", "group", &owner)?.unwrap_or_default();
            let uid = user.uid.unwrap_or_else(|| self.free_number("passwd"));
            let home = user.home_dir.clone().unwrap_or_else(|| format!("/home/{}", user.name));
            let shell = user.shell.as_deref().unwrap_or("/bin/bash");
            let gecos = user.gecos.as_deref().unwrap_or_default();
            self.add_line("passwd", &format!("{}:x:{uid}:{gid}:{gecos}:{home}:{shell}", user.name), 0o644)?;
            let hash = user.password_hash.as_deref().unwrap_or("*");
            self.add_line("shadow", &format!("{}:{hash}::0:99999:7:::", user.name), 0o600)?;
        }
        self.write_keys(user)
    }

    fn write_keys(&self, user: &User) -> Result<(), ApplyError> {
        if user.ssh_authorized_keys.is_empty() {
            return Ok(());
        }
        let entries = self.entries("passwd");
        let entry = entries.iter().find(|entry| entry.first() == Some(&user.name));
        let home = entry.and_then(|entry| entry.get(5)).cloned().unwrap_or_default();
        let place = self.place(&format!("{home}/.ssh/authorized_keys.d/ignition"));
        self.make_parents(&place)?;
        let text = user.ssh_authorized_keys.join("\n") + "\n";
        self.write_content(&place, text.as_bytes(), 0o600)?;
        let number = |index: usize| entry.and_then(|entry| entry.get(index)?.parse::<u32>().ok());
        for path in ["/.ssh/authorized_keys.d/ignition", "/.ssh/authorized_keys.d", "/.ssh", ""] {
            let place = self.place(&format!("{home}{path}"));
            if !path.ends_with("/ignition") {
                self.set_mode(&place, 0o700)?;
            }
            match chown(&place, number(2), number(3)) {
                // Without the right to give files away the keys are still in place for whoever boots the tree.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                other => other.map_err(io_error("give away", &place))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Dropin, Resource};

    fn nothing() -> impl FnMut(&Resource) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        |_: &Resource| Err("no network".into())
    }

    #[test]
    fn everything_declared_stands_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.passwd.users.push(User {
            name: "core".to_owned(),
            ssh_authorized_keys: vec!["ssh-ed25519 AAAA me".to_owned()],
            ..User::default()
        });
        config.storage.directories.push(Directory {
            path: "/var/secret".to_owned(),
            mode: Some(0o700),
            ..Directory::default()
        });
        config.storage.files.push(File {
            append: vec![Resource::inline(b" more")],
            ..File::inline("/var/secret/a", 0o600, b"text")
        });
        config.storage.links.push(Link {
            path: "/b".to_owned(),
            target: "/var/secret/a".to_owned(),
            ..Link::default()
        });
        config.systemd.units = vec![
            Unit {
                name: "a.service".to_owned(),
                enabled: Some(true),
                contents: Some("[Unit]\n".to_owned()),
                dropins: vec![Dropin { name: "x.conf".to_owned(), contents: Some("[Unit]\n".to_owned()) }],
                ..Unit::default()
            },
            Unit { name: "m.service".to_owned(), mask: Some(true), ..Unit::default() },
        ];
        apply(&config, root.path(), &mut nothing()).unwrap();
        let read = |path: &str| fs::read_to_string(root.path().join(path)).unwrap();
        let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(read("var/secret/a"), "text more");
        assert_eq!((mode("var/secret"), mode("var/secret/a")), (0o700, 0o600));
        assert_eq!(fs::read_link(root.path().join("b")).unwrap(), Path::new("/var/secret/a"));
        assert!(read("etc/passwd").contains("core:x:1000:1000"));
        assert_eq!(read("home/core/.ssh/authorized_keys.d/ignition"), "ssh-ed25519 AAAA me\n");
        assert_eq!(read("etc/systemd/system-preset/20-ignition.preset"), "enable a.service\n");
        assert_eq!(read("etc/systemd/system/a.service.d/x.conf"), "[Unit]\n");
        let masked = fs::read_link(root.path().join("etc/systemd/system/m.service")).unwrap();
        assert_eq!(masked, Path::new("/dev/null"));
    }

    #[test]
    fn what_is_there_stays_unless_overwriting_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a"), "old").unwrap();
        let mut config = Config::default();
        config.storage.files.push(File { overwrite: None, ..File::inline("/a", 0o644, b"new") });
        assert!(matches!(apply(&config, root.path(), &mut nothing()), Err(ApplyError::Exists(_))));
        config.storage.files[0].overwrite = Some(true);
        apply(&config, root.path(), &mut nothing()).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "new");
    }

    #[test]
    fn a_link_in_the_tree_does_not_lead_out_of_it() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        let mut config = Config::default();
        config.storage.files.push(File::inline("/out/x", 0o644, b"x"));
        apply(&config, root.path(), &mut nothing()).unwrap();
        assert!(!outside.path().join("x").exists());
    }
}
