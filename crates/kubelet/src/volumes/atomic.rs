//! Writes a set of files so that readers see all of the old or all of the new ones.
//!
//! The files live in a directory with a fresh name; `..data` is a symbolic link to it, and each top-level name is a link
//! through `..data`. An update makes a new directory and replaces the one link by rename. The layout is upstream's:
//! programs watch `..data`.
//!
//! Pods see these directories read-only. Should one be able to write there nevertheless, what it can do is to damage
//! its own files: every step is relative to an open directory and follows no link, and `..data` counts only where it
//! names a directory of the form that is made here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Component, Path};

use super::VolumeError;
use crate::beneath::{Dir, Owner};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// What a group that owns the files may do with them.
const GROUP_READS: u32 = 0o440;
const GROUP_ENTERS: u32 = 0o2550;
const DIRECTORY: u32 = 0o755;

/// One file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// Owner, where it is not root.
    pub uid: Option<u32>,
}

impl File {
    fn owner(&self, group: Option<u32>) -> Owner {
        let mode = self.mode | if group.is_some() { GROUP_READS } else { 0 };
        Owner { uid: self.uid, gid: group, mode }
    }
}

/// Files by their path in the volume.
pub type Payload = BTreeMap<String, File>;

/// Whether a path stays inside the volume and out of the way of the links.
pub fn is_safe(path: &str) -> bool {
    !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Makes the directory hold exactly these files, for `group` to read if there is one. Returns whether anything changed.
pub fn write(dir: &Dir, payload: &Payload, group: Option<u32>) -> Result<bool, VolumeError> {
    if let Some(path) = payload.keys().find(|path| !is_safe(path)) {
        return Err(VolumeError::Path(path.clone()));
    }
    replace(dir, payload, group)
        .map_err(|(doing, name, source)| VolumeError::io(doing, name.as_ref(), source))
}

type Problem = (&'static str, String, io::Error);

fn fail(doing: &'static str, name: &str) -> impl FnOnce(io::Error) -> Problem {
    let name = name.to_owned();
    move |source| (doing, name, source)
}

fn replace(dir: &Dir, payload: &Payload, group: Option<u32>) -> Result<bool, Problem> {
    own(dir, group).map_err(fail("cannot set the mode of", "the volume's directory"))?;
    let current = dir.read_link(DATA).ok().and_then(|target| Some(target.to_str()?.to_owned()));
    let current = current.filter(|name| is_ours(name));
    if let Some(current) = &current
        && let Ok(there) = dir.open_here(current)
        && is_same(&there, payload, group)
        && tidy(dir, payload, current).is_ok()
    {
        return Ok(false);
    }
    let (name, stage) = stage(dir, group)?;
    for (path, file) in payload {
        write_file(&stage, path, file, group).map_err(fail("cannot write", path))?;
    }
    dir.remove(NEW_DATA).map_err(fail("cannot remove", NEW_DATA))?;
    dir.link(name.as_ref(), NEW_DATA).map_err(fail("cannot link", NEW_DATA))?;
    if dir.read_link(DATA).is_err() {
        // A directory cannot be replaced by a link in one step.
        dir.remove(DATA).map_err(fail("cannot remove", DATA))?;
    }
    dir.rename(NEW_DATA, DATA).map_err(fail("cannot replace", DATA))?;
    tidy(dir, payload, &name)?;
    Ok(true)
}

/// Whether a name has the form that [`stage`] gives: `..2006_01_02_15_04_05.123`.
fn is_ours(name: &str) -> bool {
    name.strip_prefix("..").is_some_and(|rest| {
        rest.len() > 19 && rest.chars().all(|one| one.is_ascii_digit() || one == '_' || one == '.')
    })
}

fn own(dir: &Dir, group: Option<u32>) -> io::Result<()> {
    let mode = DIRECTORY | if group.is_some() { GROUP_ENTERS } else { 0 };
    let owner = Owner { uid: None, gid: group, mode };
    if !owner.is_of(&dir.stat()?) {
        dir.set_group(group)?;
        dir.set_mode(mode)?;
    }
    Ok(())
}

/// A directory for the new files, under a name that was never used here, in upstream's form of a time.
fn stage(dir: &Dir, group: Option<u32>) -> Result<(String, Dir), Problem> {
    let base = jiff::Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.").to_string();
    let taken = |name: &String| dir.look_at(name).is_ok();
    let name = (0..).map(|number| format!("{base}{number}")).find(|name| !taken(name)).unwrap_or(base);
    let made = dir.ensure(&name, DIRECTORY).and_then(|made| own(&made, group).map(|()| made));
    let made = made.map_err(fail("cannot create", &name))?;
    Ok((name, made))
}

fn write_file(stage: &Dir, path: &str, file: &File, group: Option<u32>) -> io::Result<()> {
    let path = Path::new(path);
    let mut parent = stage.open("")?;
    for component in path.parent().unwrap_or(Path::new("")).components() {
        parent = parent.ensure(component, DIRECTORY)?;
        own(&parent, group)?;
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    parent.create_file(name, &file.data, &file.owner(group))
}

fn is_same(dir: &Dir, payload: &Payload, group: Option<u32>) -> bool {
    let same = |path: &String, file: &File| -> io::Result<bool> {
        // Only what is ours in form is read, and no more of it than there should be.
        let owner = file.owner(group);
        Ok(owner.is_of(&rustix::fs::fstat(dir.open_file(path)?)?)
            && dir.read_file(path, file.data.len() as u64)? == file.data)
    };
    payload.iter().all(|(path, file)| same(path, file).unwrap_or(false))
        && count(dir).is_ok_and(|found| found == payload.len())
}

/// How many files there are in a directory made by [`stage`].
fn count(dir: &Dir) -> io::Result<usize> {
    let (mut files, mut pending) = (0, vec![dir.open("")?]);
    while let Some(next) = pending.pop() {
        for name in next.some_names()? {
            match next.open_here(&name) {
                Ok(inner) => pending.push(inner),
                Err(_) => files += 1,
            }
        }
    }
    Ok(files)
}

/// Links each top-level name through `..data`, and removes all else but the current files: names that are gone, old
/// files, what a death left.
fn tidy(dir: &Dir, payload: &Payload, current: &str) -> Result<(), Problem> {
    let tops: BTreeSet<&str> = payload.keys().map(|path| path.split('/').next().unwrap_or(path)).collect();
    for top in &tops {
        let target = Path::new(DATA).join(top);
        match dir.read_link(top) {
            Ok(found) if found == target => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => dir.remove(top).map_err(fail("cannot remove", top))?,
        }
        dir.link(&target, top).map_err(fail("cannot link", top))?;
    }
    for name in dir.some_names().map_err(fail("cannot list", "the volume"))? {
        let kept = name.to_str().is_some_and(|name| name == DATA || name == current || tops.contains(name));
        if !kept {
            // The new files are in place; what cannot be removed is only waste.
            let _ = dir.remove(&name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, data)| {
                (path.to_string(), File { data: data.as_bytes().to_vec(), mode: 0o640, uid: None })
            })
            .collect()
    }

    fn put(path: &Path, files: &[(&str, &str)]) -> Result<bool, VolumeError> {
        write(&Dir::trusted(path).unwrap(), &payload(files), None)
    }

    #[test]
    fn files_appear_change_and_go_together() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        assert!(put(dir, &[("a", "1"), ("sub/b", "2")]).unwrap());
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(dir.join("sub/b")).unwrap(), "2");
        assert_eq!(fs::metadata(dir.join("a")).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::metadata(dir).unwrap().permissions().mode() & 0o7777, 0o755);
        let first = fs::read_link(dir.join(DATA)).unwrap();
        assert!(!put(dir, &[("a", "1"), ("sub/b", "2")]).unwrap(), "nothing changed");
        assert!(put(dir, &[("a", "3")]).unwrap());
        assert_eq!(fs::read_to_string(dir.join("a")).unwrap(), "3");
        assert!(!dir.join("sub").exists() && !dir.join(&first).exists());
        assert!(fs::symlink_metadata(dir.join("a")).unwrap().is_symlink());
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a/../../x", "", "..data"] {
            assert!(put(root.path(), &[(path, "x")]).is_err(), "{path}");
        }
    }

    #[test]
    fn a_group_may_read_and_enter() {
        let root = tempfile::tempdir().unwrap();
        let group = rustix::process::getegid().as_raw();
        let mut files = payload(&[("sub/a", "1")]);
        files.get_mut("sub/a").unwrap().mode = 0o600;
        let dir = Dir::trusted(root.path()).unwrap();
        assert!(write(&dir, &files, Some(group)).unwrap());
        assert!(!write(&dir, &files, Some(group)).unwrap(), "nothing changed");
        let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("sub/a"), mode("sub"), mode("")), (0o640, 0o2755, 0o2755));
    }

    /// Whatever a pod puts in the place of our links and directories, nothing outside the volume is touched.
    #[test]
    fn a_replaced_link_leads_nowhere() {
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("..2026_01_01_00_00_00.0");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("a"), "1").unwrap();
        fs::write(victim.join("kept"), "x").unwrap();
        type Attack = fn(&Path, &Path);
        let attacks: [(&str, Attack); 6] = [
            ("..data to a host directory", |dir, victim| {
                fs::remove_file(dir.join(DATA)).unwrap();
                symlink(victim, dir.join(DATA)).unwrap();
            }),
            ("..data upwards", |dir, victim| {
                let up = Path::new("../../../../../..").join(victim.strip_prefix("/").unwrap());
                fs::remove_file(dir.join(DATA)).unwrap();
                symlink(up, dir.join(DATA)).unwrap();
            }),
            ("the current directory", |dir, victim| {
                let current = dir.join(fs::read_link(dir.join(DATA)).unwrap());
                fs::remove_dir_all(&current).unwrap();
                symlink(victim, current).unwrap();
            }),
            ("..data_tmp", |dir, victim| symlink(victim, dir.join(NEW_DATA)).unwrap()),
            ("a name", |dir, victim| {
                fs::remove_file(dir.join("a")).unwrap();
                symlink(victim.join("kept"), dir.join("a")).unwrap();
            }),
            ("..data as a directory", |dir, victim| {
                fs::remove_file(dir.join(DATA)).unwrap();
                fs::create_dir(dir.join(DATA)).unwrap();
                symlink(victim, dir.join(DATA).join("sub")).unwrap();
            }),
        ];
        for (what, attack) in attacks {
            let root = tempfile::tempdir().unwrap();
            let dir = root.path();
            put(dir, &[("a", "1"), ("sub/b", "1")]).unwrap();
            attack(dir, &victim);
            put(dir, &[("a", "2"), ("sub/b", "2")]).unwrap();
            for path in ["a", "sub/b"] {
                assert_eq!(fs::read_to_string(dir.join(path)).unwrap(), "2", "{what}");
            }
            assert_eq!(fs::read_to_string(victim.join("kept")).unwrap(), "x", "{what}");
            assert_eq!(fs::read_dir(&victim).unwrap().count(), 2, "{what}");
        }
    }
}
