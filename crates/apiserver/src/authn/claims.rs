//! Expressions of an authentication file: what makes a user of a token's claims, and what claims and user must fulfil.
//!
//! Two worlds: mappings and claim rules see `claims`, user rules see `user`. Numbers among the claims are doubles, as
//! they are for upstream. Everything that fails refuses the token.

use cel::{Env, Program, Type, Val};
use serde_json::{Value, json};

use crate::user::UserInfo;

/// A condition and what is said if it does not hold.
#[derive(Debug)]
pub struct Rule {
    /// What has to hold.
    pub program: Program,
    /// Said otherwise.
    pub message: String,
}

/// The expressions of one issuer.
#[derive(Debug, Default)]
pub struct Expressions {
    /// Gives the name.
    pub username: Option<Program>,
    /// Gives the groups.
    pub groups: Option<Program>,
    /// Gives the uid.
    pub uid: Option<Program>,
    /// Give further fields by key.
    pub extra: Vec<(String, Program)>,
    /// What the claims must fulfil.
    pub claim_rules: Vec<Rule>,
    /// What the user must fulfil.
    pub user_rules: Vec<Rule>,
}

/// Why expressions refuse a token.
#[derive(Debug, thiserror::Error)]
pub enum ClaimsError {
    /// It cannot be run on these claims.
    #[error("error evaluating {part}: expression '{expression}' resulted in error: {why}")]
    Failed {
        /// What it is for.
        part: &'static str,
        /// Which.
        expression: String,
        /// Why.
        why: String,
    },
    /// It gives something of another type.
    #[error("error evaluating {part}: expression must return {wanted}")]
    Kind {
        /// What it is for.
        part: &'static str,
        /// What it should give.
        wanted: &'static str,
    },
    /// There is no name.
    #[error("the user name is empty")]
    NoName,
    /// A rule is not fulfilled.
    #[error("error evaluating {part}: validation expression '{expression}' failed: {message}")]
    Rule {
        /// What it is for.
        part: &'static str,
        /// Which.
        expression: String,
        /// What its author says.
        message: String,
    },
}

/// The type of `user`.
fn user_type() -> Type {
    Type::object(
        "kubernetes.UserInfo",
        &[
            ("username", Type::String),
            ("uid", Type::String),
            ("groups", Type::list(Type::String)),
            ("extra", Type::map(Type::list(Type::String))),
        ],
    )
}

/// Compiles a mapping: it may give anything, what it gives is judged when it runs.
pub fn compile_mapping(source: &str) -> Result<Program, String> {
    claims_env().compile_as(source, &[Type::Dyn])
}

/// Compiles a rule about claims.
pub fn compile_claim_rule(source: &str) -> Result<Program, String> {
    claims_env().compile_as(source, &[Type::Bool])
}

/// Compiles a rule about the user.
pub fn compile_user_rule(source: &str) -> Result<Program, String> {
    Env::new().with("user", user_type()).compile_as(source, &[Type::Bool])
}

fn claims_env() -> Env {
    Env::new().with("claims", Type::map(Type::Dyn))
}

/// Whether an expression about claims looks at one of them by name.
pub fn uses_claim(program: &Program, claim: &str) -> bool {
    let mut found = false;
    program.root().walk(&mut |expr| {
        if let cel::ast::Kind::Select { operand, field, .. } = &expr.kind {
            found |= field == claim && matches!(operand.kind, cel::ast::Kind::Global(0));
        }
    });
    found
}

/// The claims as expressions see them.
pub fn as_doubles(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => items.iter().map(as_doubles).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), as_doubles(value))).collect(),
        other => other.clone(),
    }
}

impl Expressions {
    /// Whether claims are looked at at all.
    pub fn need_claims(&self) -> bool {
        self.username.is_some()
            || self.groups.is_some()
            || self.uid.is_some()
            || !self.extra.is_empty()
            || !self.claim_rules.is_empty()
    }

    /// Sets what the mappings give. `claims` are [`as_doubles`].
    pub fn map(&self, claims: &Value, user: &mut UserInfo) -> Result<(), ClaimsError> {
        if let Some(program) = &self.username {
            user.name = text("username claim expression", program, claims)?;
            if user.name.is_empty() {
                return Err(ClaimsError::NoName);
            }
        }
        if let Some(program) = &self.groups {
            user.groups = texts("group claim expression", program, claims)?;
        }
        if let Some(program) = &self.uid {
            user.uid = text("uid claim expression", program, claims)?;
        }
        for (key, program) in &self.extra {
            let values = texts("extra claim expression", program, claims)?;
            if !values.is_empty() {
                user.extra.insert(key.clone(), values);
            }
        }
        Ok(())
    }

    /// Judges claims and user.
    pub fn judge(&self, claims: &Value, user: &UserInfo) -> Result<(), ClaimsError> {
        let part = "claim validation expression";
        self.claim_rules.iter().try_for_each(|rule| rule.judge(part, claims))?;
        if self.user_rules.is_empty() {
            return Ok(());
        }
        let user =
            json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
        self.user_rules.iter().try_for_each(|rule| rule.judge("user info validation rule", &user))
    }
}

impl Rule {
    fn judge(&self, part: &'static str, value: &Value) -> Result<(), ClaimsError> {
        match run(part, &self.program, value)? {
            Value::Bool(true) => Ok(()),
            _ => Err(ClaimsError::Rule {
                part,
                expression: self.program.source().to_owned(),
                message: self.message.clone(),
            }),
        }
    }
}

fn run(part: &'static str, program: &Program, value: &Value) -> Result<Value, ClaimsError> {
    let values = [Val::json(value)];
    let failed = |why: cel::Error| ClaimsError::Failed {
        part,
        expression: program.source().to_owned(),
        why: why.to_string(),
    };
    let outcome = program.run(&&values[..], None, &mut cel::Budget::default()).map_err(failed)?;
    outcome.to_json().map_err(failed)
}

fn text(part: &'static str, program: &Program, claims: &Value) -> Result<String, ClaimsError> {
    match run(part, program, claims)? {
        Value::String(text) => Ok(text),
        _ => Err(ClaimsError::Kind { part, wanted: "a string" }),
    }
}

/// A string or a list of them; empty ones and null are left out.
fn texts(part: &'static str, program: &Program, claims: &Value) -> Result<Vec<String>, ClaimsError> {
    let wrong = || ClaimsError::Kind { part, wanted: "a string or a list of strings" };
    let items = match run(part, program, claims)? {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        one => vec![one],
    };
    let mut found = Vec::new();
    for item in items {
        match item {
            Value::String(text) if text.is_empty() => {}
            Value::String(text) => found.push(text),
            _ => return Err(wrong()),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(program: Result<Program, String>, message: &str) -> Rule {
        Rule { program: program.unwrap(), message: message.to_owned() }
    }

    #[test]
    fn claims_become_users_by_expressions() {
        let expressions = Expressions {
            username: compile_mapping("'x:' + claims.sub").ok(),
            groups: compile_mapping("claims.roles.split(',')").ok(),
            uid: compile_mapping("string(int(claims.id))").ok(),
            extra: vec![("example.com/t".into(), compile_mapping("claims.?tenant.orValue('')").unwrap())],
            claim_rules: vec![rule(compile_claim_rule("claims.exp - claims.iat <= 3600.0"), "too long")],
            user_rules: vec![rule(
                compile_user_rule("!user.username.startsWith('system:') && size(user.groups) < 3"),
                "reserved",
            )],
        };
        let asked = |claims: Value| {
            let mut user = UserInfo::default();
            let claims = as_doubles(&claims);
            expressions.map(&claims, &mut user)?;
            expressions.judge(&claims, &user).map(|()| user)
        };
        let good = json!({"sub": "ann", "roles": "a,,b", "id": 7, "tenant": "t1", "exp": 100, "iat": 1});
        let user = asked(good.clone()).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("x:ann", "7"));
        assert_eq!(user.groups, ["a", "b"]);
        assert_eq!(user.extra["example.com/t"], ["t1"]);
        for (claim, value, want) in [
            ("exp", json!(9999), "too long"),
            ("roles", json!("a,b,c"), "reserved"),
            ("roles", json!(5), "group claim expression"),
            ("sub", json!(5), "username claim expression"),
        ] {
            let mut bad = good.clone();
            bad[claim] = value;
            let said = asked(bad).unwrap_err().to_string();
            assert!(said.contains(want), "{claim}: {said}");
        }
        let mut without = good;
        without.as_object_mut().unwrap().remove("tenant");
        assert!(asked(without).unwrap().extra.is_empty());
    }

    #[test]
    fn expressions_are_checked_when_they_are_compiled() {
        for (program, want) in [
            (compile_claim_rule("claims.sub"), "must evaluate to bool"),
            (compile_claim_rule("user.username == 'a'"), "undeclared"),
            (compile_user_rule("user.nobody == 'a'"), "nobody"),
            (compile_mapping("claims."), "compilation failed"),
        ] {
            let said = program.unwrap_err();
            assert!(said.contains(want), "{said}");
        }
        let program = compile_mapping("claims.?email.orValue('')").unwrap();
        assert!(uses_claim(&program, "email") && !uses_claim(&program, "email_verified"));
    }
}
