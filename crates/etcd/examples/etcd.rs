//! The store as a program of its own, for tests and benchmarks: `etcd [flags]`, as `kelson etcd` has them.

use clap::Parser;
use lifecycle::Stop;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: etcd::EtcdArgs,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    telemetry::log_to_stderr("info");
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
        tokio::select! {
            outcome = etcd::run(cli.args, stop) => outcome.map_err(|error| telemetry::chain(&error).to_string())?,
            failed = signal => failed?,
        }
        Ok(())
    })
}
