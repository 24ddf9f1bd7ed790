//! The store as a program of its own, for tests and benchmarks: `etcd ...` and `bench ...`, as `kelson` has them.

use clap::Parser;
use lifecycle::Stop;

#[derive(Parser)]
enum Cli {
    Etcd(Box<etcd::EtcdArgs>),
    Bench(etcd::bench::BenchArgs),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    telemetry::log_to_stderr(match &cli {
        Cli::Etcd(args) => args.log_filter(),
        Cli::Bench(_) => "warn",
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = Stop::new();
        let on_signal = stop.clone();
        let signal = async move {
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            tokio::select! {
                _ = terminate.recv() => {}
                interrupted = tokio::signal::ctrl_c() => interrupted?,
            }
            on_signal.request();
            std::future::pending::<std::io::Result<()>>().await
        };
        let work = async {
            match cli {
                Cli::Etcd(args) => {
                    etcd::run(*args, stop).await.map_err(|error| telemetry::chain(&error).to_string())
                }
                Cli::Bench(args) => {
                    etcd::bench::run(args, stop).await.map_err(|error| telemetry::chain(&error).to_string())
                }
            }
        };
        tokio::select! {
            outcome = work => outcome?,
            failed = signal => failed?,
        }
        Ok(())
    })
}
