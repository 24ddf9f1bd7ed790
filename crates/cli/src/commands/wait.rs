//! `wait`: until conditions hold, fields have values, or objects come or go.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tokio::time::Instant;

use super::get::Events;
use crate::error::{CliError, message};
use crate::flags::{DryRun, timeout};
use crate::print::OutputFlags;
use crate::print::jsonpath::{JsonPath, relaxed};
use crate::resource::{FileFlags, Info, Selection, fetch_all};
use crate::session::{Ask, Session};

const POLL: Duration = Duration::from_millis(500);

/// Wait for a specific condition on one or many resources
#[derive(Args, Debug)]
pub struct Wait {
    /// TYPE/NAME, TYPE NAME, or TYPE with a selector or --all
    args: Vec<String>,
    #[command(flatten)]
    files: FileFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// The condition to wait on: create, delete, condition=NAME[=VALUE], jsonpath='{EXPRESSION}'[=VALUE]
    #[arg(long = "for", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// The length of time to wait before giving up; zero means check once and don't wait, negative means wait for a week
    #[arg(long, default_value = "30s")]
    timeout: String,
    /// Select all resources in the namespace of the specified resource types
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
    /// If true, annotation will NOT contact api-server but run locally
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = crate::flags::refused)]
    local: Option<String>,
}

#[derive(Debug)]
enum Condition {
    Create,
    Delete,
    Status { name: String, value: String },
    Path { path: JsonPath, value: Option<String> },
}

impl Condition {
    fn parse(text: &str) -> Result<Self, CliError> {
        match text.to_lowercase().as_str() {
            "create" => return Ok(Self::Create),
            "delete" => return Ok(Self::Delete),
            _ => {}
        }
        if let Some(rest) = text.strip_prefix("condition=") {
            let (name, value) = rest.split_once('=').unwrap_or((rest, "true"));
            return Ok(Self::Status { name: name.to_owned(), value: value.to_owned() });
        }
        if let Some(rest) = text.strip_prefix("jsonpath=") {
            if rest.is_empty() {
                return Err(message("jsonpath expression cannot be empty"));
            }
            let (path, value) = split_path(rest)?;
            let relaxed = relaxed(&path).map_err(|error| message(error.to_string()))?;
            if relaxed.is_empty() {
                return Err(message("jsonpath expression cannot be empty"));
            }
            let path = JsonPath::parse(&relaxed).map_err(|error| message(error.to_string()))?;
            return Ok(Self::Path { path, value });
        }
        Err(message(format!("unrecognized condition: {text:?}")))
    }

    fn holds(&self, object: &Value) -> Result<bool, CliError> {
        match self {
            Self::Create => Ok(true),
            Self::Delete => Ok(false),
            Self::Status { name, value } => Ok(has_condition(object, name, value)),
            Self::Path { path, value } => {
                let found = path.find(object).map_err(|error| message(error.to_string()))?;
                match (&found[..], value) {
                    ([], _) => Ok(false),
                    ([_, _, ..], _) => Err(message("given jsonpath expression matches more than one value")),
                    ([_], None) => Ok(true),
                    ([Value::Object(_) | Value::Array(_)], Some(_)) => {
                        Err(message("jsonpath leads to a nested object or list which is not supported"))
                    }
                    ([one], Some(value)) => Ok(apimachinery::golang::plain(one) == *value),
                }
            }
        }
    }
}

/// `{.a}=b`, in which the path may hold `==` itself.
fn split_path(text: &str) -> Result<(String, Option<String>), CliError> {
    let end = match text.starts_with('{') {
        true => text.rfind('}').map(|at| at + 1),
        false => None,
    };
    let (path, rest) = match end {
        Some(end) => text.split_at(end),
        None => text.split_once('=').map_or((text, ""), |(path, _)| text.split_at(path.len())),
    };
    if rest.is_empty() {
        return Ok((path.to_owned(), None));
    }
    let Some(value) = rest.strip_prefix('=') else {
        return Err(message(
            "jsonpath wait format must be --for=jsonpath='{.status.readyReplicas}'=3 or --for=jsonpath='{.status.readyReplicas}'",
        ));
    };
    let value = value.trim_matches(['"', '\'']);
    if value.is_empty() {
        return Err(message(
            "jsonpath wait has to have a value after equal sign, like --for=jsonpath='{.status.readyReplicas}'=3",
        ));
    }
    Ok((path.to_owned(), Some(value.to_owned())))
}

/// Whether a condition has the value, said of the object's newest generation.
fn has_condition(object: &Value, name: &str, value: &str) -> bool {
    let generation = object["metadata"]["generation"].as_i64();
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        if !condition["type"].as_str().is_some_and(|own| own.eq_ignore_ascii_case(name)) {
            continue;
        }
        let observed =
            condition["observedGeneration"].as_i64().or(object["status"]["observedGeneration"].as_i64());
        if let (Some(observed), Some(generation)) = (observed, generation)
            && observed < generation
        {
            return false;
        }
        return condition["status"].as_str().is_some_and(|own| own.eq_ignore_ascii_case(value));
    }
    false
}

impl Wait {
    pub async fn run(self, session: &Session, out: &mut dyn Write) -> Result<(), CliError> {
        let parsed: Result<Vec<Condition>, CliError> =
            self.conditions.iter().map(|text| Condition::parse(text)).collect();
        let conditions = parsed?;
        if conditions.is_empty() {
            return Err(message("unrecognized condition: \"\""));
        }
        let deadline = Instant::now() + timeout(&self.timeout)?;
        let at_once = matches!(self.timeout.as_str(), "0" | "0s");
        let mut selection = Selection::new(session, &self.args, &self.files)?;
        selection.all_namespaces = self.all_namespaces;
        selection.labels = self.selector.clone();
        selection.fields = self.field_selector.clone();
        selection.select_all = self.all;
        selection.latest = true;
        let is_create = conditions.iter().any(|condition| matches!(condition, Condition::Create));
        let is_delete = conditions.iter().any(|condition| matches!(condition, Condition::Delete));
        let infos = loop {
            let (infos, errors) = fetch_all(session, selection.plan(session).await?).await?;
            let missing = errors.iter().all(CliError::is_not_found);
            if is_create && missing && (infos.is_empty() || !errors.is_empty()) {
                if Instant::now() + POLL > deadline {
                    return Err(message("timed out waiting for the condition"));
                }
                tokio::time::sleep(POLL).await;
                continue;
            }
            if !(is_delete && missing) {
                CliError::all(errors)?;
            }
            break infos;
        };
        if infos.is_empty() && !is_delete {
            return Err(message("no matching resources found"));
        }
        let mut errors = Vec::new();
        for info in infos {
            for condition in &conditions {
                match until(session, &info, condition, deadline, at_once).await {
                    Ok(object) => {
                        self.output.report(&object, "condition met", DryRun::None, out)?;
                        out.flush()?;
                    }
                    Err(error) => {
                        errors.push(error);
                        break;
                    }
                }
            }
        }
        CliError::all(errors)
    }
}

/// Waits for one object; what it was when the condition held.
async fn until(
    session: &Session,
    info: &Info,
    condition: &Condition,
    deadline: Instant,
    at_once: bool,
) -> Result<Value, CliError> {
    if at_once {
        return watch(session, info, condition, true).await;
    }
    let waited = tokio::time::timeout_at(deadline, watch(session, info, condition, at_once)).await;
    waited.unwrap_or_else(|_| {
        Err(message(format!("timed out waiting for the condition on {}", info.object_name())))
    })
}

async fn watch(
    session: &Session,
    info: &Info,
    condition: &Condition,
    at_once: bool,
) -> Result<Value, CliError> {
    if matches!(condition, Condition::Create) {
        return Ok(info.object.clone());
    }
    let path = info.resource.path(&info.namespace, "", "");
    let field = format!("metadata.name={}", info.name);
    let uid = info.object["metadata"]["uid"].clone();
    loop {
        let list = session.json(Ask::get(path.clone()).query("fieldSelector", field.clone())).await?;
        let found = crate::resource::items(list.clone()).into_iter().next();
        match (&found, condition) {
            (None, Condition::Delete) => return Ok(info.object.clone()),
            (Some(object), Condition::Delete) if object["metadata"]["uid"] != uid => {
                return Ok(info.object.clone());
            }
            (None, _) => {
                let failed = info.fetch(session).await;
                return Err(failed
                    .err()
                    .unwrap_or_else(|| message("the object came back while it was waited for")));
            }
            (Some(object), _) if condition.holds(object)? => return Ok(object.clone()),
            (Some(_), _) if at_once => {
                return Err(message(format!("condition not met for {}", info.object_name())));
            }
            _ => {}
        }
        let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        let ask = Ask::get(path.clone())
            .query("fieldSelector", field.clone())
            .query("watch", "true")
            .query("resourceVersion", version);
        let mut events = Events::new(session.send(ask).await?.into_body());
        // A watch that ends, or breaks, is begun again from a new list.
        while let Ok(Some((kind, object))) = events.next().await {
            match kind.as_str() {
                "DELETED" if matches!(condition, Condition::Delete) => return Ok(info.object.clone()),
                "DELETED" | "ERROR" => break,
                "BOOKMARK" => {}
                _ if condition.holds(&object)? => return Ok(object),
                _ => {}
            }
        }
    }
}

/// Waits until objects are gone, as `delete` does; those that have gone already are fine.
pub async fn gone(session: &Session, info: &Info, deadline: Option<Instant>) -> Result<(), CliError> {
    match deadline {
        Some(deadline) => until(session, info, &Condition::Delete, deadline, false).await.map(|_| ()),
        None => watch(session, info, &Condition::Delete, false).await.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_read_and_looked_at() {
        let object = json!({"metadata": {"generation": 2}, "status": {"n": 3, "conditions": [
            {"type": "Ready", "status": "True"}, {"type": "Old", "status": "True", "observedGeneration": 1}]}});
        for (text, holds) in [
            ("condition=ready", true),
            ("condition=Ready=False", false),
            ("condition=Old", false),
            ("jsonpath={.status.n}=3", true),
            ("jsonpath='{.status.n}'", true),
            ("jsonpath={.status.n}=4", false),
            ("jsonpath={.status.conditions[?(@.type==\"Ready\")].status}=True", true),
            ("jsonpath=.status.n=3", true),
        ] {
            let text = text.replace('\'', "");
            assert_eq!(
                Condition::parse(&text).expect("a condition").holds(&object).expect("looked"),
                holds,
                "{text}"
            );
        }
        for text in ["nothing", "jsonpath=", "jsonpath={.a}=", "jsonpath={.a}b"] {
            assert!(Condition::parse(text).is_err(), "{text}");
        }
    }
}
