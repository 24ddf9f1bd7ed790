//! Questions about permission, answered and never stored.

use crate::{Definition, Effect, Verbs};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::namespaced(
            "authorization.k8s.io",
            "v1",
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
        )
        .verbs(Verbs::CREATE)
        .effects(&[Effect::Review]),
        Definition::cluster(
            "authorization.k8s.io",
            "v1",
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
        )
        .verbs(Verbs::CREATE)
        .effects(&[Effect::Review]),
        Definition::cluster(
            "authorization.k8s.io",
            "v1",
            "SelfSubjectRulesReview",
            "selfsubjectrulesreviews",
        )
        .verbs(Verbs::CREATE)
        .effects(&[Effect::Review]),
        Definition::cluster("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews")
            .verbs(Verbs::CREATE)
            .effects(&[Effect::Review]),
    ]
}
