//! `adm release extract`: a release's files to disk.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use release::File;
use serde_json::Value;

use crate::remote::{AdmError, Remote, RemoteArgs};
use crate::{info, layer};

/// Writes the files of a release image to disk
#[derive(Args, Clone, Debug)]
pub struct ExtractArgs {
    #[command(flatten)]
    pub remote: RemoteArgs,
    /// The release image
    image: Option<String>,
    /// The release image
    #[arg(long)]
    from: Option<String>,
    /// The directory to write to
    #[arg(long)]
    to: Option<PathBuf>,
    /// Print this file only
    #[arg(long)]
    file: Option<String>,
    /// Only CredentialsRequests
    #[arg(long)]
    credentials_requests: bool,
}

impl ExtractArgs {
    /// Runs the command.
    pub async fn run(self, out: &mut dyn Write) -> Result<(), AdmError> {
        let usage = |text: &str| AdmError::Usage(text.to_owned());
        let image = match (self.image, self.from) {
            (Some(_), Some(_)) => {
                return Err(usage("you may only specify a single image via --from or argument"));
            }
            (one, other) => one
                .or(other)
                .ok_or_else(|| usage("must specify an image containing a release payload with --from"))?,
        };
        if self.to.is_some() && self.file.is_some() {
            return Err(usage("only one of --to and --file may be set"));
        }
        if self.credentials_requests && self.file.is_some() {
            return Err(usage("only one of --credentials-requests and --file may be specified"));
        }
        let release = info::load(&Remote::new(&self.remote)?, &image).await?;
        if let Some(name) = &self.file {
            let found = release.files.iter().find(|file| file.name == *name);
            let file = found.ok_or_else(|| usage(&format!("image did not contain {name}")))?;
            return Ok(out.write_all(&file.bytes)?);
        }
        let files: Vec<File> = match self.credentials_requests {
            false => release.files,
            true => release.manifests.into_iter().filter(is_credentials_request).collect(),
        };
        let directory = self.to.unwrap_or_else(|| PathBuf::from("."));
        let written = layer::write_files(&directory, &files);
        written.map_err(|source| AdmError::Disk { doing: "write", path: directory, source })
    }
}

fn is_credentials_request(file: &File) -> bool {
    let first: Result<Value, _> = serde_yaml_ng::from_slice(&file.bytes);
    first.is_ok_and(|object| object["kind"] == "CredentialsRequest")
}
