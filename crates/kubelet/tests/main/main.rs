//! A whole kubelet against a runtime and an API server that live in memory.

mod api;
mod runtime;
mod worker;
