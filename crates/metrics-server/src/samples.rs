//! Two readings of each node, taken when they are wanted and kept for the next who asks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use client::Client;
use http::Request;
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use tracing::debug;

use crate::text::{Scrape, parse};

/// Readings are good for this long.
const FRESH: SignedDuration = SignedDuration::from_secs(10);
/// An older reading than this tells of another time.
const OLD: SignedDuration = SignedDuration::from_secs(90);
/// The shortest time over which use is measured.
const SPAN: Duration = Duration::from_secs(1);
/// A kubelet that takes longer is left out.
const PATIENCE: Duration = Duration::from_secs(10);

/// Two readings of a node.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The earlier one.
    pub before: Arc<Scrape>,
    /// The later one.
    pub after: Arc<Scrape>,
    taken: Timestamp,
}

#[cfg(test)]
impl Pair {
    /// Two readings at hand.
    pub fn of(before: Arc<Scrape>, after: Arc<Scrape>) -> Self {
        Self { before, after, taken: Timestamp::UNIX_EPOCH }
    }
}

type Slot = Arc<tokio::sync::Mutex<Option<Pair>>>;

/// The readings of all nodes that were asked for.
pub struct Samples {
    client: Client,
    nodes: Mutex<HashMap<Box<str>, Slot>>,
}

/// What to do about a node, by its last pair.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The pair will do.
    Use,
    /// A reading more, against the last one.
    Follow,
    /// Two readings.
    Begin,
}

fn step(taken: Option<Timestamp>, now: Timestamp) -> Step {
    let Some(age) = taken.map(|taken| now.duration_since(taken)) else { return Step::Begin };
    match age {
        age if age < FRESH => Step::Use,
        age if age < OLD => Step::Follow,
        _ => Step::Begin,
    }
}

impl Samples {
    /// None yet. Kubelets are reached through `client`'s API server.
    pub fn new(client: Client) -> Self {
        Self { client, nodes: Mutex::default() }
    }

    /// The readings of a node; nothing if its kubelet does not answer.
    pub async fn of(&self, node: &str) -> Option<Pair> {
        let slot = {
            let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            nodes.entry(node.into()).or_default().clone()
        };
        // Held while reading: who asks meanwhile gets the same.
        let mut pair = slot.lock().await;
        let now = Timestamp::now();
        let before = match (step(pair.as_ref().map(|pair| pair.taken), now), pair.take()) {
            (Step::Use, Some(found)) => {
                *pair = Some(found.clone());
                return Some(found);
            }
            (Step::Follow, Some(found)) => found.after,
            _ => {
                let first = Arc::new(self.read(node).await?);
                tokio::time::sleep(SPAN).await;
                first
            }
        };
        let after = Arc::new(self.read(node).await?);
        *pair = Some(Pair { before, after, taken: Timestamp::now() });
        pair.clone()
    }

    /// Forgets nodes that are gone.
    pub fn keep(&self, names: &[Box<str>]) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|name, _| names.contains(name));
    }

    async fn read(&self, node: &str) -> Option<Scrape> {
        match tokio::time::timeout(PATIENCE, self.ask(node)).await {
            Ok(Ok(scrape)) => Some(scrape),
            Ok(Err(why)) => {
                debug!(node, why, "the kubelet's metrics cannot be read");
                None
            }
            Err(_) => {
                debug!(node, "the kubelet does not answer");
                None
            }
        }
    }

    async fn ask(&self, node: &str) -> Result<Scrape, String> {
        let path = format!("/api/v1/nodes/{node}/proxy/metrics/resource");
        let request = Request::get(path).body(Bytes::new()).map_err(|error| error.to_string())?;
        let answer = self.client.raw(request).await.map_err(|error| telemetry::chain(&error).to_string())?;
        let code = answer.status();
        let body =
            answer.into_body().collect().await.map_err(|error| telemetry::chain(&error).to_string())?;
        let body = body.to_bytes();
        let text = String::from_utf8_lossy(&body);
        if !code.is_success() {
            return Err(format!("{code}: {}", text.chars().take(200).collect::<String>()));
        }
        Ok(parse(&text, Timestamp::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_used_followed_or_begun_anew() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let ago = |seconds: i64| Some(now.checked_sub(SignedDuration::from_secs(seconds)).unwrap());
        for (taken, wanted) in
            [(None, Step::Begin), (ago(3), Step::Use), (ago(15), Step::Follow), (ago(600), Step::Begin)]
        {
            assert_eq!(step(taken, now), wanted, "{taken:?}");
        }
    }
}
