//! Ids of the host for pods with users of their own (`hostUsers: false`).
//!
//! Each has a range of 65536 that no other pod has. It is written down in the pod's directory, in the file and the format that
//! upstream uses, before the sandbox is made, and is free again when the directory is gone: after the pod's last process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Mutex;

use cri::{IdMapping, NamespaceMode, UserNamespace};
use serde::{Deserialize, Serialize};

/// The file in a pod's directory.
const FILE: &str = "userns";
/// How many ids a pod has.
const LENGTH: u32 = 65_536;
/// Ranges, counted from the host's own first one, that pods may have.
const RANGES: std::ops::Range<u32> = 1..4096;

/// One pod at a time looks for a free range.
static SEARCH: Mutex<()> = Mutex::new(());

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

/// The user namespace of the pod whose directory this is: the one it has, or a new one.
pub fn of_pod(pod_dir: &Path) -> io::Result<UserNamespace> {
    let _search = SEARCH.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(first) = first_id(pod_dir)? {
        return Ok(namespace(first));
    }
    let pods = pod_dir.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(pods)? {
        used.extend(first_id(&entry?.path())?);
    }
    let first = RANGES.map(|range| range * LENGTH).find(|first| !used.contains(first));
    let first = first.ok_or_else(|| io::Error::other("no ids are left for another pod's user namespace"))?;
    let mapping = || vec![Mapping { host_id: first, container_id: 0, length: LENGTH }];
    let kept = Kept { uid_mappings: mapping(), gid_mappings: mapping() };
    let draft = pod_dir.join(format!("{FILE}.draft"));
    fs::write(&draft, serde_json::to_vec(&kept)?)?;
    fs::rename(&draft, pod_dir.join(FILE))?;
    Ok(namespace(first))
}

/// What a pod has. A file that cannot be understood is an error: its ids may be in use.
fn first_id(pod_dir: &Path) -> io::Result<Option<u32>> {
    let path = pod_dir.join(FILE);
    let bytes = match fs::read(&path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        other => other?,
    };
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()));
    let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| unknown())?;
    match (&kept.uid_mappings[..], &kept.gid_mappings[..]) {
        ([users], [groups])
            if users.host_id == groups.host_id
                && [users, groups].iter().all(|one| one.container_id == 0 && one.length == LENGTH)
                && RANGES.contains(&(users.host_id / LENGTH))
                && users.host_id.is_multiple_of(LENGTH) =>
        {
            Ok(Some(users.host_id))
        }
        _ => Err(unknown()),
    }
}

fn namespace(first: u32) -> UserNamespace {
    let mapping = vec![IdMapping { host_id: first, container_id: 0, length: LENGTH }];
    UserNamespace { mode: NamespaceMode::Pod, uids: mapping.clone(), gids: mapping }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pod_has_its_own_ids_until_it_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let pod = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(&path).unwrap();
            of_pod(&path).unwrap().uids[0].host_id
        };
        assert_eq!((pod("a"), pod("b"), pod("a")), (65_536, 131_072, 65_536));
        fs::remove_dir_all(place.path().join("a")).unwrap();
        assert_eq!((pod("c"), pod("d"), pod("b")), (65_536, 196_608, 131_072));
        fs::write(place.path().join("b/userns"), "{}").unwrap();
        assert!(of_pod(&place.path().join("b")).is_err());
    }
}
