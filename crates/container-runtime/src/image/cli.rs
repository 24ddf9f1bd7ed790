//! `kelson image import|list|remove`: works on the store directly, with and without a running node.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use thiserror::Error;

use super::import::import;
use super::{ImageError, ImageRecord, Store};

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
    pub fn run(self, root: &std::path::Path, out: &mut dyn Write) -> Result<(), CliError> {
        let store = Store::open(root)?;
        match self.command {
            ImageCommand::Import { path, tag } => {
                for image in import(&store, &path, tag.as_deref())? {
                    writeln!(out, "imported {} as {}", short(&image), listed(&image))?;
                }
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
