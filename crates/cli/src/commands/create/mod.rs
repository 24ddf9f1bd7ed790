//! `create`: objects from files, or made from flags by one generator per kind.

mod batch;
mod binding;
mod config;
mod ingress;
mod policy;
mod rules;
mod service;
mod token;
mod workload;

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag};
use crate::print::OutputFlags;
use crate::resource::{FileFlags, Info, Selection, Wanted, name_of};
use crate::session::{Ask, Session};
use crate::write::{self, Options};

/// Create a resource from a file or from stdin
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Create {
    #[command(subcommand)]
    generator: Option<Generator>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    common: Common,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Raw URI to POST to the server
    #[arg(long, default_value = "", hide_default_value = true)]
    raw: String,
    /// Edit the API resource before creating
    #[arg(long)]
    edit: bool,
}

/// What every way of creating has.
#[derive(Args, Debug, Clone)]
pub struct Common {
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    #[command(flatten)]
    validate: ValidateFlag,
    /// If true, the configuration of current object will be saved in its annotation
    #[arg(long)]
    save_config: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-create")]
    field_manager: String,
}

/// `--validate`, in all its words.
#[derive(Args, Debug, Clone, Default)]
pub struct ValidateFlag {
    /// Must be one of: strict (or true), warn, ignore (or false)
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "strict", default_value = "strict")]
    validate: String,
}

impl ValidateFlag {
    pub fn directive(&self) -> Result<String, CliError> {
        Ok(match self.validate.as_str() {
            "strict" | "true" => "Strict",
            "warn" => "Warn",
            "ignore" | "false" => "Ignore",
            other => {
                return Err(message(format!("invalid - validate option {other:?}; must be one of: strict (or true), warn, ignore (or false)")));
            }
        }
        .to_owned())
    }
}

#[derive(Subcommand, Debug)]
enum Generator {
    #[command(alias = "ns")]
    Namespace(config::Namespace),
    #[command(name = "configmap", alias = "cm")]
    ConfigMap(config::ConfigMap),
    Secret(config::Secret),
    #[command(name = "serviceaccount", alias = "sa")]
    ServiceAccount(config::ServiceAccount),
    #[command(alias = "deploy")]
    Deployment(workload::Deployment),
    Job(batch::Job),
    #[command(name = "cronjob", alias = "cj")]
    CronJob(batch::CronJob),
    #[command(alias = "svc")]
    Service(service::Service),
    #[command(alias = "ing")]
    Ingress(ingress::Ingress),
    Role(rules::Role),
    #[command(name = "clusterrole")]
    ClusterRole(rules::ClusterRole),
    #[command(name = "rolebinding")]
    RoleBinding(binding::RoleBinding),
    #[command(name = "clusterrolebinding")]
    ClusterRoleBinding(binding::ClusterRoleBinding),
    #[command(alias = "resourcequota")]
    Quota(policy::Quota),
    #[command(name = "poddisruptionbudget", alias = "pdb")]
    PodDisruptionBudget(policy::PodDisruptionBudget),
    #[command(name = "priorityclass", alias = "pc")]
    PriorityClass(policy::PriorityClass),
    Token(token::Token),
}

impl Create {
    pub fn names_subjects(&self) -> bool {
        matches!(self.generator, Some(Generator::RoleBinding(_) | Generator::ClusterRoleBinding(_)))
    }

    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let Some(generator) = self.generator else { return self.create_files(session, out).await };
        match generator {
            Generator::Namespace(made) => made.common.finish(session, made.object()?, out).await,
            Generator::ConfigMap(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Secret(made) => made.run(session, out).await,
            Generator::ServiceAccount(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Deployment(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Job(made) => made.run(session, out).await,
            Generator::CronJob(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Service(made) => made.run(session, out).await,
            Generator::Ingress(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Role(made) => {
                let object = made.object(session).await?;
                made.common.finish(session, object, out).await
            }
            Generator::ClusterRole(made) => {
                let object = made.object(session).await?;
                made.common.finish(session, object, out).await
            }
            Generator::RoleBinding(made) => made.common.finish(session, made.object()?, out).await,
            Generator::ClusterRoleBinding(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Quota(made) => made.common.finish(session, made.object()?, out).await,
            Generator::PodDisruptionBudget(made) => made.common.finish(session, made.object()?, out).await,
            Generator::PriorityClass(made) => made.common.finish(session, made.object()?, out).await,
            Generator::Token(made) => made.run(session, out).await,
        }
    }

    async fn create_files(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.common.dry_run.strategy()?;
        if self.files.is_empty() {
            return Err(message("must specify one of -f and -k"));
        }
        if self.edit {
            return Err(message("--edit is not known here; edit the file"));
        }
        if !self.raw.is_empty() {
            let sources = crate::resource::files::sources(&self.files).await?;
            let [source] = &sources[..] else {
                return Err(message("--raw can only use a single local file or stdin"));
            };
            let ask = Ask::new(http::Method::POST, self.raw).body("application/json", source.text.clone());
            return session.copy(ask, out).await;
        }
        let mut selection = Selection::new(session, &[], &self.files)?;
        selection.labels = self.selector.clone();
        selection.select_all = true;
        let wanted_labels = apimachinery::selector::LabelSelector::parse(&self.selector)
            .map_err(|error| message(error.to_string()))?;
        let mut options = Options::new(&self.common.field_manager, dry_run);
        options.validation = self.common.validate.directive()?;
        let mut errors = Vec::new();
        let mut printer = self.common.output.printer()?;
        for wanted in selection.plan(session).await? {
            let Wanted::File { mut info, .. } = wanted else { continue };
            if !wanted_labels.matches(info.object["metadata"]["labels"].as_object()) {
                continue;
            }
            if self.common.save_config || write::has_last_applied(&info.object) {
                write::remember(&mut info.object);
            }
            let created = match dry_run {
                DryRun::Client => Ok(info.object.clone()),
                _ => write::create(session, &info, &options)
                    .await
                    .map_err(|error| error.with_source("creating", &info.source)),
            };
            match (created, &mut printer) {
                (Ok(object), Some(printer)) => printer.print(&object, out)?,
                (Ok(object), None) => {
                    self.common.output.report(&object, "created", dry_run, out)?;
                    out.flush()?;
                }
                (Err(error), _) => errors.push(error),
            }
        }
        CliError::all(errors)
    }
}

impl Common {
    /// Creates what a generator made.
    pub async fn finish(
        &self,
        session: &Session,
        mut object: Value,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let (namespace, explicit) = session.namespace()?;
        let found = match dry_run {
            // A try on this side alone needs no server.
            DryRun::Client => None,
            _ => session.resource_of(&api_version, &kind).await?,
        };
        let namespaced =
            found.as_ref().map_or(!CLUSTER_WIDE.contains(&kind.as_str()), |found| found.namespaced);
        if namespaced && (explicit || dry_run != DryRun::Client) && object["metadata"]["namespace"].is_null()
        {
            place_after_name(&mut object, &namespace);
        }
        if self.save_config {
            write::remember(&mut object);
        }
        if dry_run == DryRun::Client {
            return self.output.report_typed(&object, "created", dry_run, out);
        }
        let Some(resource) = found else {
            return Err(message(format!("no matches for kind {kind:?} in version {api_version:?}")));
        };
        let mut options = Options::new(&self.field_manager, dry_run);
        options.validation = self.validate.directive()?;
        let namespace = if namespaced { namespace } else { String::new() };
        let name = name_of(&object).to_owned();
        let info = Info { resource, namespace, name, object, source: String::new() };
        let created = write::create(session, &info, &options).await;
        let created = created.map_err(|error| match refusal(&info.object) {
            prefix if prefix.is_empty() => error,
            prefix => message(format!("{prefix}{error}")),
        })?;
        self.output.report_typed(&created, "created", dry_run, out)
    }
}

/// The namespace stands behind the name.
fn place_after_name(object: &mut Value, namespace: &str) {
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    let rest = std::mem::take(metadata);
    for (name, value) in rest {
        let is_name = name == "name";
        metadata.insert(name, value);
        if is_name {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
    }
}

/// What stands before the server's words.
fn refusal(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    match kind.as_str() {
        "namespace" | "role" | "clusterrole" => String::new(),
        "secret" => "failed to create secret ".to_owned(),
        "resourcequota" => "failed to create quota: ".to_owned(),
        "poddisruptionbudget" => "failed to create poddisruptionbudgets: ".to_owned(),
        "service" => {
            format!("failed to create {} service: ", object["spec"]["type"].as_str().unwrap_or_default())
        }
        other => format!("failed to create {other}: "),
    }
}

const CLUSTER_WIDE: &[&str] = &["Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"];

/// The one name that a generator takes.
pub fn one_name(command: &str, names: &[String]) -> Result<String, CliError> {
    match names {
        [name] => Ok(name.clone()),
        [] => Err(CliError::Usage {
            message: "exactly one NAME is required, got 0".to_owned(),
            command: format!("create {command}"),
        }),
        several => Err(CliError::Usage {
            message: format!("exactly one NAME is required, got {}", several.len()),
            command: format!("create {command}"),
        }),
    }
}

/// `key=value` pairs as labels.
pub fn pairs(list: &[String], what: &str) -> Result<Value, CliError> {
    let mut out = json!({});
    for pair in list.iter().flat_map(|list| list.split(',')).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(message(format!("unexpected {what} format: {pair:?}, expected key=value")));
        };
        out[key] = value.into();
    }
    Ok(out)
}
