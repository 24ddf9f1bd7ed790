//! Questions about identity, answered and never stored.

use crate::{Definition, Effect, Verbs};

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![
        Definition::cluster("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews")
            .verbs(Verbs::CREATE)
            .effects(&[Effect::Review]),
        Definition::cluster("authentication.k8s.io", "v1", "TokenReview", "tokenreviews")
            .verbs(Verbs::CREATE)
            .effects(&[Effect::Review]),
    ]
}
