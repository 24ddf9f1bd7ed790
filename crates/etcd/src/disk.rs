//! The files of one data directory, behind a seam so that tests can make the disk fail.
//!
//! Only what the log and the snapshots need: whole writes at an offset, reservation of space, fdatasync, and
//! atomic replacement by rename. Names are flat; the directory is the disk.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, FlockOperation};

use crate::mapping;

/// A directory with files.
pub trait Disk: Send + Sync + 'static {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new, empty file; one of the same name is replaced.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// An existing file, for reading and writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Deletes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_directory(&self) -> io::Result<()>;
    /// Where a file is, for messages.
    fn path(&self, name: &str) -> PathBuf;
    /// Lets others use the directory; nothing may be written after it.
    fn release(&self) {}
}

/// An open file.
pub trait DiskFile: Send {
    /// Writes all bytes at an offset.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads up to a buffer full at an offset; 0 is the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Makes sure that there is room up to `end`; new room reads as zeros.
    fn reserve(&mut self, end: u64) -> io::Result<()>;
    /// Cuts the file.
    fn truncate(&mut self, end: u64) -> io::Result<()>;
    /// The file's length.
    fn len(&self) -> io::Result<u64>;
    /// Whether the file holds nothing.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Makes everything written durable. After a failure nobody knows what is.
    fn sync(&mut self) -> io::Result<()>;
    /// A part of the file as memory that follows the file, if it can be had. Nothing of it may be looked at that is still
    /// going to change.
    fn map(&self, _offset: u64, _length: usize) -> io::Result<Option<Bytes>> {
        Ok(None)
    }
}

/// How long a lock may outlive its holder: a process that the holder was just starting has its descriptors, and so the
/// lock, from fork to exec.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The real thing: a directory, locked against other processes until it is released or dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Holds the lock; closing it lets go.
    lock: Mutex<Option<File>>,
}

impl Directory {
    /// Opens a directory, creating it if need be. `Ok(None)` means that another process holds it.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        create_durably(path)?;
        {
            use std::os::unix::fs::PermissionsExt;
            // The state holds secrets: nobody else's business.
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
        }
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(path.join("LOCK"))?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { path: path.to_owned(), lock: Mutex::new(Some(lock)) })),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    // A lock makes no sound when it becomes free, and waiting for it has no deadline.
                    #[allow(clippy::disallowed_methods)]
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Makes a directory and those above it that are missing; a loss of power does not take them away again.
fn create_durably(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::create_dir_all(path)?;
    for made in missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

impl Disk for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let path = self.path.join(name);
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn release(&self) {
        self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    }
}

impl DiskFile for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn reserve(&mut self, end: u64) -> io::Result<()> {
        let length = File::metadata(self)?.len();
        if end <= length {
            return Ok(());
        }
        match rustix::fs::fallocate(&*self, FallocateFlags::empty(), length, end - length) {
            // The file system cannot reserve: appending works all the same, a full disk is just noticed later.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            other => Ok(other?),
        }
    }

    fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.set_len(end)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn map(&self, offset: u64, length: usize) -> io::Result<Option<Bytes>> {
        mapping::map(self, offset, length).map(Some)
    }
}
