//! Backups as files: `etcdutl`, and what etcdctl does with them.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::backup;
use crate::ctl::Failure;
use crate::ctl::args::{Form, Restore, Util, UtilCommand, UtilSnapshot};
use crate::ctl::commands::{Shown, say};
use crate::ctl::print::size;
use crate::ctl::session::Session;

fn failed(error: &backup::BackupError) -> Failure {
    Failure::error(telemetry::chain(error).to_string())
}

/// Runs `etcdutl`.
pub fn run(util: Util) -> Result<(), Failure> {
    match util.command {
        UtilCommand::Snapshot(UtilSnapshot::Status { file }) => status(&file, util.write_out),
        UtilCommand::Snapshot(UtilSnapshot::Restore(args)) => restore(&args),
        UtilCommand::Hashkv { file, rev } => {
            let (hash, revision, compacted) = backup::hash(&file, rev).map_err(|error| failed(&error))?;
            let row = vec![hash.to_string(), revision.to_string(), compacted.to_string()];
            let names = vec!["hash", "hash revision", "compact revision"];
            let fields = format!(
                "\"Hash\" : {hash}\n\"HashRevision\" : {revision}\n\"CompactRevision\" : {compacted}\n"
            );
            let json = json!({ "hash": hash, "hashRevision": revision, "compactRevision": compacted });
            let shown = Shown::rows(names, vec![row]);
            Shown { fields: Some(fields), json: Some(json), ..shown }.print(util.write_out)
        }
        UtilCommand::Version => {
            let version = crate::v3::service::VERSION;
            let api = version.rsplit_once('.').map_or(version, |(api, _)| api);
            say(format!("etcdutl version: {version}\nAPI version: {api}\n").as_bytes())
        }
    }
}

/// What is in a backup.
pub fn status(path: &Path, form: Form) -> Result<(), Failure> {
    let found = backup::inspect(path).map_err(|error| failed(&error))?;
    let names = vec!["hash", "revision", "total keys", "total size"];
    let row = vec![
        format!("{:x}", found.file_hash),
        found.revision.to_string(),
        found.entries.to_string(),
        size(found.content),
    ];
    let fields = format!(
        "\"Hash\" : {}\n\"Revision\" : {}\n\"Keys\" : {}\n\"Size\" : {}\n",
        found.file_hash, found.revision, found.entries, found.content
    );
    let json = json!({
        "hash": found.file_hash,
        "revision": found.revision,
        "totalKey": found.entries,
        "totalSize": found.content,
    });
    let shown = Shown::rows(names, vec![row]);
    Shown { fields: Some(fields), json: Some(json), ..shown }.print(form)
}

/// Makes a data directory from a backup.
pub fn restore(args: &Restore) -> Result<(), Failure> {
    let data_dir =
        args.data_dir.clone().unwrap_or_else(|| PathBuf::from(format!("{}.etcd", args.options.name)));
    let found = backup::restore(&args.file, &data_dir, &args.options).map_err(|error| failed(&error))?;
    eprintln!("restored {} keys at revision {} into {}", found.keys, found.revision, data_dir.display());
    Ok(())
}

/// Saves a backup of the one endpoint that is named.
pub async fn save(session: &Session, path: &Path) -> Result<(), Failure> {
    if session.global.endpoints.len() != 1 {
        return Err(Failure::arguments("snapshot must be requested to one selected node, not multiple"));
    }
    backup::save_from(&session.channel, path).await.map_err(|error| failed(&error))?;
    std::io::stderr().flush().map_err(|error| Failure::file(path, &error))?;
    say(format!("Snapshot saved at {}\n", path.display()).as_bytes())
}
