//! etcd
