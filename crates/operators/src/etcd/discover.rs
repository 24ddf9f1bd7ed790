//! `discover-etcd-initial-cluster … -- etcd …`: on a machine, waits until its member was added and becomes etcd, with the
//! members that there are.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use etcd::remote::members::{Member, Members};
use etcd::remote::{RemoteConfig, RemoteError};
use etcd::tls::{self, TlsError};
use lifecycle::{Stop, Tasks};
use thiserror::Error;
use tracing::{info, warn};

const PAUSE: Duration = Duration::from_millis(250);
/// Whoever supervises this starts it again; then the endpoints are read anew.
const PATIENCE: Duration = Duration::from_secs(170);

/// Becomes etcd once its member was added
#[derive(Args, Clone, Debug)]
pub struct DiscoverArgs {
    /// Who vouches for the members
    #[arg(long)]
    cacert: PathBuf,
    /// The certificate to ask them with
    #[arg(long)]
    cert: PathBuf,
    /// Its key
    #[arg(long)]
    key: PathBuf,
    /// The members' client URLs
    #[arg(long, value_delimiter = ',')]
    endpoints: Vec<String>,
    /// A file with them
    #[arg(long)]
    endpoints_file: Option<PathBuf>,
    /// Where the member keeps its data
    #[arg(long)]
    data_dir: PathBuf,
    /// The peer URL that it was, or will be, added with
    #[arg(long)]
    target_peer_url: String,
    /// The name that it will have
    #[arg(long)]
    target_name: String,
    /// etcd and its flags
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Why it does not become etcd.
#[derive(Debug, Error)]
pub enum DiscoverError {
    #[error("the certificates cannot be used")]
    Tls(#[from] TlsError),
    #[error("the endpoints {path} cannot be read", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("the member {0} was not added in time")]
    NotAdded(String),
    #[error("interrupted")]
    Interrupted,
    #[error("{program} cannot be run")]
    Run { program: String, source: std::io::Error },
}

impl DiscoverArgs {
    pub async fn run(self, stop: Stop) -> Result<(), DiscoverError> {
        telemetry::log_to_stderr("info");
        let cluster = match has_data(&self.data_dir) {
            // Who has been a member knows the others.
            true => format!("{}={}", self.target_name, self.target_peer_url),
            false => {
                let waited = stop.or(tokio::time::timeout(PATIENCE, self.wait())).await;
                match waited {
                    None => return Err(DiscoverError::Interrupted),
                    Some(Err(_)) => return Err(DiscoverError::NotAdded(self.target_peer_url)),
                    Some(Ok(found)) => found?,
                }
            }
        };
        info!(cluster, "starting");
        match self.become_etcd(&cluster)? {}
    }

    fn become_etcd(&self, cluster: &str) -> Result<Infallible, DiscoverError> {
        let mut words = self.command.iter();
        let program = words.next().cloned().unwrap_or_default();
        let mut command = Command::new(&program);
        command
            .args(words)
            .env("ETCD_INITIAL_CLUSTER", cluster)
            .env("ETCD_INITIAL_CLUSTER_STATE", "existing");
        Err(DiscoverError::Run { program, source: command.exec() })
    }

    async fn wait(&self) -> Result<String, DiscoverError> {
        let tasks = Tasks::new();
        let mut endpoints = self.endpoints.clone();
        if let Some(path) = &self.endpoints_file {
            let text = std::fs::read_to_string(path)
                .map_err(|source| DiscoverError::Read { path: path.clone(), source })?;
            endpoints.extend(text.split(',').map(str::trim).filter(|url| !url.is_empty()).map(str::to_owned));
        }
        let tls = tls::client(&self.cacert, Some((&self.cert, &self.key)))?;
        let members = Members::new(RemoteConfig { endpoints, tls: Some(tls) }, &tasks)?;
        let mut said = false;
        loop {
            match members.list().await {
                Ok(list) => {
                    if let Some(cluster) = initial_cluster(&list, &self.target_name, &self.target_peer_url) {
                        return Ok(cluster);
                    }
                    if !said {
                        info!(url = self.target_peer_url, "waiting to be added");
                        said = true;
                    }
                }
                Err(status) => warn!(%status, "the members cannot be asked"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Whether a member has been here.
fn has_data(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| !entry.file_name().to_string_lossy().starts_with('.')))
    })
}

/// The members by name and URL, if this one is among them. Others that have not started have no name and are left out.
fn initial_cluster(members: &[Member], name: &str, url: &str) -> Option<String> {
    members.iter().find(|member| member.peer_urls.iter().any(|have| have == url))?;
    let entries = members.iter().flat_map(|member| {
        let own = member.peer_urls.iter().any(|have| have == url);
        let name = if own { name } else { &member.name };
        let known = !name.is_empty();
        member.peer_urls.iter().filter(move |_| known).map(move |url| format!("{name}={url}"))
    });
    Some(entries.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, url: &str) -> Member {
        Member { name: name.into(), peer_urls: vec![url.into()], ..Member::default() }
    }

    #[test]
    fn the_cluster_is_all_named_members_and_itself() {
        let list = [
            member("etcd-bootstrap", "https://b:2380"),
            member("", "https://m0:2380"),
            member("", "https://x"),
        ];
        assert_eq!(
            initial_cluster(&list, "m0", "https://m0:2380").unwrap(),
            "etcd-bootstrap=https://b:2380,m0=https://m0:2380"
        );
        assert_eq!(initial_cluster(&list, "m1", "https://m1:2380"), None);
    }

    #[test]
    fn a_directory_with_data_belongs_to_a_member() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_data(dir.path()));
        assert!(!has_data(&dir.path().join("none")));
        std::fs::create_dir(dir.path().join("member")).unwrap();
        assert!(has_data(dir.path()));
    }
}
