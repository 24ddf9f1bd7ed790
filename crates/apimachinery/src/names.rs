//! Syntax of names, labels, ports and addresses, with upstream's messages.
//!
//! Each check returns the list of complaints; empty means fine. The character rules are written out by hand
//! instead of as regular expressions because they run on every write.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a check found; empty is good.
pub type Complaints = Vec<String>;

const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_MSG: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const UNDERSCORE_FMT: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*";
const UNDERSCORE_MSG: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035_FMT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_1035_MSG: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const WILDCARD_MSG: &str = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
const QUALIFIED_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_MSG: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const LABEL_VALUE_MSG: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// "must be no more than N characters"
pub fn max_len(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// "must be no more than N bytes": what upstream says of keys and values of labels.
fn max_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

/// "must be between LO and HI, inclusive"
pub fn inclusive_range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// A rule with its regular expression and examples, as upstream words it.
pub fn regex_message(message: &str, format: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{format}')");
    }
    let list: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{message} (e.g. {}regex used for validation is '{format}')", list.join(" or "))
}

fn lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

/// Shape of a DNS label (RFC 1123), without length.
pub fn looks_like_label(value: &str) -> bool {
    let b = value.as_bytes();
    !b.is_empty()
        && lower_alnum(b[0])
        && lower_alnum(b[b.len() - 1])
        && b.iter().all(|&c| lower_alnum(c) || c == b'-')
}

/// Shape of a DNS subdomain (RFC 1123), without length.
pub fn looks_like_subdomain(value: &str) -> bool {
    value.split('.').all(looks_like_label)
}

/// DNS label (RFC 1123): namespaces, container names, volumes.
pub fn is_dns1123_label(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 63 {
        out.push(max_len(63));
    }
    if !looks_like_label(value) {
        if looks_like_subdomain(value) {
            out.push("must not contain dots".into());
        } else {
            out.push(regex_message(LABEL_MSG, LABEL_FMT, &["my-name", "123-abc"]));
        }
    }
    out
}

/// DNS subdomain (RFC 1123): most object names.
pub fn is_dns1123_subdomain(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 253 {
        out.push(max_len(253));
    }
    if !looks_like_subdomain(value) {
        out.push(regex_message(SUBDOMAIN_MSG, SUBDOMAIN_FMT, &["example.com"]));
    }
    out
}

/// The same, with underscores: names of service records in search lists.
pub fn is_dns1123_subdomain_with_underscore(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 253 {
        out.push(max_len(253));
    }
    let label = |part: &str| {
        let b = part.strip_prefix('_').unwrap_or(part).as_bytes();
        !b.is_empty()
            && lower_alnum(b[0])
            && lower_alnum(b[b.len() - 1])
            && b.iter().all(|&c| lower_alnum(c) || matches!(c, b'-' | b'_'))
    };
    if !value.split('.').all(label) {
        out.push(regex_message(UNDERSCORE_MSG, UNDERSCORE_FMT, &["example.com"]));
    }
    out
}

/// DNS label that starts with a letter (RFC 1035): Service names of old.
pub fn is_dns1035_label(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 63 {
        out.push(max_len(63));
    }
    if !looks_like_label(value) || !value.as_bytes()[0].is_ascii_lowercase() {
        out.push(regex_message(LABEL_1035_MSG, LABEL_1035_FMT, &["my-name", "abc-123"]));
    }
    out
}

/// `*.example.com`
pub fn is_wildcard_dns1123_subdomain(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 253 {
        out.push(max_len(253));
    }
    if !value.strip_prefix("*.").is_some_and(looks_like_subdomain) {
        let format = format!("\\*\\.{SUBDOMAIN_FMT}");
        out.push(regex_message(WILDCARD_MSG, &format, &["*.example.com"]));
    }
    out
}

/// A name usable as one path segment: RBAC objects.
pub fn is_path_segment_name(value: &str) -> Complaints {
    match value {
        "." => vec!["may not be '.'".into()],
        ".." => vec!["may not be '..'".into()],
        _ => ['/', '%']
            .iter()
            .filter(|c| value.contains(**c))
            .map(|c| format!("may not contain '{c}'"))
            .collect(),
    }
}

fn qualified_part(value: &str) -> bool {
    let b = value.as_bytes();
    !b.is_empty()
        && b[0].is_ascii_alphanumeric()
        && b[b.len() - 1].is_ascii_alphanumeric()
        && b.iter().all(|&c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// Optionally prefixed name: annotation keys, resource names, finalizers.
pub fn is_qualified_name(value: &str) -> Complaints {
    is_label_key(value)
}

/// Key of a label, which is what all such names are judged as.
pub fn is_label_key(value: &str) -> Complaints {
    let mut out = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".into());
            } else {
                if prefix.len() > 253 {
                    out.push(format!("prefix part {}", max_bytes(253)));
                }
                if !looks_like_subdomain(prefix) {
                    let rule = regex_message(SUBDOMAIN_MSG, SUBDOMAIN_FMT, &["example.com"]);
                    out.push(format!("prefix part {rule}"));
                }
            }
            name
        }
        _ => {
            let rule = regex_message(QUALIFIED_MSG, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"]);
            return vec![format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        out.push(format!("name part {}", max_bytes(63)));
    }
    if !qualified_part(name) {
        let rule = regex_message(QUALIFIED_MSG, QUALIFIED_FMT, &["MyName", "my.name", "123-abc"]);
        out.push(format!("name part {rule}"));
    }
    out
}

/// Value of a label.
pub fn is_label_value(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 63 {
        out.push(max_bytes(63));
    }
    if !value.is_empty() && !qualified_part(value) {
        let format = format!("({QUALIFIED_FMT})?");
        out.push(regex_message(LABEL_VALUE_MSG, &format, &["MyValue", "my_value", "12345"]));
    }
    out
}

/// Named port.
pub fn is_port_name(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 15 {
        out.push(max_len(15));
    }
    if value.is_empty() || !value.bytes().all(|c| lower_alnum(c) || c == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !value.bytes().any(|c| c.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".into());
    }
    if value.contains("--") {
        out.push("must not contain consecutive hyphens".into());
    }
    if value.starts_with('-') || value.ends_with('-') {
        out.push("must not begin or end with a hyphen".into());
    }
    out
}

/// 1 to 65535
pub fn is_port_number(value: i64) -> Complaints {
    if (1..=65535).contains(&value) { Vec::new() } else { vec![inclusive_range(1, 65535)] }
}

/// User or group id.
pub fn is_user_id(value: i64) -> Complaints {
    if (0..=i64::from(i32::MAX)).contains(&value) {
        Vec::new()
    } else {
        vec![inclusive_range(0, i64::from(i32::MAX))]
    }
}

/// `25%`
pub fn is_percent(value: &str) -> Complaints {
    let digits = value.strip_suffix('%').unwrap_or("");
    if !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()) {
        return Vec::new();
    }
    vec![regex_message(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// HTTP header name.
pub fn is_http_header_name(value: &str) -> Complaints {
    if !value.is_empty() && value.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    vec![regex_message(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// Name of an environment variable; any printable ASCII but `=` since v1.34.
pub fn is_env_var_name(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.is_empty() {
        out.push("environment variable name must be non-empty".into());
    }
    if value.bytes().any(|c| !(0x20..0x7f).contains(&c) || c == b'=') {
        out.push(
            "a valid environment variable name must consist only of printable ASCII characters other than '='".into(),
        );
    }
    out
}

/// Name of an environment variable that comes from a ConfigMap or Secret key prefix (stricter form).
pub fn is_c_identifier(value: &str) -> Complaints {
    let b = value.as_bytes();
    if !b.is_empty()
        && (b[0].is_ascii_alphabetic() || b[0] == b'_')
        && b.iter().all(|&c| c.is_ascii_alphanumeric() || c == b'_')
    {
        return Vec::new();
    }
    vec![regex_message(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// Key in a ConfigMap or Secret.
pub fn is_config_map_key(value: &str) -> Complaints {
    let mut out = Vec::new();
    if value.len() > 253 {
        out.push(max_len(253));
    }
    if value.is_empty()
        || !value.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
    {
        out.push(regex_message(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match value {
        "." => out.push("must not be '.'".into()),
        ".." => out.push("must not be '..'".into()),
        _ if value.starts_with("..") => out.push("must not start with '..'".into()),
        _ => {}
    }
    out
}

/// Domain name with at least three labels (group-qualified names such as signer domains).
pub fn is_fully_qualified_name(value: &str) -> Complaints {
    let complaints = is_dns1123_subdomain(value);
    if !complaints.is_empty() {
        return vec![complaints.join(",")];
    }
    if value.split('.').count() < 3 {
        return vec!["should be a domain with at least three segments separated by dots".into()];
    }
    Vec::new()
}

/// Orders `v2` over `v1` over `v1beta2` over `v1alpha1` over anything else.
pub fn version_order(version: &str) -> (u8, u32, u32, std::cmp::Reverse<String>) {
    let other = std::cmp::Reverse(version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return (0, 0, 0, other) };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let Ok(major) = rest[..digits].parse() else { return (0, 0, 0, other) };
    let tail = &rest[digits..];
    let minor = |word: &str| tail.strip_prefix(word).and_then(|number| number.parse().ok());
    match (tail, minor("beta"), minor("alpha")) {
        ("", _, _) => (3, major, 0, other),
        (_, Some(minor), _) => (2, major, minor, other),
        (_, _, Some(minor)) => (1, major, minor, other),
        _ => (0, 0, 0, other),
    }
}

/// Whether a text is an address in the strict form: no leading zeros, no IPv4 inside IPv6.
pub fn is_ip(value: &str) -> Complaints {
    match parse_ip_sloppy(value) {
        None => vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".into()],
        Some(ip) => {
            let mut out = Vec::new();
            if value.parse::<IpAddr>().is_err() {
                out.push("must not have leading 0s".into());
            }
            if matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
                out.push("must not be an IPv4-mapped IPv6 address".into());
            }
            out
        }
    }
}

/// Whether a text is a subnet in the strict form.
pub fn is_cidr(value: &str) -> Complaints {
    let bad = || vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    let Some((address, prefix)) = value.split_once('/') else { return bad() };
    let Some(ip) = parse_ip_sloppy(address) else { return bad() };
    let Ok(length) = prefix.parse::<u32>() else { return bad() };
    let width = if ip.is_ipv4() { 32 } else { 128 };
    if length > width || prefix.starts_with('+') {
        return bad();
    }
    let mut out = Vec::new();
    if address.parse::<IpAddr>().is_err() || (prefix.len() > 1 && prefix.starts_with('0')) {
        out.push("must not have leading 0s in IP or prefix length".into());
    }
    if matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        out.push("must not have an IPv4-mapped IPv6 address".into());
    }
    let beyond = match ip {
        IpAddr::V4(v4) => length < 32 && u32::from(v4) & (u32::MAX >> length) != 0,
        IpAddr::V6(v6) => length < 128 && u128::from(v6) & (u128::MAX >> length) != 0,
    };
    if beyond {
        out.push("must not have bits set beyond the prefix length".into());
    }
    out
}

/// Parses an address, allowing leading zeros in IPv4 octets as old clients send them.
pub fn parse_ip_sloppy(value: &str) -> Option<IpAddr> {
    if let Ok(ip) = value.parse::<IpAddr>() {
        return Some(ip);
    }
    if value.contains(':') {
        return value.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    let octets: Vec<u8> = value
        .split('.')
        .map(|part| {
            let digits = !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
            if digits {
                part.trim_start_matches('0').parse().ok().or((part.chars().all(|c| c == '0')).then_some(0))
            } else {
                None
            }
        })
        .collect::<Option<_>>()?;
    let octets: [u8; 4] = octets.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(octets)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_accept_and_refuse_what_upstream_does() {
        type Check = fn(&str) -> Complaints;
        let table: &[(&str, Check, &[&str], &[&str])] = &[
            ("label", is_dns1123_label, &["a", "a-1", "0a"], &["", "A", "-a", "a-", "a.b", "a_b"]),
            ("subdomain", is_dns1123_subdomain, &["a.b", "1.2"], &["a..b", ".a", "a.", "A"]),
            ("1035", is_dns1035_label, &["a1"], &["1a", "a."]),
            (
                "qualified",
                is_qualified_name,
                &["a/B", "a.b/c_d", "Xy.z"],
                &["", "/a", "a/", "a/b/c", "-a", "A/b"],
            ),
            ("value", is_label_value, &["", "a", "A.b_c-d"], &["-", "a b", "a/b"]),
            ("port", is_port_name, &["http", "p-1"], &["", "1", "a--b", "-a", "UP", "toolongportname1"]),
            ("key", is_config_map_key, &["a.b", ".x", "A_"], &["", ".", "..", "..x", "a/b"]),
            ("ip", is_ip, &["10.0.0.1", "::1"], &["", "1.2.3", "01.2.3.4", "::ffff:1.2.3.4", "256.1.1.1"]),
            ("cidr", is_cidr, &["10.0.0.0/8", "fd00::/64"], &["10.0.0.1/8", "10.0.0.0", "10.0.0.0/33"]),
            ("percent", is_percent, &["0%", "100%"], &["%", "10", "a%"]),
        ];
        for (name, check, good, bad) in table {
            for value in *good {
                assert!(check(value).is_empty(), "{name} refused {value:?}: {:?}", check(value));
            }
            for value in *bad {
                assert!(!check(value).is_empty(), "{name} accepted {value:?}");
            }
        }
    }
}
