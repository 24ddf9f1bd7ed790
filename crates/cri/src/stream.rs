//! Live endpoints of exec, attach and port-forward.
//!
//! Dropping a [`Session`] ends it: an exec'd command without a reader gets SIGPIPE or end of file as on a closed
//! connection; an attached container goes on. Readers end (read of 0 bytes) when the process closed the stream.

use std::fmt;
use std::pin::Pin;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::error::Result;

/// The end from which the kubelet reads.
pub type Reader = Pin<Box<dyn AsyncRead + Send>>;

/// The end to which the kubelet writes. Shutting it down (or dropping it) closes the process's stdin.
pub type Writer = Pin<Box<dyn AsyncWrite + Send>>;

/// Both directions of one connection.
pub type Duplex = Pin<Box<dyn ReadWrite>>;

/// What a [`Duplex`] can do.
pub trait ReadWrite: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> ReadWrite for T {}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // width and height
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// Which streams an exec'd command gets. With a terminal there is no separate stderr.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the streams
pub struct ExecOptions {
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// Which streams of the container to connect to. Whether it has a terminal is the container's own setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the streams
pub struct AttachOptions {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// One running exec or attach.
pub struct Session {
    /// Present when stdin was asked for.
    pub stdin: Option<Writer>,
    /// Present when stdout was asked for; carries everything of a terminal.
    pub stdout: Option<Reader>,
    /// Present when stderr was asked for and there is no terminal.
    pub stderr: Option<Reader>,
    /// Present with a terminal.
    pub resize: Option<mpsc::Sender<TerminalSize>>,
    /// Resolves to the exit code of the command (exec) or of the container (attach). Read the readers to their
    /// end as well: output may still be on its way.
    pub exit: BoxFuture<'static, Result<i32>>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("stdin", &self.stdin.is_some())
            .field("stdout", &self.stdout.is_some())
            .field("stderr", &self.stderr.is_some())
            .field("tty", &self.resize.is_some())
            .finish()
    }
}
