//! `apply`: the three-way patch of the client's side, or the server's own apply; pruning; and the annotation's commands.

use std::collections::BTreeSet;
use std::io::Write;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::flags::{DryRun, DryRunFlag};
use crate::openapi;
use crate::patch::{merge, strategic};
use crate::print::{Output, OutputFlags};
use crate::resource::{FileFlags, Info, Selection, Wanted, fetch_all, items, name_of, namespace_of};
use crate::session::{Ask, Session};
use crate::write::{self, LAST_APPLIED, Options};

const RETRIES: usize = 5;

/// Apply a configuration to a resource by file name or stdin
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Apply {
    #[command(subcommand)]
    last_applied: Option<LastApplied>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    #[command(flatten)]
    validate: super::create::ValidateFlag,
    /// If true, apply runs in the server instead of the client
    #[arg(long)]
    server_side: bool,
    /// If true, server-side apply will force the changes against conflicts
    #[arg(long)]
    force_conflicts: bool,
    /// Name of the manager used to track field ownership
    #[arg(long, default_value = "kubectl-client-side-apply")]
    field_manager: String,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Automatically delete resource objects that do not appear in the configs
    #[arg(long)]
    prune: bool,
    /// Overwrite the default allowlist with <group/version/kind> for --prune
    #[arg(long)]
    prune_allowlist: Vec<String>,
    /// Select all resources in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
    /// Automatically resolve conflicts between the modified and live configuration by using values from the modified configuration
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    overwrite: bool,
    /// If true, use openapi to calculate diff when the openapi presents
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    openapi_patch: bool,
    /// If true, immediately remove resources from API and bypass graceful deletion, where a patch is refused
    #[arg(long)]
    force: bool,
    /// Cascading deletion strategy of forced or pruned objects
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "background", default_value = "background")]
    cascade: String,
    /// Period of time in seconds given to a deleted resource to terminate gracefully
    #[arg(long, default_value = "-1")]
    grace_period: i64,
    /// The length of time to wait before giving up on a delete
    #[arg(long, default_value = "0s")]
    timeout: String,
    /// If true, wait for resources to be gone before returning
    #[arg(long)]
    wait: bool,
    /// If specified, apply will operate on the subresource of the requested object
    #[arg(long, default_value = "", hide_default_value = true)]
    subresource: String,
}

#[derive(Subcommand, Debug)]
enum LastApplied {
    /// View the latest last-applied-configuration annotations of a resource/object
    ViewLastApplied(View),
    /// Set the last-applied-configuration annotation on a live object to match the contents of a file
    SetLastApplied(Set),
}

#[derive(Args, Debug)]
struct View {
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    /// Output format; must be one of (yaml, json)
    #[arg(short, long, default_value = "yaml")]
    output: String,
    /// Selector (label query) to filter on
    #[arg(short = 'l', long, default_value = "", hide_default_value = true)]
    selector: String,
    /// Select all resources in the namespace of the specified resource types
    #[arg(long)]
    all: bool,
}

#[derive(Args, Debug)]
struct Set {
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: DryRunFlag,
    /// Will create the annotation if the current object doesn't have one
    #[arg(long)]
    create_annotation: bool,
}

impl Apply {
    /// Flags that kubectl has and that are not acted on here.
    fn refuse_without_effect(&self) -> Result<(), CliError> {
        let asked = [
            ("--overwrite=false", !self.overwrite),
            ("--openapi-patch=false", !self.openapi_patch),
            ("--cascade", self.cascade != "background"),
            ("--grace-period", self.grace_period != -1),
            ("--timeout", !matches!(self.timeout.as_str(), "0" | "0s")),
            ("--wait", self.wait),
        ];
        match asked.into_iter().find(|(_, asked)| *asked) {
            Some((flag, _)) => Err(message(format!("{flag} of apply is not supported here"))),
            None => Ok(()),
        }
    }

    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        match self.last_applied {
            Some(LastApplied::ViewLastApplied(view)) => return view.run(session, out).await,
            Some(LastApplied::SetLastApplied(set)) => return set.run(session, out).await,
            None => {}
        }
        self.refuse_without_effect()?;
        let dry_run = self.dry_run.strategy()?;
        if self.files.is_empty() {
            return Err(message("must specify one of -f and -k"));
        }
        if self.force_conflicts && !self.server_side {
            return Err(message("--force-conflicts only works with --server-side"));
        }
        if dry_run == DryRun::Client && self.server_side {
            return Err(message(
                "--dry-run=client doesn't work with --server-side (did you mean --dry-run=server instead?)",
            ));
        }
        if self.prune && !self.all && self.selector.is_empty() {
            return Err(message(
                "all resources selected for prune without explicitly passing --all. To prune all resources, pass the --all flag. If you did not mean to prune all resources, specify a label selector",
            ));
        }
        let mut selection = Selection::new(session, &[], &self.files)?;
        selection.labels = self.selector.clone();
        selection.select_all = true;
        let mut infos: Vec<Info> = Vec::new();
        for wanted in selection.plan(session).await? {
            if let Wanted::File { info, .. } = wanted {
                infos.push(*info);
            }
        }
        if !self.selector.is_empty() {
            let wanted = apimachinery::selector::LabelSelector::parse(&self.selector)
                .map_err(|error| message(error.to_string()))?;
            infos.retain(|info| wanted.matches(info.object["metadata"]["labels"].as_object()));
        }
        if infos.is_empty() {
            return Err(message("no objects passed to apply"));
        }
        let mut printer = self.output.printer()?;
        let by_name = self.output.output == "name";
        let (mut applied, mut errors) = (Vec::new(), Vec::new());
        let mut namespaces: BTreeSet<String> = BTreeSet::new();
        for info in infos {
            namespaces.insert(info.namespace.clone());
            match self.one(session, &info, dry_run).await {
                Ok((object, word)) => {
                    if printer.is_none() {
                        self.output.report(&object, word, dry_run, out)?;
                        out.flush()?;
                    } else if by_name {
                        self.output.report(&object, word, dry_run, out)?;
                    }
                    applied.push(object);
                }
                Err(error) => errors.push(error),
            }
            session.forget_if_new_kind(&info.resource);
        }
        if let (Some(printer), false) = (&mut printer, by_name) {
            print_all(printer, &applied, out)?;
        }
        if self.prune && errors.is_empty() {
            self.remove_others(session, &applied, &namespaces, dry_run, out).await?;
        }
        CliError::all(errors)
    }

    fn options(&self, dry_run: DryRun) -> Result<Options, CliError> {
        let manager = match (self.server_side, self.field_manager.as_str()) {
            (true, "kubectl-client-side-apply") => "kubectl",
            (_, given) => given,
        };
        let mut options = Options::new(manager, dry_run);
        options.validation = self.validate.directive()?;
        Ok(options)
    }

    async fn one(
        &self,
        session: &Session,
        info: &Info,
        dry_run: DryRun,
    ) -> Result<(Value, &'static str), CliError> {
        let options = self.options(dry_run)?;
        if info.name.is_empty()
            && let Some(generated) = info.object["metadata"]["generateName"].as_str()
        {
            return Err(message(format!("from {generated}: cannot use generate name with apply")));
        }
        if self.server_side {
            return self.on_the_server(session, info, options).await;
        }
        let live = match info.fetch(session).await {
            Ok(live) => live,
            Err(error) if error.is_not_found() => {
                let mut fresh = info.clone();
                write::remember(&mut fresh.object);
                client::drop_nulls(&mut fresh.object);
                if dry_run == DryRun::Client {
                    return Ok((fresh.object, "created"));
                }
                let created = write::create(session, &fresh, &options).await;
                return created
                    .map(|object| (object, "created"))
                    .map_err(|error| error.with_source("creating", &info.source));
            }
            Err(error) => {
                return Err(error.with_source(
                    &format!("retrieving current configuration of:\n{}\nfrom server for:", described(info)),
                    &info.source,
                ));
            }
        };
        if !write::has_last_applied(&live) {
            let program = session.program.name();
            eprintln!(
                "Warning: resource {} is missing the {LAST_APPLIED} annotation which is required by {program} apply. {program} apply should only be used on resources created declaratively by either {program} create --save-config or {program} apply. The missing annotation will be patched automatically.",
                info.object_name()
            );
        }
        let document = openapi::document(session, &info.resource).await?;
        let schema = document.as_ref().and_then(|document| {
            document.kind(&info.resource.group, &info.resource.version, &info.resource.kind)
        });
        // Kinds that the server was taught have no strategies, and such a server takes no strategic patch of them.
        let strategic = schema.is_some() && !is_custom(session, info).await?;
        let mut current = live;
        for attempt in 0.. {
            let patch = three_way(info, &current, schema.filter(|_| strategic));
            if patch.as_object().is_some_and(serde_json::Map::is_empty) {
                return Ok((current, "unchanged"));
            }
            if dry_run == DryRun::Client {
                let patched = if strategic {
                    strategic::apply(current, &patch, schema)
                } else {
                    apimachinery::patch::merge_patch(current, &patch)
                        .map_err(|error| message(error.to_string()))?
                };
                return Ok((patched, "configured"));
            }
            let kind = if strategic { write::STRATEGIC } else { write::MERGE };
            match write::patch(session, info, &self.subresource, kind, &patch, &options).await {
                Ok(object) => return Ok((object, "configured")),
                Err(error) if error.is_conflict() && attempt < RETRIES => {
                    current = info.fetch(session).await?
                }
                Err(error) if self.force && (error.is_conflict() || error.code() == Some(422)) => {
                    return self.again(session, info, &options).await.map(|object| (object, "configured"));
                }
                Err(error) => {
                    let action = format!(
                        "applying patch:\n{}\nto:\n{}\nfor:",
                        crate::print::json::compact(&patch),
                        described_live(info, &current)
                    );
                    return Err(error.with_source(&action, &info.source));
                }
            }
        }
        Err(message("the object changes too often to be applied"))
    }

    /// Deletes what cannot be changed, and makes it again.
    async fn again(&self, session: &Session, info: &Info, options: &Options) -> Result<Value, CliError> {
        let live = Info { object: info.fetch(session).await?, ..info.clone() };
        session
            .json(Ask::new(Method::DELETE, info.path()).json(&json!({"propagationPolicy": "Background"})))
            .await?;
        super::wait::gone(session, &live, None).await?;
        let mut fresh = info.clone();
        write::remember(&mut fresh.object);
        write::create(session, &fresh, options).await
    }

    async fn on_the_server(
        &self,
        session: &Session,
        info: &Info,
        mut options: Options,
    ) -> Result<(Value, &'static str), CliError> {
        options.force = self.force_conflicts;
        let sent = write::patch(session, info, &self.subresource, write::APPLY, &info.object, &options).await;
        let object = match sent {
            Ok(object) => object,
            Err(CliError::Status(mut failure)) if failure.reason() == "Conflict" => {
                let text = format!(
                    "{}\nPlease review the fields above--they currently have other managers. Here\nare the ways you can resolve this warning:\n* If you intend to manage all of these fields, please re-run the apply\n  command with the `--force-conflicts` flag.\n* If you do not intend to manage all of the fields, please edit your\n  manifest to remove references to the fields that should keep their\n  current managers.\n* You may co-own fields by updating your manifest to match the existing\n  value; in this case, you'll become the manager if the other manager(s)\n  stop managing the field (remove it from their configuration).\nSee https://kubernetes.io/docs/reference/using-api/server-side-apply/#conflicts",
                    failure.message()
                );
                failure.status["message"] = text.clone().into();
                return Err(message(text));
            }
            Err(error) => return Err(error),
        };
        Ok((object, "serverside-applied"))
    }

    /// Deletes what was applied once and is in no file now.
    async fn remove_others(
        &self,
        session: &Session,
        applied: &[Value],
        namespaces: &BTreeSet<String>,
        dry_run: DryRun,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        let kept: BTreeSet<&str> =
            applied.iter().filter_map(|object| object["metadata"]["uid"].as_str()).collect();
        for (group, version, kind) in prune_list(&self.prune_allowlist)? {
            let api_version = crate::session::discovery::group_version(&group, &version);
            let Some(found) = session.resource_of(&api_version, &kind).await? else { continue };
            let places: Vec<String> = if found.namespaced {
                namespaces.iter().filter(|name| !name.is_empty()).cloned().collect()
            } else {
                vec![String::new()]
            };
            for namespace in places {
                let ask =
                    Ask::get(found.path(&namespace, "", "")).query_some("labelSelector", &self.selector);
                for object in items(session.json(ask).await?) {
                    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
                    if !write::has_last_applied(&object) || kept.contains(uid) {
                        continue;
                    }
                    let info = Info {
                        resource: found.clone(),
                        namespace: namespace_of(&object).to_owned(),
                        name: name_of(&object).to_owned(),
                        object: object.clone(),
                        source: String::new(),
                    };
                    if dry_run != DryRun::Client {
                        let mut ask = Ask::new(Method::DELETE, info.path())
                            .json(&json!({"propagationPolicy": "Background"}));
                        if dry_run == DryRun::Server {
                            ask = ask.query("dryRun", "All");
                        }
                        session.json(ask).await?;
                    }
                    self.output.report(&object, "pruned", dry_run, out)?;
                }
            }
        }
        Ok(())
    }
}

impl Session {
    /// A definition of new kinds makes what is known of the server old.
    fn forget_if_new_kind(&self, resource: &crate::session::discovery::ApiResource) {
        if resource.name == "customresourcedefinitions" || resource.name == "apiservices" {
            self.forget_discovery();
        }
    }
}

fn three_way(info: &Info, current: &Value, schema: Option<openapi::Schema<'_>>) -> Value {
    let original: Value = current["metadata"]["annotations"][LAST_APPLIED]
        .as_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_else(|| json!({}));
    let mut modified = info.object.clone();
    write::remember(&mut modified);
    match schema {
        Some(_) => strategic::three_way(&original, &modified, current, schema),
        None => merge::three_way(&original, &modified, current),
    }
}

/// Whether a definition taught the server this kind.
async fn is_custom(session: &Session, info: &Info) -> Result<bool, CliError> {
    if !info.resource.group.contains('.') || info.resource.group.ends_with(".k8s.io") {
        return Ok(false);
    }
    let path =
        format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", info.resource.group_resource());
    match session.json(Ask::get(path)).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        // Who may not look sends the patch that every kind takes.
        Err(error) if error.is_forbidden() => Ok(true),
        Err(error) => Err(error),
    }
}

fn described(info: &Info) -> String {
    described_live(info, &info.object)
}

fn described_live(info: &Info, _live: &Value) -> String {
    let api_version = info.resource.api_version();
    let shown = |resource: &str| format!("\"{api_version}, {resource}\"");
    let gvr = shown(&format!("Resource={}", info.resource.name));
    let gvk = shown(&format!("Kind={}", info.resource.kind));
    format!(
        "Resource: {gvr}, GroupVersionKind: {gvk}\nName: \"{}\", Namespace: \"{}\"",
        info.name, info.namespace
    )
}

fn print_all(printer: &mut Output, objects: &[Value], out: &mut dyn Write) -> Result<(), CliError> {
    match objects {
        [] => Ok(()),
        [one] => printer.print(one, out),
        several => {
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": several});
            printer.print_typed_list(&list, out)
        }
    }
}

/// The kinds that are looked at, cluster-wide ones first.
fn prune_list(given: &[String]) -> Result<Vec<(String, String, String)>, CliError> {
    const USUAL: &[&str] = &[
        "core/v1/Namespace",
        "core/v1/PersistentVolume",
        "core/v1/ConfigMap",
        "core/v1/Endpoints",
        "core/v1/PersistentVolumeClaim",
        "core/v1/Pod",
        "core/v1/ReplicationController",
        "core/v1/Secret",
        "core/v1/Service",
        "batch/v1/Job",
        "batch/v1/CronJob",
        "networking.k8s.io/v1/Ingress",
        "apps/v1/DaemonSet",
        "apps/v1/Deployment",
        "apps/v1/ReplicaSet",
        "apps/v1/StatefulSet",
    ];
    let words: Vec<&str> =
        if given.is_empty() { USUAL.to_vec() } else { given.iter().map(String::as_str).collect() };
    words
        .into_iter()
        .map(|word| match word.split('/').collect::<Vec<_>>()[..] {
            [group, version, kind] => {
                let group = if group == "core" { "" } else { group };
                Ok((group.to_owned(), version.to_owned(), kind.to_owned()))
            }
            _ => Err(message(format!(
                "invalid GroupVersionKind format: {word}, please follow <group/version/kind>"
            ))),
        })
        .collect()
}

impl View {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        if !matches!(self.output.as_str(), "yaml" | "json") {
            return Err(message(format!(
                "Unexpected -o output mode: {}, the flag 'output' must be one of yaml|json",
                self.output
            )));
        }
        let mut selection = Selection::new(session, &self.args, &self.files)?;
        selection.labels = self.selector.clone();
        selection.select_all = self.all;
        selection.latest = true;
        let (infos, errors) = fetch_all(session, selection.plan(session).await?).await?;
        CliError::all(errors)?;
        for info in infos {
            let Some(text) = info.object["metadata"]["annotations"][LAST_APPLIED].as_str() else {
                return Err(message(format!(
                    "no last-applied-configuration annotation found on resource: {}",
                    info.name
                )));
            };
            let value: Value = serde_json::from_str(text).map_err(|error| message(error.to_string()))?;
            match self.output.as_str() {
                "json" => writeln!(out, "{}", serde_json::to_string_pretty(&value).unwrap_or_default())?,
                _ => out.write_all(apimachinery::yaml::write(&value).as_bytes())?,
            }
        }
        Ok(())
    }
}

impl Set {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        let selection = Selection::new(session, &[], &self.files)?;
        for wanted in selection.plan(session).await? {
            let Wanted::File { info, .. } = wanted else { continue };
            let live = info.fetch(session).await.map_err(|error| {
                error.with_source(
                    &format!("retrieving current configuration of:\n{}\nfrom server for:", described(&info)),
                    &info.source,
                )
            })?;
            if !write::has_last_applied(&live) && !self.create_annotation {
                return Err(message(format!(
                    "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                    info.name
                )));
            }
            let text = write::as_in_file(&info.object);
            let mut object = live;
            if dry_run != DryRun::Client {
                let patch = json!({"metadata": {"annotations": {LAST_APPLIED: text}}});
                let options = Options::new("kubectl-last-applied", dry_run);
                object = write::patch(session, &info, "", write::MERGE, &patch, &options).await?;
            }
            self.output.report(&object, "configured", dry_run, out)?;
        }
        Ok(())
    }
}
