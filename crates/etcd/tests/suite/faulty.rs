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

#[derive(Default)]
struct Inner {
    files: BTreeMap<String, Arc<Mutex<Content>>>,
    fault: Option<Fault>,
}

#[derive(Clone, Default)]
pub struct FaultyDisk(Arc<Mutex<Inner>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("not poisoned")
}

impl FaultyDisk {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn handle(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    pub fn inject(&self, fault: Fault) {
        lock(&self.0).fault = Some(fault);
    }

    pub fn heal(&self) {
        lock(&self.0).fault = None;
    }

    /// As after a loss of power.
    pub fn lose_unsynced(&self) {
        for file in lock(&self.0).files.values() {
            let mut content = lock(file);
            content.written = content.synced.clone();
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
        let mut inner = lock(&self.0);
        let content = inner.files.remove(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        inner.files.insert(to.to_owned(), content);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        lock(&self.0).files.remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}

impl DiskFile for FaultyFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
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

    fn reserve(&mut self, _end: u64) -> io::Result<()> {
        match self.fault() {
            Some(Fault::NoSpace) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn truncate(&mut self, end: u64) -> io::Result<()> {
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
        if self.fault() == Some(Fault::Sync) {
            return Err(io::Error::other("injected fsync error"));
        }
        let mut content = lock(&self.content);
        content.synced = content.written.clone();
        Ok(())
    }
}
