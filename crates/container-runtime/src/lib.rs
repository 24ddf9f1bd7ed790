//! container-runtime
