//! The API server: every kind, every verb, one mechanism.
//!
//! Reading order: [`server`] puts the parts together; [`chain`] is what every request passes; `verbs/` has one file
//! per verb and none per kind; [`store`] states the order of a write; [`cache`] is where reads and watches come
//! from; `effects/` holds what needs the world; `admission/` what the cluster insists on.
//!
//! What must stay true: no verb goes round [`chain`]; no write goes round [`store`]; nothing on a read path parses
//! JSON unless the client asked for another shape of it.

pub mod admission;
pub mod aggregate;
pub mod args;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod body;
pub mod bootstrap;
pub mod cache;
pub mod chain;
pub mod clock;
pub mod codec;
mod conditions;
pub mod config;
pub mod config_files;
pub mod context;
pub mod conversion;
pub mod crds;
pub mod discovery;
pub mod effects;
pub mod encryption;
pub mod endpoints;
pub mod flowcontrol;
mod foreign;
mod front;
mod health;
mod identity;
pub mod impersonate;
mod in_flight;
mod kubernetes_service;
mod legacy_tokens;
pub mod listen;
pub mod lookup;
pub mod managed;
pub mod metrics;
pub mod metrics_filter;
pub mod negotiate;
mod old_certificates;
pub mod openapi;
mod openapi_protobuf;
mod options;
pub mod outbound;
mod own_authority;
pub mod proxy;
pub mod registry;
pub mod reload;
pub mod request_info;
pub mod respond;
pub mod rooted;
pub mod server;
pub mod settings;
pub mod store;
pub mod tls;
pub mod user;
pub mod verbs;

pub use args::{KubeApiserverArgs, run};
pub use body::Body;
pub use config::Config;
pub use server::{ApiServer, StartError};
pub use user::UserInfo;
