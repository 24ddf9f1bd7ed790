//! Containers for real: as root, in namespaces, with cgroups. One binary with a harness of its own, because it is
//! also the shim and the demo program of the pods that it starts.
//!
//! `cargo test -p container-runtime --test main [FILTER]`

mod adoption;
mod cri_server;
mod escape;
mod fixture;
mod hostile_images;
mod images;
mod isolation;
mod lifecycle;
mod registries;
mod stepping;
mod streams;
mod user_namespaces;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use futures::FutureExt;

use fixture::{Fixture, Test};

fn main() -> ExitCode {
    if let Some(code) = container_runtime::dispatch(std::env::args_os()) {
        return code;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [escape::ATTACK, way] = &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return escape::attack(way); // before there is a second thread
    }
    if let [stepping::TRACE, ..] = &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return stepping::trace(&args[1..]);
    }
    if let [stepping::STEP, directory] = &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        // One thread: the n-th system call is then mostly the same one.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(stepping::step(directory.as_ref()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let [word, directory] = &args[..] {
        match word.as_str() {
            adoption::HOST => runtime.block_on(adoption::host(directory.as_ref())),
            adoption::CHURN => runtime.block_on(adoption::churn(directory.as_ref())),
            _ => {}
        }
    }
    let mut tests: Vec<(&str, Test)> = Vec::new();
    for list in [
        lifecycle::TESTS,
        streams::TESTS,
        isolation::TESTS,
        escape::TESTS,
        user_namespaces::TESTS,
        adoption::TESTS,
        stepping::TESTS,
        images::TESTS,
        hostile_images::TESTS,
        registries::TESTS,
        cri_server::TESTS,
    ] {
        tests.extend_from_slice(list);
    }
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
    let failed = chosen.filter(|(name, test)| !runtime.block_on(run(name, *test))).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(name: &str, test: Test) -> bool {
    let start = Instant::now();
    let fixture = Fixture::new().await;
    let outcome = AssertUnwindSafe(test(&fixture)).catch_unwind().await;
    if outcome.is_err() {
        fixture.explain();
    }
    fixture.finish().await;
    println!(
        "test {name} ... {} ({} ms)",
        if outcome.is_ok() { "ok" } else { "FAILED" },
        start.elapsed().as_millis()
    );
    outcome.is_ok()
}
