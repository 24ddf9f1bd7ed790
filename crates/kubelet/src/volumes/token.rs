//! Tokens of service accounts for projected volumes: asked for once, kept until 80 % of their life or a day is over.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::json;

use super::VolumeError;
use crate::pod::{Pod, TokenSource};

const LONGEST_KEPT: SignedDuration = SignedDuration::from_hours(24);

#[derive(Debug, Clone)]
pub struct Token {
    pub text: String,
    pub refresh_at: Timestamp,
}

/// The tokens in use, by pod and by what was asked for.
#[derive(Default)]
pub struct Tokens(Mutex<HashMap<(String, String, i64), Token>>);

#[derive(Deserialize)]
struct Answer {
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    token: String,
    expiration_timestamp: Timestamp,
}

impl Tokens {
    pub async fn get(
        &self,
        client: &client::Client,
        pod: &Pod,
        source: &TokenSource,
        now: Timestamp,
    ) -> Result<Token, VolumeError> {
        let seconds = source.expiration_seconds.unwrap_or(3600);
        let key = (pod.metadata.uid.clone(), source.audience.clone(), seconds);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known.filter(|known| known.refresh_at > now) {
            return Ok(known);
        }
        let audiences: Vec<&str> =
            Some(source.audience.as_str()).filter(|text| !text.is_empty()).into_iter().collect();
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": seconds,
                "boundObjectRef": {
                    "apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid,
                },
            },
        });
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let answer: Answer = client
            .api(&client::resources::SERVICE_ACCOUNTS)
            .within(&pod.metadata.namespace)
            .create_sub(account, "token", &request)
            .await
            .map_err(VolumeError::Token)?;
        let token = Token {
            text: answer.status.token,
            refresh_at: refresh_at(now, answer.status.expiration_timestamp),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, token.clone());
        Ok(token)
    }

    pub fn forget(&self, uid: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, ..), _| of != uid);
    }
}

fn refresh_at(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now).max(SignedDuration::ZERO);
    now.checked_add((life * 4 / 5).min(LONGEST_KEPT)).unwrap_or(expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(refresh_at(at(0), at(1000)), at(800));
        assert_eq!(refresh_at(at(0), at(10_000_000)), at(86_400));
    }
}
