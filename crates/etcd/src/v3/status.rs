//! How calls fail: gRPC codes with etcd's texts, which its clients compare word by word.

use std::borrow::Cow;

use crate::store::StoreError;

pub use grpc::status::{COMPRESSED, MALFORMED, Status, UNKNOWN_METHOD, code};

macro_rules! statuses {
    ($($name:ident = $code:ident $message:literal;)*) => {
        $(
            #[doc = $message]
            pub const $name: Status = Status { code: code::$code, message: Cow::Borrowed($message) };
        )*
    };
}

statuses! {
    EMPTY_KEY = INVALID_ARGUMENT "etcdserver: key is not provided";
    KEY_NOT_FOUND = INVALID_ARGUMENT "etcdserver: key not found";
    VALUE_PROVIDED = INVALID_ARGUMENT "etcdserver: value is provided";
    LEASE_PROVIDED = INVALID_ARGUMENT "etcdserver: lease is provided";
    TOO_MANY_OPS = INVALID_ARGUMENT "etcdserver: too many operations in txn request";
    DUPLICATE_KEY = INVALID_ARGUMENT "etcdserver: duplicate key given in txn request";
    INVALID_SORT = INVALID_ARGUMENT "etcdserver: invalid sort option";
    COMPACTED = OUT_OF_RANGE "etcdserver: mvcc: required revision has been compacted";
    FUTURE_REVISION = OUT_OF_RANGE "etcdserver: mvcc: required revision is a future revision";
    NO_SPACE = RESOURCE_EXHAUSTED "etcdserver: mvcc: database space exceeded";
    CORRUPT = DATA_LOSS "etcdserver: corrupt cluster";
    LEASE_NOT_FOUND = NOT_FOUND "etcdserver: requested lease not found";
    LEASE_EXISTS = FAILED_PRECONDITION "etcdserver: lease already exists";
    LEASE_TTL_TOO_LARGE = OUT_OF_RANGE "etcdserver: too large lease TTL";
    REQUEST_TOO_LARGE = INVALID_ARGUMENT "etcdserver: request is too large";
    BAD_PEER_URLS = INVALID_ARGUMENT "etcdserver: given member URLs are invalid";
    MEMBER_NOT_FOUND = NOT_FOUND "etcdserver: member not found";
    MEMBER_NOT_LEARNER = FAILED_PRECONDITION "etcdserver: can only promote a learner member";
    NOT_ENOUGH_STARTED = FAILED_PRECONDITION "etcdserver: re-configuration failed due to not enough started members";
    LEARNER_NOT_READY = FAILED_PRECONDITION "etcdserver: can only promote a learner member which is in sync with leader";
    UNHEALTHY = UNAVAILABLE "etcdserver: unhealthy cluster";
    MEMBER_NOT_ADDED = NOT_FOUND "etcdserver: no member with these peer URLs has been added; do that first: member add NAME --peer-urls=URL";
    MEMBER_REMOVED = FAILED_PRECONDITION "etcdserver: the member has been permanently removed from the cluster";
    PEER_URL_EXISTS = FAILED_PRECONDITION "etcdserver: Peer URLs already exists";
    TOO_MANY_LEARNERS = FAILED_PRECONDITION "etcdserver: too many learner members in cluster";
    NOT_FOR_LEARNER = FAILED_PRECONDITION "etcdserver: rpc not supported for learner";
    CLUSTER_MISMATCH = FAILED_PRECONDITION "etcdserver: cluster ID mismatch";
    NOT_LEADER = FAILED_PRECONDITION "etcdserver: not leader";
    NO_LEADER = UNAVAILABLE "etcdserver: no leader";
    TIMEOUT = UNAVAILABLE "etcdserver: request timed out";
    TIMEOUT_LEADER_FAILED = UNAVAILABLE "etcdserver: request timed out, possibly due to previous leader failure";
    BAD_LEADER_TRANSFEREE = FAILED_PRECONDITION "etcdserver: bad leader transferee";
    BAD_DOWNGRADE_FORMAT = INVALID_ARGUMENT "etcdserver: wrong downgrade target version format";
    BAD_DOWNGRADE_TARGET = INVALID_ARGUMENT "etcdserver: invalid downgrade target version";
    DOWNGRADE_IN_PROGRESS = FAILED_PRECONDITION "etcdserver: cluster has a downgrade job in progress";
    STOPPED = UNAVAILABLE "etcdserver: server stopped";
    ROOT_USER_NOT_EXIST = FAILED_PRECONDITION "etcdserver: root user does not exist";
    ROOT_ROLE_NOT_EXIST = FAILED_PRECONDITION "etcdserver: root user does not have root role";
    USER_EXISTS = FAILED_PRECONDITION "etcdserver: user name already exists";
    USER_EMPTY = INVALID_ARGUMENT "etcdserver: user name is empty";
    USER_NOT_FOUND = FAILED_PRECONDITION "etcdserver: user name not found";
    ROLE_EXISTS = FAILED_PRECONDITION "etcdserver: role name already exists";
    ROLE_NOT_FOUND = FAILED_PRECONDITION "etcdserver: role name not found";
    ROLE_EMPTY = INVALID_ARGUMENT "etcdserver: role name is empty";
    AUTH_FAILED = INVALID_ARGUMENT "etcdserver: authentication failed, invalid user ID or password";
    PASSWORD_TOO_LONG = INVALID_ARGUMENT "etcdserver: password length exceeds 72 bytes";
    PERMISSION_NOT_GIVEN = INVALID_ARGUMENT "etcdserver: permission not given";
    PERMISSION_DENIED = PERMISSION_DENIED "etcdserver: permission denied";
    ROLE_NOT_GRANTED = FAILED_PRECONDITION "etcdserver: role is not granted to the user";
    PERMISSION_NOT_GRANTED = FAILED_PRECONDITION "etcdserver: permission is not granted to the role";
    AUTH_NOT_ENABLED = FAILED_PRECONDITION "etcdserver: authentication is not enabled";
    INVALID_AUTH_TOKEN = UNAUTHENTICATED "etcdserver: invalid auth token";
    INVALID_AUTH_MANAGEMENT = INVALID_ARGUMENT "etcdserver: invalid auth management";
}

impl From<StoreError> for Status {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Compacted { .. } => COMPACTED,
            StoreError::FutureRevision { .. } => FUTURE_REVISION,
            StoreError::NoSpace => NO_SPACE,
            StoreError::LeaseNotFound(_) => LEASE_NOT_FOUND,
            StoreError::LeaseExists(_) => LEASE_EXISTS,
            StoreError::LeaseTtl(_) => LEASE_TTL_TOO_LARGE,
            StoreError::TooLarge { .. } => REQUEST_TOO_LARGE,
            StoreError::Closed => STOPPED,
            StoreError::Unavailable(reason) if reason == "not leader" => NOT_LEADER,
            StoreError::Unavailable(reason) if reason == TIMEOUT_LEADER_FAILED.message => {
                TIMEOUT_LEADER_FAILED
            }
            StoreError::Unavailable(_) | StoreError::WatchLagged => {
                Status { code: code::UNAVAILABLE, message: error.to_string().into() }
            }
            StoreError::Refused(_) => {
                Status { code: code::INVALID_ARGUMENT, message: error.to_string().into() }
            }
        }
    }
}
