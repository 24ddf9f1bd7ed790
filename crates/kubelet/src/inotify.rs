//! Waiting for changes of a file or directory, told by the kernel.

use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Follows one path.
pub struct Watch(AsyncFd<OwnedFd>);

impl Watch {
    /// Files that appear in, change in or leave a directory.
    pub fn directory(path: &Path) -> std::io::Result<Self> {
        Self::new(
            path,
            WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::MOVED_FROM | WatchFlags::DELETE,
        )
    }

    /// Writes to a file.
    pub fn file(path: &Path) -> std::io::Result<Self> {
        Self::new(path, WatchFlags::MODIFY | WatchFlags::MOVE_SELF | WatchFlags::DELETE_SELF)
    }

    fn new(path: &Path, flags: WatchFlags) -> std::io::Result<Self> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        inotify::add_watch(&fd, path, flags)?;
        // Its successor is unsafe for types that may give up their descriptor; an OwnedFd inside AsyncFd cannot.
        #[allow(deprecated)]
        AsyncFd::new(fd).map(Self)
    }

    /// Resolves after a change. What it was is discarded: who waits looks for himself.
    pub async fn changed(&self) {
        let Ok(mut ready) = self.0.readable().await else { return std::future::pending().await };
        let mut buffer = [0; 4096];
        while rustix::io::read(self.0.get_ref(), &mut buffer).is_ok_and(|count| count > 0) {}
        ready.clear_ready();
    }
}
