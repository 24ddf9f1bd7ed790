//! `patch`: one object, changed by a patch of one of three kinds.

use std::io::Write;

use apimachinery::patch as local;
use clap::Args;
use serde_json::Value;

use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag};
use crate::print::OutputFlags;
use crate::resource::{FileFlags, Info, Selection, fetch_all};
use crate::session::Session;
use crate::write::{self, Options};

/// Update fields of a resource
#[derive(Args, Debug)]
pub struct Patch {
    /// TYPE/NAME, or TYPE NAME
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    /// The patch to be applied to the resource JSON file
    #[arg(short, long, default_value = "", hide_default_value = true)]
    patch: String,
    /// A file containing a patch to be applied to the resource
    #[arg(long, default_value = "", hide_default_value = true)]
    patch_file: String,
    /// The type of patch being provided; one of [json merge strategic]
    #[arg(long = "type", default_value = "strategic")]
    kind: String,
    /// If specified, patch the subresource of the requested object
    #[arg(long, default_value = "", hide_default_value = true)]
    subresource: String,
    /// If true, patch operates on the content of the file, not the server-side resource
    #[arg(long)]
    local: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-patch")]
    field_manager: String,
}

impl Patch {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        match (self.patch.is_empty(), self.patch_file.is_empty()) {
            (false, false) => return Err(message("cannot specify --patch and --patch-file together")),
            (true, true) => {
                return Err(message(
                    "must specify --patch or --patch-file containing the contents of the patch",
                ));
            }
            _ => {}
        }
        if self.local && !self.args.is_empty() {
            return Err(message("cannot specify --local and server resources"));
        }
        let text = if self.patch_file.is_empty() {
            self.patch.clone().into_bytes()
        } else if self.patch_file == "-" {
            let mut text = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut text)?;
            text
        } else {
            std::fs::read(&self.patch_file).map_err(|error| {
                message(format!("unable to read patch file: {}", crate::go_io(&error, &self.patch_file)))
            })?
        };
        // What begins as JSON is sent as it stands, for the server to judge.
        let patch = if text.trim_ascii_start().starts_with(b"{") {
            text
        } else {
            let json = apimachinery::yaml::to_json(&text)
                .map_err(|reason| message(format!("unable to parse {:?}: {reason}", self.patch)))?;
            json.text.into_bytes()
        };
        let kind = match self.kind.to_lowercase().as_str() {
            "json" => write::JSON_PATCH,
            "merge" => write::MERGE,
            "strategic" => write::STRATEGIC,
            other => {
                return Err(message(format!("--type must be one of [json merge strategic], not {other:?}")));
            }
        };
        let mut selection = Selection::new(session, &self.args, &self.files)?;
        selection.subresource = self.subresource.clone();
        let wanted = selection.plan(session).await?;
        let (infos, mut errors) = fetch_all(session, wanted).await?;
        if infos.is_empty() && errors.is_empty() {
            return Err(message("no objects passed to patch"));
        }
        for info in infos {
            if let Err(error) = self.one(session, info, kind, &patch, dry_run, out).await {
                errors.push(error);
            }
        }
        CliError::all(errors)
    }

    async fn one(
        &self,
        session: &Session,
        info: Info,
        kind: &'static str,
        patch: &[u8],
        dry_run: DryRun,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        if !self.local && dry_run != DryRun::Client {
            let options = Options::new(&self.field_manager, dry_run);
            let after = write::patch_bytes(session, &info, &self.subresource, kind, patch.to_vec(), &options)
                .await
                .map_err(|error| match error {
                    CliError::Status(failure) if failure.reason() == "UnsupportedMediaType" => {
                        message(format!(
                            "{kind} is not supported by {}, Kind={}: {}",
                            info.resource.api_version(),
                            info.resource.kind,
                            failure.message()
                        ))
                    }
                    other => other,
                })?;
            let changed = info.object != after;
            return self.output.report(
                &after,
                if changed { "patched" } else { "patched (no change)" },
                DryRun::None,
                out,
            );
        }
        let patch: Value = serde_json::from_slice(patch).map_err(|error| message(error.to_string()))?;
        let patch = &patch;
        let before = info.object;
        let patched = match kind {
            write::JSON_PATCH => local::json_patch(before.clone(), patch),
            write::MERGE => local::merge_patch(before.clone(), patch),
            _ => {
                let document = crate::openapi::document(session, &info.resource).await?;
                let schema = document.as_ref().and_then(|document| {
                    document.kind(&info.resource.group, &info.resource.version, &info.resource.kind)
                });
                Ok(crate::patch::strategic::apply(before.clone(), patch, schema))
            }
        };
        let after = patched.map_err(|error| message(error.to_string()))?;
        let changed = before != after;
        self.output.report(&after, if changed { "patched" } else { "patched (no change)" }, DryRun::None, out)
    }
}
