//! Lifecycle hooks of containers: postStart and preStop.

use std::net::IpAddr;
use std::time::Duration;

use crate::handlers::{self, HandlerError, Target};
use crate::host::Host;
use crate::pod::{Container, Handler, Pod};

/// Upstream waits this long for an HTTP hook's answer.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs a hook to its end. A command has no time limit of its own: the caller cancels by dropping the future.
pub async fn run(
    host: &Host,
    hook: &Handler,
    pod: &Pod,
    container: &Container,
    container_id: &str,
    pod_ips: &[IpAddr],
) -> Result<(), HandlerError> {
    let pod_ip = if pod.spec.host_network { host.config.node_ips.first() } else { pod_ips.first() };
    let timeout = if hook.exec.is_some() { Duration::ZERO } else { HTTP_TIMEOUT };
    handlers::run(host, hook, &Target { container, container_id, pod_ip: pod_ip.copied(), timeout }).await
}
