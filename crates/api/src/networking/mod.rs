//! Ingresses, network policies and service address ranges.

use crate::{Change, Column, Definition, Effect, MetaCheck, Rules, StatusKeeps, checks};
use apimachinery::{
    field::{Path, Problems},
    meta::{get, get_list, get_str},
    names,
};
use serde_json::Value;

mod ingress;
mod network_policy;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        ingress::class(),
        ingress::ingress(),
        Definition::cluster("networking.k8s.io", "v1", "IPAddress", "ipaddresses")
            .checks_update(&[MetaCheck::Whole, MetaCheck::Change])
            .short(&["ip"])
            .named(names::is_ip)
            .label_fn("spec.parentRef.resource", &["spec.parentRef.resource"], |object| {
                get_str(object, "spec.parentRef.resource").into()
            })
            .effects(&[Effect::FollowServiceRanges])
            .columns(vec![
                Column::new("ParentRef", |object, _| {
                    let part = |field: &str| get_str(object, &format!("spec.parentRef.{field}")).to_owned();
                    let resource = match part("group").as_str() {
                        "" => part("resource"),
                        group => format!("{}.{group}", part("resource")),
                    };
                    match part("namespace").as_str() {
                        "" => format!("{resource}/{}", part("name")).into(),
                        namespace => format!("{resource}/{namespace}/{}", part("name")).into(),
                    }
                }),
                Column::age(),
            ])
            .rules(Address),
        network_policy::definition(),
        Definition::cluster("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs")
            .checks_status(&[])
            .status_keeps(StatusKeeps::Metadata)
            .status()
            .effects(&[Effect::FollowServiceRanges])
            .columns(vec![
                Column::new("CIDRs", |object, _| {
                    let list = get_list(object, "spec.cidrs").iter().filter_map(Value::as_str);
                    list.collect::<Vec<_>>().join(",").into()
                }),
                Column::age(),
            ])
            .rules(Range),
    ]
}

struct Address;

impl Rules for Address {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        match get(change.new, "spec.parentRef") {
            None => problems.required(&path.child("parentRef"), ""),
            Some(parent) => {
                let at = path.child("parentRef");
                checks::syntax(parent, "group", names::is_dns1123_subdomain, &at, problems);
                for field in ["resource", "name"] {
                    checks::required_syntax(parent, field, names::is_path_segment_name, &at, problems);
                }
                checks::syntax(parent, "namespace", names::is_path_segment_name, &at, problems);
            }
        }
        if let Some(old) = change.old {
            checks::immutable_struct(
                change.new,
                old,
                "spec.parentRef",
                "networking.ParentReference",
                problems,
            );
        }
    }
}

struct Range;

impl Rules for Range {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let list = path.child("cidrs");
        let cidrs = get_list(change.new, "spec.cidrs");
        if let Some(old) = change.old {
            let before = get_list(old, "spec.cidrs");
            // A second family may be added, and then it is judged.
            let grows = before.len() == 1 && cidrs.len() == 2;
            if !grows && before.len() != cidrs.len() {
                let shown = get(change.new, "spec.cidrs").cloned().unwrap_or_default();
                problems.invalid(&list, shown, crate::metadata::IMMUTABLE);
            } else {
                for (index, (after, _)) in cidrs.iter().zip(before).enumerate().filter(|(_, (a, b))| a != b) {
                    problems.invalid(&list.index(index), after.clone(), crate::metadata::IMMUTABLE);
                }
            }
            if !grows {
                return;
            }
        }
        if cidrs.is_empty() {
            problems.required(&list, "at least one CIDR required");
        } else if cidrs.len() > 2 {
            problems.invalid(&list, change.new["spec"].clone(), "may only hold up to 2 values");
        }
        for (index, cidr) in cidrs.iter().enumerate() {
            let text = cidr.as_str().unwrap_or_default();
            problems.invalid_each(&list.index(index), text, names::is_cidr(text));
        }
        let good = cidrs.iter().all(|cidr| names::is_cidr(cidr.as_str().unwrap_or_default()).is_empty());
        let families: Vec<bool> =
            cidrs.iter().map(|cidr| cidr.as_str().unwrap_or_default().contains(':')).collect();
        if good && families.len() == 2 && families[0] == families[1] {
            problems.invalid(
                &list,
                Value::Array(cidrs.to_vec()),
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            );
        }
    }
}
