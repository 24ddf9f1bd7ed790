//! A file that is read while it is written: one side is a download, the other unpacks.
//!
//! The reader waits for bytes that are not there yet, and fails if the writer goes away before it said that all is there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use bytes::Bytes;

#[derive(Default)]
struct Progress {
    written: u64,
    finished: bool,
    abandoned: bool,
}

#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Makes the file; gives its two ends.
pub fn file(path: &Path) -> io::Result<(Writer, Growing)> {
    let file = Arc::new(File::options().create_new(true).read(true).write(true).open(path)?);
    let shared = Arc::new(Shared::default());
    let writer = Writer { file: file.clone(), shared: shared.clone(), written: 0 };
    Ok((writer, Growing { file, shared, position: 0 }))
}

/// The end that is written to.
pub struct Writer {
    file: Arc<File>,
    shared: Arc<Shared>,
    written: u64,
}

impl Writer {
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Adds bytes, where a slow disk holds nobody up.
    pub async fn write(&mut self, batch: Vec<Bytes>) -> io::Result<()> {
        let file = self.file.clone();
        let size: u64 = batch.iter().map(|bytes| bytes.len() as u64).sum();
        let write = move || batch.iter().try_for_each(|bytes| (&*file).write_all(bytes));
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)??;
        self.written += size;
        self.shared.lock().written = self.written;
        self.shared.news.notify_all();
        Ok(())
    }

    /// Says that all is there.
    pub fn finish(self) {
        self.shared.lock().finished = true;
        self.shared.news.notify_all();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().abandoned = true;
        self.shared.news.notify_all();
    }
}

/// The end that is read from.
pub struct Growing {
    file: Arc<File>,
    shared: Arc<Shared>,
    position: u64,
}

impl Growing {
    /// Waits until all is there.
    pub fn wait(&mut self) -> io::Result<()> {
        let mut progress = self.shared.lock();
        while !progress.finished {
            if progress.abandoned {
                return Err(abandoned());
            }
            progress = self.shared.news.wait(progress).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        Ok(())
    }
}

fn abandoned() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the download was given up")
}

impl Read for Growing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let available = {
            let mut progress = self.shared.lock();
            loop {
                if progress.written > self.position {
                    break progress.written - self.position;
                }
                if progress.finished {
                    return Ok(0);
                }
                if progress.abandoned {
                    return Err(abandoned());
                }
                progress = self.shared.news.wait(progress).unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        };
        let wanted = buffer.len().min(usize::try_from(available).unwrap_or(usize::MAX));
        let count = self.file.read_at(&mut buffer[..wanted], self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_reader_waits_for_the_writer_and_hears_of_its_end() {
        let directory = tempfile::tempdir().unwrap();
        for whole in [true, false] {
            let (mut writer, mut reader) = file(&directory.path().join(whole.to_string())).unwrap();
            let reading = tokio::task::spawn_blocking(move || {
                let mut all = Vec::new();
                reader.read_to_end(&mut all).map(|_| all)
            });
            for part in [&b"one "[..], b"two"] {
                writer.write(vec![Bytes::from_static(part)]).await.unwrap();
            }
            match whole {
                true => writer.finish(),
                false => drop(writer),
            }
            let read = reading.await.unwrap();
            match whole {
                true => assert_eq!(read.unwrap(), b"one two"),
                false => assert_eq!(read.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
            }
        }
    }
}
