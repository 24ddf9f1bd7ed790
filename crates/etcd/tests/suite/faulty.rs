//! A disk in memory that fails on demand, and that can forget what was never synced.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use etcd::disk::{Disk, DiskFile};

/// What goes wrong from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// fdatasync fails.
    Sync,
    /// Writes fail.
    Write,
    /// Writes fail after half of the bytes.
    ShortWrite,
    /// No space for writes or reservations.
    NoSpace,
}

#[derive(Clone, Default)]
struct Content {
    written: Vec<u8>,
    synced: Vec<u8>,
}

type Files = BTreeMap<String, Arc<Mutex<Content>>>;

#[derive(Default)]
struct Inner {
    files: Files,
    /// The directory as it is on the disk: what was created, renamed or removed since it was synced is not in it.
    entries: Files,
    fault: Option<Fault>,
    /// How many changes it still takes; then every one fails, as on a machine that has lost its disk.
    left: Option<u64>,
    /// Whether only one fails.
    once: bool,
    /// Whether room can be reserved, as on most file systems.
    reserves: bool,
}

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<Inner>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("not poisoned")
}

impl FaultyDisk {
    pub fn new() -> Self {
        Self::default()
    }

    /// One whose files can be longer than what was written to them.
    pub fn reserving() -> Self {
        let disk = Self::default();
        lock(&disk.0).reserves = true;
        disk
    }

    pub fn handle(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// What a file has.
    pub fn content(&self, name: &str) -> Vec<u8> {
        lock(&lock(&self.0).files[name]).written.clone()
    }

    /// Makes a file that has been there for long.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let content = Arc::new(Mutex::new(Content { written: bytes.clone(), synced: bytes }));
        let mut inner = lock(&self.0);
        inner.files.insert(name.to_owned(), content.clone());
        inner.entries.insert(name.to_owned(), content);
    }

    pub fn inject(&self, fault: Fault) {
        lock(&self.0).fault = Some(fault);
    }

    pub fn heal(&self) {
        let mut inner = lock(&self.0);
        (inner.fault, inner.left) = (None, None);
    }

    /// Takes so many more changes (writes, syncs, creations, renames, removals), and then fails for good.
    #[allow(dead_code, reason = "for the simulation of whole members, which shares this file")]
    pub fn fail_after(&self, changes: u64) {
        let mut inner = lock(&self.0);
        (inner.left, inner.once) = (Some(changes), false);
    }

    /// Takes so many more changes; the next one fails, and those after it are taken again.
    pub fn fail_once_after(&self, changes: u64) {
        let mut inner = lock(&self.0);
        (inner.left, inner.once) = (Some(changes), true);
    }

    fn change(&self) -> io::Result<()> {
        let mut inner = lock(&self.0);
        match inner.left {
            Some(0) => {
                inner.left = Some(0).filter(|_| !inner.once);
                Err(io::Error::other("injected end of the disk"))
            }
            left => {
                inner.left = left.map(|left| left - 1);
                Ok(())
            }
        }
    }

    /// As after a loss of power.
    pub fn lose_unsynced(&self) {
        self.lose(|| false);
    }

    /// As after a loss of power in the middle of writing: of what was never synced, some sectors have reached the disk, and the names of files if
    /// `kept` says so.
    pub fn lose(&self, mut kept: impl FnMut() -> bool) {
        let mut inner = lock(&self.0);
        if !kept() {
            inner.files = inner.entries.clone();
        }
        inner.entries = inner.files.clone();
        for file in inner.files.values() {
            let mut content = lock(file);
            // The file's new length may be there without what it has.
            let length = if kept() { content.written.len() } else { content.synced.len() };
            let mut found = content.synced.clone();
            found.resize(length, 0);
            for start in (0..length).step_by(SECTOR) {
                let end = (start + SECTOR).min(length);
                if kept()
                    && let Some(written) = content.written.get(start..end)
                {
                    found[start..end].copy_from_slice(written);
                }
            }
            (content.written, content.synced) = (found.clone(), found);
        }
    }
}

struct FaultyFile {
    disk: FaultyDisk,
    content: Arc<Mutex<Content>>,
}

impl FaultyFile {
    fn fault(&self) -> Option<Fault> {
        lock(&self.disk.0).fault
    }
}

impl Disk for FaultyDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(lock(&self.0).files.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.change()?;
        let content = Arc::<Mutex<Content>>::default();
        lock(&self.0).files.insert(name.to_owned(), content.clone());
        Ok(Box::new(FaultyFile { disk: self.clone(), content }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let found = lock(&self.0).files.get(name).cloned();
        let content = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Box::new(FaultyFile { disk: self.clone(), content }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.change()?;
        let mut inner = lock(&self.0);
        let content = inner.files.remove(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        inner.files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change()?;
        lock(&self.0).files.remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.change()?;
        let mut inner = lock(&self.0);
        inner.entries = inner.files.clone();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.change()?;
        let within = offset as usize + bytes.len() <= lock(&self.content).written.len();
        // A full disk still takes what does not need more room.
        let fault = self.fault().filter(|fault| *fault != Fault::NoSpace || !within);
        let count = match fault {
            Some(Fault::Write) => 0,
            Some(Fault::ShortWrite | Fault::NoSpace) => bytes.len() / 2,
            _ => bytes.len(),
        };
        let mut content = lock(&self.content);
        let end = offset as usize + count;
        if content.written.len() < end {
            content.written.resize(end, 0);
        }
        content.written[offset as usize..end].copy_from_slice(&bytes[..count]);
        match fault {
            Some(Fault::Write | Fault::ShortWrite) => Err(io::Error::other("injected write error")),
            Some(Fault::NoSpace) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let content = lock(&self.content);
        let rest = content.written.get(offset as usize..).unwrap_or(&[]);
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn reserve(&mut self, end: u64) -> io::Result<()> {
        if self.fault() == Some(Fault::NoSpace) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut content = lock(&self.content);
        if lock(&self.disk.0).reserves && content.written.len() < end as usize {
            content.written.resize(end as usize, 0);
        }
        Ok(())
    }

    fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.disk.change()?;
        lock(&self.content).written.resize(end as usize, 0);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.content).written.len() as u64)
    }

    fn map(&self, offset: u64, length: usize) -> io::Result<Option<Bytes>> {
        let content = lock(&self.content);
        let part = content.written.get(offset as usize..offset as usize + length);
        Ok(part.map(Bytes::copy_from_slice))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.change()?;
        if self.fault() == Some(Fault::Sync) {
            return Err(io::Error::other("injected fsync error"));
        }
        let mut content = lock(&self.content);
        content.synced = content.written.clone();
        Ok(())
    }
}
