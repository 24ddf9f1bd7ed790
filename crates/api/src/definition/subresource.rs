//! The parts of a resource that have paths of their own.

use super::{Text, Verb, Verbs};

/// Where the scale subresource finds its numbers, as dotted paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalePaths {
    /// Wanted replicas, below `spec`.
    pub spec_replicas: Text,
    /// Observed replicas, below `status`.
    pub status_replicas: Text,
    /// The selector: text, or a label selector object; empty when there is none.
    pub selector: Text,
}

/// A part of a resource with a path of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Subresource {
    Status,
    Scale(ScalePaths),
    Binding,
    Eviction,
    EphemeralContainers,
    Resize,
    Log,
    Exec,
    Attach,
    PortForward,
    Proxy,
    Token,
    Approval,
    Finalize,
}

/// The object that a subresource takes and gives, when it is not the parent's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubresourceKind {
    /// Group of the body.
    pub group: &'static str,
    /// Version of the body.
    pub version: &'static str,
    /// Kind of the body.
    pub kind: &'static str,
}

impl Subresource {
    /// The path segment.
    pub fn name(&self) -> &'static str {
        match self {
            Subresource::Status => "status",
            Subresource::Scale(_) => "scale",
            Subresource::Binding => "binding",
            Subresource::Eviction => "eviction",
            Subresource::EphemeralContainers => "ephemeralcontainers",
            Subresource::Resize => "resize",
            Subresource::Log => "log",
            Subresource::Exec => "exec",
            Subresource::Attach => "attach",
            Subresource::PortForward => "portforward",
            Subresource::Proxy => "proxy",
            Subresource::Token => "token",
            Subresource::Approval => "approval",
            Subresource::Finalize => "finalize",
        }
    }

    /// The body's kind when it differs from the parent's.
    pub fn kind(&self) -> Option<SubresourceKind> {
        let kind = |group, version, kind| Some(SubresourceKind { group, version, kind });
        match self {
            Subresource::Scale(_) => kind("autoscaling", "v1", "Scale"),
            Subresource::Binding => kind("", "v1", "Binding"),
            Subresource::Eviction => kind("policy", "v1", "Eviction"),
            Subresource::Exec => kind("", "v1", "PodExecOptions"),
            Subresource::Attach => kind("", "v1", "PodAttachOptions"),
            Subresource::PortForward => kind("", "v1", "PodPortForwardOptions"),
            Subresource::Token => kind("authentication.k8s.io", "v1", "TokenRequest"),
            _ => None,
        }
    }

    /// What can be done with it; the discovery order of verbs is alphabetical.
    pub fn verbs(&self) -> Verbs {
        match self {
            Subresource::Status
            | Subresource::Scale(_)
            | Subresource::EphemeralContainers
            | Subresource::Resize
            | Subresource::Approval => Verbs::VIEW,
            Subresource::Binding | Subresource::Eviction | Subresource::Token => Verbs::CREATE,
            Subresource::Log => Verbs::GET,
            Subresource::Exec | Subresource::Attach | Subresource::PortForward => {
                Verbs::of(&[Verb::Create, Verb::Get])
            }
            Subresource::Proxy => {
                Verbs::of(&[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update])
            }
            Subresource::Finalize => Verbs::of(&[Verb::Update]),
        }
    }
}
