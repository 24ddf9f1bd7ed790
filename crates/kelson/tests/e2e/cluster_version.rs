//! `kelson cluster-version-operator` against a real API server: a release is applied, kept, and told about truthfully.

use std::path::Path;
use std::process::{Child, Command};

use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::harness::{Cluster, eventually, in_own_network};

const IMAGE: &str = "example.com/release@sha256:1";

struct Operator(Child);

impl Operator {
    fn start(cluster: &Cluster, release: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kelson"));
        command.args([
            "cluster-version-operator",
            "start",
            "--leader-elect=false",
            "--enable-auto-update=false",
        ]);
        command.arg("--kubeconfig").arg(cluster.kubeconfig()).arg("--payload-dir").arg(release);
        command.arg(format!("--release-image={IMAGE}"));
        let log = std::fs::File::create(release.join("log")).expect("a log");
        Self(command.stderr(log).spawn().expect("the operator starts"))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _status = self.0.wait();
    }
}

fn write_release(root: &Path) {
    let write = |name: &str, value: Value| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        std::fs::write(path, value.to_string()).expect("a file");
    };
    let meta = |name: &str, namespace: &str| {
        let annotations = json!({"include.release.openshift.io/self-managed-high-availability": "true"});
        json!({"name": name, "namespace": namespace, "annotations": annotations})
    };
    std::fs::create_dir_all(root.join("manifests")).expect("a directory");
    write(
        "release-manifests/release-metadata",
        json!({"kind": "cincinnati-metadata-v0", "version": "4.18.0", "metadata": {}}),
    );
    write(
        "release-manifests/image-references",
        json!({"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": {"name": "4.18.0"},
            "spec": {"tags": [{"name": "dns", "from": {"kind": "DockerImage", "name": "example.com/dns@sha256:2"}}]}}),
    );
    // In the order of the files the namespace comes last: its component is applied beside the other, which tries again.
    write(
        "release-manifests/0000_10_dns_00-config.yaml",
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("settings", "released"), "data": {"mode": "safe"}}),
    );
    write(
        "release-manifests/0000_10_dns_01-deployment.yaml",
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta("dns", "released"), "spec": {
            "selector": {"matchLabels": {"app": "dns"}},
            "template": {"metadata": {"labels": {"app": "dns"}}, "spec": {"containers": [{"name": "dns", "image": "example.com/dns@sha256:2"}]}},
        }}),
    );
    write(
        "release-manifests/0000_10_dns_02-operator.yaml",
        json!({"apiVersion": "config.openshift.io/v1", "kind": "ClusterOperator", "metadata": meta("dns", ""), "spec": {},
            "status": {"versions": [{"name": "operator", "version": "4.18.0"}], "relatedObjects": [{"group": "", "resource": "namespaces", "name": "released"}]}}),
    );
    write(
        "release-manifests/0000_10_late_00-namespace.yaml",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta("released", "")}),
    );
}

fn api(client: &Client, group: &str, kind: &str, plural: &str, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
    match namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

fn condition(object: &DynamicObject, kind: &str) -> String {
    let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
    let text = |field: &str| found[field].as_str().unwrap_or("-").to_owned();
    format!("{} {} {}", text("status"), text("reason"), text("message"))
}

async fn until_told(versions: &Api<DynamicObject>, release: &Path, kind: &str, wanted: &str) {
    eventually(&format!("ClusterVersion says {kind} {wanted}"), || async {
        let version = versions.get("version").await.map_err(|error| error.to_string())?;
        let told = condition(&version, kind);
        let log = || std::fs::read_to_string(release.join("log")).unwrap_or_default();
        if told.starts_with(wanted) { Ok(()) } else { Err(format!("{told}\n{}\n{}", version.data, log())) }
    })
    .await;
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("the patch is taken");
}

#[test]
fn a_release_is_applied_and_kept_and_told_about() {
    in_own_network(|| async {
        let cluster = Cluster::new();
        cluster.up_with(&["--control-plane-only"]);
        let client = cluster.client().await;
        let release = tempfile::tempdir().expect("a directory");
        write_release(release.path());

        // Without its definitions the operator waits; with them it goes on by itself.
        let mut operator = Operator::start(&cluster, release.path());
        let definitions =
            api(&client, "apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", "");
        for definition in release::crds::all() {
            let names = &definition.object["spec"]["names"]["kind"];
            if ["ClusterVersion", "ClusterOperator", "FeatureGate"].iter().any(|wanted| names == wanted) {
                let definition: DynamicObject = serde_json::from_value(definition.object).expect("an object");
                definitions.create(&PostParams::default(), &definition).await.expect("a definition");
            }
        }
        let versions = api(&client, "config.openshift.io", "ClusterVersion", "clusterversions", "");
        let version = json!({
            "apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion", "metadata": {"name": "version"},
            "spec": {"clusterID": "11111111-2222-4333-8444-555555555555"},
        });
        let version: DynamicObject = serde_json::from_value(version).expect("an object");
        eventually("a ClusterVersion can be made", || async {
            versions
                .create(&PostParams::default(), &version)
                .await
                .map(drop)
                .map_err(|error| error.to_string())
        })
        .await;

        // Everything is there, and the operator that does not answer is named.
        until_told(
            &versions,
            release.path(),
            "Failing",
            "True ClusterOperatorNotAvailable Cluster operator dns is not available",
        )
        .await;
        let settings = api(&client, "", "ConfigMap", "configmaps", "released");
        assert_eq!(
            settings.get("settings").await.expect("it was applied").data["data"],
            json!({"mode": "safe"})
        );
        let told = versions.get("version").await.expect("it is there");
        assert_eq!(told.data["status"]["history"][0]["state"], "Partial");
        assert!(condition(&told, "Available").starts_with("False"));

        // The operator answers: the release is applied.
        let operators = api(&client, "config.openshift.io", "ClusterOperator", "clusteroperators", "");
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let says = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "AsExpected", "lastTransitionTime": now});
        let mut dns = operators.get("dns").await.expect("it was made ahead of its turn");
        assert_eq!(dns.data["status"]["relatedObjects"][0]["name"], "released");
        dns.data["status"]["conditions"] =
            json!([says("Available", "True"), says("Progressing", "False"), says("Degraded", "False")]);
        dns.data["status"]["versions"] = json!([{"name": "operator", "version": "4.18.0"}]);
        operators.replace_status("dns", &PostParams::default(), &dns).await.expect("a status");
        until_told(&versions, release.path(), "Available", "True - Done applying 4.18.0").await;
        until_told(&versions, release.path(), "Progressing", "False - Cluster version is 4.18.0").await;
        let told = versions.get("version").await.expect("it is there");
        assert_eq!(told.data["status"]["history"][0]["state"], "Completed");
        assert_eq!(told.data["status"]["desired"]["image"], IMAGE);

        // What the release owns comes back, what others added stays; also after the operator was killed.
        operator.0.kill().expect("it runs");
        operator.0.wait().expect("it ends");
        merge(
            &settings,
            "settings",
            json!({"data": {"mode": "wild", "extra": "kept"}, "metadata": {"labels": {"mine": "yes"}}}),
        )
        .await;
        let deployments = api(&client, "apps", "Deployment", "deployments", "released");
        deployments.delete("dns", &Default::default()).await.expect("a deletion");
        drop(std::mem::replace(&mut operator, Operator::start(&cluster, release.path())));
        eventually("settings and deployment are restored", || async {
            let settings = settings.get("settings").await.map_err(|error| error.to_string())?;
            deployments.get("dns").await.map_err(|error| error.to_string())?;
            let labels = settings.metadata.labels.unwrap_or_default();
            match settings.data["data"] == json!({"mode": "safe", "extra": "kept"})
                && labels.contains_key("mine")
            {
                true => Ok(()),
                false => Err(settings.data.to_string()),
            }
        })
        .await;

        // An object that is taken out is left alone, and another release is refused by name.
        let unmanaged = json!({"group": "", "kind": "ConfigMap", "namespace": "released", "name": "settings", "unmanaged": true});
        merge(&versions, "version", json!({"spec": {"overrides": [unmanaged]}})).await;
        merge(&settings, "settings", json!({"data": {"mode": "wild"}})).await;
        merge(&deployments, "dns", json!({"spec": {"replicas": 3}})).await;
        merge(
            &versions,
            "version",
            json!({"spec": {"desiredUpdate": {"image": "example.com/other@sha256:3"}}}),
        )
        .await;
        until_told(&versions, release.path(), "ReleaseAccepted", "False RetrievePayload").await;
        eventually("the deployment has its size again", || async {
            let deployment = deployments.get("dns").await.map_err(|error| error.to_string())?;
            match deployment.data["spec"]["replicas"] == 1 {
                true => Ok(()),
                false => Err(deployment.data["spec"]["replicas"].to_string()),
            }
        })
        .await;
        assert_eq!(settings.get("settings").await.expect("it is there").data["data"]["mode"], "wild");
    });
}
