//! What can go wrong between kubelet and runtime, named for what the kubelet does about it.

use std::error::Error as StdError;

use thiserror::Error;

/// A cause from inside the runtime.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The result of every call of the two services.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call failed. The variants correspond to gRPC codes where a socket runtime is behind the trait.
#[derive(Debug, Error)]
pub enum Error {
    /// No such sandbox, container or image.
    #[error("{kind} {id} not found")]
    NotFound {
        /// "sandbox", "container" or "image".
        kind: &'static str,
        /// What was asked for.
        id: String,
    },
    /// The request itself is wrong; asking again does not help.
    #[error("{what} is invalid: {reason}")]
    InvalidArgument {
        /// The field or argument.
        what: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The object is not in the state that the call needs.
    #[error("{kind} {id} is {state}")]
    FailedPrecondition {
        /// "sandbox", "container" or "image".
        kind: &'static str,
        /// Which one.
        id: String,
        /// What it is instead, such as "not running".
        state: String,
    },
    /// The image is not present and could not be fetched. Reported as ErrImagePull, then ImagePullBackOff.
    #[error("cannot pull image {image}: {reason}")]
    ImagePull {
        /// The reference asked for.
        image: String,
        /// Why, for the pod's event.
        reason: String,
    },
    /// The registry of the image does not answer. Reported as RegistryUnavailable, then ImagePullBackOff.
    #[error("cannot pull image {image}: {reason}")]
    RegistryUnavailable {
        /// The reference asked for.
        image: String,
        /// Why, for the pod's event.
        reason: String,
    },
    /// The container's process could not be started. Reported as RunContainerError.
    #[error("cannot start container {id}: {reason}")]
    Start {
        /// Which container.
        id: String,
        /// What the kernel or the container's settings refused.
        reason: String,
    },
    /// The time given for the call passed.
    #[error("{doing} took longer than {limit:?}")]
    DeadlineExceeded {
        /// The operation.
        doing: String,
        /// The time it had.
        limit: std::time::Duration,
    },
    /// This runtime has no such ability.
    #[error("not supported by this runtime: {0}")]
    Unsupported(&'static str),
    /// The runtime could not do it now; trying again may help.
    #[error("{doing} failed")]
    Failed {
        /// The operation and its object.
        doing: String,
        /// The cause.
        #[source]
        source: BoxError,
    },
}

impl Error {
    /// An operation that failed for a cause below.
    pub fn failed(doing: impl Into<String>, source: impl Into<BoxError>) -> Self {
        Self::Failed { doing: doing.into(), source: source.into() }
    }

    /// An argument that cannot be used.
    pub fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidArgument { what: what.into(), reason: reason.into() }
    }

    /// Whether the object asked for does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}
