//! The list of kinds that Kubernetes has.

use crate::Definition;

/// Every built-in kind, in the order of its groups in discovery.
pub fn builtins() -> Vec<Definition> {
    [
        crate::core::definitions(),
        crate::apiregistration::definitions(),
        crate::apps::definitions(),
        crate::events::definitions(),
        crate::authentication::definitions(),
        crate::authorization::definitions(),
        crate::autoscaling::definitions(),
        crate::batch::definitions(),
        crate::certificates::definitions(),
        crate::networking::definitions(),
        crate::policy::definitions(),
        crate::rbac::definitions(),
        crate::storage::definitions(),
        crate::admissionregistration::definitions(),
        crate::apiextensions::definitions(),
        crate::scheduling::definitions(),
        crate::coordination::definitions(),
        crate::node::definitions(),
        crate::discovery::definitions(),
        crate::resource::definitions(),
        crate::flowcontrol::definitions(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_names_and_place() {
        let all = builtins();
        assert!(all.len() >= 65, "only {} kinds", all.len());
        let mut seen = std::collections::HashSet::new();
        for definition in &all {
            let names = &definition.names;
            let path = format!("{}/{}", names.api_version(), names.plural);
            assert!(seen.insert(path.clone()), "{path} is declared twice");
            assert!(definition.schema.node().field("metadata").is_some(), "{path} has no metadata");
        }
    }
}
