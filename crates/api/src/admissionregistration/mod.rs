//! Webhooks and policies that judge writes.

use crate::Definition;

const GROUP: &str = "admissionregistration.k8s.io";
const CATEGORIES: &[&str] = &["api-extensions"];

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster(GROUP, "v1", "MutatingAdmissionPolicy", "mutatingadmissionpolicies")
            .categories(CATEGORIES)
            .generation(),
        Definition::cluster(GROUP, "v1", "MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings")
            .categories(CATEGORIES)
            .generation(),
        Definition::cluster(GROUP, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
            .categories(CATEGORIES)
            .generation(),
        Definition::cluster(GROUP, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies")
            .categories(CATEGORIES)
            .status()
            .generation(),
        Definition::cluster(
            GROUP,
            "v1",
            "ValidatingAdmissionPolicyBinding",
            "validatingadmissionpolicybindings",
        )
        .categories(CATEGORIES)
        .generation(),
        Definition::cluster(GROUP, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
            .categories(CATEGORIES)
            .generation(),
    ]
}
