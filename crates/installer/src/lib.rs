//! From one install-config.yaml to everything that a cluster starts from.
//!
//! Reading order: [`install_config`] (what is asked for, and every way it can be wrong), [`graph`] (which copy of an
//! asset counts), [`assets`] (the table), then the makers: [`nodes`], [`identity`], [`tls`], [`kubeconfigs`],
//! [`manifests`] with [`::release::crds`], [`static_pods`], [`ignition_configs`] with [`units`], [`surroundings`].
//! [`store`] and [`create`] do the I/O; [`cli`] is the command line. Makers are pure but for randomness, which is
//! drawn once and kept in the state, so that a second run gives the same bytes.

pub mod addresses;
pub mod analyze;
pub mod assets;
pub mod bootstrap;
pub mod cli;
pub mod complaint;
pub mod create;
pub mod explain;
pub mod gather;
pub mod graph;
pub mod identity;
pub mod ignition_configs;
pub mod install_config;
pub mod kubeconfigs;
pub mod local;
pub mod manifests;
pub mod nodes;
pub mod pki_report;
pub mod problem;
pub mod redact;
pub mod release;
pub mod scene;
pub mod static_pods;
pub mod store;
pub mod surroundings;
pub mod survey;
pub mod tls;
pub mod units;
pub mod wait;
