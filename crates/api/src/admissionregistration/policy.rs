//! Admission policies as programs: compiled when the API judges them, when the server uses them, and with the types of
//! the matched kinds when they are type-checked.
//!
//! Every expression of a policy sees the same variables by the same index ([`Slot`]); `variables.x` follow after them
//! and are run when first asked for, at most once per request.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};

use apimachinery::meta::{get_list, get_str};
use cel::functions::{Outcome, Run};
use cel::{Activation, Env, Error, Program, Type, Val};
use serde_json::Value;

/// Where a declared variable stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Slot {
    Object = 0,
    OldObject = 1,
    Request = 2,
    Namespace = 3,
    Params = 4,
    Authorizer = 5,
    RequestResource = 6,
}

/// Number of [`Slot`]s.
pub const SLOTS: usize = 7;

/// The type of `namespaceObject`.
pub fn namespace_type() -> &'static Type {
    static TYPE: OnceLock<Type> = OnceLock::new();
    TYPE.get_or_init(|| {
        let texts = Type::map(Type::String);
        let condition = Type::object(
            "kubernetes.NamespaceCondition",
            &[
                ("status", Type::String),
                ("type", Type::String),
                ("lastTransitionTime", Type::Timestamp),
                ("message", Type::String),
                ("reason", Type::String),
            ],
        );
        let metadata = Type::object(
            "kubernetes.NamespaceMetadata",
            &[
                ("name", Type::String),
                ("generateName", Type::String),
                ("namespace", Type::String),
                ("labels", texts.clone()),
                ("annotations", texts),
                ("UID", Type::String),
                ("creationTimestamp", Type::Timestamp),
                ("deletionGracePeriodSeconds", Type::Int),
                ("deletionTimestamp", Type::Timestamp),
                ("generation", Type::Int),
                ("resourceVersion", Type::String),
                ("finalizers", Type::list(Type::String)),
            ],
        );
        let spec = Type::object("kubernetes.NamespaceSpec", &[("finalizers", Type::list(Type::String))]);
        let status = Type::object(
            "kubernetes.NamespaceStatus",
            &[("conditions", Type::list(condition)), ("phase", Type::String)],
        );
        Type::object("kubernetes.Namespace", &[("metadata", metadata), ("spec", spec), ("status", status)])
    })
}

/// The type of `request`.
fn request_type() -> &'static Type {
    static TYPE: OnceLock<Type> = OnceLock::new();
    TYPE.get_or_init(|| {
        let three = |name: &str, last: &str| {
            Type::object(name, &[("group", Type::String), ("version", Type::String), (last, Type::String)])
        };
        let kind = three("kubernetes.GroupVersionKind", "kind");
        let resource = three("kubernetes.GroupVersionResource", "resource");
        let user = Type::object(
            "kubernetes.UserInfo",
            &[
                ("username", Type::String),
                ("uid", Type::String),
                ("groups", Type::list(Type::String)),
                ("extra", Type::map(Type::list(Type::String))),
            ],
        );
        Type::object(
            "kubernetes.AdmissionRequest",
            &[
                ("kind", kind.clone()),
                ("resource", resource.clone()),
                ("subResource", Type::String),
                ("requestKind", kind),
                ("requestResource", resource),
                ("requestSubResource", Type::String),
                ("name", Type::String),
                ("namespace", Type::String),
                ("operation", Type::String),
                ("userInfo", user),
                ("dryRun", Type::Bool),
                ("options", Type::Dyn),
            ],
        )
    })
}

/// What is known about the objects that a policy sees.
#[derive(Clone, Debug)]
pub struct Types {
    /// Type of `object` and `oldObject`.
    pub object: Type,
    /// Type of `params`; `None` if there are none.
    pub params: Option<Type>,
}

impl Types {
    /// Nothing is known: objects are judged when the expression runs.
    pub fn dynamic(has_params: bool) -> Self {
        Self { object: Type::Dyn, params: has_params.then_some(Type::Dyn) }
    }

    /// The declarations; a slot that is not there has a name that nothing can say.
    fn env(&self, authorizer: bool) -> Env {
        let or_hidden = |there: bool, name: &'static str| if there { name } else { "" };
        Env::new()
            .with("object", self.object.clone())
            .with("oldObject", self.object.clone())
            .with("request", request_type().clone())
            .with("namespaceObject", namespace_type().clone())
            .with(or_hidden(self.params.is_some(), "params"), self.params.clone().unwrap_or(Type::Dyn))
            .with(or_hidden(authorizer, "authorizer"), Type::Opaque("kubernetes.authorization.Authorizer"))
            .with(
                or_hidden(authorizer, "authorizer.requestResource"),
                Type::Opaque("kubernetes.authorization.ResourceCheck"),
            )
    }
}

/// A match condition.
#[derive(Debug)]
pub struct Condition {
    /// Its name.
    pub name: String,
    /// What has to hold.
    pub program: Program,
}

/// A validation.
#[derive(Debug)]
pub struct Validation {
    /// What has to hold.
    pub program: Program,
    /// What is said if it does not.
    pub message: String,
    /// Says it better.
    pub message_program: Option<Program>,
    /// The reason of the refusal.
    pub reason: String,
}

/// A mutation.
#[derive(Debug)]
pub enum Mutation {
    /// Gives an `Object` that is merged as by server-side apply.
    Apply(Program),
    /// Gives a list of `JSONPatch`.
    Patch(Program),
}

/// A policy's expressions.
#[derive(Debug, Default)]
pub struct Compiled {
    /// All have to hold, or the policy says nothing.
    pub conditions: Vec<Condition>,
    /// Named expressions, each of which may use those before it.
    pub variables: Vec<(String, Arc<Program>)>,
    /// Validations, of validating policies.
    pub validations: Vec<Validation>,
    /// Audit annotations: key and value.
    pub annotations: Vec<(String, Program)>,
    /// Mutations, of mutating policies.
    pub mutations: Vec<Mutation>,
}

/// An expression that does not compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Field path below the object.
    pub path: String,
    /// The expression.
    pub expression: String,
    /// What is wrong.
    pub message: String,
}

/// Compiles match conditions, which policies and webhooks share. `types` say whether there are params.
pub fn conditions(list: &[Value], types: &Types, path: &str, failures: &mut Vec<Failure>) -> Vec<Condition> {
    let env = types.env(true);
    let mut out = Vec::new();
    for (index, condition) in list.iter().enumerate() {
        let source = get_str(condition, "expression");
        let at = format!("{path}[{index}].expression");
        if let Some(program) = compile_one(&env, source.trim(), &[Type::Bool], at, failures) {
            out.push(Condition { name: get_str(condition, "name").to_owned(), program });
        }
    }
    out
}

fn compile_one(
    env: &Env,
    source: &str,
    wanted: &[Type],
    path: String,
    failures: &mut Vec<Failure>,
) -> Option<Program> {
    if source.trim().is_empty() {
        return None; // said by the rules of the kind
    }
    match env.compile_as(source, wanted) {
        Ok(program) => Some(program),
        Err(message) => {
            failures.push(Failure { path, expression: source.to_owned(), message });
            None
        }
    }
}

/// Compiles the `spec` of a policy. What fails is left out and listed.
pub fn compile(spec: &Value, types: &Types) -> (Compiled, Vec<Failure>) {
    let mut failures = Vec::new();
    let mut compiled = Compiled {
        conditions: conditions(
            get_list(spec, "matchConditions"),
            types,
            "spec.matchConditions",
            &mut failures,
        ),
        ..Compiled::default()
    };
    let mut env = types.env(true);
    let mut message_env = types.env(false);
    for (index, variable) in get_list(spec, "variables").iter().enumerate() {
        let at = format!("spec.variables[{index}].expression");
        let (name, source) = (get_str(variable, "name"), get_str(variable, "expression"));
        let program = compile_one(&env, source, &[Type::Dyn], at, &mut failures);
        let kind = program.as_ref().map_or(Type::Error, |program| program.kind().clone());
        let full = format!("variables.{name}");
        env.declare(&full, kind.clone());
        message_env.declare(&full, kind);
        if let Some(program) = program {
            compiled.variables.push((name.to_owned(), Arc::new(program)));
        }
    }
    for (index, validation) in get_list(spec, "validations").iter().enumerate() {
        let at = format!("spec.validations[{index}]");
        let text = |field: &str| get_str(validation, field).to_owned();
        let program =
            compile_one(&env, &text("expression"), &[Type::Bool], format!("{at}.expression"), &mut failures);
        let message_program = compile_one(
            &message_env,
            &text("messageExpression"),
            &[Type::String],
            format!("{at}.messageExpression"),
            &mut failures,
        );
        if let Some(program) = program {
            let (message, reason) = (text("message"), text("reason"));
            compiled.validations.push(Validation { program, message, message_program, reason });
        }
    }
    for (index, annotation) in get_list(spec, "auditAnnotations").iter().enumerate() {
        let at = format!("spec.auditAnnotations[{index}].valueExpression");
        let source = get_str(annotation, "valueExpression");
        match compile_one(&env, source.trim(), &[Type::String, Type::Null], at, &mut failures) {
            Some(program) => compiled.annotations.push((get_str(annotation, "key").to_owned(), program)),
            // It is shown as it was written.
            None => failures.last_mut().into_iter().for_each(|last| {
                if last.expression == source.trim() {
                    last.expression = source.to_owned();
                }
            }),
        }
    }
    let patches = env.with_patches();
    for (index, mutation) in get_list(spec, "mutations").iter().enumerate() {
        let at = format!("spec.mutations[{index}]");
        let apply = get_str(mutation, "applyConfiguration.expression").trim();
        let wanted = [Type::named("Object")];
        let path = format!("{at}.applyConfiguration.expression");
        if let Some(program) = compile_one(&patches, apply, &wanted, path, &mut failures) {
            compiled.mutations.push(Mutation::Apply(program));
        }
        let patch = get_str(mutation, "jsonPatch.expression").trim();
        let wanted = [Type::list(Type::named("JSONPatch"))];
        let path = format!("{at}.jsonPatch.expression");
        if let Some(program) = compile_one(&patches, patch, &wanted, path, &mut failures) {
            compiled.mutations.push(Mutation::Patch(program));
        }
    }
    (compiled, failures)
}

/// What the checker says about a policy's validations when the objects have the types of the kinds that it matches:
/// field and warning. Each kind is `apps/v1, Kind=Deployment` and its type.
pub fn type_check(spec: &Value, kinds: &[(String, Type)]) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = Vec::new();
    for (name, object) in kinds {
        let params = spec.get("paramKind").map(|_| Type::Dyn);
        let (_, failures) = compile(spec, &Types { object: object.clone(), params });
        for failure in failures.iter().filter(|failure| failure.path.starts_with("spec.validations")) {
            let Some(text) = failure.message.strip_prefix("compilation failed: ") else { continue };
            let text = format!("{name}: {text}\n");
            match found.iter_mut().find(|(path, _)| *path == failure.path) {
                Some((_, warning)) => warning.push_str(&text),
                None => found.push((failure.path.clone(), text)),
            }
        }
    }
    found
}

/// A variable may be made from another one, and that from the next, so many times: each takes room on the stack.
const CHAIN: usize = 20;

/// The values of one request, and of the variables that have been asked for.
pub struct Inputs<'a> {
    values: [Val<'a>; SLOTS],
    variables: &'a [(String, Arc<Program>)],
    known: RefCell<Vec<Option<Outcome<'a>>>>,
    /// How many variables are being made at this moment.
    chain: Cell<usize>,
}

impl<'a> Inputs<'a> {
    /// Values by [`Slot`].
    pub fn new(values: [Val<'a>; SLOTS], variables: &'a [(String, Arc<Program>)]) -> Self {
        Self { values, variables, known: RefCell::new(vec![None; variables.len()]), chain: Cell::new(0) }
    }
}

impl<'a> Activation<'a> for Inputs<'a> {
    fn get(&self, index: usize, run: &mut Run<'_>) -> Outcome<'a> {
        let Some(variable) = index.checked_sub(SLOTS) else {
            return Ok(self.values[index].clone());
        };
        if let Some(Some(known)) = self.known.borrow().get(variable) {
            return known.clone();
        }
        let (name, program) = self.variables.get(variable).ok_or(Error::NoOverload)?;
        if self.chain.get() >= CHAIN {
            return Err(Error::invalid(format!("more than {CHAIN} variables are made from each other")));
        }
        self.chain.set(self.chain.get() + 1);
        let outcome = program.run_within(self, run);
        self.chain.set(self.chain.get() - 1);
        let outcome = outcome.map_err(|error| match error {
            Error::CostLimit => Error::CostLimit,
            error => Error::invalid(format!("composited variable {name:?} fails to evaluate: {error}")),
        });
        if let Some(slot) = self.known.borrow_mut().get_mut(variable) {
            *slot = Some(outcome.clone());
        }
        outcome
    }
}

/// Whether all conditions hold. One that does not hold counts more than one that fails.
pub fn holds<'a>(
    conditions: &'a [Condition],
    inputs: &Inputs<'a>,
    authorizer: Option<&dyn cel::Authorizer>,
) -> Result<bool, String> {
    let mut budget = cel::Budget::new(cel::TOTAL_LIMIT / 4);
    let mut failed: Vec<String> = Vec::new();
    for condition in conditions {
        match condition.program.run(inputs, authorizer, &mut budget) {
            Ok(Val::Bool(true)) => {}
            Ok(_) => return Ok(false),
            Err(error) => {
                failed.push(format!("expression '{}' resulted in error: {error}", condition.program.source()))
            }
        }
    }
    if failed.is_empty() { Ok(true) } else { Err(failed.join(", ")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_chain_of_variables_is_an_error_and_no_end_of_the_stack() {
        let outcome = |count: usize| {
            let mut variables = vec![json!({"name": "v0", "expression": "1"})];
            variables.extend((1..count).map(
                |n| json!({"name": format!("v{n}"), "expression": format!("variables.v{} + 1", n - 1)}),
            ));
            let last = format!("variables.v{} == {count}", count - 1);
            let spec = json!({"variables": variables, "validations": [{"expression": last}]});
            let (compiled, failures) = compile(&spec, &Types::dynamic(false));
            assert_eq!(failures, []);
            let inputs = Inputs::new([const { Val::Null }; SLOTS], &compiled.variables);
            let mut budget = cel::Budget::new(cel::TOTAL_LIMIT);
            let program = &compiled.validations[0].program;
            program.run(&inputs, None, &mut budget).map(|value| matches!(value, Val::Bool(true)))
        };
        assert!(matches!(outcome(CHAIN), Ok(true)));
        let failed = outcome(3000).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(failed.contains("more than 20 variables"), "{failed}");
    }

    #[test]
    fn expressions_of_a_policy_compile_with_their_variables() {
        let spec = json!({
            "matchConditions": [{"name": "a", "expression": "request.operation == 'CREATE'"}],
            "variables": [{"name": "r", "expression": "object.spec.replicas"}, {"name": "odd", "expression": "variables.r % 2 == 1"}],
            "validations": [{"expression": "variables.odd", "messageExpression": "'got ' + string(variables.r)"},
                {"expression": "authorizer.requestResource.check('x').allowed()"}],
            "auditAnnotations": [{"key": "k", "valueExpression": "string(variables.r)"}],
        });
        let (compiled, failures) = compile(&spec, &Types::dynamic(false));
        assert_eq!(failures, []);
        let object = json!({"spec": {"replicas": 3}});
        let request = json!({"operation": "CREATE"});
        let mut values = [const { Val::Null }; SLOTS];
        values[Slot::Object as usize] = Val::json(&object);
        values[Slot::Request as usize] = Val::json(&request);
        let inputs = Inputs::new(values, &compiled.variables);
        assert_eq!(holds(&compiled.conditions, &inputs, None), Ok(true));
        let mut budget = cel::Budget::default();
        assert!(matches!(
            compiled.validations[0].program.run(&inputs, None, &mut budget),
            Ok(Val::Bool(true))
        ));
    }

    #[test]
    fn what_does_not_compile_is_told_with_its_path() {
        let spec = json!({
            "matchConditions": [{"name": "a", "expression": "variables.x"}],
            "validations": [{"expression": "object.a + 1"}, {"expression": "true", "messageExpression": "authorizer.path('/')"},
                {"expression": "params.x == 1"}],
        });
        let (_, failures) = compile(&spec, &Types::dynamic(false));
        let paths: Vec<&str> = failures.iter().map(|failure| failure.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "spec.matchConditions[0].expression",
                "spec.validations[0].expression",
                "spec.validations[1].messageExpression",
                "spec.validations[2].expression"
            ]
        );
        assert!(
            failures[0].message.starts_with("compilation failed: ERROR: <input>:1:"),
            "{}",
            failures[0].message
        );
        assert_eq!(failures[1].message, "must evaluate to bool but got int");
    }
}
