//! Finding a unit's files: the fragment, its drop-ins, and the links that others made to it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::directives::{self, UnitError};
use super::{Specifiers, Unit, syntax};

/// Where units are, the most important first.
pub const PATHS: &[&str] =
    &["etc/systemd/system", "run/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system"];

/// Why a unit was not loaded.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum LoadError {
    #[error("unit {0} not found")]
    NotFound(String),
    #[error("unit {0} is masked")]
    Masked(String),
    #[error("{0:?} is not a unit's name")]
    Name(String),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Whether a name can be a unit's.
pub fn is_name(name: &str) -> bool {
    name.len() < 256
        && name.rsplit_once('.').is_some_and(|(stem, _)| !stem.is_empty())
        && name.chars().all(|char| char.is_ascii_alphanumeric() || ":-_.\\@".contains(char))
}

/// Reads units below a root directory.
#[derive(Debug, Clone)]
pub struct Loader {
    root: PathBuf,
    base: Specifiers,
}

impl Loader {
    /// For the tree at `root`; the unit of `specifiers` does not matter.
    pub fn new(root: impl Into<PathBuf>, base: Specifiers) -> Self {
        Self { root: root.into(), base }
    }

    fn directories(&self) -> impl Iterator<Item = PathBuf> {
        PATHS.iter().map(|path| self.root.join(path))
    }

    /// The file of a unit: its own, or its template's.
    fn fragment(&self, name: &str) -> Result<Option<PathBuf>, LoadError> {
        let template = template_of(name);
        for candidate in [Some(name), template.as_deref()].into_iter().flatten() {
            for directory in self.directories() {
                let path = directory.join(candidate);
                match fs::symlink_metadata(&path) {
                    Ok(found) if found.is_symlink() && is_mask(&path) => {
                        return Err(LoadError::Masked(name.to_owned()));
                    }
                    Ok(_) => return Ok(Some(path)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(source) => return Err(LoadError::Read { path, source }),
                }
            }
        }
        Ok(None)
    }

    /// The drop-ins of a unit in the order in which they count: by file name, a nearer directory hiding a farther one's.
    fn dropins(&self, name: &str) -> Result<Vec<PathBuf>, LoadError> {
        let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
        let suffix = name.rsplit_once('.').map(|(_, suffix)| format!("{suffix}.d"));
        let template = template_of(name).map(|template| format!("{template}.d"));
        for kind in [Some(format!("{name}.d")), template, suffix].into_iter().flatten() {
            for directory in self.directories().map(|directory| directory.join(&kind)) {
                for (file, path) in list(&directory)? {
                    if file.ends_with(".conf") {
                        found.entry(file).or_insert(path);
                    }
                }
            }
        }
        Ok(found.into_values().collect())
    }

    /// Units that NAME.wants or NAME.requires link to.
    fn linked(&self, name: &str, kind: &str) -> Result<Vec<String>, LoadError> {
        let mut out: Vec<String> = Vec::new();
        for directory in self.directories() {
            for (file, path) in list(&directory.join(format!("{name}.{kind}")))? {
                if is_name(&file) && !is_mask(&path) && !out.contains(&file) {
                    out.push(file);
                }
            }
        }
        Ok(out)
    }

    /// Reads a unit with everything that belongs to it.
    pub fn load(&self, name: &str) -> Result<Unit, LoadError> {
        if !is_name(name) {
            return Err(LoadError::Name(name.to_owned()));
        }
        let specifiers = Specifiers { unit: name.to_owned(), ..self.base.clone() };
        let mut unit = directives::empty(name)?;
        let dropins = self.dropins(name)?;
        match self.fragment(name)? {
            Some(path) => {
                let text = read(&path)?;
                let file = self.shown(&path);
                unit.fragment.clone_from(&file);
                lay_over(&mut unit, &file, &text, &specifiers)?;
            }
            None if dropins.is_empty() => return Err(LoadError::NotFound(name.to_owned())),
            None => {}
        }
        for path in dropins {
            let text = read(&path)?;
            let file = self.shown(&path);
            lay_over(&mut unit, &file, &text, &specifiers)?;
            unit.dropins.push(file);
        }
        unit.wants.extend(self.linked(name, "wants")?);
        unit.requires.extend(self.linked(name, "requires")?);
        directives::finish(&mut unit)?;
        Ok(unit)
    }

    /// Names of all units that have a file.
    pub fn names(&self) -> Result<Vec<String>, LoadError> {
        let mut out = Vec::new();
        for directory in self.directories() {
            out.extend(list(&directory)?.into_iter().map(|(file, _)| file).filter(|file| is_name(file)));
        }
        // Directories such as a.service.d have the form of a name too.
        out.retain(|name| !name.ends_with(".d") && !name.ends_with(".wants") && !name.ends_with(".requires"));
        out.sort();
        out.dedup();
        Ok(out)
    }

    fn shown(&self, path: &Path) -> String {
        match path.strip_prefix(&self.root) {
            Ok(inside) => format!("/{}", inside.display()),
            Err(_) => path.display().to_string(),
        }
    }
}

fn lay_over(unit: &mut Unit, file: &str, text: &str, specifiers: &Specifiers) -> Result<(), UnitError> {
    let assignments =
        syntax::parse(text).map_err(|source| UnitError::Syntax { file: file.to_owned(), source })?;
    directives::apply(unit, file, &assignments, specifiers)
}

fn template_of(name: &str) -> Option<String> {
    let (stem, suffix) = name.rsplit_once('.')?;
    let (prefix, instance) = stem.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{prefix}@.{suffix}"))
}

/// Whether a path is a link to /dev/null, or an empty file.
pub fn is_mask(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

fn list(directory: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let fail = |source| LoadError::Read { path: directory.to_owned(), source };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(fail(source)),
    };
    let mut out = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        if let Ok(name) = entry.file_name().into_string() {
            out.push((name, entry.path()));
        }
    }
    out.sort();
    Ok(out)
}

fn read(path: &Path) -> Result<String, LoadError> {
    use std::io::Read as _;
    let fail = |source| LoadError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(fail)?;
    file.take(syntax::LARGEST as u64 + 1).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_dropins_links_and_masks_make_a_unit() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("usr/lib/systemd/system/a.service", "[Service]\nExecStart=/far\n");
        write("etc/systemd/system/a.service", "[Service]\nExecStart=/near\n");
        write("etc/systemd/system/a.service.d/20.conf", "[Service]\nEnvironment=A=1\n");
        write("usr/lib/systemd/system/a.service.d/10.conf", "[Unit]\nDescription=%n\n");
        write("etc/systemd/system/b.target", "[Unit]\n");
        write("etc/systemd/system/b.target.wants/a.service", "");
        write("usr/lib/systemd/system/t@.service", "[Service]\nExecStart=/t %i\n");
        std::os::unix::fs::symlink("/dev/null", root.path().join("etc/systemd/system/m.service")).unwrap();
        let loader = Loader::new(root.path(), Specifiers::default());
        let unit = loader.load("a.service").unwrap();
        assert_eq!(unit.service().unwrap().exec_start[0].program, "/near");
        assert_eq!(unit.service().unwrap().environment, [("A".to_owned(), "1".to_owned())]);
        assert_eq!((unit.description.as_str(), unit.dropins.len()), ("a.service", 2));
        let target = loader.load("b.target").unwrap();
        assert_eq!(target.wants, ["a.service"]);
        assert!(target.after.contains(&"a.service".to_owned()));
        assert_eq!(loader.load("t@x.service").unwrap().service().unwrap().exec_start[0].arguments, ["x"]);
        assert!(matches!(loader.load("m.service"), Err(LoadError::Masked(_))));
        assert!(matches!(loader.load("n.service"), Err(LoadError::NotFound(_))));
        assert!(matches!(loader.load("../x.service"), Err(LoadError::Name(_))));
        assert_eq!(loader.names().unwrap(), ["a.service", "b.target", "m.service", "t@.service"]);
    }
}
