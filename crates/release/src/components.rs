//! The components of a release, as a table: one row each, by upstream's names.
//!
//! To add a component: make its program a command of the binary, put its objects as `NN_name.yaml` into
//! `crates/operators/manifests/<component>/`, and say here what it is made of.
//! In those objects an image is written `kelson.local/<component>` (any tag), the release's version `0.0.1-snapshot`, and the
//! version of a part of it `0.0.1-snapshot-<part>`, such as `0.0.1-snapshot-kubernetes`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::File;
use crate::crds;

/// Where images that come with the binary are "from".
pub const REGISTRY: &str = "kelson.local";
/// The label of images whose `/manifests` belong into a release.
pub const OPERATOR_LABEL: &str = "io.openshift.release.operator";
/// The label with the versions of what is inside, as `name=version,…`.
pub const VERSIONS_LABEL: &str = "io.openshift.build.versions";
/// The label with people's names for the above.
pub const DISPLAY_NAMES_LABEL: &str = "io.openshift.build.version-display-names";
/// The annotation by which an object is for clusters of a kind.
const INCLUDE: &str = "include.release.openshift.io/";
const PROFILES: [&str; 3] = ["self-managed-high-availability", "single-node-developer", "ibm-cloud-managed"];
/// The version of the Kubernetes that is served.
const KUBERNETES: &str = "1.36.0";

/// What a component's image is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The binary, started under this name.
    Program(&'static str),
    /// The binary under all its names, with none to start by itself.
    Programs,
    /// The container runtime's own image of this name.
    Runtime,
    /// Objects only.
    Objects,
    /// Nothing: its program does not exist. It is in no release.
    Missing,
}

/// One component.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Its tag in the release's image stream.
    pub name: &'static str,
    pub made: Made,
    /// Where its objects stand in the order of a release: `0000_NN_`.
    pub run_level: u8,
    /// Whether a release takes its objects. (The version operator's own lie in the release image anyway.)
    pub operator: bool,
    /// Whether it carries Kubernetes' version.
    kubernetes: bool,
}

const fn part(name: &'static str, made: Made) -> Component {
    Component { name, made, run_level: 50, operator: false, kubernetes: false }
}

const fn kubernetes(name: &'static str, made: Made) -> Component {
    Component { kubernetes: true, ..part(name, made) }
}

const fn operator(name: &'static str, made: Made, run_level: u8) -> Component {
    Component { run_level, operator: true, ..part(name, made) }
}

use Made::{Missing, Objects, Program, Programs, Runtime};

/// Every component.
pub const COMPONENTS: &[Component] = &[
    part("cli", Program("oc")),
    part("cloud-controller-manager", Program("cloud-controller-manager")),
    operator("cluster-authentication-operator", Missing, 50),
    part("cluster-bootstrap", Program("cluster-bootstrap")),
    operator("cluster-config-api", Objects, 10),
    operator("cluster-config-operator", Missing, 10),
    operator("cluster-dns-operator", Program("cluster-dns-operator"), 70),
    operator("cluster-etcd-operator", Program("cluster-etcd-operator"), 12),
    operator("cluster-ingress-operator", Missing, 50),
    operator("cluster-kube-apiserver-operator", Program("cluster-kube-apiserver-operator"), 20),
    operator(
        "cluster-kube-controller-manager-operator",
        Program("cluster-kube-controller-manager-operator"),
        25,
    ),
    operator("cluster-kube-scheduler-operator", Program("cluster-kube-scheduler-operator"), 25),
    operator("cluster-machine-approver", Program("machine-approver"), 50),
    operator("cluster-network-operator", Program("cluster-network-operator"), 70),
    Component { run_level: 0, ..part("cluster-version-operator", Program("cluster-version-operator")) },
    part("coredns", Program("coredns")),
    part("etcd", Program("etcd")),
    part("haproxy-router", Missing),
    kubernetes("hyperkube", Programs),
    kubernetes("kube-apiserver", Program("kube-apiserver")),
    kubernetes("kube-controller-manager", Program("kube-controller-manager")),
    kubernetes("kube-proxy", Program("kube-proxy")),
    kubernetes("kube-scheduler", Program("kube-scheduler")),
    kubernetes("kubelet", Program("kubelet")),
    operator("machine-config-operator", Missing, 80),
    part("machine-config-server", Missing),
    part("machine-os-content", Missing),
    part("oauth-apiserver", Missing),
    part("oauth-server", Missing),
    part("pod", Runtime),
    part("pod-network", Program("pod-network")),
];

/// Programs that the binary is by another name of theirs than its component's.
const OTHER_PROGRAMS: &[&str] = &["kubectl"];

/// Objects: component, file, content.
const MANIFESTS: &[(&str, &str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));

/// The row of a component.
pub fn find(name: &str) -> Option<&'static Component> {
    COMPONENTS.iter().find(|component| component.name == name)
}

/// Those that have an image.
pub fn present() -> impl Iterator<Item = &'static Component> {
    COMPONENTS.iter().filter(|component| component.made != Missing)
}

/// The names of those whose programs do not exist.
pub fn missing() -> impl Iterator<Item = &'static str> {
    COMPONENTS.iter().filter(|component| component.made == Missing).map(|component| component.name)
}

/// Every name that the binary is started by inside images.
pub fn programs() -> Vec<&'static str> {
    let mut names: BTreeSet<&str> = OTHER_PROGRAMS.iter().copied().collect();
    names.extend(COMPONENTS.iter().filter_map(Component::program));
    names.into_iter().collect()
}

impl Component {
    /// The name that its image starts the binary by.
    pub fn program(&self) -> Option<&'static str> {
        match self.made {
            Program(name) => Some(name),
            _ => None,
        }
    }

    /// The labels of its image.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        if self.operator {
            labels.insert(OPERATOR_LABEL.to_owned(), "true".to_owned());
        }
        if self.kubernetes {
            labels.insert(VERSIONS_LABEL.to_owned(), format!("kubernetes={KUBERNETES}"));
            labels.insert(DISPLAY_NAMES_LABEL.to_owned(), "kubernetes=Kubernetes".to_owned());
        }
        labels
    }

    /// What is in its image below `/manifests`: its objects, named by its place in the order, and the list of the images
    /// that they name.
    pub fn manifests(&self) -> Vec<File> {
        let prefix = format!("0000_{:02}_{}_", self.run_level, self.name);
        let own = MANIFESTS.iter().filter(|(component, ..)| *component == self.name);
        let mut files: Vec<File> =
            own.map(|(_, name, bytes)| File::new(format!("{prefix}{name}"), *bytes)).collect();
        files.extend(definitions(self.name).map(|(name, bytes)| File::new(format!("{prefix}{name}"), bytes)));
        files.sort();
        if !files.is_empty() {
            let references = references(&files);
            files.push(File::new("image-references", references));
        }
        files
    }
}

/// The definitions of kinds that a component brings, as files.
fn definitions(component: &str) -> impl Iterator<Item = (String, Vec<u8>)> {
    crds::all().into_iter().filter_map(move |crd| {
        // The version operator cannot wait for anyone to define what it reads.
        let home = match crd.plural {
            "clusterversions" | "clusteroperators" => "cluster-version-operator",
            _ => "cluster-config-api",
        };
        if home != component {
            return None;
        }
        let mut object = crd.object;
        let included = PROFILES.iter().map(|profile| (format!("{INCLUDE}{profile}"), json!("true")));
        object["metadata"]["annotations"] = Value::Object(included.collect());
        // Values that were made above have a form as YAML.
        let text = serde_yaml_ng::to_string(&object).unwrap_or_default();
        Some((format!("01_{}.{}.crd.yaml", crd.plural, crd.group), text.into_bytes()))
    })
}

/// The image stream that says which names in these files stand for components' images.
fn references(files: &[File]) -> Vec<u8> {
    let named = |component: &&Component| {
        let name = placeholder(component.name);
        files.iter().any(|file| mentions(&file.bytes, &name))
    };
    let tags: Vec<Value> = COMPONENTS
        .iter()
        .filter(named)
        .map(|component| {
            let from = json!({"kind": "DockerImage", "name": placeholder(component.name)});
            json!({"name": component.name, "from": from})
        })
        .collect();
    let stream =
        json!({"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "spec": {"tags": tags}});
    serde_json::to_vec_pretty(&stream).unwrap_or_default() // as above
}

fn placeholder(component: &str) -> String {
    format!("{REGISTRY}/{component}")
}

/// Whether a name of an image stands in the text, not as the beginning of a longer one.
fn mentions(text: &[u8], name: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let ends = |rest: &str| {
        !rest.starts_with(|next: char| next.is_alphanumeric() || matches!(next, '-' | '_' | '.' | '/'))
    };
    text.match_indices(name).any(|(at, _)| ends(&text[at + name.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_every_directory_of_manifests_has_one() {
        assert!(COMPONENTS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for (component, file, _) in MANIFESTS {
            assert!(find(component).is_some(), "{component} has {file} but no row in COMPONENTS");
            let numbered = file.len() > 3
                && file.as_bytes()[..2].iter().all(u8::is_ascii_digit)
                && file.as_bytes()[2] == b'_';
            assert!(numbered, "{component}/{file} does not begin with NN_");
        }
    }

    #[test]
    fn no_two_files_of_an_image_have_one_name() {
        for component in COMPONENTS {
            let files = component.manifests();
            let names: BTreeSet<&str> = files.iter().map(|file| file.name.as_str()).collect();
            assert_eq!(names.len(), files.len(), "{}", component.name);
        }
    }

    #[test]
    fn every_image_that_objects_name_is_a_components() {
        for (component, file, bytes) in MANIFESTS {
            let text = std::str::from_utf8(bytes).expect("manifests are text");
            for (at, _) in text.match_indices("kelson.local/") {
                let rest = &text[at + "kelson.local/".len()..];
                let end = rest
                    .find(|letter: char| !letter.is_alphanumeric() && letter != '-')
                    .unwrap_or(rest.len());
                assert!(find(&rest[..end]).is_some(), "{component}/{file} names {}", &rest[..end]);
            }
        }
    }

    #[test]
    fn a_longer_name_is_another() {
        assert!(mentions(b"image: kelson.local/etcd:latest", "kelson.local/etcd"));
        assert!(mentions(b"image: kelson.local/etcd", "kelson.local/etcd"));
        assert!(!mentions(b"image: kelson.local/etcd-operator:latest", "kelson.local/etcd"));
    }
}
