//! Machines for real: as root, in namespaces, with their own init. One binary with a harness of its own, because it is
//! also the program that the machines boot.
//!
//! `cargo test -p machines --test main [FILTER]`

mod fixture;
mod machines;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use fixture::{Fixture, Test};

fn main() -> ExitCode {
    let args: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(code) = ::machines::dispatch(args.clone()) {
        return code;
    }
    if let Some(code) = fixture::program(&args) {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let tests: Vec<(&str, Test)> = machines::TESTS.to_vec();
    if args.iter().any(|arg| arg == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !testing::root() {
        return ExitCode::SUCCESS;
    }
    let filter = args.iter().find(|arg| !arg.starts_with('-'));
    let chosen =
        tests.into_iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter.as_str())));
    let failed = chosen.filter(|(name, test)| !run(name, *test)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(name: &str, test: Test) -> bool {
    let start = Instant::now();
    let fixture = Fixture::new();
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| test(&fixture)));
    if outcome.is_err() {
        fixture.explain();
    }
    fixture.finish();
    println!(
        "test {name} ... {} ({} ms)",
        if outcome.is_ok() { "ok" } else { "FAILED" },
        start.elapsed().as_millis()
    );
    outcome.is_ok()
}
