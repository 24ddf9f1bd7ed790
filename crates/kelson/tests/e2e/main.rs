//! The whole system from outside: the real binary, real containers, real clients, a killed process.
//!
//! Each test runs a cluster of its own in a network namespace that it made, so tests touch nothing of the host
//! and can run side by side. They need root; elsewhere they say that they are skipped.

#![allow(clippy::disallowed_methods, reason = "tests wait on the outside world")]

mod apiserver;
mod apiserver_audit;
mod apiserver_files;
mod apiserver_flags;
mod apiserver_traffic;
mod apiserver_webhooks;
mod bench;
mod cli;
mod cloud_routes;
mod cluster_version;
mod controllers;
mod fail_static;
mod first_light;
mod harness;
mod hostile_pods;
mod https;
mod kill_loop;
mod kubectl;
mod local_cluster;
mod network_policy;
mod node;
mod pod_network;
mod releases;
mod scenes;
mod static_control_plane;
mod store;
mod transcripts;
mod two_clusters;
