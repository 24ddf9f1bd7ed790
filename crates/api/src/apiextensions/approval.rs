//! Groups of the Kubernetes project: whoever declares a kind in one says where that was approved, or that it was not.

use apimachinery::{
    field::{Path, Problems},
    meta::get_str,
};
use serde_json::Value;

/// Where it was approved: an address, or words that begin with `unapproved`.
const ANNOTATION: &str = "api-approved.kubernetes.io";

const POLICY: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// What a CRD says of its approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// Nothing.
    Missing,
    /// Neither an address nor that it was not approved.
    Invalid,
    /// That it was not approved.
    Bypassed,
    /// Where it was.
    Approved,
}

impl Approval {
    /// The status and the reason of the condition that tells of it.
    pub fn condition(self) -> (&'static str, &'static str) {
        match self {
            Self::Missing => ("False", "MissingAnnotation"),
            Self::Invalid => ("False", "InvalidAnnotation"),
            Self::Bypassed => ("False", "UnapprovedAnnotation"),
            Self::Approved => ("True", "ApprovedAnnotation"),
        }
    }
}

/// What a CRD of a protected group says, and that in words.
pub fn approval(crd: &Value) -> Option<(Approval, String)> {
    let group = get_str(crd, "spec.group");
    let is_below =
        |domain: &str| group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if !is_below("k8s.io") && !is_below("kubernetes.io") {
        return None;
    }
    let said = crd["metadata"]["annotations"][ANNOTATION].as_str().unwrap_or_default();
    let is_address = || {
        said.split_once("://").is_some_and(|(scheme, rest)| {
            !scheme.is_empty() && rest.split('/').next().is_some_and(|host| !host.is_empty())
        })
    };
    Some(if said.is_empty() {
        let why = format!("protected groups must have approval annotation {ANNOTATION:?}, {POLICY}");
        (Approval::Missing, why)
    } else if said.starts_with("unapproved") {
        (Approval::Bypassed, format!("not approved: {said:?}"))
    } else if is_address() {
        (Approval::Approved, format!("approved in {said}"))
    } else {
        let why = format!(
            "protected groups must have approval annotation {ANNOTATION:?} with either a URL or a reason starting with \"unapproved\", {POLICY}"
        );
        (Approval::Invalid, why)
    })
}

/// Refuses a CRD of a protected group that does not say it, unless it was so before.
pub fn validate(new: &Value, old: Option<&Value>, problems: &mut Problems) {
    let Some((now, why)) = approval(new) else { return };
    if old.and_then(approval).is_some_and(|(before, _)| before == now) {
        return;
    }
    let metadata = Path::new("metadata");
    let annotations = metadata.child("annotations");
    let path = annotations.key(ANNOTATION);
    match now {
        Approval::Missing => problems.required(&path, why),
        Approval::Invalid => problems.invalid(&path, new["metadata"]["annotations"][ANNOTATION].clone(), why),
        Approval::Bypassed | Approval::Approved => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_of_the_project_are_approved_somewhere_or_say_that_they_are_not() {
        for (group, said, expected) in [
            ("example.com", "", None),
            ("notk8s.io", "", None),
            ("things.k8s.io", "", Some(Approval::Missing)),
            ("k8s.io", "because", Some(Approval::Invalid)),
            ("a.kubernetes.io", "unapproved, for a test", Some(Approval::Bypassed)),
            ("a.b.k8s.io", "https://example.com/1", Some(Approval::Approved)),
            ("a.b.k8s.io", "https:///1", Some(Approval::Invalid)),
        ] {
            let crd = json!({"metadata": {"annotations": {ANNOTATION: said}}, "spec": {"group": group}});
            assert_eq!(approval(&crd).map(|(found, _)| found), expected, "{group} {said}");
            let mut problems = Problems::new();
            validate(&crd, None, &mut problems);
            let refused = matches!(expected, Some(Approval::Missing | Approval::Invalid));
            assert_eq!(!problems.is_empty(), refused, "{group} {said}");
            let mut problems = Problems::new();
            validate(&crd, Some(&crd), &mut problems);
            assert!(problems.is_empty(), "what was so may stay so: {group} {said}");
        }
    }
}
