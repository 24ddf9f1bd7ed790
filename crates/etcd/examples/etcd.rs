//! The store as a program of its own, for tests and benchmarks: `etcd ...`, `bench ...`, `etcdctl ...` and `etcdutl ...`, as `kelson` has them.

use clap::Parser;
use lifecycle::Stop;

#[derive(Parser)]
enum Cli {
    Etcd(Box<etcd::EtcdArgs>),
    Bench(etcd::bench::BenchArgs),
}

fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    let tool = arguments.first().and_then(|word| word.to_str()).unwrap_or_default();
    if tool == "etcdutl" {
        return Ok(etcd::ctl::etcdutl(arguments).into());
    }
    if tool == "etcdctl" {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        return runtime.block_on(async {
            let stop = Stop::new();
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
            let work = etcd::ctl::etcdctl(arguments, stop.clone());
            tokio::pin!(work);
            tokio::select! {
                code = &mut work => return Ok(code.into()),
                _ = terminate.recv() => stop.request(),
            }
            Ok(work.await.into())
        });
    }
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
        Ok(std::process::ExitCode::SUCCESS)
    })
}
