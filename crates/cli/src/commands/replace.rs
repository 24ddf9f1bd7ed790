//! `replace`: the whole object at once, or deleted and made again.

use std::io::Write;

use clap::Args;
use http::Method;
use serde_json::json;

use super::create::ValidateFlag;
use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag};
use crate::print::OutputFlags;
use crate::resource::{FileFlags, Info, Selection, Wanted};
use crate::session::{Ask, Session};
use crate::write::{self, Options};

/// Replace a resource by file name or stdin
#[derive(Args, Debug)]
pub struct Replace {
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    #[command(flatten)]
    validate: ValidateFlag,
    /// If true, immediately remove resources from API and bypass graceful deletion
    #[arg(long)]
    force: bool,
    /// Period of time in seconds given to the resource to terminate gracefully
    #[arg(long, default_value = "-1", hide_default_value = true)]
    grace_period: i64,
    /// If true, the configuration of current object will be saved in its annotation
    #[arg(long)]
    save_config: bool,
    /// If specified, replace will operate on the subresource of the requested object
    #[arg(long, default_value = "", hide_default_value = true)]
    subresource: String,
    /// Raw URI to PUT to the server
    #[arg(long, default_value = "", hide_default_value = true)]
    raw: String,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-replace")]
    field_manager: String,
}

impl Replace {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        if self.files.is_empty() {
            return Err(message("must specify one of -f and -k"));
        }
        if !self.raw.is_empty() {
            let sources = crate::resource::files::sources(&self.files).await?;
            let [source] = &sources[..] else {
                return Err(message("--raw can only use a single local file or stdin"));
            };
            let ask = Ask::new(Method::PUT, self.raw).body("application/json", source.text.clone());
            return session.copy(ask, out).await;
        }
        if self.grace_period >= 0 && !self.force {
            return Err(message("--grace-period must have --force specified"));
        }
        let mut options = Options::new(&self.field_manager, dry_run);
        options.validation = self.validate.directive()?;
        let selection = Selection::new(session, &[], &self.files)?;
        let mut errors = Vec::new();
        for wanted in selection.plan(session).await? {
            let Wanted::File { mut info, .. } = wanted else { continue };
            if self.save_config || write::has_last_applied(&info.object) {
                write::remember(&mut info.object);
            }
            let replaced = match dry_run {
                DryRun::Client => Ok(info.object.clone()),
                _ if self.force => self.again(session, &info, &options, out).await,
                _ => put(session, &mut info, &self.subresource, &options).await,
            };
            match replaced {
                Ok(object) => self.output.report(&object, "replaced", dry_run, out)?,
                Err(error) => errors.push(error.with_source("replacing", &info.source)),
            }
        }
        CliError::all(errors)
    }

    async fn again(
        &self,
        session: &Session,
        info: &Info,
        options: &Options,
        out: &mut dyn Write,
    ) -> Result<serde_json::Value, CliError> {
        let grace = self.grace_period.max(0);
        match info.fetch(session).await {
            Ok(object) => {
                let live = Info { object, ..info.clone() };
                let ask = Ask::new(Method::DELETE, info.path());
                session
                    .json(ask.json(&json!({"propagationPolicy": "Background", "gracePeriodSeconds": grace})))
                    .await?;
                if self.output.output.is_empty() {
                    let kind = info.resource.kind.to_lowercase();
                    let kind = if info.resource.group.is_empty() {
                        kind
                    } else {
                        format!("{kind}.{}", info.resource.group)
                    };
                    let place = if info.namespace.is_empty() {
                        String::new()
                    } else {
                        format!(" from {} namespace", info.namespace)
                    };
                    writeln!(out, "{kind} \"{}\" deleted{place}", info.name)?;
                }
                super::wait::gone(session, &live, None).await?;
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        write::create(session, info, options).await
    }
}

/// Puts an object; one without a revision gets the live one's, so that whoever replaces wins.
pub async fn put(
    session: &Session,
    info: &mut Info,
    subresource: &str,
    options: &Options,
) -> Result<serde_json::Value, CliError> {
    if info.object["metadata"]["resourceVersion"].is_null() {
        // What is not there is put all the same, for the server to judge.
        if let Ok(live) = info.fetch(session).await {
            info.object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        }
    }
    write::replace(session, info, subresource, options).await
}
