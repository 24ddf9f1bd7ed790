//! Machines that boot an ignition file, made of namespaces on this host, and what runs on them.
//!
//! A machine is a process tree in namespaces of its own. [`init`] is its PID 1: it applies the ignition file once and
//! runs [`unit`]s. Each machine has a monitor, its parent, which boots it again when it asks for that. The machines of a
//! cluster share a switch, which is a network namespace of its own: the host's network has no part in it.

pub mod cli;
pub mod cluster;
mod files;
pub mod init;
pub mod journal;
pub mod load_balancer;
pub mod machine;
mod names;
pub mod network;
mod switch;
mod sys;
mod systemctl;
pub mod unit;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// Becomes init, a monitor, a network process, or a tool of a machine, if that is what the arguments say.
pub fn dispatch(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    let name = args.first().and_then(|name| Path::new(name).file_name()?.to_str()).unwrap_or_default();
    if name == "init" {
        return Some(init::main());
    }
    if let Some(code) = systemctl::main(name, &args) {
        return Some(code);
    }
    match args.get(1).and_then(|word| word.to_str()) {
        Some("init") if args.len() == 2 => Some(init::main()),
        Some(machine::monitor::WORD) => Some(machine::monitor::main(&args[2..])),
        Some(network::WORD) => Some(network::main(&args[2..])),
        _ => None,
    }
}
