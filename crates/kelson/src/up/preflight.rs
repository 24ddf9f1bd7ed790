//! What this machine must have, checked before anything is made. Each failure is one sentence with a remedy.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context, bail};

/// Opens the API's port, so that a taken one is known before anything else starts.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| match address.port() {
        port if port < 1024 => {
            format!("cannot listen on {address}; ports below 1024 need root, choose one with --bind")
        }
        _ => format!("cannot listen on {address}; stop what uses the port or choose another with --bind"),
    })?;
    listener.set_nonblocking(true).context("cannot use the API's socket")?;
    Ok(listener)
}

/// A node needs root and a few kernel features; the control plane alone needs neither.
pub fn node(is_root: bool) -> anyhow::Result<()> {
    if !is_root {
        bail!(
            "running containers needs root; use sudo, or run only the control plane with --control-plane-only"
        );
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !has_filesystem(&filesystems, "overlay") {
        bail!("this kernel has no overlay file system; load it with `modprobe overlay`");
    }
    for (namespace, option) in [
        ("net", "CONFIG_NET_NS"),
        ("pid", "CONFIG_PID_NS"),
        ("ipc", "CONFIG_IPC_NS"),
        ("uts", "CONFIG_UTS_NS"),
    ] {
        if !Path::new("/proc/self/ns").join(namespace).exists() {
            bail!("this kernel has no {namespace} namespaces; it needs a kernel built with {option}");
        }
    }
    if !Path::new("/sys/fs/cgroup").exists() {
        bail!(
            "no control groups are mounted at /sys/fs/cgroup; mount them with `mount -t cgroup2 none /sys/fs/cgroup`"
        );
    }
    Ok(())
}

/// `/proc/filesystems` has one name per line, some behind `nodev`.
fn has_filesystem(list: &str, wanted: &str) -> bool {
    list.lines().any(|line| line.split_whitespace().next_back() == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named_with_a_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let message = format!("{:#}", bind(address).unwrap_err());
        assert!(message.contains(&address.to_string()) && message.contains("--bind"), "{message}");
    }

    #[test]
    fn without_root_only_a_node_is_refused() {
        assert!(node(false).unwrap_err().to_string().contains("--control-plane-only"));
    }

    #[test]
    fn file_systems_are_found_by_name() {
        assert!(has_filesystem("nodev\tsysfs\n\text4\nnodev\toverlay\n", "overlay"));
        assert!(!has_filesystem("nodev\toverlayfs2\n", "overlay"));
    }
}
