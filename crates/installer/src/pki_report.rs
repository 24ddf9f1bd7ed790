//! `kelson pki inspect` and `verify`: the table, and what a directory holds of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use pki::table::{CertSpec, INSTALL, LOCAL};
use pki::verify::{Finding, Material, verify};
use pki::{Certificate, Facts};
use serde_json::json;
use thiserror::Error;

use crate::install_config::{self, ConfigError};
use crate::nodes::Nodes;
use crate::store::{self, StoreError};
use crate::tls;

/// Why a report cannot be given, or what it found.
#[derive(Debug, Error)]
pub enum PkiReportError {
    /// Nothing there.
    #[error("{} holds neither an installation's state nor keys of `kelson up`", .0.display())]
    Empty(PathBuf),
    /// The state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The config in the state.
    #[error("the installation's config is unusable")]
    Config(#[from] ConfigError),
    /// A file.
    #[error(transparent)]
    Pki(#[from] pki::PkiError),
    /// Output.
    #[error("cannot write JSON")]
    Json(#[from] serde_json::Error),
    /// The proof failed.
    #[error("{} of the certificates' properties are wrong:{}", .0.len(), list(.0))]
    Unsound(Vec<Finding>),
}

fn list(findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("\n  {}: {}", finding.name, finding.text)).collect()
}

/// What a directory holds.
pub struct Set {
    table: &'static [CertSpec],
    material: BTreeMap<String, Material>,
    facts: Option<Facts>,
}

/// Reads an installation's state, or else the files of `kelson up`.
pub fn read(dir: &Path) -> Result<Set, PkiReportError> {
    let state = store::read_state(dir)?;
    if state.keys().any(|name| name.starts_with("tls/")) {
        let file = |asset: &str, path: String| {
            state.get(asset)?.iter().find(|file| file.path == path).map(|file| file.content.clone())
        };
        let material = INSTALL
            .iter()
            .filter(|row| state.contains_key(&tls::asset_name(row.name)))
            .map(|row| {
                let asset = tls::asset_name(row.name);
                let found = Material {
                    certificate: file(&asset, tls::certificate_path(row.name)),
                    key: file(&asset, tls::key_path(row.name)),
                };
                (row.name.to_owned(), found)
            })
            .collect();
        let text = |asset: &str, path: &str| {
            file(asset, path.to_owned()).map(|content| String::from_utf8_lossy(&content).into_owned())
        };
        let mut facts = None;
        if let (Some(config), Some(nodes)) =
            (text("install-config", "install-config.yaml"), text("nodes", "nodes.yaml"))
        {
            let (config, _) = install_config::load(&config)?;
            facts = Nodes::parse(&nodes, &config).ok().map(|nodes| tls::facts(&config, &nodes));
        }
        return Ok(Set { table: INSTALL, material, facts });
    }
    let mut material = BTreeMap::new();
    for row in LOCAL {
        let found = Material {
            certificate: pki::files::read_if_present(&dir.join(format!("{}.crt", row.name)))?,
            key: pki::files::read_if_present(&dir.join(format!("{}.key", row.name)))?,
        };
        if found.certificate.is_some() || found.key.is_some() {
            material.insert(row.name.to_owned(), found);
        }
    }
    if material.is_empty() {
        return Err(PkiReportError::Empty(dir.to_owned()));
    }
    Ok(Set { table: LOCAL, material, facts: None })
}

impl Set {
    /// Proves everything, and returns how many certificates that were.
    pub fn verify(&self, now: Timestamp) -> Result<usize, PkiReportError> {
        // `create manifests` makes only some of the installation's certificates.
        let rows: Vec<CertSpec> = match self.table.len() == self.material.len() || self.table == LOCAL {
            true => self.table.to_vec(),
            false => self.table.iter().filter(|row| self.material.contains_key(row.name)).copied().collect(),
        };
        let findings = verify(&rows, &self.material, self.facts.as_ref(), now);
        if findings.is_empty() { Ok(rows.len()) } else { Err(PkiReportError::Unsound(findings)) }
    }

    fn certificates(&self) -> impl Iterator<Item = (&CertSpec, Certificate)> {
        self.table.iter().filter_map(|row| {
            let text = self.material.get(row.name)?.certificate.as_ref()?;
            Some((row, Certificate::from_pem(text).ok()?))
        })
    }

    /// For people.
    pub fn to_text(&self, now: Timestamp) -> String {
        let mut out = String::new();
        for (row, certificate) in self.certificates() {
            let sans: Vec<String> = certificate.sans.iter().map(ToString::to_string).collect();
            let left = certificate.not_after.duration_since(now).as_hours() / 24;
            out.push_str(&format!(
                "{}\n  {}\n  subject  {}\n  signer   {}\n  names    {}\n  usages   {}\n  until    {} ({left} days)\n  key      {}\n\n",
                row.name,
                row.purpose,
                certificate.subject,
                certificate.issuer,
                if sans.is_empty() { "none".to_owned() } else { sans.join(", ") },
                certificate.usages.names().join(", "),
                certificate.not_after,
                certificate.public_key().key_id(),
            ));
        }
        out
    }

    /// For programs.
    pub fn to_json(&self) -> Result<String, PkiReportError> {
        let rows: Vec<_> = self
            .certificates()
            .map(|(row, certificate)| {
                json!({
                    "name": row.name,
                    "subject": certificate.subject.to_string(),
                    "issuer": certificate.issuer.to_string(),
                    "sans": certificate.sans.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "usages": certificate.usages.names(),
                    "notBefore": certificate.not_before.to_string(),
                    "notAfter": certificate.not_after.to_string(),
                    "serial": certificate.serial,
                    "sha256": certificate.fingerprint(),
                })
            })
            .collect();
        Ok(serde_json::to_string_pretty(&rows)? + "\n")
    }
}

/// The table for people, in Markdown; docs are made from it.
pub fn table_text(table: &[CertSpec]) -> String {
    let mut out = String::from(
        "| name | signer | subject | names | role | days | rotation | purpose |\n|---|---|---|---|---|---|---|---|\n",
    );
    for row in table {
        let groups: String = row.organizations.iter().map(|o| format!(", O={o}")).collect();
        out.push_str(&format!(
            "| {} | {} | CN={}{groups} | {} | {:?} | {} | {:?} | {} |\n",
            row.name,
            row.signer.unwrap_or("itself"),
            row.common_name,
            row.sans.join(", "),
            row.role,
            row.days,
            row.rotation,
            row.purpose
        ));
    }
    out
}

/// The table for programs.
pub fn table_json(table: &[CertSpec]) -> Result<String, PkiReportError> {
    Ok(serde_json::to_string_pretty(table)? + "\n")
}
