"""The official Python client against one server: run with a kubeconfig as the only argument."""

import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException

config.load_kube_config(sys.argv[1])
core, apps, custom = client.CoreV1Api(), client.AppsV1Api(), client.CustomObjectsApi()
crds = client.ApiextensionsV1Api()
NAMESPACE = "python"


def refused(code, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except ApiException as error:
        assert error.status == code, error
        return
    raise AssertionError(f"expected {code}")


# Typed objects: create, read, list with selectors and pages, patch, replace, delete.
core.create_namespace({"metadata": {"name": NAMESPACE}})
for number in range(5):
    body = client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name=f"m{number}", labels={"odd": str(number % 2)}), data={"n": str(number)})
    core.create_namespaced_config_map(NAMESPACE, body)
refused(409, core.create_namespaced_config_map, NAMESPACE, {"metadata": {"name": "m0"}})
odd = core.list_namespaced_config_map(NAMESPACE, label_selector="odd=1").items
assert [one.metadata.name for one in odd] == ["m1", "m3"], odd
page = core.list_namespaced_config_map(NAMESPACE, limit=2)
assert len(page.items) == 2 and page.metadata._continue and page.metadata.remaining_item_count == 3
rest = core.list_namespaced_config_map(NAMESPACE, limit=10, _continue=page.metadata._continue)
assert len(rest.items) == 3
patched = core.patch_namespaced_config_map("m0", NAMESPACE, {"data": {"more": "yes"}})
assert patched.data == {"n": "0", "more": "yes"}, patched.data
stale = core.read_namespaced_config_map("m0", NAMESPACE)
stale.metadata.resource_version = "1"
refused(409, core.replace_namespaced_config_map, "m0", NAMESPACE, stale)
deployment = {
    "metadata": {"name": "web"},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
             "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
}
apps.create_namespaced_deployment(NAMESPACE, deployment)
apps.patch_namespaced_deployment_scale("web", NAMESPACE, {"spec": {"replicas": 4}})
assert apps.read_namespaced_deployment("web", NAMESPACE).spec.replicas == 4
refused(422, core.create_namespaced_service, NAMESPACE, {"metadata": {"name": "s"}, "spec": {"ports": []}})

# A watch sees what happens, and goes on from where it was.
start = core.list_namespaced_config_map(NAMESPACE).metadata.resource_version
threading.Timer(0.5, lambda: core.create_namespaced_config_map(NAMESPACE, {"metadata": {"name": "seen"}})).start()
follower = watch.Watch()
for event in follower.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=start, timeout_seconds=20):
    assert (event["type"], event["object"].metadata.name) == ("ADDED", "seen"), event
    seen = event["object"].metadata.resource_version
    follower.stop()
core.delete_namespaced_config_map("seen", NAMESPACE)
follower = watch.Watch()
for event in follower.stream(core.list_namespaced_config_map, NAMESPACE, resource_version=seen, timeout_seconds=20):
    assert (event["type"], event["object"].metadata.name) == ("DELETED", "seen"), event
    follower.stop()

# Custom resources, through the generic and the dynamic client.
crds.create_custom_resource_definition({
    "metadata": {"name": "shirts.example.com"},
    "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "shirts", "singular": "shirt", "kind": "Shirt"},
             "versions": [{"name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
                           "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                               "spec": {"type": "object", "properties": {"size": {"type": "string", "enum": ["S", "L"]}}},
                               "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}}}]},
})
for event in watch.Watch().stream(crds.list_custom_resource_definition, timeout_seconds=20):
    conditions = event["object"].status.conditions if event["object"].status else None
    if any(one.type == "Established" and one.status == "True" for one in conditions or []):
        break
shirt = {"apiVersion": "example.com/v1", "kind": "Shirt", "metadata": {"name": "blue"}, "spec": {"size": "L"}}
address = ("example.com", "v1", NAMESPACE, "shirts")
custom.create_namespaced_custom_object(*address, shirt)
refused(422, custom.create_namespaced_custom_object, *address, {**shirt, "metadata": {"name": "red"}, "spec": {"size": "XXL"}})
custom.patch_namespaced_custom_object_status(*address, "blue", {"status": {"worn": True}})
assert custom.get_namespaced_custom_object(*address, "blue")["status"] == {"worn": True}
shirts = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="example.com/v1", kind="Shirt")
assert [one.metadata.name for one in shirts.get(namespace=NAMESPACE).items] == ["blue"]
maps = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="v1", kind="ConfigMap")
applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied", "namespace": NAMESPACE}, "data": {"a": "1"}}
maps.server_side_apply(body=applied, name="applied", namespace=NAMESPACE, field_manager="one")
refused(409, maps.server_side_apply, body={**applied, "data": {"a": "2"}}, name="applied", namespace=NAMESPACE, field_manager="two")
forced = maps.server_side_apply(
    body={**applied, "data": {"a": "2"}}, name="applied", namespace=NAMESPACE, field_manager="two", force_conflicts=True)
assert forced.data.a == "2"

core.delete_collection_namespaced_config_map(NAMESPACE, label_selector="odd")
assert [one.metadata.name for one in core.list_namespaced_config_map(NAMESPACE).items] == ["applied"]
crds.delete_custom_resource_definition("shirts.example.com")
print("all good")
