//! `auth`: who one is, and what one may do.

use std::io::Write;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use crate::error::{CliError, message};
use crate::print::OutputFlags;
use crate::print::tabwriter::TabWriter;
use crate::resource::{FileFlags, Selection, Wanted};
use crate::session::{Ask, Session};
use crate::write::{self, Options};

/// Inspect authorization
#[derive(Args, Debug)]
pub struct Auth {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Check whether an action is allowed
    CanI(CanI),
    /// Experimental: Check self subject attributes
    Whoami(Whoami),
    /// Reconciles rules for RBAC role, role binding, cluster role, and cluster role binding objects
    Reconcile(Reconcile),
}

impl Auth {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        match self.command {
            Command::CanI(command) => command.run(session, out).await,
            Command::Whoami(command) => command.run(session, out).await,
            Command::Reconcile(command) => command.run(session, out).await,
        }
    }
}

#[derive(Args, Debug)]
struct CanI {
    /// VERB and TYPE, TYPE/NAME, or a path
    args: Vec<String>,
    /// If true, check the specified action in all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// If true, prints all allowed actions
    #[arg(long)]
    list: bool,
    /// If true, prints allowed actions without headers
    #[arg(long)]
    no_headers: bool,
    /// If true, suppress output and just return the exit code
    #[arg(short, long)]
    quiet: bool,
    /// SubResource such as pod/log or deployment/scale
    #[arg(long, default_value = "", hide_default_value = true)]
    subresource: String,
}

const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "use",
    "bind",
    "impersonate",
    "*",
    "approve",
    "sign",
    "escalate",
    "attest",
];

impl CanI {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let namespace = if self.all_namespaces { String::new() } else { session.namespace()?.0 };
        if self.list {
            if !self.args.is_empty() {
                return Err(message("list option must be specified with no arguments"));
            }
            return self.rules(session, &namespace, out).await;
        }
        let [verb, what] = &self.args[..] else {
            return Err(message(
                "you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl auth can-i -h' for help and examples.",
            ));
        };
        if self.no_headers {
            return Err(message("--no-headers cannot be set without --list specified"));
        }
        let spec = if what.starts_with('/') {
            json!({"nonResourceAttributes": {"verb": verb, "path": what}})
        } else {
            let (word, name) = what.split_once('/').unwrap_or((what, ""));
            let (group, resource) = match session.resource(word).await {
                _ if word == "*" => ("*".to_owned(), "*".to_owned()),
                Ok(found) => {
                    if !found.namespaced && !self.all_namespaces {
                        let group = if found.group.is_empty() {
                            String::new()
                        } else {
                            format!(" in group '{}'", found.group)
                        };
                        eprintln!("Warning: resource '{}' is not namespace scoped{group}\n", found.name);
                    }
                    (found.group, found.name)
                }
                Err(CliError::Message(_)) => {
                    let (name, group) = word.split_once('.').unwrap_or((word, ""));
                    if group.is_empty() {
                        eprintln!("Warning: the server doesn't have a resource type '{name}'\n");
                    } else {
                        eprintln!(
                            "Warning: the server doesn't have a resource type '{name}' in group '{group}'\n"
                        );
                    }
                    (group.to_owned(), name.to_owned())
                }
                Err(error) => return Err(error),
            };
            if !VERBS.contains(&verb.as_str()) {
                eprintln!("Warning: verb '{verb}' is not a known verb\n");
            }
            json!({"resourceAttributes": {"namespace": namespace, "verb": verb, "group": group, "resource": resource,
                "subresource": self.subresource, "name": name}})
        };
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": spec});
        let ask =
            Ask::new(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").json(&review);
        let status = session.json(ask).await?["status"].take();
        let allowed = status["allowed"] == true;
        if !self.quiet {
            let mut said = if allowed { "yes" } else { "no" }.to_owned();
            for field in ["reason", "evaluationError"] {
                if let Some(text) = status[field].as_str().filter(|text| !text.is_empty() && !allowed) {
                    said.push_str(&format!(" - {text}"));
                }
            }
            writeln!(out, "{said}")?;
        }
        if allowed { Ok(()) } else { Err(CliError::Exit(1)) }
    }

    async fn rules(&self, session: &Session, namespace: &str, out: &mut dyn Write) -> Result<(), CliError> {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "metadata": {}, "spec": {"namespace": namespace}});
        let ask =
            Ask::new(Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews").json(&review);
        let status = session.json(ask).await?["status"].take();
        let mut table = TabWriter::table();
        if !self.no_headers {
            table.line("Resources\tNon-Resource URLs\tResource Names\tVerbs");
        }
        let words = |value: &Value| {
            value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for line in compacted(&status, words) {
            table.line(&line);
        }
        out.write_all(table.finish().as_bytes())?;
        Ok(())
    }
}

/// One line for each resource, with the verbs of all rules about it together, and one for each path; in upstream's order, which
/// is that of the rules' own text.
fn compacted(status: &Value, words: impl Fn(&Value) -> Vec<String>) -> Vec<String> {
    #[derive(Clone)]
    struct Rule {
        verbs: Vec<String>,
        group: Option<String>,
        resource: String,
        names: Vec<String>,
        path: String,
    }
    let mut rules: Vec<Rule> = Vec::new();
    for rule in status["resourceRules"].as_array().into_iter().flatten() {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                let names = words(&rule["resourceNames"]);
                let same = |known: &&mut Rule| {
                    known.group.as_ref() == Some(&group) && known.resource == resource && known.names == names
                };
                match rules.iter_mut().find(same) {
                    Some(known) => known.verbs.extend(words(&rule["verbs"])),
                    None => rules.push(Rule {
                        verbs: words(&rule["verbs"]),
                        group: Some(group.clone()),
                        resource,
                        names,
                        path: String::new(),
                    }),
                }
            }
        }
    }
    for rule in status["nonResourceRules"].as_array().into_iter().flatten() {
        for path in words(&rule["nonResourceURLs"]) {
            rules.push(Rule {
                verbs: words(&rule["verbs"]),
                group: None,
                resource: String::new(),
                names: Vec::new(),
                path,
            });
        }
    }
    rules.sort_by_cached_key(|rule| {
        format!(
            "Verbs:[{}],APIGroups:[{}],Resources:[{}],ResourceNames:[{}],NonResourceURLs:[{}],",
            rule.verbs.join(" "),
            rule.group.clone().unwrap_or_default(),
            rule.resource,
            rule.names.join(" "),
            rule.path
        )
    });
    rules
        .into_iter()
        .map(|rule| {
            let shown = match rule.group {
                Some(group) if !group.is_empty() => format!("{}.{group}", rule.resource),
                _ => rule.resource,
            };
            format!("{shown}\t[{}]\t[{}]\t[{}]", rule.path, rule.names.join(" "), rule.verbs.join(" "))
        })
        .collect()
}

#[derive(Args, Debug)]
struct Whoami {
    #[command(flatten)]
    output: OutputFlags,
}

impl Whoami {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let review =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}});
        let ask = Ask::new(Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews").json(&review);
        let answer = session.json(ask).await?;
        if let Some(mut printer) = self.output.printer()? {
            return printer.print_typed(&answer, out);
        }
        let user = &answer["status"]["userInfo"];
        let list = |value: &Value| {
            let words: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            format!("[{}]", words.join(" "))
        };
        let mut table = TabWriter::table();
        table.line("ATTRIBUTE\tVALUE");
        for (label, field) in [("Username", "username"), ("UID", "uid")] {
            if let Some(text) = user[field].as_str().filter(|text| !text.is_empty()) {
                table.line(&format!("{label}\t{text}"));
            }
        }
        if user["groups"].as_array().is_some_and(|groups| !groups.is_empty()) {
            table.line(&format!("Groups\t{}", list(&user["groups"])));
        }
        let mut extra: Vec<_> = user["extra"].as_object().into_iter().flatten().collect();
        extra.sort_by_key(|(key, _)| *key);
        for (key, value) in extra {
            table.line(&format!("Extra: {key}\t{}", list(value)));
        }
        out.write_all(table.finish().as_bytes())?;
        Ok(())
    }
}

#[derive(Args, Debug)]
struct Reconcile {
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    #[command(flatten)]
    dry_run: crate::flags::DryRunFlag,
    /// If true, removes extra permissions added to roles
    #[arg(long)]
    remove_extra_permissions: bool,
    /// If true, removes extra subjects added to rolebindings
    #[arg(long)]
    remove_extra_subjects: bool,
}

impl Reconcile {
    async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let dry_run = self.dry_run.strategy()?;
        let selection = Selection::new(session, &[], &self.files)?;
        for wanted in selection.plan(session).await? {
            let Wanted::File { mut info, .. } = wanted else { continue };
            if info.resource.group != "rbac.authorization.k8s.io" {
                return Err(message(format!(
                    "only rbac.authorization.k8s.io/v1 is supported: not {}",
                    info.resource.api_version()
                )));
            }
            let options = Options::new("kubectl-auth", dry_run);
            let live = match info.fetch(session).await {
                Ok(live) => live,
                Err(error) if error.is_not_found() => {
                    if dry_run != crate::flags::DryRun::Client {
                        info.object = write::create(session, &info, &options).await?;
                    }
                    self.output.report(&info.object, "reconciled", dry_run, out)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (field, exact) = match live.get("roleRef") {
                Some(_) => ("subjects", self.remove_extra_subjects),
                None => ("rules", self.remove_extra_permissions),
            };
            let wanted = info.object[field].as_array().cloned().unwrap_or_default();
            let mut list =
                if exact { Vec::new() } else { live[field].as_array().cloned().unwrap_or_default() };
            for entry in wanted {
                if !list.contains(&entry) {
                    list.push(entry);
                }
            }
            let mut object = live.clone();
            object[field] = Value::Array(list);
            info.object = object;
            if info.object != live && dry_run != crate::flags::DryRun::Client {
                info.object = write::replace(session, &info, "", &options).await?;
            }
            self.output.report(&info.object, "reconciled", dry_run, out)?;
        }
        Ok(())
    }
}
