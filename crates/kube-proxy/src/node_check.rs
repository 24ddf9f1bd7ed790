//! `healthCheckNodePort`: load balancers ask each node whether it has endpoints of a Service whose policy is `Local`.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use client::Key;
use http::StatusCode;
use lifecycle::{Stop, Tasks};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::warn;

use crate::health::{Page, serve_pages};
use crate::plan::NodeCheck;

/// What a check says, shared with its server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answer {
    namespace: Box<str>,
    name: Box<str>,
    local_endpoints: usize,
}

struct Server {
    answer: watch::Sender<Answer>,
    stop: Stop,
}

/// The servers, one per port.
pub struct NodeChecks {
    tasks: Tasks,
    servers: BTreeMap<u16, Server>,
}

impl NodeChecks {
    pub fn new(tasks: Tasks) -> Self {
        Self { tasks, servers: BTreeMap::new() }
    }

    /// Makes the servers those of these Services.
    pub async fn update(&mut self, checks: impl Iterator<Item = (&Key, NodeCheck)>) {
        let mut wanted: BTreeMap<u16, Answer> = BTreeMap::new();
        for (key, check) in checks {
            let answer = wanted.entry(check.port).or_default();
            let local_endpoints = answer.local_endpoints.max(check.local_endpoints);
            *answer = Answer { namespace: (&key.namespace).into(), name: key.name.clone(), local_endpoints };
        }
        self.servers.retain(|port, server| {
            let stays = wanted.contains_key(port);
            if !stays {
                server.stop.request();
            }
            stays
        });
        for (port, answer) in wanted {
            if let Some(server) = self.servers.get(&port) {
                server.answer.send_replace(answer);
                continue;
            }
            // Both families on one socket, where the host has both.
            let both = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await;
            let listener = match both {
                Ok(listener) => Ok(listener),
                Err(_) => TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))).await,
            };
            match listener {
                Ok(listener) => self.start(port, answer, listener),
                // The next change of any Service tries again.
                Err(error) => warn!(port, service = %answer.name, %error, "health check cannot listen"),
            }
        }
    }

    fn start(&mut self, port: u16, answer: Answer, listener: TcpListener) {
        let sender = watch::Sender::new(answer);
        let receiver = sender.subscribe();
        let stop = self.tasks.stop().child();
        let page: Page = Arc::new(move |_| page(&receiver.borrow()));
        serve_pages(format!("kube-proxy/check/{port}"), listener, page, &self.tasks, stop.clone());
        self.servers.insert(port, Server { answer: sender, stop });
    }
}

fn page(answer: &Answer) -> (StatusCode, &'static str, String) {
    let code = if answer.local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = format!(
        "{{\"service\": {{\"namespace\": \"{}\", \"name\": \"{}\"}}, \"localEndpoints\": {}, \
         \"serviceProxyHealthy\": true}}\n",
        answer.namespace, answer.name, answer.local_endpoints
    );
    (code, "application/json", body)
}
