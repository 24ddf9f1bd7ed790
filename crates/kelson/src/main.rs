//! The binary: parse, build, run, drain, and nothing else.
//!
//! `kelson up` runs every component in one process; each upstream-named subcommand runs one of them with
//! upstream's flags. Only this file chooses exit codes.

mod bench;
mod cluster;
mod commands;
mod container_runtime;
mod down;
mod images;
mod instance;
mod kubelet;
mod memory;
mod node;
mod pod_network;
mod status;
mod up;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The same file is also every pod's shim and the built-in images' programs; those want none of what follows.
    if let Some(code) = ::container_runtime::dispatch(std::env::args_os()) {
        return code;
    }
    // On nodes it is also the plug-in that the runtime calls for every pod.
    if let Some(code) = ::pod_network::plugin::dispatch(std::env::args_os()) {
        return code;
    }
    // On machines it is also the first process and the tools that units call.
    if let Some(code) = machines::dispatch(std::env::args_os()) {
        return code;
    }
    // Called `kubectl` or `oc` it is that program; under its own name it has their commands beside its own.
    let arguments: Vec<OsString> = commands::by_name(std::env::args_os().collect());
    let called = arguments.first().and_then(|name| cli::Program::named(name));
    // `oc adm release` is no client of a cluster: it is ours.
    let releases = called == Some(cli::Program::Oc)
        && arguments.get(1).is_some_and(|word| word == "adm")
        && commands::is_own("adm", &arguments);
    if let Some(program) = called.filter(|_| !releases) {
        return ExitCode::from(cli::run(program, arguments));
    }
    if let Some(code) = commands::etcd_tool(&arguments) {
        return code;
    }
    if !releases && cli::claims(&arguments, |word| commands::is_own(word, &arguments)) {
        return ExitCode::from(cli::run(cli::Program::Kelson, arguments));
    }
    match commands::Kelson::from_command_line(arguments).run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            match error.downcast_ref::<installer::cli::CliError>() {
                // The installer's exit codes say which stage failed, as scripts expect.
                Some(error) => ExitCode::from(error.exit_code()),
                None => ExitCode::FAILURE,
            }
        }
    }
}
