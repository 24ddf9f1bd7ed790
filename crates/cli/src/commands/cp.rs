//! `cp`: files to and from containers, as a tar stream through `exec`.
//!
//! The container is not trusted: names in its archive are taken apart and put together beneath the destination, links are not
//! made, and nothing is written through a link.

use std::fs;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

use clap::Args;
use hyper_util::rt::TokioIo;
use lifecycle::Tasks;
use streaming::websocket::{Message, Role, split};

use super::exec::container_of;
use crate::error::{CliError, message};
use crate::resource::{FileFlags, Info, Selection, fetch_one};
use crate::session::Session;

/// Copy files and directories to and from containers
#[derive(Args, Debug)]
pub struct Cp {
    /// SOURCE DESTINATION, one of them [NAMESPACE/]POD:PATH
    args: Vec<String>,
    /// Container name; if omitted, use the default container of the pod
    #[arg(short, long, default_value = "", hide_default_value = true)]
    container: String,
    /// The copied file/directory's ownership and permissions will not be preserved in the container
    #[arg(long)]
    no_preserve: bool,
    /// Set number of retries to complete a copy operation from a container
    #[arg(long, value_parser = crate::flags::refused)]
    retries: Option<String>,
}

/// One side of a copy.
#[derive(Debug, PartialEq)]
enum Place {
    Local(PathBuf),
    Pod { namespace: Option<String>, pod: String, path: String },
}

fn place(text: &str) -> Result<Place, CliError> {
    let Some((pod, path)) = text.split_once(':') else { return Ok(Place::Local(PathBuf::from(text))) };
    if pod.is_empty() || path.is_empty() {
        return Err(message("filespec must match the canonical format: [[namespace/]pod:]file/path"));
    }
    let (namespace, pod) = match pod.split_once('/') {
        Some((namespace, pod)) => (Some(namespace.to_owned()), pod),
        None => (None, pod),
    };
    if pod.is_empty() || pod.contains('/') {
        return Err(message("filespec must match the canonical format: [[namespace/]pod:]file/path"));
    }
    Ok(Place::Pod { namespace, pod: pod.to_owned(), path: path.to_owned() })
}

impl Cp {
    pub async fn run(self, session: &Session, _out: &mut dyn Write) -> Result<(), CliError> {
        let [source, destination] = &self.args[..] else {
            return Err(message("source and destination are required"));
        };
        match (place(source)?, place(destination)?) {
            (Place::Pod { .. }, Place::Pod { .. }) => Err(message(format!(
                "one of src or dest must be a local file specification: {source} and {destination}"
            ))),
            (Place::Local(_), Place::Local(_)) => {
                Err(message("one of src or dest must be a remote file specification"))
            }
            (Place::Local(from), Place::Pod { namespace, pod, path }) => {
                let pod = self.pod(session, namespace, &pod).await?;
                self.up(session, &pod, &from, &path).await
            }
            (Place::Pod { namespace, pod, path }, Place::Local(to)) => {
                let pod = self.pod(session, namespace, &pod).await?;
                self.down(session, &pod, &path, &to).await
            }
        }
    }

    async fn pod(&self, session: &Session, namespace: Option<String>, name: &str) -> Result<Info, CliError> {
        let mut selection =
            Selection::new(session, &["pods".to_owned(), name.to_owned()], &FileFlags::default())?;
        if let Some(namespace) = namespace {
            selection.namespace = namespace;
        }
        fetch_one(session, selection).await
    }

    async fn up(&self, session: &Session, pod: &Info, from: &Path, path: &str) -> Result<(), CliError> {
        let shown = from.display();
        let kind =
            fs::metadata(from).map_err(|_| message(format!("{shown} doesn't exist in local filesystem")))?;
        let mut path = path.to_owned();
        let base = from.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Into a directory that exists, under its own name.
        let probe = self.exec(session, pod, &["test", "-d", &path], Vec::new()).await;
        if path.ends_with('/') || probe.is_ok_and(|(code, _)| code == 0) {
            path = format!("{}/{base}", path.trim_end_matches('/'));
        }
        let (directory, name) = path.rsplit_once('/').unwrap_or((".", &path));
        let directory = if directory.is_empty() { "/" } else { directory };
        let mut archive = tar::Builder::new(Vec::new());
        archive.follow_symlinks(false);
        if kind.is_dir() {
            archive.append_dir_all(name, from)?
        } else {
            archive.append_path_with_name(from, name)?
        }
        let bytes = archive.into_inner()?;
        let mut command = vec!["tar", "-xmf", "-", "-C", directory];
        if self.no_preserve {
            command = vec!["tar", "--no-same-permissions", "--no-same-owner", "-xmf", "-", "-C", directory];
        }
        let (code, _) = self.exec(session, pod, &command, bytes).await?;
        if code == 0 {
            Ok(())
        } else {
            Err(message(format!("tar in the container ended with exit code {code}")))
        }
    }

    async fn down(&self, session: &Session, pod: &Info, path: &str, to: &Path) -> Result<(), CliError> {
        let (code, bytes) = self.exec(session, pod, &["tar", "cf", "-", path], Vec::new()).await?;
        if code != 0 {
            return Err(message(format!("tar in the container ended with exit code {code}")));
        }
        let base = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
        let target = if to.is_dir() { to.join(&base) } else { to.to_owned() };
        unpack(&bytes, path, &target)
    }

    /// Runs a command with this input; its exit code and output.
    async fn exec(
        &self,
        session: &Session,
        pod: &Info,
        command: &[&str],
        input: Vec<u8>,
    ) -> Result<(i32, Vec<u8>), CliError> {
        let container = container_of(&pod.object, &self.container, true)?;
        let mut query: Vec<(&str, &str)> = command.iter().map(|word| ("command", *word)).collect();
        query.extend([
            ("container", container.as_str()),
            ("stdout", "true"),
            ("stderr", "true"),
            ("stdin", "true"),
        ]);
        let (upgraded, _) =
            crate::stream::open(session, &pod.subresource("exec"), &query, "v5.channel.k8s.io").await?;
        let (mut socket, driver) = split(TokioIo::new(upgraded), Role::Client);
        let tasks = Tasks::new();
        tasks.spawn("websocket", |stop| async move {
            stop.or(driver).await;
        });
        let outgoing = socket.outgoing.clone();
        tasks.spawn("input", move |stop| async move {
            stop.or(async {
                for part in input.chunks(16 << 10) {
                    let mut data = vec![0];
                    data.extend_from_slice(part);
                    if outgoing.send(Message::Binary(data.into())).await.is_err() {
                        return;
                    }
                }
                // The other side may be gone already, and then needs no end.
                let _ = outgoing.send(Message::Binary(bytes::Bytes::from_static(&[255, 0]))).await;
            })
            .await;
        });
        let (mut out, mut status) = (Vec::new(), Vec::new());
        while let Some(received) = socket.incoming.recv().await {
            let Message::Binary(data) = received else { break };
            match data.split_first() {
                Some((1, text)) => out.extend_from_slice(text),
                Some((2, text)) => std::io::stderr().write_all(text)?,
                Some((3, text)) => status.extend_from_slice(text),
                _ => {}
            }
        }
        tasks.stop().request();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        if status["status"] == "Success" {
            return Ok((0, out));
        }
        let code = status["details"]["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|cause| cause["reason"] == "ExitCode");
        match code.and_then(|cause| cause["message"].as_str()?.parse().ok()) {
            Some(code) => Ok((code, out)),
            None => Err(message(status["message"].as_str().unwrap_or("the copy broke off"))),
        }
    }
}

/// Writes what an archive holds of `path` to `target`, and nothing outside of it.
fn unpack(bytes: &[u8], path: &str, target: &Path) -> Result<(), CliError> {
    let wanted: PathBuf = plain(Path::new(path));
    let mut archive = tar::Archive::new(bytes);
    let mut any = false;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = plain(&entry.path()?);
        let Ok(inner) = name.strip_prefix(&wanted) else { continue };
        any = true;
        let place = if inner.as_os_str().is_empty() { target.to_owned() } else { target.join(inner) };
        match entry.header().entry_type() {
            tar::EntryType::Directory => fs::create_dir_all(&place)?,
            tar::EntryType::Regular => {
                if let Some(directory) = place.parent() {
                    fs::create_dir_all(directory)?;
                }
                let mut text = Vec::new();
                entry.read_to_end(&mut text)?;
                // Removed first, so that nothing is written through a link that stands there.
                match fs::remove_file(&place) {
                    Ok(()) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
                fs::write(&place, text)?;
            }
            tar::EntryType::Symlink | tar::EntryType::Link => {
                eprintln!(
                    "warning: skipping symlink: {:?} -> {:?}",
                    place.display(),
                    entry.link_name()?.unwrap_or_default()
                );
            }
            _ => {}
        }
    }
    if any { Ok(()) } else { Err(message(format!("{path} no such file or directory"))) }
}

/// The names of a path, without roots, dots and ways up.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        assert_eq!(place("/tmp/x").expect("local"), Place::Local("/tmp/x".into()));
        let remote = Place::Pod { namespace: Some("ns".into()), pod: "p".into(), path: "/a".into() };
        assert_eq!(place("ns/p:/a").expect("remote"), remote);
        assert!(place(":/a").is_err());
        assert!(place("a/b/c:/a").is_err());
    }

    #[test]
    fn an_archive_cannot_leave_its_directory() {
        let dir = tempfile::tempdir().expect("directory");
        let mut archive = tar::Builder::new(Vec::new());
        let mut put = |name: &str, text: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            // Written by hand, because the library refuses such names.
            header.as_gnu_mut().expect("gnu").name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, text).expect("appended");
        };
        put("etc/a", b"1");
        put("etc/../../../evil", b"2");
        let bytes = archive.into_inner().expect("archive");
        unpack(&bytes, "/etc", &dir.path().join("out")).expect("unpacked");
        assert_eq!(fs::read(dir.path().join("out/a")).expect("file"), b"1");
        assert!(!dir.path().join("evil").exists() && !dir.path().join("../evil").exists());
    }
}
