//! The metrics API, `metrics.k8s.io/v1beta1`: how much nodes and pods use, for `kubectl top` and autoscalers.
//!
//! ```text
//! API server ──(aggregation)──► serve ──► answer ──► samples ──(node proxy)──► kubelets' /metrics/resource
//! ```
//!
//! Nothing ticks: kubelets are asked when somebody asks here. Use of a CPU is the difference of two readings; where no
//! recent one is at hand, two are taken a second apart. Requests are taken only from the API server, which proves
//! itself with the certificate by which it speaks for others, and has decided already whether the user may ask.

mod answer;
mod samples;
mod serve;
mod text;

pub use serve::{Config, Server, StartError, start};
