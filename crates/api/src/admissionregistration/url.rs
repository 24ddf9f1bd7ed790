//! URLs, split and judged as Go's library does it.

use apimachinery::field::go_quote;

/// The parts of a URL that the rules look at.
#[derive(Debug, PartialEq)]
pub struct Url<'a> {
    /// In small letters.
    pub scheme: String,
    /// With the port.
    pub host: &'a str,
    /// What stands before an `@` in front of the host.
    pub user: Option<&'a str>,
    pub query: &'a str,
    pub fragment: String,
}

impl<'a> Url<'a> {
    /// Splits a text, or says why it is no URL.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let told = |text: &str, why: String| format!("parse {}: {why}", go_quote(text));
        let url = Self::parse_bare(rest).map_err(|why| told(rest, why))?;
        let fragment = unescape(fragment).map_err(|why| told(text, why))?;
        Ok(Url { fragment, ..url })
    }

    fn parse_bare(rest: &'a str) -> Result<Self, String> {
        if rest.bytes().any(|byte| byte.is_ascii_control()) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let (scheme, rest) = scheme(rest)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut url =
            Url { scheme: scheme.to_ascii_lowercase(), host: "", user: None, query, fragment: String::new() };
        let mut path = rest;
        if !rest.starts_with('/') {
            // What follows a scheme without a slash is not looked into.
            if !scheme.is_empty() {
                path = "";
            } else if rest.split('/').next().is_some_and(|first| first.contains(':')) {
                return Err("first path segment in URL cannot contain colon".to_owned());
            }
        } else if let Some(rest) =
            rest.strip_prefix("//").filter(|rest| !scheme.is_empty() || !rest.starts_with('/'))
        {
            let end = rest.find('/').unwrap_or(rest.len());
            let authority = &rest[..end];
            path = &rest[end..];
            let (user, host) =
                authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
            check_host(host)?;
            if let Some(user) = user {
                if !user.bytes().all(is_of_user) {
                    return Err("net/url: invalid userinfo".to_owned());
                }
                unescape(user)?;
            }
            (url.host, url.user) = (host, user);
        }
        unescape(path)?;
        Ok(url)
    }
}

fn scheme(text: &str) -> Result<(&str, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c));
    match end.map(|end| text.split_at(end)) {
        Some(("", rest)) if rest.starts_with(':') => Err("missing protocol scheme".to_owned()),
        Some((scheme, rest))
            if rest.starts_with(':') && scheme.starts_with(|c: char| c.is_ascii_alphabetic()) =>
        {
            Ok((scheme, &rest[1..]))
        }
        _ => Ok(("", text)),
    }
}

fn check_host(host: &str) -> Result<(), String> {
    let port = if host.starts_with('[') {
        let end = host.rfind(']').ok_or("missing ']' in host")?;
        &host[end + 1..]
    } else {
        host.rfind(':').map_or("", |at| &host[at..])
    };
    let digits = port.strip_prefix(':').unwrap_or_default();
    if !port.is_empty() && !port.starts_with(':') || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(format!("invalid port {} after host", go_quote(port)));
    }
    // Escapes stand only for what has no letter of its own there.
    for (at, c) in host.char_indices() {
        match c {
            '%' if !host[at..].starts_with("%25") && !is_high(&host.as_bytes()[at + 1..]) => {
                return Err(bad_escape(&host[at..]));
            }
            c if c.is_ascii() && !c.is_ascii_alphanumeric() && !"%-_.~!$&'()*+,;=:[]<>\"".contains(c) => {
                return Err(format!(
                    "invalid character {} in host name",
                    go_quote(c.encode_utf8(&mut [0; 4]))
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_high(digits: &[u8]) -> bool {
    matches!(digits, [b'8'..=b'9' | b'a'..=b'f' | b'A'..=b'F', low, ..] if low.is_ascii_hexdigit())
}

fn is_of_user(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte)
}

fn bad_escape(at: &str) -> String {
    let end = at.char_indices().map(|(index, c)| index + c.len_utf8()).take_while(|end| *end <= 3).last();
    format!("invalid URL escape {}", go_quote(&at[..end.unwrap_or(0)]))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |next: Option<(usize, u8)>| next.and_then(|(_, byte)| char::from(byte).to_digit(16));
        match (digit(bytes.next()), digit(bytes.next())) {
            (Some(high), Some(low)) => out.extend(u8::try_from(high * 16 + low)),
            _ => return Err(bad_escape(&text[at..])),
        }
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_where_go_splits_them() {
        let url = Url::parse("HTTPS://me:pw@h:1/a@b?c@d#%41").expect("is one");
        let wanted = Url {
            scheme: "https".into(),
            host: "h:1",
            user: Some("me:pw"),
            query: "c@d",
            fragment: "A".into(),
        };
        assert_eq!(url, wanted);
        for (text, scheme, host) in [
            ("https://h/a@b", "https", "h"),
            ("https:h", "https", ""),
            ("https:///p", "https", ""),
            ("//h/p", "", "h"),
            ("h/p", "", ""),
            ("", "", ""),
            ("https://[::1]:443/", "https", "[::1]:443"),
        ] {
            let url = Url::parse(text).expect("is one");
            assert_eq!((url.scheme.as_str(), url.host, url.user), (scheme, host, None), "{text}");
        }
    }

    #[test]
    fn what_is_no_url_is_told_as_go_tells_it() {
        for (text, why) in [
            ("https://h/%zz", "invalid URL escape \"%zz\""),
            ("https://h/%4", "invalid URL escape \"%4\""),
            ("https://h/%é", "invalid URL escape \"%é\""),
            ("https://%41/", "invalid URL escape \"%41\""),
            ("https://h%", "invalid URL escape \"%\""),
            ("https://h:x/", "invalid port \":x\" after host"),
            ("https://[::1/", "missing ']' in host"),
            ("https://a b/", "invalid character \" \" in host name"),
            ("https://a\n/", "net/url: invalid control character in URL"),
            ("https://a<b@h/", "net/url: invalid userinfo"),
            ("://h", "missing protocol scheme"),
            ("1h:2/x", "first path segment in URL cannot contain colon"),
        ] {
            let wanted = format!("parse {}: {why}", go_quote(text));
            assert_eq!(Url::parse(text).expect_err(text), wanted);
        }
        assert_eq!(Url::parse("://h#f").expect_err("is none"), "parse \"://h\": missing protocol scheme");
    }
}
