//! Where the data of a volume comes from: one table for the volumes of pods, one for PersistentVolumes.
//!
//! The order of the tables decides which of several sources is judged and which are refused.

use apimachinery::{
    field::{Path, Problems},
    meta::{get_list, get_str},
    names,
    quantity::Quantity,
};
use serde_json::Value;

use super::pod_spec::{
    env,
    volumes::{file_mode, key_paths, no_backsteps, projected, relative_path},
};
use crate::checks;

/// A source and its rules.
pub struct Source {
    field: &'static str,
    /// What upstream calls it when its own fields are wrong.
    at: &'static str,
    /// What upstream calls it when it is one too many.
    refused: &'static str,
    /// Whether it is one too many after another.
    alone: bool,
    check: fn(&Value, &Path<'_>, &mut Problems),
}

const fn source(field: &'static str, check: fn(&Value, &Path<'_>, &mut Problems)) -> Source {
    Source { field, at: field, refused: field, alone: true, check }
}

/// Checks that there is exactly one source, and that one. Returns which one it is.
pub fn validate(
    volume: &Value,
    sources: &[&[Source]],
    path: &Path<'_>,
    problems: &mut Problems,
) -> Option<&'static str> {
    let mut first = None;
    for source in sources.iter().copied().flatten() {
        let Some(value) = volume.get(source.field) else { continue };
        if first.is_some() && source.alone {
            problems.forbidden(&path.child(source.refused), "may not specify more than 1 volume type");
        } else {
            (source.check)(value, &path.child(source.at), problems);
        }
        first = first.or(Some(source.field));
    }
    if first.is_none() {
        problems.required(path, "must specify a volume type");
    }
    first
}

/// The sources of a pod's volume.
pub const POD: &[&[Source]] = &[POD_FIRST, CLAIM, POD_LAST, &[POD_IMAGE]];
/// The same in a template, where the image may be left for later.
pub const TEMPLATE: &[&[Source]] = &[POD_FIRST, CLAIM, POD_LAST, &[IMAGE]];
/// The sources of a PersistentVolume.
pub const PERSISTENT: &[&[Source]] = &[PERSISTENT_ALL];

const HOST_PATH_TYPES: &[&str] =
    &["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

const HOST_PATH: Source = source("hostPath", |source, at, problems| {
    if checks::required(source, "path", at, problems) {
        no_backsteps(get_str(source, "path"), &at.child("path"), problems);
        checks::one_of(source, "type", false, HOST_PATH_TYPES, at, problems);
    }
});
const GCE_DISK: Source = Source {
    at: "persistentDisk",
    ..source("gcePersistentDisk", |source, at, problems| {
        checks::required(source, "pdName", at, problems);
        partition(source, at, problems);
    })
};
const AWS_DISK: Source = source("awsElasticBlockStore", |source, at, problems| {
    checks::required(source, "volumeID", at, problems);
    partition(source, at, problems);
});
const NFS: Source = source("nfs", |source, at, problems| {
    checks::required(source, "server", at, problems);
    checks::required(source, "path", at, problems);
    if !get_str(source, "path").starts_with('/') {
        problems.invalid(&at.child("path"), get_str(source, "path"), "must be an absolute path");
    }
});
const ISCSI: Source = source("iscsi", |source, at, problems| iscsi(source, FORMS, at, problems));
const PERSISTENT_ISCSI: Source = source("iscsi", |source, at, problems| {
    iscsi(source, "must be valid format", at, problems);
});
const FORMS: &str = "must be valid format starting with iqn, eui, or naa";

fn iscsi(source: &Value, forms: &str, at: &Path<'_>, problems: &mut Problems) {
    checks::required(source, "targetPortal", at, problems);
    if checks::required(source, "iqn", at, problems) {
        initiator(get_str(source, "iqn"), forms, &at.child("iqn"), problems);
    }
    checks::in_range(source, "lun", 0, 255, at, problems);
    let authenticates = source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true;
    match source.get("secretRef") {
        None if authenticates => problems.required(&at.child("secretRef"), ""),
        // The secret of a pod's volume is not looked at.
        Some(secret) if forms != FORMS => {
            checks::required(secret, "name", &at.child("secretRef"), problems);
        }
        _ => {}
    }
    if let Some(name) = source.get("initiatorName").and_then(Value::as_str) {
        initiator(name, forms, &at.child("initiatorname"), problems);
    }
}
const GLUSTERFS: Source = source("glusterfs", |source, at, problems| {
    for field in ["endpoints", "path"] {
        checks::required(source, field, at, problems);
    }
    let namespace = at.child("endpointsNamespace");
    match source.get("endpointsNamespace").and_then(Value::as_str) {
        Some("") => {
            let why = "if the endpointnamespace is set, it must be a valid namespace name";
            problems.invalid(&namespace, "", why);
        }
        Some(text) => problems.invalid_each(&namespace, text, names::is_dns1123_label(text)),
        None => {}
    }
});
const FLOCKER: Source = source("flocker", |source, at, problems| {
    let (name, uuid) = (get_str(source, "datasetName"), get_str(source, "datasetUUID"));
    if name.is_empty() && uuid.is_empty() {
        problems.required(at, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uuid.is_empty() {
        problems.invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously");
    }
    if name.contains('/') {
        problems.invalid(&at.child("datasetName"), name, "must not contain '/'");
    }
});
const RBD: Source = source("rbd", |source, at, problems| {
    monitors(source, at, problems);
    checks::required(source, "image", at, problems);
});
const CINDER: Source = source("cinder", |source, at, problems| {
    checks::required(source, "volumeID", at, problems);
    secret(source, &["name"], at, problems);
});
const PERSISTENT_CINDER: Source = source("cinder", |source, at, problems| {
    checks::required(source, "volumeID", at, problems);
    secret(source, &["name", "namespace"], at, problems);
});

/// What a reference to a secret has to say. Volumes that outlive pods say in which namespace it is.
fn secret(source: &Value, fields: &[&str], at: &Path<'_>, problems: &mut Problems) {
    let Some(secret) = source.get("secretRef") else { return };
    let at = at.child("secretRef");
    for field in fields {
        checks::required(secret, field, &at, problems);
    }
}
const CEPHFS: Source = Source { refused: "cephFS", ..source("cephfs", monitors) };
const QUOBYTE: Source = source("quobyte", |source, at, problems| {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = get_str(source, "registry");
    if registry.is_empty() {
        problems.required(&at.child("registry"), PAIRS);
    } else if get_str(source, "tenant").len() >= 65 {
        problems.required(&at.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in registry.split(',') {
            if pair.rsplit_once(':').is_none_or(|(host, _)| host.contains(':') && !host.ends_with(']')) {
                problems.invalid(&at.child("registry"), registry, PAIRS);
            }
        }
    }
    checks::required(source, "volume", at, problems);
});
const FC: Source = source("fc", |source, at, problems| {
    let (names, ids) = (get_list(source, "targetWWNs"), get_list(source, "wwids"));
    let path = at.child("targetWWNs");
    if names.is_empty() && ids.is_empty() {
        problems.required(&path, "must specify either targetWWNs or wwids, but not both");
    }
    if !names.is_empty() && !ids.is_empty() {
        problems.invalid(
            &path,
            Value::from(names),
            "targetWWNs and wwids can not be specified simultaneously",
        );
    }
    if !names.is_empty() {
        if source.get("lun").is_none() {
            problems.required(&at.child("lun"), "lun is required if targetWWNs is specified");
        }
        checks::in_range(source, "lun", 0, 255, at, problems);
    }
});
const FLEX: Source = source("flexVolume", |source, at, problems| {
    checks::required(source, "driver", at, problems);
    let options = at.child("options");
    for key in checks::map(source, "options").into_iter().flat_map(|map| map.keys()) {
        let space = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if space.ends_with(".kubernetes.io") || space.ends_with(".k8s.io") {
            let why = "kubernetes.io and k8s.io namespaces are reserved";
            problems.invalid(&options.key(key), key.as_str(), why);
        }
    }
});
const VSPHERE: Source = source("vsphereVolume", |source, at, problems| {
    checks::required(source, "volumePath", at, problems);
});
const PHOTON: Source = source("photonPersistentDisk", |source, at, problems| {
    checks::required(source, "pdID", at, problems);
});
const PORTWORX: Source = source("portworxVolume", |source, at, problems| {
    checks::required(source, "volumeID", at, problems);
});
const AZURE_FILE: Source = source("azureFile", |source, at, problems| {
    for field in ["secretName", "shareName"] {
        checks::required(source, field, at, problems);
    }
    if source.get("secretNamespace").is_some_and(|namespace| namespace == "") {
        problems.required(&at.child("secretNamespace"), "");
    }
});
const AZURE_DISK: Source = source("azureDisk", |source, at, problems| {
    for field in ["diskName", "diskURI"] {
        checks::required(source, field, at, problems);
    }
    checks::one_of(source, "cachingMode", false, &["None", "ReadOnly", "ReadWrite"], at, problems);
    checks::one_of(source, "kind", false, &["Dedicated", "Managed", "Shared"], at, problems);
    let place = get_str(source, "diskURI");
    let wanted = match get_str(source, "kind") {
        "" => return,
        "Managed" if place.starts_with("/subscriptions/") => return,
        "Managed" => {
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
        }
        _ if place.starts_with("https://") => return,
        _ => "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
    };
    problems.not_supported(&at.child("diskURI"), place, &[wanted]);
});
const SCALE_IO: Source = source("scaleIO", |source, at, problems| {
    for field in ["gateway", "system", "volumeName"] {
        checks::required(source, field, at, problems);
    }
});
const STORAGE_OS: Source = source("storageos", |source, at, problems| {
    storage_os(source, at, problems);
    secret(source, &["name"], at, problems);
});
const PERSISTENT_STORAGE_OS: Source = source("storageos", |source, at, problems| {
    storage_os(source, at, problems);
    secret(source, &["name", "namespace"], at, problems);
});

fn storage_os(source: &Value, at: &Path<'_>, problems: &mut Problems) {
    checks::required_syntax(source, "volumeName", names::is_dns1123_label, at, problems);
    checks::syntax(source, "volumeNamespace", names::is_dns1123_label, at, problems);
}

const POD_FIRST: &[Source] = &[
    source("emptyDir", |source, at, problems| {
        let limit = get_str(source, "sizeLimit");
        if limit.parse::<Quantity>().is_ok_and(|limit| limit.sign() < 0) {
            let why = "SizeLimit field must be a valid resource quantity";
            problems.forbidden(&at.child("sizeLimit"), why);
        }
    }),
    HOST_PATH,
    source("gitRepo", |source, at, problems| {
        checks::required(source, "repository", at, problems);
        relative_path(get_str(source, "directory"), &at.child("directory"), problems);
    }),
    GCE_DISK,
    AWS_DISK,
    source("secret", |source, at, problems| {
        checks::required(source, "secretName", at, problems);
        file_mode(source, "defaultMode", at, problems);
        key_paths(source, at, problems);
    }),
    NFS,
    ISCSI,
    GLUSTERFS,
    FLOCKER,
];

const CLAIM: &[Source] = &[source("persistentVolumeClaim", |source, at, problems| {
    checks::required(source, "claimName", at, problems);
})];

const POD_LAST: &[Source] = &[
    RBD,
    CINDER,
    CEPHFS,
    QUOBYTE,
    Source {
        refused: "downwarAPI",
        ..source("downwardAPI", |source, at, problems| {
            file_mode(source, "defaultMode", at, problems);
            env::downward_items(source, at, problems);
        })
    },
    FC,
    FLEX,
    source("configMap", |source, at, problems| {
        checks::required(source, "name", at, problems);
        file_mode(source, "defaultMode", at, problems);
        key_paths(source, at, problems);
    }),
    AZURE_FILE,
    VSPHERE,
    PHOTON,
    PORTWORX,
    AZURE_DISK,
    STORAGE_OS,
    source("projected", projected),
    SCALE_IO,
    source("csi", |source, at, problems| {
        driver_name(source, "driver", at, problems);
        if let Some(secret) = source.get("nodePublishSecretRef") {
            let name = get_str(secret, "name");
            if name.is_empty() {
                problems.required(&at.child("nodePublishSecretRef").child("name"), "");
            } else {
                problems.invalid_each(&at.child("name"), name, names::is_dns1123_subdomain(name));
            }
        }
    }),
    source("ephemeral", |source, at, problems| {
        let at = at.child("volumeClaimTemplate");
        match source.get("volumeClaimTemplate") {
            None => problems.required(&at, ""),
            Some(template) => {
                let metadata = &template["metadata"];
                crate::metadata::of_template(metadata, &at.child("metadata"), problems);
                super::volumes::validate_claim_spec(&template["spec"], false, &at.child("spec"), problems);
            }
        }
    }),
];

const POD_IMAGE: Source = source("image", |source, at, problems| {
    checks::required(source, "reference", at, problems);
    (IMAGE.check)(source, at, problems);
});
const IMAGE: Source = source("image", |source, at, problems| {
    checks::one_of(source, "pullPolicy", true, &["Always", "IfNotPresent", "Never"], at, problems);
});

const PERSISTENT_ALL: &[Source] = &[
    HOST_PATH,
    GCE_DISK,
    AWS_DISK,
    GLUSTERFS,
    FLOCKER,
    NFS,
    RBD,
    QUOBYTE,
    CEPHFS,
    PERSISTENT_ISCSI,
    PERSISTENT_CINDER,
    FC,
    // Upstream lets it stand beside what comes before it.
    Source { alone: false, ..FLEX },
    AZURE_FILE,
    VSPHERE,
    PHOTON,
    PORTWORX,
    AZURE_DISK,
    SCALE_IO,
    source("local", |source, at, problems| {
        if checks::required(source, "path", at, problems) {
            no_backsteps(get_str(source, "path"), &at.child("path"), problems);
        }
    }),
    PERSISTENT_STORAGE_OS,
    source("csi", |source, at, problems| {
        driver_name(source, "driver", at, problems);
        checks::required(source, "volumeHandle", at, problems);
        for field in [
            "controllerPublishSecretRef",
            "controllerExpandSecretRef",
            "nodePublishSecretRef",
            "nodeExpandSecretRef",
        ] {
            if let Some(secret) = source.get(field) {
                let at = at.child(field);
                checks::required_syntax(secret, "name", names::is_dns1123_subdomain, &at, problems);
                checks::required_syntax(secret, "namespace", names::is_dns1123_label, &at, problems);
            }
        }
    }),
];

/// The name of a CSI driver, whose capitals do not count.
pub fn driver_name(value: &Value, field: &str, path: &Path<'_>, problems: &mut Problems) {
    if !checks::required(value, field, path, problems) {
        return;
    }
    let name = get_str(value, field);
    if name.len() > 63 {
        problems.too_long(&path.child(field), 63);
    }
    problems.invalid_each(&path.child(field), name, names::is_dns1123_subdomain(&name.to_lowercase()));
}

fn monitors(source: &Value, at: &Path<'_>, problems: &mut Problems) {
    if get_list(source, "monitors").is_empty() {
        problems.required(&at.child("monitors"), "");
    }
}

fn partition(source: &Value, at: &Path<'_>, problems: &mut Problems) {
    if let Some(number) = source.get("partition").and_then(Value::as_i64)
        && !(0..=255).contains(&number)
    {
        problems.invalid(&at.child("partition"), number, names::inclusive_range(1, 255));
    }
}

/// The name of an iSCSI node, in one of its three forms.
fn initiator(name: &str, forms: &str, at: &Path<'_>, problems: &mut Problems) {
    let id = |rest: &str, length: usize| {
        rest.len() == length + 1 && rest.bytes().skip(1).all(|byte| byte.is_ascii_alphanumeric())
    };
    let valid = if let Some(rest) = name.strip_prefix("iqn") {
        qualified_initiator(rest)
    } else if let Some(rest) = name.strip_prefix("eui") {
        id(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa") {
        id(rest, 32)
    } else {
        problems.invalid(at, name, forms);
        return;
    };
    if !valid {
        problems.invalid(at, name, "must be valid format");
    }
}

/// What follows `iqn`: a month, a domain, and what the owner calls it, as in `.2001-04.com.example:disk`.
fn qualified_initiator(rest: &str) -> bool {
    let Some((owner, own)) = rest.strip_prefix('.').and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let (month, domain) = owner.split_once('.').unwrap_or((owner, ""));
    let is_month = |(at, byte): (usize, u8)| if at == 4 { byte == b'-' } else { byte.is_ascii_digit() };
    month.len() == 7
        && month.bytes().enumerate().all(is_month)
        && !domain.is_empty()
        && domain.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        && !own.is_empty()
        && !own.contains(|letter: char| ",;*&$|".contains(letter) || letter.is_whitespace())
}
