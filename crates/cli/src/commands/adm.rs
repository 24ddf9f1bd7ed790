//! `adm`: oc's word before what administrators do.

use std::io::Write;

use clap::{Args, Subcommand};

use super::certificate::Certificate;
use crate::error::CliError;
use crate::session::Session;

/// Tools for managing a cluster
#[derive(Args, Debug)]
pub struct Adm {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Certificate(Certificate),
}

impl Adm {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        match self.command {
            Command::Certificate(command) => command.run(session, out).await,
        }
    }
}
