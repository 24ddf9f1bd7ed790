//! The first boot: the ignition file, what it refers to, and its application, once.

use std::io;
use std::path::Path;

use jiff::Timestamp;
use thiserror::Error;

use super::fetch::{FetchError, Fetcher};
use super::{CONFIG, Phase, RESULT, Reporter};
use crate::journal::Journal;

/// Why a machine could not be set up.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum FirstBootError {
    #[error("cannot read the ignition file")]
    Read(#[source] io::Error),
    #[error("the ignition file cannot be used")]
    Parse(#[from] ignition::ParseError),
    #[error("the configs that the ignition file refers to cannot be had")]
    Resolve(#[from] ignition::ResolveError),
    #[error("a certificate authority of the ignition file cannot be used")]
    Authority(#[from] FetchError),
    #[error("the ignition file cannot be applied")]
    Apply(#[from] ignition::apply::ApplyError),
    #[error("cannot write the result of ignition")]
    Result(#[source] io::Error),
}

const LARGEST: u64 = 64 << 20;

/// Applies the ignition file. A machine without one is set up as it is.
pub fn run(reporter: &Reporter, journal: &mut Journal) -> Result<(), FirstBootError> {
    let say = |journal: &mut Journal, text: &str| {
        journal.write("ignition.service", "ignition", Some(1), 6, text);
    };
    let text = crate::files::read_bounded(Path::new(CONFIG), LARGEST).map_err(FirstBootError::Read)?;
    let provided = text.is_some();
    if let Some(text) = text {
        reporter.report(Phase::Ignition, "");
        let (config, report) = ignition::parse(&text)?;
        if !report.entries.is_empty() {
            say(journal, &report.to_string());
        }
        let mut fetcher = Fetcher::new(&config)?;
        let mut fetch = |resource: &ignition::Resource| {
            fetcher.fetch(resource, &mut |waits| {
                say(journal, waits);
                reporter.report(Phase::Ignition, waits);
            })
        };
        let whole = ignition::resolve(&config, &mut fetch)?;
        ignition::apply::apply(&whole, Path::new("/"), &mut fetch)?;
        say(
            journal,
            &format!(
                "applied {} files, {} directories, {} links, {} units",
                whole.storage.files.len(),
                whole.storage.directories.len(),
                whole.storage.links.len(),
                whole.systemd.units.len()
            ),
        );
    }
    let result = serde_json::json!({
        "provisioningDate": Timestamp::now().to_string(),
        "provisioningBootID": super::host::read_line("/proc/sys/kernel/random/boot_id"),
        "userConfigProvided": provided,
    });
    rustix::fs::sync();
    crate::files::replace(Path::new(RESULT), result.to_string().as_bytes(), 0o644)
        .map_err(FirstBootError::Result)
}
