//! The resolv.conf that a pod gets. Pure; the host's own file is handed in as text.

use cri::DnsConfig;

use crate::pod::Pod;

/// Limits of the C library and of upstream.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// What the cluster and the host offer.
#[derive(Debug, Clone, Default)]
pub struct Resolvers {
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// Contents of the host's resolv.conf.
    pub host: DnsConfig,
}

/// Reads a resolv.conf.
pub fn parse(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            // The last search line wins.
            Some("search") => {
                config.searches = words.map(|word| word.trim_end_matches('.').to_owned()).collect()
            }
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
}

/// The resolver settings of a pod.
pub fn config(pod: &Pod, resolvers: &Resolvers) -> DnsConfig {
    let spec = &pod.spec;
    let cluster_first = match spec.dns_policy.as_str() {
        "None" | "Default" => false,
        "ClusterFirstWithHostNet" => true,
        _ => !spec.host_network,
    };
    let mut config = match spec.dns_policy.as_str() {
        "None" => DnsConfig::default(),
        _ if cluster_first && !resolvers.cluster_dns.is_empty() => {
            let domain = resolvers.cluster_domain.trim_end_matches('.');
            let mut searches = Vec::new();
            if !domain.is_empty() {
                searches.push(format!("{}.svc.{domain}", pod.metadata.namespace));
                searches.push(format!("svc.{domain}"));
                searches.push(domain.to_owned());
            }
            searches.extend(resolvers.host.searches.iter().cloned());
            DnsConfig { servers: resolvers.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
        }
        _ => resolvers.host.clone(),
    };
    if let Some(custom) = &spec.dns_config {
        config.servers.extend(custom.nameservers.iter().cloned());
        config.searches.extend(custom.searches.iter().cloned());
        for option in &custom.options {
            // An option given by the pod replaces ours of the same name.
            config.options.retain(|known| known.split(':').next() != Some(&option.name));
            config.options.push(match option.value.as_deref().filter(|value| !value.is_empty()) {
                Some(value) => format!("{}:{value}", option.name),
                None => option.name.clone(),
            });
        }
    }
    deduplicate(&mut config.servers);
    deduplicate(&mut config.searches);
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    config
}

fn deduplicate(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

/// The pod's host name and, where it has a subdomain, its domain.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> (String, String) {
    let spec = &pod.spec;
    if let Some(name) = spec.hostname_override.as_ref().filter(|name| !name.is_empty()) {
        return (name.clone(), String::new());
    }
    let own = if spec.hostname.is_empty() { &pod.metadata.name } else { &spec.hostname };
    let name = own.chars().take(63).collect::<String>().trim_end_matches(['-', '.']).to_owned();
    let domain = if spec.subdomain.is_empty() {
        String::new()
    } else {
        format!("{}.{}.svc.{cluster_domain}", spec.subdomain, pod.metadata.namespace)
    };
    (name, domain)
}

/// The managed /etc/hosts of a pod with its own network.
pub fn hosts_file(
    pod: &Pod,
    ips: &[std::net::IpAddr],
    cluster_domain: &str,
    host_file: Option<&str>,
) -> String {
    let mut text = String::from("# Kubernetes-managed hosts file");
    if let Some(host_file) = host_file {
        text.push_str(" (host network).\n");
        text.push_str(host_file);
    } else {
        text.push_str(
            ".\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
        );
        let (name, domain) = hostname(pod, cluster_domain);
        for ip in ips {
            if domain.is_empty() {
                text.push_str(&format!("{ip}\t{name}\n"));
            } else {
                text.push_str(&format!("{ip}\t{name}.{domain}\t{name}\n"));
            }
        }
    }
    if !pod.spec.host_aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        for alias in &pod.spec.host_aliases {
            text.push_str(&format!("{}\t{}\n", alias.ip, alias.hostnames.join("\t")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).unwrap()
    }

    fn resolvers() -> Resolvers {
        Resolvers {
            cluster_dns: vec!["172.30.0.10".into()],
            cluster_domain: "cluster.local".into(),
            host: parse("# x\nnameserver 8.8.8.8\nsearch lan.\noptions edns0\n"),
        }
    }

    #[test]
    fn policies_choose_the_servers() {
        let cases = [
            (
                json!({}),
                vec!["172.30.0.10"],
                vec!["n.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"],
                vec!["ndots:5"],
            ),
            (
                json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
                vec!["8.8.8.8"],
                vec!["lan"],
                vec!["edns0"],
            ),
            (json!({"dnsPolicy": "Default"}), vec!["8.8.8.8"], vec!["lan"], vec!["edns0"]),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a", "a"],
                       "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]}}),
                vec!["1.1.1.1"],
                vec!["a"],
                vec!["ndots:2", "rotate"],
            ),
        ];
        for (spec, servers, searches, options) in cases {
            let config = config(&pod(spec.clone()), &resolvers());
            assert_eq!(
                (config.servers, config.searches, config.options),
                (
                    servers.iter().map(ToString::to_string).collect(),
                    searches.iter().map(ToString::to_string).collect(),
                    options.iter().map(ToString::to_string).collect()
                ),
                "{spec}"
            );
        }
    }

    #[test]
    fn the_hosts_file_names_the_pod_and_its_aliases() {
        let pod = pod(
            json!({"hostname": "h", "subdomain": "s", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}),
        );
        let text = hosts_file(&pod, &["10.0.0.7".parse().unwrap()], "cluster.local", None);
        assert!(text.contains("10.0.0.7\th.s.n.svc.cluster.local\th\n"), "{text}");
        assert!(text.contains("1.2.3.4\ta\tb\n"), "{text}");
    }
}
