//! `delete`: by name, file or selector, and the wait until the objects are gone.

use std::io::Write;

use clap::Args;
use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag, duration};
use crate::resource::{FileFlags, Info, Selection, Wanted, is_list, items, name_of, namespace_of};
use crate::session::{Ask, Session};

/// Delete resources by file names, stdin, resources and names, or by resources and label selector
#[derive(Args, Debug)]
pub struct Delete {
    /// TYPE/NAME, TYPE NAME..., or TYPE with a selector or --all
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    /// Delete all resources, in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// If present, list the requested object(s) across all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Selector (field query) to filter on
    #[arg(long, default_value = "", hide_default_value = true)]
    field_selector: String,
    /// Must be "background", "orphan", or "foreground"
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "background", default_value = "background")]
    cascade: String,
    /// If true, immediately remove resources from API and bypass graceful deletion
    #[arg(long)]
    force: bool,
    /// Period of time in seconds given to the resource to terminate gracefully
    #[arg(long, default_value = "-1", hide_default_value = true)]
    grace_period: i64,
    /// If true, resources are signaled for immediate shutdown (same as --grace-period=1)
    #[arg(long)]
    now: bool,
    /// Treat "resource not found" as a successful delete
    #[arg(long)]
    ignore_not_found: bool,
    /// If true, wait for resources to be gone before returning
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    wait: bool,
    /// The length of time to wait before giving up on a delete, zero means determine a timeout from the size of the object
    #[arg(long, default_value = "0s")]
    timeout: String,
    /// Output mode; use "-o name" for shorter output (resource/name)
    #[arg(short, long, default_value = "", hide_default_value = true)]
    output: String,
    /// Raw URI to DELETE to the server
    #[arg(long, default_value = "", hide_default_value = true)]
    raw: String,
    /// If true, delete resource only when user confirms
    #[arg(short, long)]
    interactive: bool,
}

impl Delete {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        if !self.raw.is_empty() {
            return session.copy(Ask::new(Method::DELETE, self.raw), out).await;
        }
        if !matches!(self.output.as_str(), "" | "name") {
            return Err(message(format!(
                "unexpected -o output mode: {}. We only support '-o name'",
                self.output
            )));
        }
        if self.all && !self.selector.is_empty() {
            return Err(message("setting 'all' parameter but found a non empty selector. "));
        }
        if self.all && !self.field_selector.is_empty() {
            return Err(message("cannot set --all and --field-selector at the same time"));
        }
        let policy = match self.cascade.to_lowercase().as_str() {
            "background" | "true" => "Background",
            "orphan" | "false" => "Orphan",
            "foreground" => "Foreground",
            other => {
                return Err(message(format!(
                    "invalid cascade value ({other}). Must be \"background\", \"foreground\", or \"orphan\""
                )));
            }
        };
        let mut grace = self.grace_period;
        if self.now {
            if grace != -1 {
                return Err(message("--now and --grace-period cannot be specified together"));
            }
            grace = 1;
        }
        let mut wait = self.wait;
        if grace == 0 && !self.force {
            // Only --force removes an object from the store before its process has ended.
            wait = true;
            grace = 1;
        }
        if self.force && grace < 0 {
            grace = 0;
        }
        if self.force {
            if dry_run == DryRun::None {
                eprintln!(
                    "Warning: Immediate deletion does not wait for confirmation that the running resource has been terminated. The resource may continue to run on the cluster indefinitely."
                );
            }
            if grace == 0 && self.wait {
                wait = false;
            }
        }
        let mut selection = Selection::new(session, &self.args, &self.files)?;
        selection.all_namespaces = self.all_namespaces;
        selection.labels = self.selector.clone();
        selection.fields = self.field_selector.clone();
        selection.select_all = self.all;
        selection.latest = false;
        if self.args.is_empty() && self.files.is_empty() {
            return Err(message(
                "You must provide one or more resources by argument or filename.\nExample resource specifications include:\n   '-f rsrc.yaml'\n   '--filename=rsrc.json'\n   '<resource> <name>'\n   '<resource>'",
            ));
        }
        let ignore =
            self.ignore_not_found || self.all || !self.selector.is_empty() || !self.field_selector.is_empty();
        let (targets, mut errors) = targets(session, selection.plan(session).await?, dry_run).await?;
        if self.interactive && !confirmed(&targets)? {
            writeln!(out, "deletion is cancelled")?;
            return Ok(());
        }
        let mut options = json!({"propagationPolicy": policy});
        if grace >= 0 {
            options["gracePeriodSeconds"] = grace.into();
        }
        let mut gone: Vec<Info> = Vec::new();
        let mut any = false;
        for info in targets {
            any = true;
            match one(session, &info, &options, dry_run).await {
                Ok(answer) => {
                    self.report(&info, grace == 0, dry_run, out)?;
                    out.flush()?;
                    let uid = answer["details"]["uid"].as_str().or(answer["metadata"]["uid"].as_str());
                    let mut info = info;
                    if let Some(uid) = uid {
                        info.object["metadata"]["uid"] = uid.into();
                        gone.push(info);
                    }
                }
                Err(error) if error.is_not_found() && ignore => {}
                Err(error) => errors.push(error.with_source("deleting", &info.source)),
            }
        }
        if !any && errors.is_empty() {
            writeln!(out, "No resources found")?;
            return Ok(());
        }
        CliError::all(errors)?;
        if !wait || dry_run != DryRun::None {
            return Ok(());
        }
        let limit = duration(&self.timeout).map_err(message)?;
        let deadline = (!limit.is_zero()).then(|| Instant::now() + limit);
        for info in gone {
            super::wait::gone(session, &info, deadline).await?;
        }
        Ok(())
    }

    fn report(
        &self,
        info: &Info,
        at_once: bool,
        dry_run: DryRun,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let kind = info.resource.kind.to_lowercase();
        let kind =
            if info.resource.group.is_empty() { kind } else { format!("{kind}.{}", info.resource.group) };
        if self.output == "name" {
            writeln!(out, "{kind}/{}", info.name)?;
            return Ok(());
        }
        let operation = if at_once { "force deleted" } else { "deleted" };
        let place = match info.namespace.as_str() {
            "" => String::new(),
            namespace => format!(" from {namespace} namespace"),
        };
        writeln!(out, "{kind} \"{}\" {operation}{place}{}", info.name, dry_run.suffix())?;
        Ok(())
    }
}

/// The objects to delete; those of a selector are listed first.
async fn targets(
    session: &Session,
    wanted: Vec<Wanted>,
    dry_run: DryRun,
) -> Result<(Vec<Info>, Vec<CliError>), CliError> {
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for wanted in wanted {
        match wanted {
            Wanted::File { info, .. } => found.push(*info),
            Wanted::Object { resource, namespace, name, .. } => {
                let info = Info { resource, namespace, name, object: Value::Null, source: String::new() };
                // A try on this side alone still says what is not there.
                if dry_run == DryRun::Client
                    && let Err(error) = info.fetch(session).await
                {
                    errors.push(error);
                    continue;
                }
                found.push(info);
            }
            collection => match collection.fetch(session, None, &[]).await {
                Ok(lists) => {
                    for info in lists {
                        debug_assert!(is_list(&info.object));
                        for object in items(info.object) {
                            found.push(Info {
                                resource: info.resource.clone(),
                                namespace: namespace_of(&object).to_owned(),
                                name: name_of(&object).to_owned(),
                                object,
                                source: String::new(),
                            });
                        }
                    }
                }
                Err(error) => errors.push(error),
            },
        }
    }
    Ok((found, errors))
}

async fn one(session: &Session, info: &Info, options: &Value, dry_run: DryRun) -> Result<Value, CliError> {
    if dry_run == DryRun::Client {
        return Ok(Value::Null);
    }
    let mut ask = Ask::new(Method::DELETE, info.path()).json(options);
    if dry_run == DryRun::Server {
        ask = ask.query("dryRun", "All");
    }
    session.json(ask).await
}

fn confirmed(infos: &[Info]) -> Result<bool, CliError> {
    eprintln!("You are about to delete the following {} resource(s):", infos.len());
    for info in infos {
        eprintln!("{}", info.object_name());
    }
    eprint!("Do you want to continue? (y/N): ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y"))
}
