//! `adm release new|info|extract|mirror`.

use std::io::Write;

use clap::{Args, Subcommand};

use crate::extract::ExtractArgs;
use crate::info::InfoArgs;
use crate::mirror::MirrorArgs;
pub use crate::new::Builtin;
use crate::new::NewArgs;
use crate::remote::AdmError;

/// Administers the cluster
#[derive(Args, Clone, Debug)]
pub struct AdmArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Makes releases and shows what is in them
    #[command(subcommand)]
    Release(Release),
}

#[derive(Subcommand, Clone, Debug)]
enum Release {
    New(Box<NewArgs>),
    Info(InfoArgs),
    Extract(ExtractArgs),
    Mirror(MirrorArgs),
}

impl AdmArgs {
    /// Runs the command. `builtin` is what comes with the binary.
    pub async fn run(
        self,
        builtin: impl FnOnce() -> Result<Builtin, AdmError>,
        out: &mut dyn Write,
        err: &mut dyn Write,
    ) -> Result<(), AdmError> {
        let Command::Release(release) = self.command;
        match release {
            Release::New(args) => args.run(&builtin()?, out, err).await,
            Release::Info(args) => args.run(out).await,
            Release::Extract(args) => args.run(out).await,
            Release::Mirror(args) => args.run(out, err).await,
        }
    }
}
