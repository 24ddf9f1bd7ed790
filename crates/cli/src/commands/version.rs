//! `version`: of this program, and of the server.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::session::{Ask, Session};

/// Print the client and server version information
#[derive(Args, Debug)]
pub struct Version {
    /// If true, shows client version only (no server required)
    #[arg(long)]
    client: bool,
    /// One of 'yaml' or 'json'
    #[arg(short, long, default_value = "", hide_default_value = true)]
    output: String,
}

impl Version {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        if !matches!(self.output.as_str(), "" | "yaml" | "json") {
            return Err(message("--output must be 'yaml' or 'json'"));
        }
        let mut info = json!({"clientVersion": {
            "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": env!("CARGO_PKG_VERSION"), "gitTreeState": "clean",
            "buildDate": "", "goVersion": "", "compiler": "rustc", "platform": format!("linux/{}", architecture())},
            "kustomizeVersion": "none"});
        let server = match self.client {
            true => Ok(Value::Null),
            false => session.json(Ask::get("/version")).await,
        };
        if let Ok(version) = &server
            && !version.is_null()
        {
            info["serverVersion"] = version.clone();
        }
        match self.output.as_str() {
            "yaml" => writeln!(out, "{}", apimachinery::yaml::write(&info))?,
            "json" => writeln!(out, "{}", serde_json::to_string_pretty(&info).unwrap_or_default())?,
            _ => {
                writeln!(out, "Client Version: v1.36.0")?;
                writeln!(out, "Kustomize Version: none")?;
                if let Some(version) = info["serverVersion"]["gitVersion"].as_str() {
                    writeln!(out, "Server Version: {version}")?;
                }
            }
        }
        server.map(|_| ())
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
