//! Links the binary at a fixed address.
//!
//! A position-independent static binary relocates itself at every start, which makes a private copy of megabytes of
//! its tables in each process. Ours runs once per pod, as the pod's shim, and in the demo image. At a fixed address
//! those pages stay shared, and a shim costs a third of a megabyte.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let is_static = features.split(',').any(|feature| feature == "crt-static");
    if is_static && std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-bins=-static");
    }
}
