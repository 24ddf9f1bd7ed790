//! The rules of a whole config, one function per subject; networks and machines have files of their own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::schema::{FEATURE_SETS, PLATFORMS};
use super::{InstallConfig, Platform, validate_machines, validate_network};
use crate::problem::Problems;

/// Checks everything.
pub(super) fn validate(config: &InstallConfig, problems: &mut Problems) {
    names(config, problems);
    platform(config, problems);
    ssh_keys(config, problems);
    trust_bundle(config, problems);
    pull_secret(config, problems);
    proxy(config, problems);
    image_sources(config, problems);
    features(config, problems);
    capabilities(config, problems);
    publishing(config, problems);
    validate_network::validate(&config.networking, &config.platform, problems);
    validate_machines::validate(config, problems);
}

/// Longest cluster name: 63 less the room for a suffix.
const NAME_LIMIT: usize = 54;

fn names(config: &InstallConfig, problems: &mut Problems) {
    let name = config.metadata.name.as_str();
    if name.is_empty() {
        problems.required("metadata.name", "give the cluster a name");
    } else if let Some(fault) = subdomain_fault(name) {
        problems.invalid("metadata.name", name, fault);
    } else if name.contains('.') {
        problems.invalid("metadata.name", name, "must not contain a dot on this platform");
    } else if name.len() > NAME_LIMIT {
        problems.invalid("metadata.name", name, format!("must have {NAME_LIMIT} characters or fewer"));
    }
    let domain = config.base_domain.strip_suffix('.').unwrap_or(&config.base_domain);
    if domain.is_empty() {
        problems.required("baseDomain", "give the DNS domain below which the cluster stands");
    } else if let Some(fault) = subdomain_fault(domain) {
        problems.invalid("baseDomain", &config.base_domain, fault);
    } else if !name.is_empty() {
        // The longest name made from it: a wildcard's example below apps.
        let longest = format!("console-openshift-console.apps.{name}.{domain}");
        if longest.len() > 253 {
            problems.invalid(
                "baseDomain",
                domain,
                "with the cluster's name it makes names over 253 characters",
            );
        }
    }
}

/// Why a text is not a DNS name, in lower case.
pub(super) fn subdomain_fault(text: &str) -> Option<String> {
    if text.len() > 253 {
        return Some("a DNS name has 253 characters or fewer".to_owned());
    }
    for label in text.split('.') {
        if label.is_empty() {
            return Some("a DNS name has no empty part".to_owned());
        }
        if label.len() > 63 {
            return Some("each part of a DNS name has 63 characters or fewer".to_owned());
        }
        let fits = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !fits || label.starts_with('-') || label.ends_with('-') {
            return Some(
                "a DNS name has lower case letters, digits and dashes, and each part begins and ends with a letter or digit"
                    .to_owned(),
            );
        }
    }
    None
}

fn platform(config: &InstallConfig, problems: &mut Problems) {
    let Platform { none, baremetal, external, local } = &config.platform;
    let given = [none.is_some(), baremetal.is_some(), external.is_some(), local.is_some()];
    let names: Vec<&str> = PLATFORMS.iter().zip(given).filter(|(_, given)| *given).map(|(n, _)| *n).collect();
    match names.len() {
        0 => problems.invalid("platform", "", format!("give exactly one of: {}", PLATFORMS.join(", "))),
        1 => {}
        _ => problems.invalid("platform", names.join(", "), "only a single platform can be given"),
    }
    if config.platform.none.is_some() && !config.feature_set.is_empty() {
        problems.warn("featureSet", &config.feature_set, "clusters with a feature set cannot be upgraded");
    }
}

fn ssh_keys(config: &InstallConfig, problems: &mut Problems) {
    for line in config.ssh_key.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match ssh_key_type(line) {
            None => problems.invalid(
                "sshKey",
                line.split_whitespace().next().unwrap_or_default(),
                "each line must be a public key as in authorized_keys: type, base64, comment",
            ),
            Some(kind) if config.fips && kind != "ssh-rsa" && !kind.starts_with("ecdsa-") => {
                problems.invalid(
                    "sshKey",
                    kind,
                    "this type is not available under fips; use ssh-rsa or ecdsa",
                );
            }
            Some(_) => {}
        }
    }
}

/// The type of a public key line. The base64 part begins with the same type, length first.
fn ssh_key_type(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // Options may stand before the type.
    let at = words.iter().position(|word| {
        ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-"].iter().any(|prefix| word.starts_with(prefix))
    })?;
    let blob = STANDARD.decode(words.get(at + 1)?).ok()?;
    let length = u32::from_be_bytes(blob.get(..4)?.try_into().ok()?) as usize;
    let inner = blob.get(4..4 + length)?;
    (inner == words[at].as_bytes() && blob.len() > 4 + length).then(|| words[at].to_owned())
}

fn trust_bundle(config: &InstallConfig, problems: &mut Problems) {
    const PATH: &str = "additionalTrustBundle";
    if config.additional_trust_bundle.trim().is_empty() {
        return;
    }
    let blocks = match pki::pem::decode(config.additional_trust_bundle.as_bytes()) {
        Ok(blocks) => blocks,
        Err(error) => return problems.invalid(PATH, "", format!("must be PEM: {error}")),
    };
    if blocks.is_empty() {
        problems.invalid(PATH, "", "holds no certificate; give PEM blocks of type CERTIFICATE");
    }
    for (index, block) in blocks.into_iter().enumerate() {
        if block.label != "CERTIFICATE" {
            problems.invalid(PATH, &block.label, format!("block {index} must be a CERTIFICATE"));
        } else if let Err(error) = pki::Certificate::from_der(block.der) {
            problems.invalid(PATH, "", format!("block {index} does not parse: {error}"));
        }
    }
}

fn pull_secret(config: &InstallConfig, problems: &mut Problems) {
    const PATH: &str = "pullSecret";
    if config.pull_secret.trim().is_empty() {
        // Images of local machines are made from the binary itself.
        if config.platform.local.is_none() {
            problems.required(
                PATH,
                "give the registries' credentials as JSON: {\"auths\":{\"host\":{\"auth\":\"…\"}}}",
            );
        }
        return;
    }
    let Ok(Value::Object(secret)) = serde_json::from_str::<Value>(&config.pull_secret) else {
        return problems.invalid(PATH, "", "must be a JSON object");
    };
    let auths = secret.get("auths").and_then(Value::as_object);
    let Some(auths) = auths.filter(|auths| !auths.is_empty() || config.platform.local.is_some()) else {
        return problems.invalid(PATH, "", "must have a non-empty object \"auths\"");
    };
    for (host, entry) in auths {
        if entry.get("credsStore").and_then(Value::as_str).is_some_and(|store| !store.is_empty()) {
            continue;
        }
        match entry.get("auth").and_then(Value::as_str).filter(|auth| !auth.is_empty()) {
            None => problems.invalid(PATH, host, "this host needs \"auth\" or \"credsStore\""),
            Some(auth) => match STANDARD.decode(auth) {
                Ok(decoded) if decoded.contains(&b':') => {}
                Ok(_) => problems.invalid(PATH, host, "\"auth\" must be the base64 of user:password"),
                Err(_) => problems.invalid(PATH, host, "\"auth\" is not base64"),
            },
        }
    }
}

fn proxy(config: &InstallConfig, problems: &mut Problems) {
    let Some(proxy) = &config.proxy else { return };
    if proxy.http_proxy.is_empty() && proxy.https_proxy.is_empty() {
        problems.required("proxy", "give httpProxy or httpsProxy, or leave proxy out");
    }
    for (path, url, schemes) in [
        ("proxy.httpProxy", &proxy.http_proxy, ["http"].as_slice()),
        ("proxy.httpsProxy", &proxy.https_proxy, ["http", "https"].as_slice()),
    ] {
        if url.is_empty() {
            continue;
        }
        let shown = crate::redact::url(url);
        let Some((scheme, rest)) = url.split_once("://") else {
            problems.invalid(path, shown, "must be a URL such as http://proxy.example.com:3128");
            continue;
        };
        if !schemes.contains(&scheme) {
            problems.unsupported(path, scheme, schemes);
        }
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let (host, port) = split_port(host);
        if host.is_empty() || port.is_some_and(|port| port.parse::<u16>().is_err()) {
            problems.invalid(path, &shown, "must name a host, and a port between 0 and 65535 if any");
        }
        if let Ok(address) = host.parse::<std::net::IpAddr>() {
            let networks = config.networking.cluster_network.iter().map(|n| &n.cidr);
            for cidr in networks.chain(&config.networking.service_network) {
                if cidr.parse::<ipnet::IpNet>().is_ok_and(|net| net.contains(&address)) {
                    problems.invalid(path, &shown, format!("the proxy must not lie in {cidr}"));
                }
            }
        }
    }
    no_proxy(&proxy.no_proxy, problems);
}

fn split_port(host: &str) -> (&str, Option<&str>) {
    if let Some(rest) = host.strip_prefix('[') {
        let (address, after) = rest.split_once(']').unwrap_or((rest, ""));
        return (address, after.strip_prefix(':'));
    }
    host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port)))
}

fn no_proxy(text: &str, problems: &mut Problems) {
    const PATH: &str = "proxy.noProxy";
    if text.is_empty() || text == "*" {
        return;
    }
    for item in text.split(',') {
        let name = item.strip_prefix('.').unwrap_or(item);
        let fits = item.parse::<std::net::IpAddr>().is_ok()
            || item.parse::<ipnet::IpNet>().is_ok()
            || (!name.is_empty() && !name.contains('/') && subdomain_fault(name).is_none());
        if item.chars().any(char::is_whitespace) {
            problems.invalid(PATH, item, "must not contain blanks; separate items by commas only");
        } else if item == "*" {
            problems.invalid(PATH, text, "the wildcard * must stand alone");
        } else if !fits {
            problems.invalid(PATH, item, "each item must be an address, a network or a domain");
        }
    }
}

fn image_sources(config: &InstallConfig, problems: &mut Problems) {
    let mut seen = Vec::new();
    for (index, entry) in config.image_digest_sources.iter().enumerate() {
        let at = format!("imageDigestSources[{index}]");
        if entry.source.is_empty() {
            problems.required(format!("{at}.source"), "name the repository that is mirrored");
        } else if let Some(fault) = repository_fault(&entry.source) {
            problems.invalid(format!("{at}.source"), &entry.source, fault);
        } else if seen.contains(&&entry.source) {
            problems.duplicate(format!("{at}.source"), &entry.source, "list all its mirrors in one entry");
        }
        seen.push(&entry.source);
        for (number, mirror) in entry.mirrors.iter().enumerate() {
            if let Some(fault) = repository_fault(mirror) {
                problems.invalid(format!("{at}.mirrors[{number}]"), mirror, fault);
            }
        }
        if !entry.source_policy.is_empty() && entry.mirrors.is_empty() {
            problems.invalid(format!("{at}.sourcePolicy"), &entry.source_policy, "needs at least one mirror");
        }
    }
}

/// Why a text does not name a repository: `host[:port]/path`, without tag or digest.
fn repository_fault(text: &str) -> Option<&'static str> {
    if text.contains('@') {
        return Some("must be a repository, not a reference: remove the digest");
    }
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    if path.contains(':') {
        return Some("must be a repository, not a reference: remove the tag");
    }
    let (name, port) = split_port(host);
    let host_fits = subdomain_fault(name.trim_start_matches("*.")).is_none()
        && port.is_none_or(|port| port.parse::<u16>().is_ok());
    let fits = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
    };
    let path_fits = path.is_empty() || path.split('/').all(fits);
    (!host_fits || !path_fits).then_some("must be a repository name such as registry.example.com:5000/path")
}

fn features(config: &InstallConfig, problems: &mut Problems) {
    if !FEATURE_SETS.contains(&config.feature_set.as_str()) {
        return; // found by the schema
    }
    if !config.feature_gates.is_empty() && config.feature_set != "CustomNoUpgrade" {
        problems.forbidden(
            "featureGates",
            config.feature_gates.join(","),
            "needs featureSet: CustomNoUpgrade",
        );
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, gate) in config.feature_gates.iter().enumerate() {
        let path = format!("featureGates[{index}]");
        match gate.split_once('=') {
            Some((name, "true" | "false")) if !name.is_empty() => {
                if seen.contains(&name) {
                    problems.duplicate(path, name, "set each gate once");
                }
                seen.push(name);
            }
            _ => problems.invalid(path, gate, "must be Name=true or Name=false"),
        }
    }
    if !config.os_image_stream.is_empty() && config.feature_set.is_empty() {
        problems.forbidden(
            "osImageStream",
            &config.os_image_stream,
            "needs the feature gate OSStreams: set a featureSet that has it",
        );
    }
}

fn capabilities(config: &InstallConfig, problems: &mut Problems) {
    const PATH: &str = "capabilities.additionalEnabledCapabilities";
    let Some(capabilities) = &config.capabilities else { return };
    let additional = &capabilities.additional_enabled_capabilities;
    for (index, name) in additional.iter().enumerate() {
        if additional[..index].contains(name) {
            problems.duplicate(format!("{PATH}[{index}]"), name, "list it once");
        }
    }
    let has = |name: &str| {
        capabilities.baseline_capability_set != "None" || additional.iter().any(|given| given == name)
    };
    let wanted = [
        (has("marketplace"), "OperatorLifecycleManager", "marketplace needs it"),
        (has("baremetal"), "MachineAPI", "baremetal needs it"),
        (config.platform.baremetal.is_some(), "baremetal", "the platform baremetal needs it"),
        (config.platform.baremetal.is_some(), "MachineAPI", "the platform baremetal needs it"),
        (true, "Ingress", "no cluster works without it"),
    ];
    for (applies, name, reason) in wanted {
        if applies && !has(name) {
            problems.invalid(PATH, additional.join(","), format!("add {name}: {reason}"));
        }
    }
}

fn publishing(config: &InstallConfig, problems: &mut Problems) {
    if matches!(config.publish.as_str(), "Internal" | "Mixed") {
        problems.invalid("publish", &config.publish, "only clouds have it; use External");
    }
    if !config.credentials_mode.is_empty() {
        problems.invalid("credentialsMode", &config.credentials_mode, "only clouds have it; leave it out");
    }
}
