//! The rules of networks: syntax, size, families, and that none overlaps another.

use ipnet::IpNet;

use super::{Networking, Platform};
use crate::addresses::{is_v6, overlap, size};
use crate::problem::Problems;

/// A network with the field that it stands in.
struct Named {
    path: String,
    /// What the field is called when another overlaps with it.
    field: &'static str,
    net: IpNet,
}

/// Networks that the pod network uses inside each node.
const INTERNAL: &[(&str, &str)] = &[
    ("join subnet", "100.64.0.0/16"),
    ("transit subnet", "100.88.0.0/16"),
    ("masquerade subnet", "169.254.0.0/17"),
    ("join subnet", "fd98::/64"),
    ("transit subnet", "fd97::/64"),
    ("masquerade subnet", "fd69::/112"),
];

pub(super) fn validate(networking: &Networking, platform: &Platform, problems: &mut Problems) {
    match networking.network_type.as_str() {
        "" => problems.required("networking.networkType", "use OVNKubernetes"),
        removed @ ("OpenShiftSDN" | "Kuryr") => {
            problems.invalid("networking.networkType", removed, "was removed; use OVNKubernetes");
        }
        _ => {}
    }
    let machine = parse_all(
        "networking.machineNetwork",
        networking.machine_network.iter().map(|entry| entry.cidr.as_str()),
        ".cidr",
        problems,
    );
    let cluster = parse_all(
        "networking.clusterNetwork",
        networking.cluster_network.iter().map(|entry| entry.cidr.as_str()),
        ".cidr",
        problems,
    );
    let service = parse_all(
        "networking.serviceNetwork",
        networking.service_network.iter().map(String::as_str),
        "",
        problems,
    );
    for (field, list) in [
        ("networking.machineNetwork", networking.machine_network.len()),
        ("networking.clusterNetwork", networking.cluster_network.len()),
        ("networking.serviceNetwork", networking.service_network.len()),
    ] {
        if list == 0 {
            problems.required(field, "give at least one network");
        }
    }
    service_sizes(&service, problems);
    one_service_network_per_family(&service, problems);
    host_prefixes(networking, &cluster, problems);
    // In the order in which the later one is blamed.
    let all: Vec<&Named> = machine.iter().chain(&service).chain(&cluster).collect();
    for (index, later) in all.iter().enumerate() {
        for earlier in &all[..index] {
            if overlap(&later.net, &earlier.net) {
                let remedy = format!("overlaps with {} {}", earlier.field, earlier.net);
                problems.invalid(&later.path, later.net, remedy);
            }
        }
    }
    let join = join_subnet(networking, problems);
    internal_networks(&all, join, problems);
    join_size(networking, &cluster, join, problems);
    families(&machine, &cluster, &service, platform, problems);
    if networking.cluster_network_mtu.is_some_and(|mtu| mtu != 0) {
        let mtu = networking.cluster_network_mtu.unwrap_or_default();
        problems.invalid("networking.clusterNetworkMTU", mtu, "this platform finds it itself; leave it out");
    }
}

/// Parses one network and checks that it is one: no host bits, not everything.
pub(super) fn parse_network(path: &str, text: &str, problems: &mut Problems) -> Option<IpNet> {
    if text.is_empty() {
        problems.required(path, "give a network such as 10.0.0.0/16");
        return None;
    }
    let Ok(net) = text.parse::<IpNet>() else {
        problems.invalid(path, text, "must be a network in CIDR notation such as 10.0.0.0/16 or fd00::/48");
        return None;
    };
    if net.addr() != net.network() {
        problems.invalid(path, text, format!("must be the network's address: expected {}", net.trunc()));
        return None;
    }
    if net.network().is_unspecified() {
        problems.invalid(path, text, "the unspecified address is no network of a cluster");
        return None;
    }
    Some(net)
}

fn parse_all<'a>(
    field: &'static str,
    texts: impl Iterator<Item = &'a str>,
    suffix: &str,
    problems: &mut Problems,
) -> Vec<Named> {
    texts
        .enumerate()
        .filter_map(|(index, text)| {
            let path = format!("{field}[{index}]{suffix}");
            parse_network(&path, text, problems).map(|net| Named { path, field, net })
        })
        .collect()
}

fn service_sizes(service: &[Named], problems: &mut Problems) {
    for named in service {
        let (least, advised) = if is_v6(&named.net) { (108, 112) } else { (12, 16) };
        if named.net.prefix_len() < least {
            problems.invalid(
                &named.path,
                named.net,
                format!("the range is too large: /{least} or longer, /{advised} is usual"),
            );
        } else if size(&named.net) < 16 {
            problems.invalid(
                &named.path,
                named.net,
                "the range is too small: the tenth address is the DNS's",
            );
        }
    }
}

fn one_service_network_per_family(service: &[Named], problems: &mut Problems) {
    for six in [false, true] {
        let of_family: Vec<&Named> = service.iter().filter(|named| is_v6(&named.net) == six).collect();
        if let Some(second) = of_family.get(1) {
            let family = if six { "IPv6" } else { "IPv4" };
            problems.invalid(
                "networking.serviceNetwork",
                second.net,
                format!("only one {family} service network can be given"),
            );
        }
    }
}

fn host_prefixes(networking: &Networking, cluster: &[Named], problems: &mut Problems) {
    let mut first_v4 = None;
    for (index, entry) in networking.cluster_network.iter().enumerate() {
        let at = format!("networking.clusterNetwork[{index}]");
        let path = format!("{at}.hostPrefix");
        let named = cluster.iter().find(|named| named.path == format!("{at}.cidr"));
        let prefix = entry.host_prefix;
        if prefix < 0 {
            problems.invalid(path, prefix, "must not be negative");
            continue;
        }
        let Some(named) = named else { continue };
        let six = is_v6(&named.net);
        if prefix == 0 {
            problems.required(path, "say how large each node's part is, such as 23");
        } else if prefix < i64::from(named.net.prefix_len()) {
            problems.invalid(path, prefix, format!("each node's part would be larger than {}", named.net));
        } else if six && prefix != 64 {
            problems.invalid(path, prefix, "must be 64 for IPv6");
        } else if !six && prefix > 30 {
            problems.invalid(path, prefix, "leaves a node no addresses for pods: use 30 or less");
        } else if !six {
            let first = *first_v4.get_or_insert(prefix);
            if first != prefix {
                problems.invalid(
                    path,
                    prefix,
                    format!("must equal that of the other IPv4 networks: {first}"),
                );
            }
        }
    }
}

fn join_subnet(networking: &Networking, problems: &mut Problems) -> Option<IpNet> {
    let text = networking.ovn_kubernetes_config.as_ref()?.ipv4.as_ref()?.internal_join_subnet.as_deref()?;
    const PATH: &str = "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet";
    let net = parse_network(PATH, text, problems)?;
    if is_v6(&net) {
        problems.invalid(PATH, text, "must be an IPv4 network");
        return None;
    }
    Some(net)
}

fn internal_networks(all: &[&Named], join: Option<IpNet>, problems: &mut Problems) {
    const JOIN_PATH: &str = "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet";
    let docker: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert([172, 17, 0, 0].into(), 16));
    for named in all {
        for (name, text) in INTERNAL {
            let Ok(net) = text.parse::<IpNet>() else { continue };
            let replaced = *text == "100.64.0.0/16" && join.is_some();
            if !replaced && overlap(&named.net, &net) {
                problems.invalid(
                    &named.path,
                    named.net,
                    format!("overlaps with the pod network's {name} {net}"),
                );
            }
        }
        if let Some(join) = join.filter(|join| overlap(&named.net, join)) {
            problems.invalid(JOIN_PATH, join, format!("overlaps with {} {}", named.field, named.net));
        }
        if overlap(&named.net, &docker) {
            problems.warn(&named.path, named.net, "overlaps with docker's usual bridge 172.17.0.0/16");
        }
    }
    if let Some(join) = join {
        for (name, text) in INTERNAL.iter().skip(1) {
            if text.parse::<IpNet>().is_ok_and(|net| overlap(&join, &net)) {
                problems.invalid(JOIN_PATH, join, format!("overlaps with the pod network's {name} {text}"));
            }
        }
    }
}

/// Each node takes an address of the join subnet.
fn join_size(networking: &Networking, cluster: &[Named], join: Option<IpNet>, problems: &mut Problems) {
    let Some(join) = join else { return };
    let nodes: u128 = networking
        .cluster_network
        .iter()
        .zip(cluster)
        .filter(|(_, named)| !is_v6(&named.net))
        .map(|(entry, named)| entry.host_prefix - i64::from(named.net.prefix_len()))
        .filter(|bits| (0..64).contains(bits))
        .map(|bits| 1u128 << bits)
        .sum();
    if size(&join) < nodes + 3 {
        problems.invalid(
            "networking.ovnKubernetesConfig.ipv4.internalJoinSubnet",
            join,
            format!("is too small for the {nodes} nodes that clusterNetwork allows"),
        );
    }
}

fn families(
    machine: &[Named],
    cluster: &[Named],
    service: &[Named],
    platform: &Platform,
    problems: &mut Problems,
) {
    let lists = [
        ("networking.machineNetwork", machine),
        ("networking.clusterNetwork", cluster),
        ("networking.serviceNetwork", service),
    ];
    if lists.iter().any(|(_, list)| list.is_empty()) {
        return;
    }
    let has = |list: &[Named], six: bool| list.iter().any(|named| is_v6(&named.net) == six);
    let dual = lists.iter().any(|(_, list)| has(list, false) && has(list, true));
    let mixed = [false, true].iter().all(|six| lists.iter().any(|(_, list)| has(list, *six)));
    if dual || mixed {
        for (path, list) in lists {
            for (six, family) in [(false, "IPv4"), (true, "IPv6")] {
                if !has(list, six) {
                    problems.invalid(path, "", format!("dual stack needs an {family} network here too"));
                }
            }
        }
    }
    if dual && platform.external.is_some() {
        problems.invalid("networking", "", "dual stack is for the platforms none, baremetal and local");
    }
    let order = |list: &[Named]| list.first().map(|named| is_v6(&named.net));
    if dual && (order(cluster) != order(service)) {
        problems.invalid(
            "networking.clusterNetwork",
            cluster.first().map(|named| named.net.to_string()).unwrap_or_default(),
            "the first network must have the family of the first service network",
        );
    }
}
