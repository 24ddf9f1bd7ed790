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
    match commands::Kelson::from_command_line(std::env::args_os()).run() {
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
