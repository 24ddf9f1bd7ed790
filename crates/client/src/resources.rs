//! The resources that our own components speak of. Others are found by discovery.

use crate::Resource;

macro_rules! resources {
    ($($name:ident = $scope:ident $group:literal $version:literal $plural:literal $kind:literal;)*) => {
        $(pub const $name: Resource = Resource::$scope($group, $version, $plural, $kind);)*
    };
}

resources! {
    PODS = namespaced "" "v1" "pods" "Pod";
    NODES = cluster "" "v1" "nodes" "Node";
    NAMESPACES = cluster "" "v1" "namespaces" "Namespace";
    SERVICES = namespaced "" "v1" "services" "Service";
    ENDPOINTS = namespaced "" "v1" "endpoints" "Endpoints";
    CONFIG_MAPS = namespaced "" "v1" "configmaps" "ConfigMap";
    SECRETS = namespaced "" "v1" "secrets" "Secret";
    SERVICE_ACCOUNTS = namespaced "" "v1" "serviceaccounts" "ServiceAccount";
    CORE_EVENTS = namespaced "" "v1" "events" "Event";
    PERSISTENT_VOLUMES = cluster "" "v1" "persistentvolumes" "PersistentVolume";
    PERSISTENT_VOLUME_CLAIMS = namespaced "" "v1" "persistentvolumeclaims" "PersistentVolumeClaim";
    REPLICATION_CONTROLLERS = namespaced "" "v1" "replicationcontrollers" "ReplicationController";
    RESOURCE_QUOTAS = namespaced "" "v1" "resourcequotas" "ResourceQuota";
    LIMIT_RANGES = namespaced "" "v1" "limitranges" "LimitRange";
    POD_TEMPLATES = namespaced "" "v1" "podtemplates" "PodTemplate";
    DEPLOYMENTS = namespaced "apps" "v1" "deployments" "Deployment";
    REPLICA_SETS = namespaced "apps" "v1" "replicasets" "ReplicaSet";
    STATEFUL_SETS = namespaced "apps" "v1" "statefulsets" "StatefulSet";
    DAEMON_SETS = namespaced "apps" "v1" "daemonsets" "DaemonSet";
    CONTROLLER_REVISIONS = namespaced "apps" "v1" "controllerrevisions" "ControllerRevision";
    JOBS = namespaced "batch" "v1" "jobs" "Job";
    CRON_JOBS = namespaced "batch" "v1" "cronjobs" "CronJob";
    HORIZONTAL_POD_AUTOSCALERS = namespaced "autoscaling" "v2" "horizontalpodautoscalers" "HorizontalPodAutoscaler";
    POD_DISRUPTION_BUDGETS = namespaced "policy" "v1" "poddisruptionbudgets" "PodDisruptionBudget";
    ENDPOINT_SLICES = namespaced "discovery.k8s.io" "v1" "endpointslices" "EndpointSlice";
    EVENTS = namespaced "events.k8s.io" "v1" "events" "Event";
    LEASES = namespaced "coordination.k8s.io" "v1" "leases" "Lease";
    INGRESSES = namespaced "networking.k8s.io" "v1" "ingresses" "Ingress";
    NETWORK_POLICIES = namespaced "networking.k8s.io" "v1" "networkpolicies" "NetworkPolicy";
    SERVICE_CIDRS = cluster "networking.k8s.io" "v1" "servicecidrs" "ServiceCIDR";
    IP_ADDRESSES = cluster "networking.k8s.io" "v1" "ipaddresses" "IPAddress";
    ROLES = namespaced "rbac.authorization.k8s.io" "v1" "roles" "Role";
    ROLE_BINDINGS = namespaced "rbac.authorization.k8s.io" "v1" "rolebindings" "RoleBinding";
    CLUSTER_ROLES = cluster "rbac.authorization.k8s.io" "v1" "clusterroles" "ClusterRole";
    CLUSTER_ROLE_BINDINGS = cluster "rbac.authorization.k8s.io" "v1" "clusterrolebindings" "ClusterRoleBinding";
    STORAGE_CLASSES = cluster "storage.k8s.io" "v1" "storageclasses" "StorageClass";
    VOLUME_ATTRIBUTES_CLASSES = cluster "storage.k8s.io" "v1" "volumeattributesclasses" "VolumeAttributesClass";
    VOLUME_ATTACHMENTS = cluster "storage.k8s.io" "v1" "volumeattachments" "VolumeAttachment";
    CSI_NODES = cluster "storage.k8s.io" "v1" "csinodes" "CSINode";
    CSI_DRIVERS = cluster "storage.k8s.io" "v1" "csidrivers" "CSIDriver";
    CSI_STORAGE_CAPACITIES = namespaced "storage.k8s.io" "v1" "csistoragecapacities" "CSIStorageCapacity";
    PRIORITY_CLASSES = cluster "scheduling.k8s.io" "v1" "priorityclasses" "PriorityClass";
    RUNTIME_CLASSES = cluster "node.k8s.io" "v1" "runtimeclasses" "RuntimeClass";
    CERTIFICATE_SIGNING_REQUESTS = cluster "certificates.k8s.io" "v1" "certificatesigningrequests" "CertificateSigningRequest";
    CUSTOM_RESOURCE_DEFINITIONS = cluster "apiextensions.k8s.io" "v1" "customresourcedefinitions" "CustomResourceDefinition";
    API_SERVICES = cluster "apiregistration.k8s.io" "v1" "apiservices" "APIService";
    RESOURCE_CLAIMS = namespaced "resource.k8s.io" "v1" "resourceclaims" "ResourceClaim";
    RESOURCE_CLAIM_TEMPLATES = namespaced "resource.k8s.io" "v1" "resourceclaimtemplates" "ResourceClaimTemplate";
    RESOURCE_SLICES = cluster "resource.k8s.io" "v1" "resourceslices" "ResourceSlice";
    DEVICE_CLASSES = cluster "resource.k8s.io" "v1" "deviceclasses" "DeviceClass";
    VALIDATING_ADMISSION_POLICIES = cluster "admissionregistration.k8s.io" "v1" "validatingadmissionpolicies" "ValidatingAdmissionPolicy";
    TOKEN_REVIEWS = cluster "authentication.k8s.io" "v1" "tokenreviews" "TokenReview";
    SUBJECT_ACCESS_REVIEWS = cluster "authorization.k8s.io" "v1" "subjectaccessreviews" "SubjectAccessReview";
}
