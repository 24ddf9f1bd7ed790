//! `attach`: the streams of a container that runs already.

use std::io::{IsTerminal, Write};

use clap::Args;

use super::exec::{container_of, flags, pod_of};
use crate::error::{CliError, message};
use crate::session::Session;
use crate::stream::{Streams, remote_command};

/// Attach to a running container
#[derive(Args, Debug)]
pub struct Attach {
    /// POD or TYPE/NAME
    target: Vec<String>,
    /// Container name; if omitted, use the default container of the pod
    #[arg(short, long, default_value = "", hide_default_value = true)]
    container: String,
    /// Pass stdin to the container
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Stdin is a TTY
    #[arg(short = 't', long)]
    tty: bool,
    /// Only print output from the remote session
    #[arg(short, long)]
    quiet: bool,
    /// The length of time to wait until at least one pod is running
    #[arg(long, value_parser = crate::flags::refused)]
    pod_running_timeout: Option<String>,
}

impl Attach {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let [target] = &self.target[..] else {
            return Err(CliError::Usage {
                message: "at least 1 argument is required for attach".to_owned(),
                command: "attach".to_owned(),
            });
        };
        let pod = pod_of(session, Some(target), &[]).await?;
        let phase = pod.object["status"]["phase"].as_str().unwrap_or_default();
        if matches!(phase, "Succeeded" | "Failed") {
            return Err(message(format!(
                "cannot attach a container in a completed pod; current phase is {phase}"
            )));
        }
        let container = container_of(&pod.object, &self.container, self.quiet)?;
        let mut tty = self.tty;
        if tty && !std::io::stdin().is_terminal() {
            eprintln!("Unable to use a TTY - input is not a terminal or the right kind of file");
            tty = false;
        }
        if tty && !self.quiet {
            eprintln!("If you don't see a command prompt, try pressing enter.");
        }
        let mut query = vec![("container", container.as_str())];
        query.extend(flags(self.stdin, tty));
        let streams = Streams { stdin: self.stdin, tty };
        remote_command(session, &pod.subresource("attach"), &query, streams, out).await
    }
}
