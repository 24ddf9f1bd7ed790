//! Capabilities: names, the default set, and what adding and dropping makes of it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Names by number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container has unless told otherwise: the set that containerd and Docker settled on.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// A set of capabilities, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities(pub u64);

/// The sets of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilitySets {
    /// What it and its programs may ever have; also its permitted and effective set.
    pub bounding: Capabilities,
    /// What survives exec by a user that is not root.
    pub ambient: Capabilities,
}

/// The text names no capability.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a capability")]
pub struct UnknownCapability(String);

impl Capabilities {
    /// Every capability this code knows.
    pub const ALL: Self = Self((1 << NAMES.len()) - 1);

    /// Whether capability number `number` is in the set.
    pub fn has(self, number: usize) -> bool {
        self.0 & (1 << number) != 0
    }

    fn named(name: &str) -> Result<Self, UnknownCapability> {
        let upper = name.to_ascii_uppercase();
        let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
        match NAMES.iter().position(|known| *known == bare) {
            Some(number) => Ok(Self(1 << number)),
            None if bare == "ALL" => Ok(Self::ALL),
            None => Err(UnknownCapability(name.to_owned())),
        }
    }

    fn of(names: &[impl AsRef<str>]) -> Result<Self, UnknownCapability> {
        names.iter().try_fold(Self::default(), |set, name| Ok(Self(set.0 | Self::named(name.as_ref())?.0)))
    }
}

/// The sets of a container. `ALL` in either list is applied first, then the single names: dropping all and adding
/// one leaves one, adding all and dropping one leaves all others.
pub fn resolve(request: &cri::Capability, privileged: bool) -> Result<CapabilitySets, UnknownCapability> {
    let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
    let single = |names: &[String]| names.iter().filter(|name| !is_all(name)).cloned().collect::<Vec<_>>();
    let ambient = Capabilities::of(&request.add_ambient_capabilities)?;
    let mut set = Capabilities::of(&DEFAULT)?.0;
    if request.add_capabilities.iter().any(is_all) {
        set = Capabilities::ALL.0;
    }
    if request.drop_capabilities.iter().any(is_all) {
        set = 0;
    }
    let added = Capabilities::of(&single(&request.add_capabilities))?.0;
    let dropped = Capabilities::of(&single(&request.drop_capabilities))?.0;
    set = ((set | added) & !dropped) | ambient.0;
    if privileged {
        set = Capabilities::ALL.0;
    }
    Ok(CapabilitySets { bounding: Capabilities(set), ambient })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(add: &[&str], drop: &[&str]) -> Vec<&'static str> {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let request = cri::Capability {
            add_capabilities: owned(add),
            drop_capabilities: owned(drop),
            ..Default::default()
        };
        let set = resolve(&request, false).unwrap().bounding;
        NAMES.iter().enumerate().filter(|(number, _)| set.has(*number)).map(|(_, name)| *name).collect()
    }

    #[test]
    fn adding_and_dropping_start_from_the_default_set() {
        assert_eq!(resolved(&[], &[]).len(), DEFAULT.len());
        assert_eq!(resolved(&["NET_BIND_SERVICE"], &["ALL"]), ["NET_BIND_SERVICE"]);
        assert_eq!(resolved(&["ALL"], &["cap_sys_admin"]).len(), NAMES.len() - 1);
        assert!(resolved(&["CAP_NET_ADMIN"], &["KILL"]).contains(&"NET_ADMIN"));
        assert!(!resolved(&["CAP_NET_ADMIN"], &["KILL"]).contains(&"KILL"));
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let request = cri::Capability { add_capabilities: vec!["FLY".into()], ..Default::default() };
        assert_eq!(resolve(&request, false), Err(UnknownCapability("FLY".into())));
    }
}
