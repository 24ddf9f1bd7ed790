//! The scheduler as a program of its own, without the rest of the binary: what `kelson kube-scheduler` runs.

use clap::Parser;
use lifecycle::Stop;
use scheduler::KubeSchedulerArgs;

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: KubeSchedulerArgs,
}

fn main() -> std::process::ExitCode {
    let args = Program::parse().args;
    args.program.start_logging();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    if let Err(error) = runtime.block_on(scheduler::run(args, &Stop::new())) {
        eprintln!("{}", telemetry::chain(&error));
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}
