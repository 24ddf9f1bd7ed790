//! Named formats of text.

use apimachinery::{names, time};
use base64::Engine;

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{Opaque, Val};

const MAKES: &[&str] = &["()->kubernetes.NamedFormat"];

/// The functions.
pub const TABLE: &[Entry] = &[
    ("format.named", named, &["(string)->optional(kubernetes.NamedFormat)"]),
    ("validate", validate, &["kubernetes.NamedFormat.(string)->optional(list(string))"]),
    ("format.dns1123Label", |_, _| make("dns1123Label"), MAKES),
    ("format.dns1123Subdomain", |_, _| make("dns1123Subdomain"), MAKES),
    ("format.dns1035Label", |_, _| make("dns1035Label"), MAKES),
    ("format.qualifiedName", |_, _| make("qualifiedName"), MAKES),
    ("format.dns1123LabelPrefix", |_, _| make("dns1123LabelPrefix"), MAKES),
    ("format.dns1123SubdomainPrefix", |_, _| make("dns1123SubdomainPrefix"), MAKES),
    ("format.dns1035LabelPrefix", |_, _| make("dns1035LabelPrefix"), MAKES),
    ("format.labelValue", |_, _| make("labelValue"), MAKES),
    ("format.uri", |_, _| make("uri"), MAKES),
    ("format.uuid", |_, _| make("uuid"), MAKES),
    ("format.byte", |_, _| make("byte"), MAKES),
    ("format.date", |_, _| make("date"), MAKES),
    ("format.datetime", |_, _| make("datetime"), MAKES),
];

const NAMES: [&str; 13] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
];

fn make<'a>(name: &'static str) -> Outcome<'a> {
    Ok(Val::opaque(Opaque::Format(name)))
}

fn named<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text)] = args else { return Err(Error::NoOverload) };
    match NAMES.iter().find(|name| ***name == **text) {
        Some(name) => make(name).map(Val::some),
        None => Ok(Val::Optional(None)),
    }
}

/// How long a regular expression upstream takes for that of a format.
fn pattern(name: &str) -> u64 {
    match name {
        "dns1123Label" | "dns1123LabelPrefix" | "dns1035Label" | "dns1035LabelPrefix" => 30,
        "dns1123Subdomain" | "dns1123SubdomainPrefix" | "qualifiedName" => 60,
        "labelValue" => 40,
        "uri" => 1103,
        "uuid" => 70,
        "byte" => 84,
        _ => 71,
    }
}

fn complaints(name: &str, text: &str) -> Vec<String> {
    let holds = |good: bool, why: &str| if good { Vec::new() } else { vec![why.to_owned()] };
    // A name that more will be appended to may end with a dash.
    let prefix = format!("{}a", text.strip_suffix('-').unwrap_or(text));
    match name {
        "dns1123Label" => names::is_dns1123_label(text),
        "dns1123Subdomain" => names::is_dns1123_subdomain(text),
        "dns1035Label" => names::is_dns1035_label(text),
        "qualifiedName" => names::is_qualified_name(text),
        "dns1123LabelPrefix" => names::is_dns1123_label(&prefix),
        "dns1123SubdomainPrefix" => names::is_dns1123_subdomain(&prefix),
        "dns1035LabelPrefix" => names::is_dns1035_label(&prefix),
        "labelValue" => names::is_label_value(text),
        "uri" => holds(text.contains("://") || text.starts_with('/'), "invalid URI"),
        "uuid" => {
            let parts: Vec<&str> = text.split('-').collect();
            let hex = parts.iter().all(|part| part.bytes().all(|letter| letter.is_ascii_hexdigit()));
            let shape = parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]);
            holds(hex && shape, "does not match the UUID format")
        }
        "byte" => holds(base64::engine::general_purpose::STANDARD.decode(text).is_ok(), "invalid base64"),
        "date" => {
            let good = text.len() == 10 && time::parse(&format!("{text}T00:00:00Z")).is_some();
            holds(good, "invalid date")
        }
        "datetime" => holds(time::parse(text).is_some(), "invalid datetime"),
        _ => Vec::new(),
    }
}

fn validate<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Opaque(opaque), Val::Text(text)] = args else { return Err(Error::NoOverload) };
    let Opaque::Format(name) = &**opaque else { return Err(Error::NoOverload) };
    let letters = (text.chars().count() as u64 + 1).div_ceil(10);
    run.charge(letters.saturating_mul(pattern(name).div_ceil(4)))?;
    let found = complaints(name, text);
    if found.is_empty() {
        return Ok(Val::Optional(None));
    }
    Ok(Val::some(found.into_iter().map(Val::from).collect::<Vec<_>>().into()))
}
