//! The rules of machines: pools, topologies, bare metal hosts and addresses, machines of this host.

use std::net::IpAddr;

use ipnet::IpNet;

use super::validate_network::parse_network;
use super::{Baremetal, InstallConfig, Pool};
use crate::addresses;
use crate::problem::Problems;

pub(super) fn validate(config: &InstallConfig, problems: &mut Problems) {
    control_plane(config, problems);
    compute(config, problems);
    arbiter(config, problems);
    bootstrap_in_place(config, problems);
    room_for_machines(config, problems);
    if let Some(baremetal) = &config.platform.baremetal {
        vips(config, baremetal, problems);
        hosts(config, baremetal, problems);
        provisioning(config, baremetal, problems);
    }
    local(config, problems);
}

fn replicas(pool: &Pool, path: &str, problems: &mut Problems) {
    match pool.replicas {
        None => problems.required(path, "say how many machines"),
        Some(count) if count < 0 => problems.invalid(path, count, "must not be negative"),
        Some(_) => {}
    }
}

fn control_plane(config: &InstallConfig, problems: &mut Problems) {
    let Some(pool) = &config.control_plane else {
        return problems.required("controlPlane", "describe the control plane");
    };
    const PATH: &str = "controlPlane.replicas";
    if pool.name != "master" {
        problems.unsupported("controlPlane.name", &pool.name, &["master"]);
    }
    replicas(pool, PATH, problems);
    let fenced = pool.fencing.as_ref().map_or(0, |fencing| fencing.credentials.len());
    match pool.replicas {
        Some(0) => problems.invalid(PATH, 0, "must be positive"),
        Some(2) if fenced != 2 && config.arbiter_replicas() == 0 => {
            problems.invalid(
                PATH,
                2,
                "two machines need an arbiter or two fencing credentials; or use 1, 3, 4 or 5",
            );
        }
        Some(count) if count > 5 => {
            problems.invalid(PATH, count, "etcd works with at most 5 members: use 1, 3, 4 or 5");
        }
        _ => {}
    }
    if let Some(fencing) = &pool.fencing {
        if pool.replicas != Some(2) || config.arbiter_replicas() > 0 {
            problems.forbidden("controlPlane.fencing", "", "only for two machines without arbiter");
        }
        for (index, credential) in fencing.credentials.iter().enumerate() {
            let at = format!("controlPlane.fencing.credentials[{index}]");
            for (name, value) in [
                ("hostName", &credential.host_name),
                ("address", &credential.address),
                ("username", &credential.username),
                ("password", &credential.password),
            ] {
                if value.is_empty() {
                    problems.required(format!("{at}.{name}"), "fencing needs it");
                }
            }
            let same = |other: &super::FencingCredential| other.address == credential.address;
            if fencing.credentials[..index].iter().any(same) {
                problems.duplicate(format!("{at}.address"), &credential.address, "each machine has its own");
            }
        }
    }
}

fn compute(config: &InstallConfig, problems: &mut Problems) {
    let mut seen = Vec::new();
    for (index, pool) in config.compute.iter().enumerate() {
        let at = format!("compute[{index}]");
        if pool.name != "worker" {
            problems.unsupported(format!("{at}.name"), &pool.name, &["worker"]);
        } else if seen.contains(&pool.name.as_str()) {
            problems.duplicate(format!("{at}.name"), &pool.name, "give one pool with all its replicas");
        }
        seen.push(&pool.name);
        replicas(pool, &format!("{at}.replicas"), problems);
        let master = config.control_plane.as_ref().map(|pool| pool.architecture.as_str());
        if master.is_some_and(|architecture| architecture != pool.architecture) {
            problems.invalid(
                format!("{at}.architecture"),
                &pool.architecture,
                "must equal controlPlane.architecture: the release is for one architecture",
            );
        }
        if pool.fencing.is_some() {
            problems.forbidden(format!("{at}.fencing"), "", "only the control plane is fenced");
        }
    }
    if config.compute_replicas() == 1 {
        problems.warn(
            "compute[0].replicas",
            1,
            "fewer than two workers: the ingress routers are not redundant",
        );
    }
}

fn arbiter(config: &InstallConfig, problems: &mut Problems) {
    let Some(pool) = &config.arbiter else { return };
    if pool.name != "arbiter" {
        problems.unsupported("arbiter.name", &pool.name, &["arbiter"]);
    }
    replicas(pool, "arbiter.replicas", problems);
    match (pool.replicas, config.control_plane_replicas()) {
        (Some(0), _) => problems.invalid("arbiter.replicas", 0, "must be 1; or leave arbiter out"),
        (Some(count), _) if count > 1 => problems.invalid("arbiter.replicas", count, "must be 1"),
        (Some(1), masters) if masters < 2 => {
            problems.invalid(
                "controlPlane.replicas",
                masters,
                "an arbiter needs at least two control plane machines",
            );
        }
        _ => {}
    }
    if config.platform.external.is_some() {
        problems.forbidden("arbiter", "", "the platform external has none");
    }
}

fn bootstrap_in_place(config: &InstallConfig, problems: &mut Problems) {
    let Some(in_place) = &config.bootstrap_in_place else { return };
    if in_place.installation_disk.is_empty() {
        problems
            .required("bootstrapInPlace.installationDisk", "name the disk to install to, such as /dev/sda");
    } else if !in_place.installation_disk.starts_with("/dev/") {
        problems.invalid(
            "bootstrapInPlace.installationDisk",
            &in_place.installation_disk,
            "must begin with /dev/",
        );
    }
    if config.control_plane_replicas() != 1 {
        let count = config.control_plane_replicas();
        problems.invalid("controlPlane.replicas", count, "bootstrapInPlace needs exactly 1");
    }
    if config.compute_replicas() != 0 {
        let count = config.compute_replicas();
        problems.invalid("compute[0].replicas", count, "bootstrapInPlace needs 0");
    }
    if config.platform.baremetal.is_some() {
        problems.invalid("platform", "baremetal", "bootstrapInPlace needs the platform none or external");
    }
}

/// Every machine needs an address of the first machine network, and a part of the cluster network.
fn room_for_machines(config: &InstallConfig, problems: &mut Problems) {
    let count = |replicas: i64| u128::try_from(replicas.max(0)).unwrap_or(0);
    let machines = count(config.control_plane_replicas())
        + count(config.compute_replicas())
        + count(config.arbiter_replicas());
    for (index, entry) in config.networking.machine_network.iter().enumerate() {
        let Ok(net) = entry.cidr.parse::<IpNet>() else { continue };
        // Besides the machines: network, gateway, broadcast, bootstrap, and two addresses that move.
        if net.addr() == net.network() && addresses::size(&net) < machines + 6 {
            let path = format!("networking.machineNetwork[{index}].cidr");
            problems.invalid(
                path,
                net,
                format!("is too small for {machines} machines and a bootstrap machine"),
            );
        }
    }
    for six in [false, true] {
        let entries: Vec<(usize, IpNet, i64)> = config
            .networking
            .cluster_network
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((index, entry.cidr.parse().ok()?, entry.host_prefix)))
            .filter(|(_, net, _)| addresses::is_v6(net) == six)
            .collect();
        let parts: u128 = entries
            .iter()
            .map(|(_, net, prefix)| prefix - i64::from(net.prefix_len()))
            .filter(|bits| *bits >= 0)
            .map(|bits| 1u128 << bits.min(64))
            .sum();
        if let Some((index, _, prefix)) = entries.first().filter(|_| parts > 0 && parts < machines) {
            problems.invalid(
                format!("networking.clusterNetwork[{index}].hostPrefix"),
                prefix,
                format!("allows {parts} nodes, but {machines} are asked for"),
            );
        }
    }
}

fn machine_networks(config: &InstallConfig) -> Vec<IpNet> {
    config.networking.machine_network.iter().filter_map(|entry| entry.cidr.parse().ok()).collect()
}

fn vips(config: &InstallConfig, baremetal: &Baremetal, problems: &mut Problems) {
    let networks = machine_networks(config);
    let user_managed = baremetal.load_balancer.as_ref().is_some_and(|lb| lb.type_ == "UserManaged");
    let mut all: Vec<(String, IpAddr)> = Vec::new();
    for (field, list) in [("apiVIPs", &baremetal.api_vips), ("ingressVIPs", &baremetal.ingress_vips)] {
        let at = format!("platform.baremetal.{field}");
        if list.is_empty() {
            problems.required(&at, "give one address of the machine network per family");
        }
        if list.len() > 2 {
            problems.invalid(&at, list.join(","), "at most two addresses, one per family");
        }
        let mut families = Vec::new();
        for (index, text) in list.iter().enumerate() {
            let path = format!("{at}[{index}]");
            let Ok(address) = text.parse::<IpAddr>() else {
                problems.invalid(path, text, "must be an address");
                continue;
            };
            if families.contains(&address.is_ipv6()) && list.len() <= 2 {
                problems.invalid(&at, list.join(","), "two addresses must be of different families");
            }
            families.push(address.is_ipv6());
            if !user_managed && !networks.is_empty() && !networks.iter().any(|net| net.contains(&address)) {
                problems.invalid(&path, text, "must lie in a machine network");
            }
            let network_of = |net: &&IpNet| net.network() == address || net.broadcast() == address;
            if networks.iter().filter(|net| !addresses::is_v6(net)).any(|net| network_of(&net)) {
                problems.invalid(&path, text, "is the network's own or its broadcast address");
            }
            all.push((path, address));
        }
    }
    for (index, (path, address)) in all.iter().enumerate() {
        if all[..index].iter().any(|(_, other)| other == address) && !user_managed {
            problems.invalid(path, address, "the API and the ingress need different addresses");
        }
    }
}

fn hosts(config: &InstallConfig, baremetal: &Baremetal, problems: &mut Problems) {
    const AT: &str = "platform.baremetal.hosts";
    let wanted = config.control_plane_replicas() + config.compute_replicas() + config.arbiter_replicas();
    if (baremetal.hosts.len() as i64) < wanted {
        problems.required(
            AT,
            format!("{wanted} machines are asked for, {} are described", baremetal.hosts.len()),
        );
    }
    let masters = baremetal.hosts.iter().filter(|host| host.role == "master").count() as i64;
    let free = baremetal.hosts.iter().filter(|host| host.role.is_empty()).count() as i64;
    if baremetal.hosts.len() as i64 >= wanted && masters + free < config.control_plane_replicas() {
        problems.invalid(AT, masters, "too few machines may become masters");
    }
    for (index, host) in baremetal.hosts.iter().enumerate() {
        let at = format!("{AT}[{index}]");
        let earlier = &baremetal.hosts[..index];
        if host.name.is_empty() {
            problems.required(format!("{at}.name"), "name the machine");
        } else if let Some(fault) = super::validate::subdomain_fault(&host.name) {
            problems.invalid(format!("{at}.name"), &host.name, fault);
        } else if earlier.iter().any(|other| other.name == host.name) {
            problems.duplicate(format!("{at}.name"), &host.name, "each machine has its own name");
        }
        if host.boot_mac_address.is_empty() {
            problems
                .required(format!("{at}.bootMACAddress"), "give the address of the interface it boots from");
        } else if !is_mac(&host.boot_mac_address) {
            problems.invalid(
                format!("{at}.bootMACAddress"),
                &host.boot_mac_address,
                "must be six hexadecimal pairs with colons, such as 52:54:00:00:00:01",
            );
        } else if earlier
            .iter()
            .any(|other| other.boot_mac_address.eq_ignore_ascii_case(&host.boot_mac_address))
        {
            problems.duplicate(
                format!("{at}.bootMACAddress"),
                &host.boot_mac_address,
                "each interface has its own",
            );
        }
        let bmc = &host.bmc;
        if bmc.address.is_empty() {
            problems.required(format!("{at}.bmc.address"), "give the URL of the management controller");
        } else if earlier.iter().any(|other| other.bmc.address == bmc.address) {
            problems.duplicate(
                format!("{at}.bmc.address"),
                &bmc.address,
                "each machine has its own controller",
            );
        }
        for (name, value) in [("username", &bmc.username), ("password", &bmc.password)] {
            if value.is_empty() {
                problems.required(format!("{at}.bmc.{name}"), "the management controller asks for it");
            }
        }
    }
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    parts.len() == 6 && parts.iter().all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn provisioning(config: &InstallConfig, baremetal: &Baremetal, problems: &mut Problems) {
    const AT: &str = "platform.baremetal";
    if baremetal.provisioning_network == "Disabled" {
        return;
    }
    let path = format!("{AT}.provisioningNetworkCIDR");
    let Some(net) = parse_network(&path, &baremetal.provisioning_network_cidr, problems) else { return };
    for machine in machine_networks(config).iter().filter(|machine| addresses::overlap(machine, &net)) {
        problems.invalid(&path, net, format!("overlaps with networking.machineNetwork {machine}"));
    }
    let range = dhcp_range(baremetal, &net, problems);
    for (name, text) in [
        ("bootstrapProvisioningIP", &baremetal.bootstrap_provisioning_ip),
        ("clusterProvisioningIP", &baremetal.cluster_provisioning_ip),
    ] {
        let path = format!("{AT}.{name}");
        match text.parse::<IpAddr>() {
            Err(_) => problems.invalid(path, text, "must be an address"),
            Ok(address) if !net.contains(&address) => {
                problems.invalid(path, text, format!("must lie in {net}"))
            }
            Ok(address) if range.is_some_and(|(first, last)| first <= address && address <= last) => {
                problems.invalid(path, text, "must not lie in provisioningDHCPRange");
            }
            Ok(_) => {}
        }
    }
    if baremetal.bootstrap_provisioning_ip == baremetal.cluster_provisioning_ip {
        problems.duplicate(
            format!("{AT}.clusterProvisioningIP"),
            &baremetal.cluster_provisioning_ip,
            "must differ from bootstrapProvisioningIP",
        );
    }
}

fn dhcp_range(baremetal: &Baremetal, net: &IpNet, problems: &mut Problems) -> Option<(IpAddr, IpAddr)> {
    const PATH: &str = "platform.baremetal.provisioningDHCPRange";
    let text = baremetal.provisioning_dhcp_range.as_str();
    if text.is_empty() {
        return None;
    }
    let parsed = text
        .split_once(',')
        .and_then(|(first, last)| Some((first.trim().parse().ok()?, last.trim().parse().ok()?)));
    let Some((first, last)) = parsed else {
        problems.invalid(PATH, text, "must be two addresses with a comma: first,last");
        return None;
    };
    if first > last {
        problems.invalid(PATH, text, "the first address must not be higher than the last");
    }
    if !net.contains(&first) || !net.contains(&last) {
        problems.invalid(PATH, text, format!("must lie in {net}"));
    }
    Some((first, last))
}

fn local(config: &InstallConfig, problems: &mut Problems) {
    let Some(local) = &config.platform.local else { return };
    if local.memory_mib < 256 {
        problems.invalid("platform.local.memoryMiB", local.memory_mib, "a machine needs 256 MiB or more");
    }
    if local.cpus < 1 {
        problems.invalid("platform.local.cpus", local.cpus, "a machine needs one processor or more");
    }
    let Some(net) = parse_network("platform.local.bridgeCIDR", &local.bridge_cidr, problems) else { return };
    let machine = machine_networks(config);
    if !machine.is_empty() && !machine.iter().any(|network| network.contains(&net)) {
        problems.invalid("platform.local.bridgeCIDR", net, "must lie in a machine network");
    }
}
