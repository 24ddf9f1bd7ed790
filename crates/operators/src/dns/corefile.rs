//! The Corefile that a DNS object asks for.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use controller_runtime::program::go_duration;
use serde_json::Value;

/// Where the server listens in its pod.
pub const PORT: u16 = 5353;
/// The cluster's own domain.
pub const DOMAIN: &str = "cluster.local";

/// For how long answers and denials are kept if nothing is said.
const POSITIVE: Duration = Duration::from_secs(900);
const NEGATIVE: Duration = Duration::from_secs(30);
/// How many denials are kept, as upstream has it.
const DENIALS: u32 = 9984;

/// The file, or everything that is wrong with what is asked for.
pub fn render(spec: &Value) -> Result<String, Vec<String>> {
    let mut problems = Vec::new();
    let cache = cache(&spec["cache"], &mut problems);
    let log = match spec["logLevel"].as_str().unwrap_or_default() {
        "Debug" | "Trace" => "    log\n",
        _ => "",
    };
    let mut out = String::new();
    let mut known: Vec<String> = Vec::new();
    for (index, server) in spec["servers"].as_array().into_iter().flatten().enumerate() {
        let at = format!("spec.servers[{index}]");
        let name = server["name"].as_str().unwrap_or_default();
        let mut zones = Vec::new();
        for zone in server["zones"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let plain = zone.trim_end_matches('.').to_ascii_lowercase();
            if !is_zone(&plain) {
                problems.push(format!("{at}.zones: {zone:?} is no zone"));
            } else if plain == DOMAIN || plain.ends_with(&format!(".{DOMAIN}")) {
                problems.push(format!("{at}.zones: {zone} is the cluster's own"));
            } else if known.contains(&plain) {
                problems.push(format!("{at}.zones: {zone} is there twice"));
            } else {
                zones.push(format!("{plain}:{PORT}"));
                known.push(plain);
            }
        }
        if zones.is_empty() {
            problems.push(format!("{at}.zones holds no zone"));
        }
        let plugin = &server["forwardPlugin"];
        refuse_transport(plugin, &format!("{at}.forwardPlugin"), &mut problems);
        let upstreams: Vec<String> = plugin["upstreams"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .filter_map(|text| checked(text, &format!("{at}.forwardPlugin.upstreams"), &mut problems))
            .collect();
        if upstreams.is_empty() {
            problems.push(format!("{at}.forwardPlugin.upstreams names no resolver"));
        }
        let policy = policy(plugin, "random");
        // A comment ends with its line, whatever the name holds.
        let title: String = name.chars().filter(|letter| !letter.is_control()).collect();
        let _ = write!(
            out,
            "# {title}\n{} {{\n    prometheus 127.0.0.1:9153\n    forward . {} {{\n        policy {policy}\n    }}\n    errors\n{log}    bufsize 1232\n{cache}}}\n",
            zones.join(" "),
            upstreams.join(" "),
        );
    }
    let resolvers = &spec["upstreamResolvers"];
    refuse_transport(resolvers, "spec.upstreamResolvers", &mut problems);
    let mut upstreams = Vec::new();
    for upstream in resolvers["upstreams"].as_array().into_iter().flatten() {
        match upstream["type"].as_str().unwrap_or_default() {
            "" | "SystemResolvConf" => upstreams.push("/etc/resolv.conf".to_owned()),
            "Network" => {
                let address = upstream["address"].as_str().unwrap_or_default();
                let port = upstream["port"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(53);
                match address.parse::<IpAddr>() {
                    Ok(address) => upstreams.push(SocketAddr::new(address, port).to_string()),
                    Err(_) => problems.push(format!("spec.upstreamResolvers: {address:?} is no address")),
                }
            }
            other => problems.push(format!("spec.upstreamResolvers: unknown type {other:?}")),
        }
    }
    if upstreams.is_empty() {
        upstreams.push("/etc/resolv.conf".to_owned());
    }
    let _ = write!(
        out,
        ".:{PORT} {{\n    bufsize 1232\n    errors\n{log}    health {{\n        lameduck 20s\n    }}\n    ready\n    kubernetes {DOMAIN} in-addr.arpa ip6.arpa {{\n        pods insecure\n        fallthrough in-addr.arpa ip6.arpa\n    }}\n    prometheus 127.0.0.1:9153\n    forward . {} {{\n        policy {}\n    }}\n{cache}    reload\n}}\n",
        upstreams.join(" "),
        policy(resolvers, "sequential"),
    );
    if problems.is_empty() { Ok(out) } else { Err(problems) }
}

fn cache(spec: &Value, problems: &mut Vec<String>) -> String {
    let mut time = |field: &str, otherwise: Duration| match spec[field].as_str() {
        None | Some("" | "0" | "0s") => otherwise.as_secs(),
        Some(text) => match go_duration(text) {
            // CoreDNS counts seconds.
            Ok(time) => (time.as_secs_f64().round() as u64).max(1),
            Err(problem) => {
                problems.push(format!("spec.cache.{field}: {problem}"));
                0
            }
        },
    };
    let (positive, negative) = (time("positiveTTL", POSITIVE), time("negativeTTL", NEGATIVE));
    format!("    cache {positive} {{\n        denial {DENIALS} {negative}\n    }}\n")
}

fn policy(spec: &Value, otherwise: &'static str) -> &'static str {
    match spec["policy"].as_str().unwrap_or_default() {
        "Random" => "random",
        "RoundRobin" => "round_robin",
        "Sequential" => "sequential",
        _ => otherwise,
    }
}

fn refuse_transport(spec: &Value, at: &str, problems: &mut Vec<String>) {
    if spec["transportConfig"]["transport"].as_str().is_some_and(|transport| transport == "TLS") {
        problems.push(format!("{at}.transportConfig: resolvers over TLS are not supported"));
    }
    if spec["protocolStrategy"].as_str().is_some_and(|strategy| strategy == "TCP") {
        problems.push(format!("{at}.protocolStrategy: asking by TCP alone is not supported"));
    }
}

/// An address, with or without a port.
fn checked(text: &str, at: &str, problems: &mut Vec<String>) -> Option<String> {
    if text.parse::<SocketAddr>().is_ok() || text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Some(text.to_owned());
    }
    problems.push(format!("{at}: {text:?} is no address"));
    None
}

fn is_zone(zone: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'))
    };
    zone.len() <= 253 && zone.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_empty_object_asks_for_the_clusters_names_and_the_machines_resolvers() {
        let file = render(&json!({})).unwrap();
        assert!(
            file.starts_with(".:5353 {\n")
                && file.contains("forward . /etc/resolv.conf {\n        policy sequential"),
            "{file}"
        );
        assert!(file.contains("cache 900 {\n        denial 9984 30"));
        assert!(!file.contains("    log\n"));
    }

    #[test]
    fn what_is_asked_for_stands_in_the_file() {
        let spec = json!({
            "servers": [{"name": "corp\nx {", "zones": ["Corp.Test."], "forwardPlugin": {"upstreams": ["10.1.1.1", "10.2.2.2:5353"]}}],
            "upstreamResolvers": {"upstreams": [{"type": "Network", "address": "fd00::1", "port": 5353}], "policy": "RoundRobin"},
            "cache": {"positiveTTL": "1m30s", "negativeTTL": "500ms"}, "logLevel": "Trace",
        });
        let file = render(&spec).unwrap();
        for wanted in [
            "# corpx {\ncorp.test:5353 {",
            "forward . 10.1.1.1 10.2.2.2:5353 {\n        policy random",
            "forward . [fd00::1]:5353 {\n        policy round_robin",
            "cache 90 {\n        denial 9984 1\n",
            "    log\n",
        ] {
            assert!(file.contains(wanted), "{wanted:?} is not in {file}");
        }
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        let server = |zones: Value, plugin: Value| json!({"servers": [{"name": "a", "zones": zones, "forwardPlugin": plugin}]});
        let good = json!({"upstreams": ["10.1.1.1"]});
        let cases = [
            (server(json!(["a b"]), good.clone()), "no zone"),
            (server(json!(["x.cluster.local"]), good.clone()), "cluster's own"),
            (server(json!(["a", "a"]), good.clone()), "twice"),
            (server(json!([]), good), "holds no zone"),
            (server(json!(["a"]), json!({"upstreams": ["ns.corp"]})), "no address"),
            (server(json!(["a"]), json!({"upstreams": []})), "names no resolver"),
            (json!({"upstreamResolvers": {"transportConfig": {"transport": "TLS"}}}), "TLS"),
            (json!({"upstreamResolvers": {"upstreams": [{"type": "Network", "address": ""}]}}), "no address"),
        ];
        for (spec, wanted) in cases {
            let problems = render(&spec).unwrap_err().join("; ");
            assert!(problems.contains(wanted), "{spec}: {problems}");
        }
    }
}
