//! Enabling, disabling, masking, and presets: links below /etc/systemd/system.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::load::{LoadError, Loader, is_mask};

const ETC: &str = "etc/systemd/system";

/// Why links were not changed.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum InstallError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("unit {0} has no [Install] section, so enabling it means nothing")]
    NothingToDo(String),
    #[error("cannot change {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

fn changed<'a>(path: &'a Path) -> impl FnOnce(io::Error) -> InstallError + 'a {
    move |source| InstallError::Io { path: path.to_owned(), source }
}

/// The links that enabling a unit makes: place below /etc/systemd/system and target.
fn links(loader: &Loader, name: &str) -> Result<Vec<(String, String)>, InstallError> {
    let unit = loader.load(name)?;
    let target = unit.fragment.clone();
    let mut out = Vec::new();
    for (list, kind) in [(&unit.install.wanted_by, "wants"), (&unit.install.required_by, "requires")] {
        out.extend(list.iter().map(|by| (format!("{by}.{kind}/{name}"), target.clone())));
    }
    out.extend(unit.install.alias.iter().map(|alias| (alias.clone(), target.clone())));
    Ok(out)
}

/// Makes the links of a unit and of those it names with Also=. Gives what was made.
pub fn enable(root: &Path, loader: &Loader, name: &str) -> Result<Vec<String>, InstallError> {
    let mut made = Vec::new();
    let also = loader.load(name)?.install.also;
    for name in std::iter::once(name).chain(also.iter().map(String::as_str)) {
        let links = links(loader, name)?;
        if links.is_empty() && also.is_empty() {
            return Err(InstallError::NothingToDo(name.to_owned()));
        }
        for (place, target) in links {
            let path = root.join(ETC).join(&place);
            if fs::symlink_metadata(&path).is_ok() {
                continue;
            }
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(changed(parent))?;
            }
            symlink(&target, &path).map_err(changed(&path))?;
            made.push(format!("/{ETC}/{place}"));
        }
    }
    Ok(made)
}

/// Removes every link to a unit that enabling could have made.
pub fn disable(root: &Path, name: &str) -> Result<Vec<String>, InstallError> {
    let etc = root.join(ETC);
    let mut removed = Vec::new();
    let entries = match fs::read_dir(&etc) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(removed),
        Err(source) => return Err(InstallError::Io { path: etc, source }),
    };
    for entry in entries.flatten() {
        let directory = entry.file_name().to_string_lossy().into_owned();
        if directory.ends_with(".wants") || directory.ends_with(".requires") {
            let path = entry.path().join(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink()) {
                fs::remove_file(&path).map_err(changed(&path))?;
                removed.push(format!("/{ETC}/{directory}/{name}"));
            }
        }
    }
    Ok(removed)
}

/// Whether a unit has a link from a target.
pub fn is_enabled(root: &Path, name: &str) -> bool {
    let entries = fs::read_dir(root.join(ETC)).into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            let directory = entry.file_name().to_string_lossy().into_owned();
            directory.ends_with(".wants") || directory.ends_with(".requires")
        })
        .any(|entry| fs::symlink_metadata(entry.path().join(name)).is_ok())
}

/// Makes a unit unloadable, or loadable again.
pub fn mask(root: &Path, name: &str, on: bool) -> Result<(), InstallError> {
    let path = root.join(ETC).join(name);
    if is_mask(&path) == on {
        return Ok(());
    }
    if !on {
        return fs::remove_file(&path).map_err(changed(&path));
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(changed(&path)(error)),
        _ => {}
    }
    symlink("/dev/null", &path).map_err(changed(&path))
}

/// What a preset says of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Preset {
    Enable,
    Disable,
}

/// The first line of the presets that speaks of the unit; without one, units are enabled.
pub fn preset_of(presets: &str, name: &str) -> Preset {
    for line in presets.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace();
        let (verb, pattern) = (words.next(), words.next().unwrap_or_default());
        let says = match verb {
            Some("enable") => Preset::Enable,
            Some("disable") => Preset::Disable,
            _ => continue,
        };
        if matches(pattern, name) {
            return says;
        }
    }
    Preset::Enable
}

/// Whether a pattern with `*` and `?` covers a name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut p, mut n) = (0, 0);
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p, n));
                p += 1;
            }
            Some(char) if *char == '?' || *char == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match retry {
                Some((star, from)) => {
                    p = star + 1;
                    n = from + 1;
                    retry = Some((star, n));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|char| *char == '*')
}

/// All presets as one text, in the order in which they count: by file name, /etc hiding the image's.
fn presets(root: &Path) -> String {
    let mut files = std::collections::BTreeMap::new();
    for directory in ["etc/systemd/system-preset", "usr/lib/systemd/system-preset"] {
        for entry in fs::read_dir(root.join(directory)).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "preset") {
                files.entry(entry.file_name()).or_insert(entry.path());
            }
        }
    }
    // A preset that cannot be read says nothing.
    files.values().filter_map(|path| fs::read_to_string(path).ok()).collect::<Vec<_>>().join("\n")
}

/// What a first boot does: every unit is enabled or disabled as the presets say. Gives what went wrong.
pub fn preset_all(root: &Path, loader: &Loader) -> Vec<InstallError> {
    let presets = presets(root);
    let names = match loader.names() {
        Ok(names) => names,
        Err(error) => return vec![error.into()],
    };
    let mut failed = Vec::new();
    for name in names {
        let outcome = match preset_of(&presets, &name) {
            Preset::Enable => enable(root, loader, &name).map(drop),
            Preset::Disable => disable(root, &name).map(drop),
        };
        match outcome {
            // Nothing to do, or nothing that could be started either.
            Ok(()) | Err(InstallError::NothingToDo(_) | InstallError::Load(LoadError::Masked(_))) => {}
            Err(error) => failed.push(error),
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::Specifiers;

    #[test]
    fn the_first_preset_that_matches_counts() {
        let presets = "# c\nenable a.service\ndisable kubelet-*.service\nenable kubelet*\ndisable *\n";
        assert_eq!(preset_of(presets, "a.service"), Preset::Enable);
        assert_eq!(preset_of(presets, "kubelet-x.service"), Preset::Disable);
        assert_eq!(preset_of(presets, "kubelet.service"), Preset::Enable);
        assert_eq!(preset_of(presets, "b.service"), Preset::Disable);
        assert_eq!(preset_of("", "b.service"), Preset::Enable);
        assert!(matches("a*c?", "abbcd") && !matches("a*c?", "abbc") && matches("*", ""));
    }

    #[test]
    fn presets_and_masks_are_links() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "etc/systemd/system/a.service",
            "[Service]\nExecStart=/a\n[Install]\nWantedBy=multi-user.target\n",
        );
        write(
            "etc/systemd/system/b.service",
            "[Service]\nExecStart=/b\n[Install]\nWantedBy=multi-user.target\n",
        );
        write("etc/systemd/system-preset/20-ignition.preset", "enable a.service\n");
        write("usr/lib/systemd/system-preset/99.preset", "disable *\n");
        let loader = Loader::new(root.path(), Specifiers::default());
        assert!(preset_all(root.path(), &loader).is_empty());
        assert!(is_enabled(root.path(), "a.service") && !is_enabled(root.path(), "b.service"));
        assert_eq!(disable(root.path(), "a.service").unwrap().len(), 1);
        assert!(!is_enabled(root.path(), "a.service"));
        mask(root.path(), "c.service", true).unwrap();
        assert!(matches!(loader.load("c.service"), Err(LoadError::Masked(_))));
        mask(root.path(), "c.service", false).unwrap();
        assert!(matches!(loader.load("c.service"), Err(LoadError::NotFound(_))));
    }
}
