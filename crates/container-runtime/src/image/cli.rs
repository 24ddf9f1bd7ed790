//! `kelson image pull|push|import|export|build|list|remove`: works on the store directly, with and without a running node.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use thiserror::Error;

use cri::{AuthConfig, Keyring};

use super::build::{self, BuildError, Context};
use super::bundle::Bundle;
use super::export::write_archive;
use super::import::import;
use super::pull::{PullError, PullOptions, Puller};
use super::push::{self, PushError};
use super::reference::BadReference;
use super::registry::{Limits, Registries};
use super::{ImageError, ImageRecord, Reference, Store};

/// Handles the images of this node.
#[derive(Debug, Args)]
pub struct ImageArgs {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    /// Adds images from a docker-archive, an oci-archive or an OCI layout.
    Import {
        /// A tar file, plain or compressed, or a directory.
        path: PathBuf,
        /// The name to give to the image instead of the one in the archive.
        #[arg(long, value_name = "NAME")]
        tag: Option<String>,
    },
    /// Fetches images from their registries.
    Pull {
        /// Names, with tag or digest.
        #[arg(required = true)]
        images: Vec<String>,
        /// Keeps the compressed layers, so that the image can be pushed or exported to the byte.
        #[arg(long)]
        keep_layers: bool,
        #[command(flatten)]
        registry: RegistryArgs,
    },
    /// Sends an image to a registry.
    Push {
        /// The image: a name or an id.
        image: String,
        /// The name to push it as, if not its own.
        destination: Option<String>,
        #[command(flatten)]
        registry: RegistryArgs,
    },
    /// Writes an image to a file that `import`, containerd, Docker, Podman and skopeo read.
    Export {
        /// The image: a name or an id.
        image: String,
        /// The file; `-` is the standard output.
        path: PathBuf,
    },
    /// Makes an image of a directory: its content as it is, or by its Containerfile.
    ///
    /// Of a Containerfile FROM, COPY, ENV, ENTRYPOINT, CMD, USER, WORKDIR and LABEL are understood; nothing is run.
    Build {
        /// The directory.
        directory: PathBuf,
        /// The name of the image.
        #[arg(short, long, value_name = "NAME")]
        tag: String,
        /// The Containerfile, if not the directory's Containerfile or Dockerfile.
        #[arg(short, long, value_name = "PATH")]
        file: Option<PathBuf>,
        #[command(flatten)]
        registry: RegistryArgs,
    },
    /// Lists the images of this node.
    #[command(alias = "ls")]
    List {
        /// How to print.
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Removes images by name or id.
    #[command(alias = "rm")]
    Remove {
        /// Names or ids.
        #[arg(required = true)]
        images: Vec<String>,
    },
}

/// How to reach registries.
#[derive(Clone, Debug, Args)]
struct RegistryArgs {
    /// Credentials in Docker's form.
    #[arg(long, value_name = "FILE", env = "REGISTRY_AUTH_FILE")]
    authfile: Option<PathBuf>,
    /// The user's name at the registry; the password is the first line of the standard input.
    #[arg(long, value_name = "USER")]
    username: Option<String>,
    /// registries.conf, in version 2; files beside it in registries.conf.d count too.
    #[arg(long, value_name = "FILE")]
    registries_conf: Option<PathBuf>,
    /// The directory with certificates of registries, as /etc/containers/certs.d.
    #[arg(long, value_name = "DIRECTORY")]
    cert_dir: Option<PathBuf>,
}

impl RegistryArgs {
    fn registries(&self) -> Registries {
        let mut registries = Registries::default();
        if let Some(file) = &self.registries_conf {
            registries.directory = file.with_extension("conf.d");
            registries.file.clone_from(file);
        }
        if let Some(directory) = &self.cert_dir {
            registries.certificates = vec![directory.clone()];
        }
        registries.auth_file = None;
        registries
    }

    /// What was said for this command, and what the files say.
    fn credentials(&self) -> Result<(Option<AuthConfig>, Keyring), CliError> {
        let given = match &self.username {
            Some(username) => {
                let mut text = String::new();
                io::stdin().take(64 << 10).read_to_string(&mut text).map_err(CliError::Password)?;
                let password = text.lines().next().unwrap_or_default().to_owned();
                Some(AuthConfig { username: username.clone(), password, ..AuthConfig::default() })
            }
            None => None,
        };
        let mut keyring = Keyring::default();
        let files = match &self.authfile {
            Some(path) => vec![(path.clone(), true)],
            None => default_authfiles().into_iter().map(|path| (path, false)).collect(),
        };
        for (path, must) in files {
            match std::fs::read(&path) {
                Ok(text) => {
                    keyring.add_config(&text).map_err(|source| CliError::Credentials { path, source })?;
                }
                Err(error) if must => {
                    return Err(ImageError::disk("read", &path)(error).into());
                }
                Err(_) => {} // most machines have few of them
            }
        }
        Ok((given, keyring))
    }
}

/// Where tools of this kind leave credentials.
fn default_authfiles() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let mut all = Vec::new();
    all.extend(variable("XDG_RUNTIME_DIR").map(|path| path.join("containers/auth.json")));
    all.extend(variable("HOME").map(|path| path.join(".config/containers/auth.json")));
    let docker = variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|path| path.join(".docker")));
    all.extend(docker.map(|path| path.join("config.json")));
    all
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// Columns.
    Table,
    /// JSON.
    Json,
}

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CliError {
    /// The image, or the disk.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Not the name of an image.
    #[error(transparent)]
    Reference(#[from] BadReference),
    /// A registry that was read from.
    #[error("cannot pull {image}")]
    Pull {
        image: String,
        #[source]
        source: Arc<PullError>,
    },
    /// A registry that was written to.
    #[error(transparent)]
    Push(#[from] Box<PushError>),
    /// A directory that was built from.
    #[error("cannot build the image")]
    Build(#[from] BuildError),
    /// A file with credentials.
    #[error("cannot use the credentials in {path}")]
    Credentials {
        path: PathBuf,
        #[source]
        source: cri::credentials::BadConfig,
    },
    /// The standard input.
    #[error("cannot read the password")]
    Password(#[source] io::Error),
    /// Threads or descriptors are used up.
    #[error("cannot start")]
    Start(#[source] io::Error),
    /// The output.
    #[error("cannot print")]
    Print(#[from] io::Error),
}

#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    tags: Vec<&'a str>,
    digests: Vec<&'a str>,
    size: u64,
    pinned: bool,
}

impl ImageArgs {
    /// Runs the command on the store under `root`, the runtime's root directory.
    pub fn run(self, root: &Path, out: &mut dyn Write) -> Result<(), CliError> {
        let store = Store::open(root)?;
        match self.command {
            ImageCommand::Import { path, tag } => {
                for image in import(&store, &path, tag.as_deref())? {
                    writeln!(out, "imported {} as {}", short(&image), listed(&image))?;
                }
            }
            ImageCommand::Pull { images, keep_layers, registry } => {
                for image in images {
                    let pulled = pull(&store, &image, PullOptions { keep_layers }, &registry)?;
                    writeln!(out, "pulled {} ({})", pulled.resolved_name(), short(&pulled))?;
                }
            }
            ImageCommand::Push { image, destination, registry } => {
                let found = find(&store, &image)?;
                let reference = Reference::parse(destination.as_deref().unwrap_or(&image))?;
                let work = store.workspace(&found.layers)?;
                let bundle = Bundle::of(&store, &found, &work)?;
                let (given, keyring) = registry.credentials()?;
                let registries = registry.registries();
                let pushing =
                    push::push(&bundle, &reference, &registries, Limits::default(), given, &keyring);
                let digest = wait_for(pushing)?.map_err(Box::new)?;
                writeln!(out, "pushed {}@{digest}", reference.name)?;
                if bundle.config_descriptor.digest != found.id {
                    let new = bundle.config_descriptor.digest;
                    writeln!(out, "its layers were packed anew, so its id there is {new}")?;
                }
            }
            ImageCommand::Export { image, path } => {
                let found = find(&store, &image)?;
                let work = store.workspace(&found.layers)?;
                let bundle = Bundle::of(&store, &found, &work)?;
                let names: Vec<String> = found.tags.iter().cloned().collect();
                if path == Path::new("-") {
                    write_archive(&bundle, &names, out)?;
                } else {
                    let cannot = || ImageError::disk("write", &path);
                    let file = File::create(&path).map_err(cannot())?;
                    write_archive(&bundle, &names, io::BufWriter::new(file)).map_err(cannot())?;
                    writeln!(out, "exported {} to {}", short(&found), path.display())?;
                }
            }
            ImageCommand::Build { directory, tag, file, registry } => {
                let context = Context { directory, file };
                Reference::parse(&tag)?;
                if let Some(base) = context.base()?
                    && store.find(&base)?.is_none()
                {
                    pull(&store, &base, PullOptions { keep_layers: true }, &registry)?;
                }
                let image = build::build(&store, &context, &tag)?;
                writeln!(out, "built {} as {}", short(&image), listed(&image))?;
            }
            ImageCommand::List { output } => print(&store.list()?, output, out)?,
            ImageCommand::Remove { images } => {
                for image in images {
                    let removed = store.remove(&image)?.ok_or_else(|| ImageError::Absent(image.clone()))?;
                    writeln!(out, "removed {image} ({})", short(&removed))?;
                }
            }
        }
        Ok(())
    }
}

fn find(store: &Store, image: &str) -> Result<ImageRecord, ImageError> {
    store.find(image)?.ok_or_else(|| ImageError::Absent(image.to_owned()))
}

fn pull(
    store: &Store,
    image: &str,
    options: PullOptions,
    registry: &RegistryArgs,
) -> Result<ImageRecord, CliError> {
    let reference = Reference::parse(image)?;
    let (given, keyring) = registry.credentials()?;
    let auth = given.or_else(|| keyring.lookup(&reference.name).first().map(|auth| (*auth).clone()));
    let puller = Puller::new(store.clone(), registry.registries(), Limits::default());
    let pulled = wait_for(puller.pull(&reference, auth.as_ref(), options))?;
    pulled.map_err(|source| CliError::Pull { image: reference.to_string(), source })
}

/// Waits for work with the network. On a thread of its own, because who calls may be on a runtime's.
fn wait_for<T: Send>(work: impl Future<Output = T> + Send) -> Result<T, CliError> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(runtime.map_err(CliError::Start)?.block_on(work))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, run);
        match thread.map_err(CliError::Start)?.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn short(image: &ImageRecord) -> &str {
    let hex = image.id.trim_start_matches("sha256:");
    &hex[..hex.len().min(12)]
}

fn listed(image: &ImageRecord) -> String {
    image.tags.iter().cloned().collect::<Vec<_>>().join(", ")
}

fn print(images: &[ImageRecord], output: Output, out: &mut dyn Write) -> io::Result<()> {
    if let Output::Json = output {
        let rows: Vec<Row<'_>> = images
            .iter()
            .map(|image| Row {
                id: &image.id,
                tags: image.tags.iter().map(String::as_str).collect(),
                digests: image.digests.iter().map(String::as_str).collect(),
                size: image.size,
                pinned: image.pinned,
            })
            .collect();
        return writeln!(out, "{}", serde_json::to_string_pretty(&rows)?);
    }
    let mut rows = vec![["IMAGE".to_owned(), "ID".to_owned(), "SIZE".to_owned()]];
    for image in images {
        let names: Vec<&str> = match image.tags.is_empty() {
            true => vec!["<none>"],
            false => image.tags.iter().map(String::as_str).collect(),
        };
        rows.extend(
            names.iter().map(|name| [(*name).to_owned(), short(image).to_owned(), human(image.size)]),
        );
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [image, id, size] in &rows {
        writeln!(out, "{image:first$}   {id:second$}   {size}")?;
    }
    Ok(())
}

fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
