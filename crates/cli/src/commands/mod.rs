//! One file per command.

pub mod adm;
pub mod api_resources;
pub mod apply;
pub mod attach;
pub mod auth;
pub mod certificate;
pub mod cluster_info;
pub mod config;
pub mod cp;
pub mod create;
pub mod delete;
pub mod exec;
pub mod explain;
pub mod get;
pub mod label;
pub mod logs;
pub mod patch;
pub mod plugin;
pub mod port_forward;
pub mod replace;
pub mod scale;
pub mod version;
pub mod wait;
