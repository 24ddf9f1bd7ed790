//! Pieces of files as memory that the kernel may take back at any time: its page cache, read through the address space.
//!
//! Large values live in the log's and the snapshots' files only; a version holds a slice of a mapping. Reading one costs
//! a page fault at worst, and what has been read can be given back with [`unload_all`]. A mapping lasts as long as
//! any slice of it, also when the file has been removed meanwhile; only then is the file's room free. A disk that cannot
//! read a page any more ends the process (SIGBUS), as it does etcd.
//!
//! Everything unsafe of this crate is in this file.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use bytes::Bytes;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Pages of a file.
struct Pages {
    start: *mut c_void,
    length: usize,
}

// SAFETY: the pages are only read, and belong to nobody else until they are unmapped.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is what mmap returned, and all slices of it are gone with the last reference to it. Failing leaves
        // some address space unused.
        let _ = unsafe { munmap(self.start, self.length) };
    }
}

/// All mappings of this process: its memory is what [`unload_all`] is about.
static ALL: Mutex<Vec<Weak<Pages>>> = Mutex::new(Vec::new());

/// Gives back the memory of all mappings; what is accessed again comes from the page cache, or else from the disk.
pub fn unload_all() {
    let mut all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.retain(|pages| {
        let Some(pages) = pages.upgrade() else { return false };
        // SAFETY: the pages are a shared mapping of a file, whose content comes back when it is accessed.
        let _ = unsafe { madvise(pages.start, pages.length, Advice::LinuxDontNeed) };
        true
    });
}

/// Whether bytes are part of a mapping.
#[cfg(test)]
pub fn is_mapped(bytes: &Bytes) -> bool {
    let at = bytes.as_ptr() as usize;
    let all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let holds = |pages: &Pages| (pages.start as usize..pages.start as usize + pages.length).contains(&at);
    all.iter().any(|pages| pages.upgrade().is_some_and(|pages| holds(&pages)))
}

/// A piece of a file.
struct Piece {
    pages: Arc<Pages>,
    skip: usize,
    length: usize,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: within the mapped pages (see `map`), which live as long as this does. Slices are made only of bytes
        // that are durable; the store never changes those and has the directory locked against other processes.
        unsafe { std::slice::from_raw_parts(self.pages.start.cast::<u8>().add(self.skip), self.length) }
    }
}

/// Maps `length` bytes of a file. Only what never changes again may be looked at.
pub fn map(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let skip = (offset % rustix::param::page_size() as u64) as usize;
    if length == 0 || file.metadata()?.len() < offset + length as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mapped = skip + length;
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
    let start = unsafe {
        mmap(std::ptr::null_mut(), mapped, ProtFlags::READ, MapFlags::SHARED, file, offset - skip as u64)?
    };
    let pages = Arc::new(Pages { start, length: mapped });
    let mut all = ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    all.retain(|pages| pages.strong_count() > 0);
    all.push(Arc::downgrade(&pages));
    Ok(Bytes::from_owner(Piece { pages, skip, length }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_slice_outlives_the_mapping_the_file_and_its_unloading() {
        let content: Vec<u8> = (0..20_000_u32).map(|number| (number / 7) as u8).collect();
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&content).expect("write");
        let bytes = map(&file, 4097, 9000).expect("mapped");
        assert_eq!(bytes, content[4097..13_097]);
        let slice = bytes.slice(100..300);
        unload_all();
        drop((bytes, file));
        assert_eq!(slice, content[4197..4397]);
    }

    #[test]
    fn nothing_beyond_the_end_is_mapped() {
        let mut file = tempfile::tempfile().expect("temporary file");
        file.write_all(&[1; 100]).expect("write");
        assert!(map(&file, 50, 51).is_err());
        assert!(map(&file, 50, 0).is_err());
        assert!(map(&file, 50, 50).is_ok());
    }
}
