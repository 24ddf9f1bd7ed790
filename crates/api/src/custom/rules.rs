//! Rules that a CRD writes in CEL (`x-kubernetes-validations`): compiled with the schema's types when the CRD is judged
//! and when it is served, run on every write.
//!
//! A [`Validator`] is a tree beside the schema that only has branches where there are rules. `oldSelf` is the value that
//! was at the same place: the same field, key, or element with the same list-map keys; elements of other lists have none.

use std::collections::BTreeMap;

use apimachinery::{
    field::{Problem, ProblemKind, Problems},
    meta::{get_list, get_str},
};
use cel::{Budget, Env, Error, Program, Type, Val, estimate, schema};
use serde_json::Value;

/// One rule may cost this at worst.
const RULE_LIMIT: u64 = 10_000_000;
/// All rules of one schema together.
const SCHEMA_LIMIT: u64 = 100_000_000;
/// What all rules may cost for one object.
const OBJECT_BUDGET: u64 = 10_000_000;

struct Rule {
    program: Program,
    source: String,
    uses_old: bool,
    optional_old: bool,
    message: String,
    message_program: Option<Program>,
    reason: ProblemKind,
    field_path: String,
}

/// The rules of a schema and of everything below it.
pub struct Validator {
    kind: Type,
    json_type: String,
    rules: Vec<Rule>,
    properties: BTreeMap<String, Validator>,
    values: Option<Box<Validator>>,
    items: Option<Box<Validator>>,
    /// Keys by which elements are told apart.
    list_keys: Option<Vec<String>>,
}

/// Where in a schema the compiler is.
#[derive(Clone)]
struct Place {
    path: String,
    /// The list that cuts off old values.
    uncorrelated: Option<String>,
    /// How often a value of this schema can occur in one object, if all lists and maps around it are bounded.
    times: Option<u64>,
    /// It is a resource of its own.
    resource: bool,
}

impl Place {
    /// How often a child of the value here can occur.
    fn times_below(&self, open: &Value) -> Option<u64> {
        Some(self.times?.saturating_mul(estimate::children(open)?))
    }
}

/// Which costs are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Costs {
    /// Of each rule and of all together.
    All,
    /// Of all rules together: the schema is one that was accepted before.
    Total,
    /// None: what is stored is served.
    None,
}

struct Compiler<'p> {
    problems: &'p mut Problems,
    costs: Costs,
    total: u64,
    /// The rules that take a hundredth of the total limit or more, and their costs.
    dearest: Vec<(u64, String)>,
}

/// Says what is wrong with the rules of a schema.
pub fn check(open: &Value, path: &str, costs: Costs, problems: &mut Problems) {
    compile(open, path, costs, problems);
}

/// The validator of a schema; `None` if there are no rules. Problems are told with their paths.
pub fn compile(open: &Value, path: &str, costs: Costs, problems: &mut Problems) -> Option<Validator> {
    if !open.to_string().contains("\"x-kubernetes-validations\"") {
        return None;
    }
    let kind = schema::from_openapi(open, true)?;
    let mut compiler = Compiler { problems, costs, total: 0, dearest: Vec::new() };
    let place = Place { path: path.to_owned(), uncorrelated: None, times: Some(1), resource: true };
    let validator = compiler.node(open, kind, true, &place);
    let (total, mut dearest) = (compiler.total, compiler.dearest);
    if total > SCHEMA_LIMIT && costs != Costs::None {
        dearest.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, place) in dearest.into_iter().take(4) {
            let text =
                "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            push(problems, ProblemKind::Forbidden, place, None, text.to_owned());
        }
        let name = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let text = dear(name, total, SCHEMA_LIMIT);
        push(problems, ProblemKind::Forbidden, path.to_owned(), None, text);
    }
    validator
}

fn push(problems: &mut Problems, kind: ProblemKind, path: String, value: Option<Value>, detail: String) {
    problems.push(Problem { kind, path, value, detail });
}

fn dear(name: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{name} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

impl Compiler<'_> {
    fn node(&mut self, open: &Value, kind: Type, root: bool, place: &Place) -> Option<Validator> {
        let rules = self.rules(open, &kind, place);
        let mut validator = Validator {
            json_type: get_str(open, "type").to_owned(),
            rules,
            properties: BTreeMap::new(),
            values: None,
            items: None,
            list_keys: None,
            kind: kind.clone(),
        };
        match &kind {
            Type::Object(object) => {
                for (name, below) in open["properties"].as_object().into_iter().flatten() {
                    let special = root && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                    let Some(inner) = object.fields.get(name).filter(|_| !special) else { continue };
                    let embedded = below["x-kubernetes-embedded-resource"] == true;
                    let path = format!("{}.properties[{name}]", place.path);
                    let at = Place { path, resource: embedded, ..place.clone() };
                    if let Some(found) = self.node(below, inner.clone(), embedded, &at) {
                        validator.properties.insert(name.clone(), found);
                    }
                }
            }
            Type::Map(_, value) => {
                let below = &open["additionalProperties"];
                let at = Place {
                    path: format!("{}.additionalProperties", place.path),
                    times: place.times_below(open),
                    resource: below["x-kubernetes-embedded-resource"] == true,
                    ..place.clone()
                };
                validator.values = self.node(below, (**value).clone(), false, &at).map(Box::new);
            }
            Type::List(item) => {
                let keyed = get_str(open, "x-kubernetes-list-type") == "map";
                let keys = get_list(open, "x-kubernetes-list-map-keys").iter().filter_map(Value::as_str);
                validator.list_keys = keyed.then(|| keys.map(str::to_owned).collect());
                let cut = || Some(place.path.clone());
                let embedded = open["items"]["x-kubernetes-embedded-resource"] == true;
                let at = Place {
                    path: format!("{}.items", place.path),
                    times: place.times_below(open),
                    resource: embedded,
                    uncorrelated: place.uncorrelated.clone().or_else(|| if keyed { None } else { cut() }),
                };
                validator.items = self.node(&open["items"], (**item).clone(), embedded, &at).map(Box::new);
            }
            _ => {}
        }
        let empty = validator.rules.is_empty()
            && validator.properties.is_empty()
            && validator.values.is_none()
            && validator.items.is_none();
        (!empty).then_some(validator)
    }

    fn rules(&mut self, open: &Value, kind: &Type, place: &Place) -> Vec<Rule> {
        let mut out = Vec::new();
        for (index, rule) in get_list(open, "x-kubernetes-validations").iter().enumerate() {
            let at = format!("{}.x-kubernetes-validations[{index}]", place.path);
            self.shape(open, rule, &at);
            let source = get_str(rule, "rule");
            if source.trim().is_empty() {
                continue;
            }
            let optional_old = rule["optionalOldSelf"] == true;
            let old = if optional_old { Type::optional(kind.clone()) } else { kind.clone() };
            let env = Env::new().with("self", kind.clone()).with("oldSelf", old);
            let shown = Some(rule.clone());
            let program = match env.compile_as(source, &[Type::Bool]) {
                Ok(program) => program,
                Err(text) => {
                    push(self.problems, ProblemKind::Invalid, format!("{at}.rule"), shown, text);
                    continue;
                }
            };
            let message_source = get_str(rule, "messageExpression");
            let message_program = if message_source.trim().is_empty() {
                None
            } else {
                match env.compile_as(message_source, &[Type::String]) {
                    Ok(program) => Some(program),
                    Err(text) => {
                        let path = format!("{at}.messageExpression");
                        push(self.problems, ProblemKind::Invalid, path, shown, text);
                        None
                    }
                }
            };
            let cost = estimate::estimate(&program, open, place.resource);
            let times = place.times.unwrap_or_else(|| estimate::occurrences(open));
            self.cost(cost.saturating_mul(times), format!("{at}.rule"), "estimated rule cost");
            if let Some(program) = &message_program {
                let cost = estimate::estimate(program, open, place.resource);
                self.cost(cost, format!("{at}.messageExpression"), "estimated messageExpression cost");
            }
            let uses_old = program.uses(1);
            if uses_old && let Some(cut) = &place.uncorrelated {
                let text = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {cut}"
                );
                push(self.problems, ProblemKind::Invalid, format!("{at}.rule"), Some(source.into()), text);
            }
            if !uses_old && rule.get("optionalOldSelf").is_some() {
                let text = "may not be set if oldSelf is not used in rule".to_owned();
                let path = format!("{at}.optionalOldSelf");
                push(self.problems, ProblemKind::Invalid, path, rule.get("optionalOldSelf").cloned(), text);
            }
            out.push(Rule {
                program,
                source: source.to_owned(),
                uses_old,
                optional_old,
                message: get_str(rule, "message").trim().to_owned(),
                message_program,
                reason: match get_str(rule, "reason") {
                    "FieldValueForbidden" => ProblemKind::Forbidden,
                    "FieldValueRequired" => ProblemKind::Required,
                    "FieldValueDuplicate" => ProblemKind::Duplicate,
                    _ => ProblemKind::Invalid,
                },
                field_path: get_str(rule, "fieldPath").to_owned(),
            });
        }
        out
    }

    /// Counts what a rule may cost, and says so if that is too much.
    fn cost(&mut self, cost: u64, path: String, name: &str) {
        self.total = self.total.saturating_add(cost);
        if cost > RULE_LIMIT && self.costs == Costs::All {
            push(self.problems, ProblemKind::Forbidden, path.clone(), None, dear(name, cost, RULE_LIMIT));
        }
        if cost >= SCHEMA_LIMIT / 100 {
            self.dearest.push((cost, path));
        }
    }

    /// What can be said of a rule without compiling it.
    fn shape(&mut self, open: &Value, rule: &Value, at: &str) {
        let problems = &mut *self.problems;
        let mut bad = |kind: ProblemKind, field: &str, text: &str| {
            push(problems, kind, format!("{at}.{field}"), rule.get(field).cloned(), text.to_owned());
        };
        let text = |field: &str| get_str(rule, field);
        if text("rule").trim().is_empty() {
            bad(ProblemKind::Required, "rule", "rule is not specified");
        }
        let message = text("message");
        if !message.is_empty() && message.trim().is_empty() {
            bad(ProblemKind::Invalid, "message", "must be non-empty if specified");
        } else if message.trim().contains('\n') {
            bad(ProblemKind::Invalid, "message", "must not contain line breaks");
        } else if text("rule").trim().contains('\n')
            && message.is_empty()
            && text("messageExpression").is_empty()
        {
            bad(ProblemKind::Required, "message", "message must be specified if rule contains line breaks");
        }
        if !text("messageExpression").is_empty() && text("messageExpression").trim().is_empty() {
            bad(
                ProblemKind::Required,
                "messageExpression",
                "messageExpression must be non-empty if specified",
            );
        }
        let reasons =
            ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];
        if rule.get("reason").is_some_and(|reason| !reason.is_null()) && !reasons.contains(&text("reason")) {
            let shown = reasons.map(|reason| format!("{reason:?}")).join(", ");
            bad(ProblemKind::NotSupported, "reason", &format!("supported values: {shown}"));
        }
        if let Some(path) = rule.get("fieldPath").and_then(Value::as_str) {
            if path.trim().is_empty() {
                bad(ProblemKind::Invalid, "fieldPath", "must be non-empty if specified");
            } else if !refers_to_a_field(path, open) {
                bad(ProblemKind::Invalid, "fieldPath", "must be a valid path");
            }
        }
    }
}

/// `.spec.a['b']` within a schema.
fn refers_to_a_field(path: &str, open: &Value) -> bool {
    field_at(path, open).is_some()
}

/// The schema of the field that a path like `.spec.color` names.
pub fn field_at<'a>(path: &str, open: &'a Value) -> Option<&'a Value> {
    let mut at = open;
    let mut rest = path;
    while !rest.is_empty() {
        let (name, tail) = if let Some(inner) = rest.strip_prefix("['") {
            let (name, tail) = inner.split_once("']")?;
            (name, tail)
        } else if let Some(inner) = rest.strip_prefix('.') {
            let end = inner.find(['.', '[']).unwrap_or(inner.len());
            inner.split_at(end)
        } else {
            return None;
        };
        let below = at["properties"].get(name).or_else(|| at.get("additionalProperties"));
        at = below?;
        rest = tail;
    }
    Some(at)
}

impl Validator {
    /// Runs the rules on an object.
    pub fn validate(&self, new: &Value, old: Option<&Value>, problems: &mut Problems) {
        let mut budget = Budget::new(OBJECT_BUDGET);
        self.visit(new, old, String::new(), &mut budget, problems);
    }

    fn visit(
        &self,
        new: &Value,
        old: Option<&Value>,
        path: String,
        budget: &mut Budget,
        problems: &mut Problems,
    ) {
        if new.is_null() || budget.is_spent() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        self.run(new, old, &path, budget, problems);
        match new {
            Value::Object(map) => {
                for (name, below) in map {
                    let named = self.properties.get(name);
                    let Some(inner) = named.or(self.values.as_deref()) else { continue };
                    let at = match (named.is_some(), path.is_empty()) {
                        (true, true) => name.clone(),
                        (true, false) => format!("{path}.{name}"),
                        (false, _) => format!("{path}[{name}]"),
                    };
                    inner.visit(below, old.and_then(|old| old.get(name)), at, budget, problems);
                }
            }
            Value::Array(list) => {
                let Some(inner) = &self.items else { return };
                for (index, item) in list.iter().enumerate() {
                    let before = old.and_then(|old| self.partner(item, old));
                    inner.visit(item, before, format!("{path}[{index}]"), budget, problems);
                }
            }
            _ => {}
        }
    }

    /// The old element with the same keys.
    fn partner<'o>(&self, item: &Value, old: &'o Value) -> Option<&'o Value> {
        let keys = self.list_keys.as_ref()?;
        old.as_array()?.iter().find(|other| keys.iter().all(|key| other.get(key) == item.get(key)))
    }

    fn run(
        &self,
        new: &Value,
        old: Option<&Value>,
        path: &str,
        budget: &mut Budget,
        problems: &mut Problems,
    ) {
        let shown = Some(Value::from(self.json_type.as_str()));
        for rule in &self.rules {
            if budget.is_spent() {
                return; // said already
            }
            if rule.uses_old && old.is_none() && !rule.optional_old {
                continue; // nothing to compare with
            }
            let values = self.values(new, old, rule.optional_old);
            let outcome = values
                .as_ref()
                .map_err(Error::clone)
                .and_then(|values| rule.program.run(&&values[..], None, budget));
            let text = match outcome {
                Ok(Val::Bool(true)) => continue,
                Ok(_) => None,
                Err(Error::NoOverload) => Some(format!(
                    "'no such overload': call arguments did not match a supported operator, function or macro signature for rule: {}",
                    rule.source
                )),
                Err(Error::CostLimit) if budget.is_spent() => Some(
                    "validation failed due to running out of cost budget, no further validation rules will be run"
                        .to_owned(),
                ),
                Err(Error::CostLimit) => {
                    budget.spend_all();
                    Some(format!(
                        "'{}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                        Error::CostLimit,
                        rule.source
                    ))
                }
                Err(error) => Some(format!("{error} evaluating rule: {}", rule.source)),
            };
            if let Some(text) = text {
                push(problems, ProblemKind::Invalid, path.to_owned(), shown.clone(), text);
                continue;
            }
            // What was stored and is not touched may stay as it is.
            if !rule.uses_old && old == Some(new) {
                continue;
            }
            let at = match (rule.field_path.strip_prefix('.'), path.is_empty()) {
                (Some(field), true) => field.to_owned(),
                (Some(field), false) => format!("{path}.{field}"),
                (None, _) => format!("{path}{}", rule.field_path),
            };
            let value = (!new.is_object() && !new.is_array()).then(|| new.clone());
            push(
                problems,
                rule.reason,
                at,
                value,
                self.message(rule, values.ok().as_ref().map(|values| &values[..]), budget),
            );
        }
    }

    fn values<'a>(
        &'a self,
        new: &'a Value,
        old: Option<&'a Value>,
        optional: bool,
    ) -> Result<[Val<'a>; 2], Error> {
        let before = old.map(|old| Val::typed(old, &self.kind)).transpose()?;
        let before = match (before, optional) {
            (Some(value), true) => Val::some(value),
            (None, true) => Val::Optional(None),
            (Some(value), false) => value,
            (None, false) => Val::Null,
        };
        Ok([Val::typed(new, &self.kind)?, before])
    }

    fn message<'a>(&self, rule: &'a Rule, values: Option<&[Val<'a>]>, budget: &mut Budget) -> String {
        if let (Some(program), Some(values)) = (&rule.message_program, values)
            && let Ok(Val::Text(text)) = program.run(&values, None, budget)
        {
            let text = text.trim();
            if !text.is_empty() && !text.contains('\n') && text.len() <= 5 * 1024 {
                return text.to_owned();
            }
        }
        if rule.message.is_empty() {
            format!("failed rule: {}", rule.source.trim())
        } else {
            rule.message.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.metadata.name != 'bad'", "message": "not this name"}],
            "properties": {"spec": {"type": "object",
                "x-kubernetes-validations": [
                    {"rule": "self.min <= self.max", "messageExpression": "'min %d is above max'.format([self.min])", "fieldPath": ".min"},
                    {"rule": "oldSelf.max <= self.max", "message": "max may not shrink", "reason": "FieldValueForbidden"},
                    {"rule": "!oldSelf.hasValue() || oldSelf.value().min == self.min", "optionalOldSelf": true, "message": "min is fixed"}],
                "properties": {"min": {"type": "integer"}, "max": {"type": "integer"},
                    "tags": {"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 10,
                        "x-kubernetes-validations": [{"rule": "self.startsWith('t')"}]}},
                    "parts": {"type": "array", "maxItems": 10, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                        "items": {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer",
                            "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "parts may only grow"}]}}}}}}}})
    }

    fn judged(new: Value, old: Option<Value>) -> Vec<String> {
        let mut problems = Problems::new();
        let validator = compile(&schema(), "s", Costs::All, &mut problems).expect("has rules");
        assert!(problems.is_empty(), "{problems:?}");
        validator.validate(&new, old.as_ref(), &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn dear_rules_are_told_with_what_made_the_whole_too_dear() {
        let text = json!({"type": "string"});
        let open = |rules: Value| {
            json!({"type": "object", "properties": {"l": {"type": "array", "items": {"type": "object",
            "x-kubernetes-validations": rules, "properties": {"s": text}}}}})
        };
        let told = |rules: Value, costs: Costs| {
            let mut problems = Problems::new();
            check(&open(rules), "s", costs, &mut problems);
            problems.iter().map(|problem| (problem.path.clone(), problem.detail.clone())).collect::<Vec<_>>()
        };
        let at = |field: &str| format!("s.properties[l].items.x-kubernetes-validations[0].{field}");
        // An unbounded list holds a million of these, each of which may cost 314577.
        let dear = json!([{"rule": "self.s.contains('abc')"}]);
        let found = told(dear.clone(), Costs::All);
        assert_eq!(
            found.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(),
            [at("rule"), at("rule"), "s".to_owned()]
        );
        assert!(
            found[0].1.starts_with("estimated rule cost exceeds budget by factor of more than 100x"),
            "{found:?}"
        );
        assert_eq!(
            found[1].1,
            "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        );
        assert_eq!(told(dear.clone(), Costs::Total).len(), 2, "accepted before");
        assert_eq!(told(dear, Costs::None).len(), 0, "stored");
        // What a message costs is counted once, since there is one of it.
        let message = json!([{"rule": "self.s != 'a'", "messageExpression": "'bad: ' + self.s"}]);
        assert_eq!(told(message, Costs::All), []);
        let message =
            json!([{"rule": "self.s != 'a'", "messageExpression": "'bad: ' + string(size(self.s))"}]);
        assert_eq!(told(message, Costs::All)[0].0, at("messageExpression"));
    }

    #[test]
    fn rules_judge_values_and_transitions() {
        let object = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
        let good = json!({"min": 1, "max": 2, "tags": ["t1"]});
        assert_eq!(judged(object(good.clone()), None), [""; 0]);
        assert_eq!(
            judged(json!({"metadata": {"name": "bad"}}), None),
            ["<nil>: Invalid value: not this name"]
        );
        let table = [
            (json!({"min": 3, "max": 2}), None, vec!["spec.min: Invalid value: min 3 is above max"]),
            (json!({"min": 1, "max": 1}), Some(good.clone()), vec!["spec: Forbidden: max may not shrink"]),
            (json!({"min": 2, "max": 2}), Some(good.clone()), vec!["spec: Invalid value: min is fixed"]),
            (
                json!({"min": 1, "max": 2, "tags": ["t", "x"]}),
                None,
                vec!["spec.tags[1]: Invalid value: \"x\": failed rule: self.startsWith('t')"],
            ),
            (
                json!({"min": 1, "max": 2, "parts": [{"name": "b", "size": 9}, {"name": "a", "size": 1}]}),
                Some(json!({"min": 1, "max": 2, "parts": [{"name": "a", "size": 2}]})),
                vec!["spec.parts[1].size: Invalid value: 1: parts may only grow"],
            ),
            (
                json!({"max": 2}),
                None,
                vec![
                    "spec: Invalid value: \"object\": no such key: min evaluating rule: self.min <= self.max",
                ],
            ),
        ];
        for (new, old, wanted) in table {
            assert_eq!(judged(object(new.clone()), old.map(object)), wanted, "{new}");
        }
    }

    #[test]
    fn bad_rules_are_refused_with_their_place() {
        let table = [
            (
                json!([{"rule": "self.nope"}]),
                "s.properties[spec].x-kubernetes-validations[0].rule: Invalid value",
                "undefined field 'nope'",
            ),
            (
                json!([{"rule": ""}]),
                "s.properties[spec].x-kubernetes-validations[0].rule: Required value",
                "rule is not specified",
            ),
            (
                json!([{"rule": "self.max"}]),
                "s.properties[spec].x-kubernetes-validations[0].rule: Invalid value",
                "must evaluate to bool",
            ),
            (
                json!([{"rule": "true", "messageExpression": "1"}]),
                "s.properties[spec].x-kubernetes-validations[0].messageExpression",
                "must evaluate to string",
            ),
            (
                json!([{"rule": "true", "fieldPath": ".nope"}]),
                "s.properties[spec].x-kubernetes-validations[0].fieldPath",
                "must be a valid path",
            ),
            (
                json!([{"rule": "true", "optionalOldSelf": true}]),
                "s.properties[spec].x-kubernetes-validations[0].optionalOldSelf",
                "may not be set",
            ),
        ];
        for (rules, path, text) in table {
            let mut open = schema();
            open["properties"]["spec"]["x-kubernetes-validations"] = rules.clone();
            let mut problems = Problems::new();
            check(&open, "s", Costs::All, &mut problems);
            let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(
                found.len() == 1 && found[0].starts_with(path) && found[0].contains(text),
                "{rules}: {found:?}"
            );
        }
        let mut open = schema();
        let tags = &mut open["properties"]["spec"]["properties"]["tags"];
        tags["items"]["x-kubernetes-validations"] = json!([{"rule": "self == oldSelf"}]);
        let mut problems = Problems::new();
        check(&open, "s", Costs::All, &mut problems);
        assert!(problems.summary().contains("uncorrelatable portion"), "{problems:?}");
        open["properties"]["spec"]["x-kubernetes-validations"] =
            json!([{"rule": "self.tags.all(a, self.tags.all(b, a != b))"}]);
        let tags = &mut open["properties"]["spec"]["properties"]["tags"];
        *tags = json!({"type": "array", "items": {"type": "string"}});
        let mut problems = Problems::new();
        check(&open, "s", Costs::All, &mut problems);
        assert!(
            problems.summary().contains("estimated rule cost exceeds budget by factor of more than 100x"),
            "{problems:?}"
        );
    }
}
