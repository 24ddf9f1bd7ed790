use super::*;

#[test]
fn the_documents_hold_together() {
    let all = crate::builtins();
    let apps = all.iter().filter(|definition| definition.names.group == "apps");
    for document in [v3(apps), v2(&all)] {
        let text = document.to_string();
        for part in text.split("\"$ref\":\"").skip(1) {
            let place = part.split('"').next().unwrap_or_default();
            assert!(document.pointer(&place[1..]).is_some(), "{place} is referred to but not there");
        }
    }
}

/// Version 3 says what a field is when it is left out, which is what apply tells elements of lists apart by.
#[test]
fn defaults_and_unions_are_declared_in_version_three_only() {
    let all = crate::builtins();
    let pods: Vec<_> = all.iter().filter(|one| one.names.kind == "Pod").collect();
    let (third, second) = (v3(pods.iter().copied()), v2(pods.iter().copied()));
    let property =
        |name: &str, field: &str| third["components"]["schemas"][name]["properties"][field].clone();
    let owner = "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference";
    assert_eq!(property(owner, "uid")["default"], "");
    assert_eq!(property("io.k8s.api.core.v1.ContainerPort", "protocol")["default"], "TCP");
    assert_eq!(property("io.k8s.api.core.v1.ContainerPort", "containerPort")["default"], 0);
    assert_eq!(property("io.k8s.api.core.v1.Container", "resources")["default"], json!({}));
    assert_eq!(property("io.k8s.api.core.v1.Container", "env")["items"]["default"], json!({}));
    assert_eq!(property("io.k8s.api.core.v1.Container", "args")["items"]["default"], "");
    assert_eq!(property("io.k8s.api.core.v1.GRPCAction", "service")["default"], "");
    assert_eq!(property("io.k8s.api.core.v1.Container", "image")["default"], Value::Null);
    let schemas = &third["components"]["schemas"];
    assert_eq!(schemas["io.k8s.api.core.v1.LocalObjectReference"]["required"], Value::Null);
    assert!(schemas["io.k8s.api.core.v1.SeccompProfile"]["x-kubernetes-unions"].is_array());
    assert!(second["definitions"][owner]["properties"]["uid"].get("default").is_none());
}

#[test]
fn lists_and_parameters_are_described() {
    let all = crate::builtins();
    let document = v2(&all);
    let list = &document["definitions"]["io.k8s.api.core.v1.ServiceList"];
    assert_eq!(list["properties"]["items"]["description"], "List of services");
    for name in [RESOURCE, INT_OR_STRING, TIME, MICRO_TIME, RAW, JSON, FIELDS, PATCH] {
        assert!(document["definitions"][name]["description"].is_string(), "{name}");
    }
    let create = &document["paths"]["/api/v1/namespaces/{namespace}/endpoints"]["post"]["description"];
    assert_eq!(create, "create Endpoints");
    let core = v3(all.iter().filter(|one| one.names.group.is_empty()));
    let list = &core["paths"]["/api/v1/services"]["get"]["parameters"];
    let list = if list.is_array() { list } else { &core["paths"]["/api/v1/services"]["parameters"] };
    let text = |name: &str| {
        let found = list.as_array().into_iter().flatten().find(|one| one["name"] == name);
        found.map_or(String::new(), |one| one["description"].as_str().unwrap_or_default().to_owned())
    };
    for (name, want) in [
        ("labelSelector", "A selector to restrict the list of returned objects by their labels."),
        ("watch", "Watch for changes to the described resources"),
        (
            "resourceVersion",
            "See https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions for details.\n\nDefaults",
        ),
    ] {
        assert!(text(name).contains(want), "{name}: {}", text(name));
    }
    for (path, method, name, want) in [
        ("/api/v1/nodes/{name}", "patch", "force", "Force"),
        ("/api/v1/nodes/{name}", "delete", "gracePeriodSeconds", "duration in seconds"),
        ("/api/v1/namespaces/{namespace}/pods/{name}/log", "get", "follow", "Follow the log stream"),
        ("/api/v1/nodes/{name}/proxy/{path}", "get", "path", "proxy request to node"),
    ] {
        let of = |place: &Value| place["parameters"].as_array().cloned().unwrap_or_default();
        let path = &core["paths"][path];
        let both = [of(&path[method]), of(path)].concat();
        let found = both.iter().find(|one| one["name"] == name && one["in"] == "query");
        let found = found.map_or("", |one| one["description"].as_str().unwrap_or_default());
        assert!(found.contains(want), "{name}: {found}");
    }
}

#[test]
fn operations_have_upstreams_names() {
    let all = crate::builtins();
    let document = v2(&all);
    for (path, method, id) in [
        ("/api/v1/watch/namespaces/{namespace}/configmaps/{name}", "get", "watchCoreV1NamespacedConfigMap"),
        ("/api/v1/watch/configmaps", "get", "watchCoreV1ConfigMapListForAllNamespaces"),
        ("/api/v1/watch/nodes", "get", "watchCoreV1NodeList"),
        ("/api/v1/configmaps", "get", "listCoreV1ConfigMapForAllNamespaces"),
        ("/api/v1/namespaces/{namespace}/configmaps", "delete", "deleteCoreV1CollectionNamespacedConfigMap"),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/{name}",
            "patch",
            "patchRbacAuthorizationV1ClusterRole",
        ),
        (
            "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale",
            "put",
            "replaceAppsV1NamespacedDeploymentScale",
        ),
        ("/api/v1/namespaces/{namespace}/pods/{name}/exec", "post", "connectCoreV1PostNamespacedPodExec"),
        ("/api/v1/nodes/{name}/proxy/{path}", "head", "connectCoreV1HeadNodeProxyWithPath"),
        (
            "/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            "post",
            "createCoreV1NamespacedServiceAccountToken",
        ),
        ("/apis/apps/v1/", "get", "getAppsV1APIResources"),
        ("/version/", "get", "getCodeVersion"),
    ] {
        assert_eq!(document["paths"][path][method]["operationId"], id, "{path}");
    }
    let port = &document["definitions"]["io.k8s.api.core.v1.ServicePort"]["properties"]["protocol"];
    assert_eq!(port["enum"], json!(["SCTP", "TCP", "UDP"]));
    let options = &document["definitions"][DELETE_OPTIONS]["x-kubernetes-group-version-kind"];
    assert!(options.as_array().is_some_and(|kinds| kinds.len() > 20), "{options}");
}

#[test]
fn discovery_has_documents_of_its_own() {
    for (path, kind, operation) in [
        ("api", "APIVersions", "getCoreAPIVersions"),
        ("apis", "APIGroupList", "getAPIVersions"),
        ("apis/rbac.authorization.k8s.io", "APIGroup", "getRbacAuthorizationAPIGroup"),
    ] {
        let document = v3_discovery(path);
        assert_eq!(document["paths"][format!("/{path}/")]["get"]["operationId"], operation);
        let name = format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}");
        let schema = &document["components"]["schemas"][name];
        assert!(schema["properties"]["kind"].is_object(), "{schema}");
    }
}

#[test]
fn explain_and_apply_find_what_they_read() {
    let all = crate::builtins();
    let document = v3(all.iter().filter(|definition| definition.names.group == "apps"));
    let patch = &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Deployment");
    assert!(patch["parameters"].to_string().contains("fieldValidation"));
    let pod = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(pod["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(pod["x-kubernetes-list-map-keys"], json!(["name"]));
    let deployment = &document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"];
    assert!(
        deployment["properties"]["metadata"]["description"]
            .as_str()
            .is_some_and(|text| text.starts_with("Standard object's metadata"))
    );
}
