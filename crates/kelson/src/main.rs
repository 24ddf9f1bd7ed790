//! The binary: parse, build, run, drain, and nothing else.
//!
//! `kelson up` runs every component in one process; each upstream-named subcommand runs one of them with
//! upstream's flags. Only this file chooses exit codes.

mod bench;
mod cluster;
mod commands;
mod container_runtime;
mod down;
mod instance;
mod kubelet;
mod memory;
mod node;
mod status;
mod up;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The same file is also every pod's shim and the built-in images' programs; those want none of what follows.
    if let Some(code) = ::container_runtime::dispatch(std::env::args_os()) {
        return code;
    }
    // On machines it is also the first process and the tools that units call.
    if let Some(code) = machines::dispatch(std::env::args_os()) {
        return code;
    }
    // Called `kubectl` or `oc` it is that program; under its own name it has their commands beside its own.
    let arguments: Vec<OsString> = commands::by_name(std::env::args_os().collect());
    let called = arguments.first().and_then(|name| cli::Program::named(name));
    if let Some(program) = called {
        return ExitCode::from(cli::run(program, arguments));
    }
    if cli::claims(&arguments, |word| commands::is_own(word, &arguments)) {
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
