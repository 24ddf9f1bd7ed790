//! An image's layers looked at as one tree, without mounting them.
//!
//! Names are resolved component by component on directory descriptors, with the rules of overlayfs (upper hides lower, character
//! device 0:0 deletes, an opaque directory hides what is below it). A link leads to a place in the same tree, whatever
//! it says: the host's own files cannot be reached from here.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The attribute by which overlayfs knows a directory that hides those below it.
pub const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";

/// How many links one name may go through, as in the kernel.
pub const MAX_LINKS: usize = 40;
/// How many components a name may have once its links are followed.
const MAX_STEPS: usize = 1024;

/// A stack of layers.
pub struct View {
    /// Topmost first.
    layers: Vec<OwnedFd>,
}

/// What a name leads to.
pub struct Found {
    /// Opened with `O_PATH`, not following a link.
    pub fd: OwnedFd,
    pub stat: Stat,
}

impl Found {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Opens a regular file for reading; of nothing else would reading be known to end.
    pub fn open(&self) -> io::Result<File> {
        if !self.kind().is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
        }
        File::open(through(&self.fd))
    }

    pub fn link_target(&self) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.fd, "", Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }
}

/// A path to what a descriptor is open on, for calls that take no descriptor.
pub fn through(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// The overlay's mark of a deleted name.
pub fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == 0
}

/// Opens a name of a directory without following it; `None` where there is none.
pub fn open_name(directory: &OwnedFd, name: &OsStr) -> io::Result<Option<Found>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        other => other?,
    };
    let stat = rustix::fs::fstat(&fd)?;
    Ok(Some(Found { fd, stat }))
}

/// Whether a directory hides the same one in the layers below.
fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0_u8; 1];
    let read = rustix::fs::getxattr(through(directory), OPAQUE_ATTRIBUTE, &mut value[..]);
    matches!(read, Ok(1) if value == *b"y")
}

/// What one component leads to.
enum Step {
    Nothing,
    /// The directories of that name that are seen, topmost first.
    Directories(Vec<OwnedFd>),
    Other(Found),
}

impl View {
    /// `layers`: topmost first.
    pub fn open(layers: &[PathBuf]) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let open = |path: &PathBuf| Ok(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Self { layers: layers.iter().map(open).collect::<io::Result<_>>()? })
    }

    /// Finds a name; links on the way are followed, and the last one too if `follow`.
    pub fn find(&self, path: &Path, follow: bool) -> io::Result<Option<Found>> {
        let mut pending: VecDeque<OsString> = components(path).collect();
        let (mut links, mut steps) = (0, 0);
        'again: loop {
            let mut known: Vec<OsString> = Vec::new();
            let mut here: Option<Vec<OwnedFd>> = None;
            while let Some(name) = pending.pop_front() {
                steps += 1;
                if steps > MAX_STEPS {
                    return Err(Errno::NAMETOOLONG.into());
                }
                if name == ".." {
                    known.pop();
                    restart(&mut pending, known);
                    continue 'again;
                }
                let directories = here.as_ref().unwrap_or(&self.layers);
                match step(directories, &name)? {
                    Step::Nothing => return Ok(None),
                    Step::Directories(found) => {
                        known.push(name);
                        here = Some(found);
                    }
                    Step::Other(found) if found.kind().is_symlink() && (follow || !pending.is_empty()) => {
                        links += 1;
                        if links > MAX_LINKS {
                            return Err(Errno::LOOP.into());
                        }
                        let target = found.link_target()?;
                        if target.is_absolute() {
                            known.clear();
                        }
                        known.extend(components(&target));
                        restart(&mut pending, known);
                        continue 'again;
                    }
                    Step::Other(found) => return Ok(pending.is_empty().then_some(found)),
                }
            }
            let top = match here {
                Some(found) => found.into_iter().next(),
                None => self.layers.first().map(|layer| layer.try_clone()).transpose()?,
            };
            let Some(fd) = top else { return Ok(None) };
            let stat = rustix::fs::fstat(&fd)?;
            return Ok(Some(Found { fd, stat }));
        }
    }

    /// Reads a regular file of at most `limit` bytes. What is no regular file counts as absent.
    pub fn read(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(found) = self.find(path, true)?.filter(|found| found.kind().is_file()) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        found.open()?.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            let reason = format!("{} is larger than {limit} bytes", path.display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
        }
        Ok(Some(bytes))
    }
}

fn restart(pending: &mut VecDeque<OsString>, known: Vec<OsString>) {
    for name in known.into_iter().rev() {
        pending.push_front(name);
    }
}

/// The names of a path, `..` among them.
pub fn components(path: &Path) -> impl Iterator<Item = OsString> {
    let parts = path.as_os_str().as_bytes().split(|byte| *byte == b'/');
    parts.filter(|part| !matches!(part, [] | [b'.'])).map(|part| OsStr::from_bytes(part).to_owned())
}

fn step(directories: &[OwnedFd], name: &OsStr) -> io::Result<Step> {
    let mut seen = Vec::new();
    for directory in directories {
        let Some(found) = open_name(directory, name)? else { continue };
        if found.kind().is_dir() {
            let opaque = is_opaque(&found.fd);
            seen.push(found.fd);
            if opaque {
                break;
            }
        } else if seen.is_empty() && !is_whiteout(&found.stat) {
            return Ok(Step::Other(found));
        } else {
            break;
        }
    }
    Ok(if seen.is_empty() { Step::Nothing } else { Step::Directories(seen) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn layers(make: impl Fn(&Path, &Path)) -> (tempfile::TempDir, View) {
        let place = tempfile::tempdir().unwrap();
        let (top, bottom) = (place.path().join("top"), place.path().join("bottom"));
        for directory in [&top, &bottom] {
            fs::create_dir_all(directory.join("etc")).unwrap();
        }
        make(&top, &bottom);
        let view = View::open(&[top, bottom]).unwrap();
        (place, view)
    }

    fn text(view: &View, path: &str) -> Option<String> {
        view.read(Path::new(path), 1024).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_upper_layer_wins_and_links_stay_inside() {
        let (_place, view) = layers(|top, bottom| {
            fs::write(bottom.join("etc/passwd"), "bottom").unwrap();
            fs::write(bottom.join("etc/real"), "real").unwrap();
            fs::write(top.join("etc/passwd"), "top").unwrap();
            symlink("/etc/real", top.join("etc/absolute")).unwrap();
            symlink("../../../../etc/real", top.join("etc/upwards")).unwrap();
            symlink("/etc/hostname", top.join("etc/host")).unwrap();
            symlink("loop", top.join("etc/loop")).unwrap();
        });
        assert_eq!(text(&view, "etc/passwd").as_deref(), Some("top"));
        assert_eq!(text(&view, "etc/absolute").as_deref(), Some("real"));
        assert_eq!(text(&view, "etc/upwards").as_deref(), Some("real"));
        assert_eq!(text(&view, "etc/host"), None);
        assert_eq!(text(&view, "../etc/real").as_deref(), Some("real"));
        assert!(view.find(Path::new("etc/loop"), true).is_err());
    }

    #[test]
    fn what_is_no_small_regular_file_is_not_read() {
        let (_place, view) = layers(|top, _| {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                top.join("etc/passwd"),
                FileType::Fifo,
                Mode::from_raw_mode(0o600),
                0,
            )
            .unwrap();
            File::create(top.join("etc/group")).unwrap().set_len(10 << 30).unwrap();
        });
        assert_eq!(text(&view, "etc/passwd"), None);
        assert_eq!(text(&view, "etc"), None);
        let error = view.read(Path::new("etc/group"), 1024).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
