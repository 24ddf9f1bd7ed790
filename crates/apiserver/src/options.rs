//! The options in a request's query, checked once before the verb runs, in upstream's words.
//!
//! What a verb does with an option is the verb's matter; here is only what makes a request impossible: numbers that
//! are none (400), and values or combinations that the options' own kind forbids (422).

use apimachinery::decode::FieldValidation;
use apimachinery::field::{Path, Problems};
use apimachinery::status::Status;

use crate::context::Context;
use crate::request_info::Query;

/// The longest name of a field manager.
const MANAGER_BYTES: usize = 128;

/// Checks the query of a request. `applies` says whether a patch is an apply configuration.
pub fn check(context: &Context, applies: bool) -> Result<(), Status> {
    let query = &context.query;
    if query.is_empty() && !applies {
        return Ok(());
    }
    let mut problems = Problems::new();
    let kind = match context.info.verb {
        "list" | "watch" | "deletecollection" => {
            numbers(query, &["limit", "timeoutSeconds"])?;
            list(query, context.info.verb == "watch", &mut problems);
            "ListOptions"
        }
        "create" => "CreateOptions",
        "update" => "UpdateOptions",
        "patch" => "PatchOptions",
        _ => return Ok(()),
    };
    if kind != "ListOptions" {
        write(query, kind == "PatchOptions", applies, &mut problems);
    }
    if problems.is_empty() { Ok(()) } else { Err(Status::invalid("meta.k8s.io", kind, "", &problems)) }
}

/// Fields that have to be whole numbers.
pub fn numbers(query: &Query, fields: &[&str]) -> Result<(), Status> {
    for field in fields {
        let text = query.get(field).unwrap_or_default();
        if !text.is_empty() && text.parse::<i64>().is_err() {
            return Err(Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")));
        }
    }
    Ok(())
}

fn list(query: &Query, watch: bool, problems: &mut Problems) {
    let get = |field: &str| query.get(field).unwrap_or_default();
    let (version, rule) = (get("resourceVersion"), get("resourceVersionMatch"));
    let at = Path::new("resourceVersionMatch");
    let initial = query.get("sendInitialEvents").is_some();
    if watch {
        if initial && rule != "NotOlderThan" {
            problems
                .forbidden(&at, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
        }
        if !initial && !rule.is_empty() {
            problems.forbidden(
                &at,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        } else if !matches!(rule, "" | "NotOlderThan") {
            problems.not_supported(&at, rule, &["NotOlderThan"]);
        }
        if !get("continue").is_empty() {
            problems.forbidden(&at, "resourceVersionMatch is forbidden when continue is provided");
        }
        return;
    }
    if !rule.is_empty() {
        if version.is_empty() {
            problems.forbidden(&at, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !get("continue").is_empty() {
            problems.forbidden(&at, "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(rule, "Exact" | "NotOlderThan") {
            problems.not_one_of(&at, rule, &["Exact", "NotOlderThan", ""]);
        }
        if rule == "Exact" && version == "0" {
            problems.forbidden(&at, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if initial {
        problems.forbidden(&Path::new("sendInitialEvents"), "sendInitialEvents is forbidden for list");
    }
}

fn write(query: &Query, patch: bool, applies: bool, problems: &mut Problems) {
    let manager = query.get("fieldManager").unwrap_or_default();
    let at = Path::new("fieldManager");
    if applies {
        if manager.is_empty() {
            problems.required(&at, "is required for apply patch");
        }
    } else if patch && query.get("force").is_some() {
        problems.forbidden(&Path::new("force"), "may not be specified for non-apply patch");
    }
    if manager.len() > MANAGER_BYTES {
        problems.too_long(&at, MANAGER_BYTES);
    }
    if let Some((place, letter)) = manager.chars().enumerate().find(|(_, letter)| letter.is_control()) {
        let why = format!("invalid character U+{:04X} (at position {place})", letter as u32);
        problems.invalid(&at, manager, why);
    }
    dry_run(&query.all("dryRun").collect::<Vec<_>>(), problems);
    let validation = query.get("fieldValidation").unwrap_or_default();
    if FieldValidation::parse(validation).is_none() {
        let known = ["", "Ignore", "Strict", "Warn"];
        problems.not_supported(&Path::new("fieldValidation"), validation, &known);
    }
}

/// The only dry run there is touches nothing at all.
pub fn dry_run(given: &[&str], problems: &mut Problems) {
    if given.iter().any(|one| *one != "All") {
        problems.not_supported(&Path::new("dryRun"), serde_json::json!(given), &["All"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(verb: &str, query: &str, applies: bool) -> String {
        let query = Query::parse(Some(query));
        let mut problems = Problems::new();
        match verb {
            "list" | "watch" => list(&query, verb == "watch", &mut problems),
            _ => write(&query, verb == "patch", applies, &mut problems),
        }
        if problems.is_empty() { String::new() } else { problems.summary() }
    }

    #[test]
    fn impossible_options_are_refused_by_field() {
        for (verb, query, expected) in [
            ("list", "resourceVersion=5&resourceVersionMatch=Exact", ""),
            ("list", "resourceVersionMatch=Exact", "resourceVersionMatch: Forbidden"),
            (
                "list",
                "resourceVersion=1&resourceVersionMatch=No",
                "resourceVersionMatch: Unsupported value: \"No\"",
            ),
            ("list", "resourceVersion=1&resourceVersionMatch=Exact&continue=x", "when continue is provided"),
            ("list", "sendInitialEvents=true", "sendInitialEvents: Forbidden"),
            ("watch", "resourceVersionMatch=NotOlderThan", "unless sendInitialEvents"),
            ("watch", "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", ""),
            ("create", "dryRun=All&fieldValidation=Strict&fieldManager=me", ""),
            ("create", "dryRun=Some", "dryRun: Unsupported value: [\"Some\"]"),
            ("create", "fieldValidation=strict", "fieldValidation: Unsupported value"),
            ("create", "fieldManager=%01", "invalid character U+0001 (at position 0)"),
            ("patch", "force=true", "force: Forbidden: may not be specified for non-apply patch"),
        ] {
            let said = refused(verb, query, false);
            assert!(said.contains(expected) && said.is_empty() == expected.is_empty(), "{query}: {said}");
        }
        assert_eq!(refused("patch", "force=true&fieldManager=m", true), "");
        assert!(refused("patch", "", true).contains("fieldManager: Required value"));
    }
}
