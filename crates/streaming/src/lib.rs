//! The two upgrade protocols behind `exec`, `attach` and `port-forward`: SPDY/3.1 and WebSocket.
//!
//! Path: an HTTP request is upgraded ([`upgrade`] negotiates), its connection becomes a [`spdy::Session`] or a
//! [`websocket::WebSocket`], and [`remote_command`] / [`port_forward`] turn either into plain byte streams, so
//! that the code behind them never asks which protocol the client spoke.
//!
//! What stays true: nothing here spawns tasks. Each protocol hands back a driver future beside its handles; who
//! upgraded the connection polls it. Buffers are bounded, so a slow reader slows the peer down.

#![warn(missing_docs)]

mod channels;
pub mod port_forward;
pub mod remote_command;
pub mod spdy;
pub mod upgrade;
pub mod websocket;

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};

/// A byte source of any make.
pub type BoxRead = Pin<Box<dyn AsyncRead + Send>>;
/// A byte sink of any make.
pub type BoxWrite = Pin<Box<dyn AsyncWrite + Send>>;
/// What drives a connection until it ends.
pub type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;
