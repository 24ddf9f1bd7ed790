//! One file per verb, none per kind.

pub mod connect;
pub mod create;
pub mod delete;
pub mod list;
pub mod patch;
pub mod read;
pub mod review;
pub mod socket;
pub mod update;
pub mod watch;
