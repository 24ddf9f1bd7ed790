//! URLs, as far as expressions look into them.

use std::collections::HashMap;

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{ITEM, Map, Opaque, Val};

/// An absolute URL or an absolute path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    scheme: String,
    host: String,
    path: String,
    query: String,
}

const PART: &[&str] = &["kubernetes.URL.()->string"];

/// The functions.
pub const TABLE: &[Entry] = &[
    ("url", url, &["(string)->kubernetes.URL"]),
    ("isURL", is_url, &["(string)->bool"]),
    ("getScheme", scheme, PART),
    ("getHost", host, PART),
    ("getHostname", hostname, PART),
    ("getPort", port, PART),
    ("getEscapedPath", path, PART),
    ("getQuery", query, &["kubernetes.URL.()->map(string,list(string))"]),
];

impl Url {
    fn parse(text: &str) -> Option<Url> {
        if text.bytes().any(|letter| letter.is_ascii_control() || letter == b' ') {
            return None;
        }
        let (rest, query) = text.split_once('?').unwrap_or((text, ""));
        let rest = rest.split_once('#').map_or(rest, |(before, _)| before);
        let query = query.split_once('#').map_or(query, |(before, _)| before);
        let empty = String::new();
        let (scheme, host, path) = match rest.split_once("://") {
            Some((scheme, after)) => {
                let good = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
                    && scheme
                        .bytes()
                        .all(|letter| letter.is_ascii_alphanumeric() || b"+-.".contains(&letter));
                if !good {
                    return None;
                }
                let (host, path) = after.find('/').map_or((after, ""), |at| after.split_at(at));
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
                (scheme.to_ascii_lowercase(), host.to_owned(), path)
            }
            None if rest.starts_with('/') => (empty.clone(), empty, rest),
            None => return None,
        };
        if host.starts_with('[') != host.contains(']') {
            return None;
        }
        let after = host.rsplit_once(']').map_or(host.as_str(), |(_, after)| after);
        if let Some((_, port)) = after.rsplit_once(':')
            && !port.bytes().all(|digit| digit.is_ascii_digit())
        {
            return None;
        }
        if !valid_escapes(path) {
            return None;
        }
        Some(Url { scheme, host, path: path.to_owned(), query: query.to_owned() })
    }

    fn port(&self) -> &str {
        let after = self.host.rsplit_once(']').map_or(self.host.as_str(), |(_, after)| after);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }

    fn hostname(&self) -> &str {
        let host = self.host.strip_suffix(&format!(":{}", self.port())).unwrap_or(&self.host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }
}

fn valid_escapes(text: &str) -> bool {
    text.split('%')
        .skip(1)
        .all(|part| part.len() >= 2 && part.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit))
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], code.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (b'+', _) => {
                out.push(b' ');
                at += 1;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn url<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text)] = args else { return Err(Error::NoOverload) };
    let url = Url::parse(text).ok_or_else(|| {
        Error::invalid(format!("URL parse error during conversion from string: {text:?}", text = &**text))
    })?;
    Ok(Val::opaque(Opaque::Url(url)))
}

fn is_url<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text)] = args else { return Err(Error::NoOverload) };
    Ok(Val::Bool(Url::parse(text).is_some()))
}

/// A part is as long as the URL may be, and costs one.
fn part<'a>(run: &mut Run<'_>, args: &[Val<'a>], read: fn(&Url) -> &str) -> Outcome<'a> {
    match args {
        [Val::Opaque(opaque)] => match &**opaque {
            Opaque::Url(url) => {
                let text = read(url);
                run.allow(text.len())?;
                Ok(text.to_owned().into())
            }
            _ => Err(Error::NoOverload),
        },
        _ => Err(Error::NoOverload),
    }
}

fn scheme<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(run, args, |url| &url.scheme)
}

fn host<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(run, args, |url| &url.host)
}

fn hostname<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(run, args, Url::hostname)
}

fn port<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(run, args, Url::port)
}

fn path<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    part(run, args, |url| &url.path)
}

fn query<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Opaque(opaque)] = args else { return Err(Error::NoOverload) };
    let Opaque::Url(url) = &**opaque else { return Err(Error::NoOverload) };
    let mut found: Vec<(String, Vec<Val<'a>>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for pair in url.query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decoded(key), decoded(value));
        run.allow(key.len().saturating_add(value.len()).saturating_add(4 * ITEM))?;
        let place = *places.entry(key).or_insert_with_key(|key| {
            found.push((key.clone(), Vec::new()));
            found.len() - 1
        });
        found[place].1.push(value.into());
    }
    let entries: Vec<(Val<'a>, Val<'a>)> =
        found.into_iter().map(|(key, values)| (key.into(), values.into())).collect();
    Ok(Val::Map(Map::made(entries)))
}
