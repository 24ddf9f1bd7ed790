//! Ingresses, network policies and service address ranges.

use crate::{Change, Column, Definition, Effect, Rules, StatusKeeps, checks};
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
            checks::immutable(change.new, old, "spec.parentRef", problems);
        }
    }
}

struct Range;

impl Rules for Range {
    fn validate(&self, change: &Change<'_>, problems: &mut Problems) {
        let path = Path::new("spec");
        let list = path.child("cidrs");
        let cidrs = get_list(change.new, "spec.cidrs");
        if cidrs.is_empty() {
            problems.required(&list, "at least one CIDR required");
        } else if cidrs.len() > 2 {
            problems.invalid(&list, change.new["spec"].clone(), "may only hold up to 2 values");
        }
        for (index, cidr) in cidrs.iter().enumerate() {
            let text = cidr.as_str().unwrap_or_default();
            problems.invalid_each(&list.index(index), text, names::is_cidr(text));
        }
        let families: Vec<bool> =
            cidrs.iter().map(|cidr| cidr.as_str().unwrap_or_default().contains(':')).collect();
        if families.len() == 2 && families[0] == families[1] {
            problems.invalid(
                &list,
                Value::Array(cidrs.to_vec()),
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            );
        }
        if let Some(old) = change.old {
            let before = get_list(old, "spec.cidrs");
            if cidrs.len() < before.len() || before.iter().zip(cidrs).any(|(old, new)| old != new) {
                problems.invalid(&list, Value::Array(cidrs.to_vec()), crate::metadata::IMMUTABLE);
            }
        }
    }
}
