//! Questions to the authorizer: `authorizer.group('').resource('pods').namespace('a').check('create').allowed()`.

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{Check, Opaque, Val};

const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const PATH: &str = "kubernetes.authorization.PathCheck";
const GROUP: &str = "kubernetes.authorization.GroupCheck";
const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";
const ON_RESOURCE: &[&str] =
    &["kubernetes.authorization.ResourceCheck.(string)->kubernetes.authorization.ResourceCheck"];

/// The functions.
pub const TABLE: &[Entry] = &[
    ("path", path, &["kubernetes.authorization.Authorizer.(string)->kubernetes.authorization.PathCheck"]),
    ("group", group, &["kubernetes.authorization.Authorizer.(string)->kubernetes.authorization.GroupCheck"]),
    (
        "serviceAccount",
        service_account,
        &["kubernetes.authorization.Authorizer.(string,string)->kubernetes.authorization.Authorizer"],
    ),
    (
        "resource",
        resource,
        &["kubernetes.authorization.GroupCheck.(string)->kubernetes.authorization.ResourceCheck"],
    ),
    ("subresource", subresource, ON_RESOURCE),
    ("namespace", namespace, ON_RESOURCE),
    ("name", name, ON_RESOURCE),
    ("fieldSelector", field_selector, ON_RESOURCE),
    ("labelSelector", label_selector, ON_RESOURCE),
    (
        "check",
        check,
        &[
            "kubernetes.authorization.PathCheck.(string)->kubernetes.authorization.Decision",
            "kubernetes.authorization.ResourceCheck.(string)->kubernetes.authorization.Decision",
        ],
    ),
    ("allowed", allowed, &["kubernetes.authorization.Decision.()->bool"]),
    ("reason", reason, &["kubernetes.authorization.Decision.()->string"]),
    ("errored", errored, &["kubernetes.authorization.Decision.()->bool"]),
    ("error", error, &["kubernetes.authorization.Decision.()->string"]),
];

/// The authorizer itself.
pub fn authorizer<'a>() -> Val<'a> {
    Val::opaque(Opaque::Check(AUTHORIZER, Check::default()))
}

/// A check of a resource that the request is about.
pub fn resource_check<'a>(check: Check) -> Val<'a> {
    Val::opaque(Opaque::Check(RESOURCE, check))
}

/// A question so far, copied and made longer. That costs one, however long it is.
fn next<'a>(
    run: &mut Run<'_>,
    args: &[Val<'a>],
    from: &str,
    to: &'static str,
    change: impl FnOnce(&mut Check, String),
) -> Outcome<'a> {
    let [Val::Opaque(opaque), Val::Text(text)] = args else { return Err(Error::NoOverload) };
    match &**opaque {
        Opaque::Check(kind, check) if *kind == from => {
            run.allow(check.len().saturating_add(text.len()))?;
            let mut check = check.clone();
            change(&mut check, text.to_string());
            Ok(Val::opaque(Opaque::Check(to, check)))
        }
        _ => Err(Error::NoOverload),
    }
}

fn path<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    if matches!(args.get(1), Some(Val::Text(text)) if text.is_empty()) {
        return Err(Error::invalid("path must not be empty"));
    }
    next(run, args, AUTHORIZER, PATH, |check, text| check.path = Some(text))
}

fn group<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, AUTHORIZER, GROUP, |check, text| check.group = text)
}

fn service_account<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [own, Val::Text(namespace), Val::Text(name)] = args else { return Err(Error::NoOverload) };
    if !apimachinery::names::is_dns1123_label(namespace).is_empty() {
        return Err(Error::invalid(format!("Invalid service account namespace {:?}", &**namespace)));
    }
    if !apimachinery::names::is_dns1123_subdomain(name).is_empty() {
        return Err(Error::invalid(format!("Invalid service account name {:?}", &**name)));
    }
    let account = (namespace.to_string(), name.to_string());
    next(run, &[own.clone(), args[1].clone()], AUTHORIZER, AUTHORIZER, |check, _| {
        check.service_account = Some(account);
    })
}

fn resource<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, GROUP, RESOURCE, |check, text| check.resource = text)
}

fn subresource<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, RESOURCE, RESOURCE, |check, text| check.subresource = text)
}

fn namespace<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, RESOURCE, RESOURCE, |check, text| check.namespace = text)
}

fn name<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, RESOURCE, RESOURCE, |check, text| check.name = text)
}

fn field_selector<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, RESOURCE, RESOURCE, |check, text| check.field_selector = text)
}

fn label_selector<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    next(run, args, RESOURCE, RESOURCE, |check, text| check.label_selector = text)
}

fn check<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    run.charge(350_000)?;
    let [Val::Opaque(opaque), Val::Text(verb)] = args else { return Err(Error::NoOverload) };
    let Opaque::Check(kind, check) = &**opaque else { return Err(Error::NoOverload) };
    if *kind != PATH && *kind != RESOURCE {
        return Err(Error::NoOverload);
    }
    let mut check = check.clone();
    check.verb = verb.to_string();
    let authorizer = run.authorizer.ok_or_else(|| Error::invalid("no authorizer is available here"))?;
    Ok(Val::opaque(match authorizer.check(&check) {
        Ok((allowed, reason)) => Opaque::Decision { allowed, reason, error: String::new() },
        Err(error) => Opaque::Decision { allowed: false, reason: String::new(), error },
    }))
}

fn decision<T>(args: &[Val<'_>], read: impl FnOnce(bool, &str, &str) -> T) -> Result<T, Error> {
    let [Val::Opaque(opaque)] = args else { return Err(Error::NoOverload) };
    match &**opaque {
        Opaque::Decision { allowed, reason, error } => Ok(read(*allowed, reason, error)),
        _ => Err(Error::NoOverload),
    }
}

fn allowed<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    decision(args, |allowed, _, _| Val::Bool(allowed))
}

fn reason<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    run.allow(decision(args, |_, reason, _| reason.len())?)?;
    decision(args, |_, reason, _| reason.to_owned().into())
}

fn errored<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    decision(args, |_, _, error| Val::Bool(!error.is_empty()))
}

fn error<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    run.allow(decision(args, |_, _, error| error.len())?)?;
    decision(args, |_, _, error| error.to_owned().into())
}
