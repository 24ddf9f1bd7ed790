//! The core group: pods, services, nodes and what they need.

use crate::{Column, Definition, Effect, Verbs, print};

mod config;
pub mod endpoints;
pub mod event;
pub mod limits;
mod namespace;
mod node;
pub mod pod;
mod pod_resize;
mod pod_rules;
pub mod pod_spec;
mod pod_status;
mod replication_controller;
pub mod resource_names;
mod service;
pub mod service_rules;
pub mod volume_sources;
mod volume_update;
pub mod volumes;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced("", "v1", "Binding", "bindings")
            .verbs(Verbs::CREATE)
            .effects(&[Effect::BindPod]),
        Definition::cluster("", "v1", "ComponentStatus", "componentstatuses")
            .short(&["cs"])
            .deprecated("v1 ComponentStatus is deprecated in v1.19+")
            .verbs(Verbs::READ)
            .columns(vec![
                Column::new("Status", |component, _| {
                    let healthy = apimachinery::meta::get_list(component, "conditions")
                        .iter()
                        .any(|condition| condition["type"] == "Healthy" && condition["status"] == "True");
                    if healthy { "Healthy" } else { "Unhealthy" }.into()
                }),
                Column::new("Message", |component, _| component["conditions"][0]["message"].clone()),
                Column::new("Error", |component, _| component["conditions"][0]["error"].clone()),
            ]),
        config::config_map(),
        endpoints::definition(),
        event::core(),
        limits::limit_range(),
        namespace::definition(),
        node::definition(),
        volumes::claim(),
        volumes::persistent_volume(),
        pod::definition(),
        Definition::namespaced("", "v1", "PodTemplate", "podtemplates")
            .pod_at("template.spec")
            .answers_with_object()
            .generation()
            .columns(vec![
                Column::new("Containers", |object, _| print::containers(object, "template.spec.containers")),
                Column::new("Images", |object, _| print::images(object, "template.spec.containers")),
                Column::new("Pod Labels", |object, _| {
                    print::labels(object["template"]["metadata"]["labels"].as_object()).into()
                }),
            ])
            .rules(pod_spec::TemplateRules { path: "template", restart: &[] }),
        replication_controller::definition(),
        limits::resource_quota(),
        config::secret(),
        config::service_account(),
        service::definition(),
    ]
}
