//! API servers behind this one.

use apimachinery::{
    field::{Path, Problems},
    meta::{Meta, get, get_str},
    names,
};
use serde_json::{Value, json};

use crate::{
    Change, Column, Definition, Effect, MetaCheck, Rules, StatusKeeps, checks,
    defaults::{Constant, apply},
    print,
};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices")
            .checks_update(&[MetaCheck::Change, MetaCheck::Whole])
            .any_finalizers()
            .versioned_updates()
            .status_keeps(StatusKeeps::Labels)
            .categories(&["api-extensions"])
            .status()
            .named(names::is_path_segment_name)
            .effects(&[Effect::Aggregate])
            .columns(vec![
                Column::new("Service", |service, _| match get(service, "spec.service") {
                    Some(target) => {
                        format!("{}/{}", get_str(target, "namespace"), get_str(target, "name")).into()
                    }
                    None => "Local".into(),
                }),
                Column::new("Available", |service, _| available(service).into()),
                Column::age(),
            ])
            .rules(Service),
    ]
}

fn available(service: &Value) -> String {
    match print::condition(service, "Available") {
        None => "Unknown".into(),
        Some(condition) if condition["status"] == "True" => "True".into(),
        Some(condition) => format!("{} ({})", get_str(condition, "status"), get_str(condition, "reason")),
    }
}

struct Service;

impl Rules for Service {
    fn set_defaults(&self, service: &mut Value) {
        apply(service, &[("spec.service.port", Constant::Number(443))]);
    }

    fn prepare_create(&self, service: &mut Value) {
        // One that names no Service is served here and is available at once.
        service["status"] = match get(service, "spec.service") {
            Some(_) => json!({}),
            None => json!({"conditions": [{"type": "Available", "status": "True",
                "lastTransitionTime": get(service, "metadata.creationTimestamp"),
                "reason": "Local", "message": "Local APIServices are always available"}]}),
        };
    }

    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let object = change.new;
        if change.subresource == "status" {
            let list = Path::new("status.conditions");
            let words = ["True", "False", "Unknown"];
            for (index, condition) in
                apimachinery::meta::get_list(object, "status.conditions").iter().enumerate()
            {
                let word = get_str(condition, "status");
                if !words.contains(&word) {
                    problems.not_one_of(&list.index(index).child("status"), word, &words);
                }
            }
            return;
        }
        let path = Path::new("spec");
        let spec = &object["spec"];
        let (group, version) = (get_str(spec, "group"), get_str(spec, "version"));
        let wanted = format!("{version}.{group}");
        let metadata = Path::new("metadata");
        for (field, name) in [("generateName", object.generate_name()), ("name", object.name())] {
            if !name.is_empty() && name != wanted && names::is_path_segment_name(name).is_empty() {
                let why = format!("must be `spec.version+\".\"+spec.group`: {wanted:?}");
                problems.invalid(&metadata.child(field), name, why);
            }
        }
        if group.is_empty() && version != "v1" {
            problems.required(
                &path.child("group"),
                "only v1 may have an empty group and it better be legacy kube",
            );
        }
        if !group.is_empty() {
            problems.invalid_each(&path.child("group"), group, names::is_dns1123_subdomain(group));
        }
        problems.invalid_each(&path.child("version"), version, names::is_dns1035_label(version));
        for (field, high) in [("groupPriorityMinimum", 20_000), ("versionPriority", 1000)] {
            let number = spec[field].as_i64().unwrap_or(0);
            if !(1..=high).contains(&number) {
                let text = if field == "groupPriorityMinimum" {
                    "must be positive and less than 20000"
                } else {
                    "must be positive and less than 1000"
                };
                problems.invalid(&path.child(field), number, text);
            }
        }
        match spec.get("service") {
            None => {
                if spec.get("caBundle").is_some() {
                    let shown = get_str(spec, "caBundle");
                    problems.invalid(
                        &path.child("caBundle"),
                        shown,
                        "local APIServices may not have a caBundle",
                    );
                }
                if spec["insecureSkipTLSVerify"] == true {
                    problems.invalid(
                        &path.child("insecureSkipTLSVerify"),
                        true,
                        "local APIServices may not have insecureSkipTLSVerify",
                    );
                }
            }
            Some(service) => {
                let at = path.child("service");
                for field in ["namespace", "name"] {
                    checks::required(service, field, &at, problems);
                }
                let port = service["port"].as_i64().unwrap_or(0);
                for complaint in names::is_port_number(port) {
                    problems.invalid(&at.child("port"), port, format!("port is not valid: {complaint}"));
                }
                if spec["insecureSkipTLSVerify"] == true && spec.get("caBundle").is_some() {
                    problems.invalid(
                        &path.child("insecureSkipTLSVerify"),
                        true,
                        "may not be true if caBundle is present",
                    );
                }
            }
        }
    }
}
