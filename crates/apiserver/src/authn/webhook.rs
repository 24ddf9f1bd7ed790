//! A remote server judges tokens: it is sent a TokenReview and its answer is believed.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::Digest;
use tracing::warn;

use crate::outbound::Webhook;
use crate::user::UserInfo;

/// Where TokenReviews are sent.
pub struct TokenWebhook {
    /// The server.
    pub webhook: Webhook,
    /// The version of TokenReview that it understands, `v1` or `v1beta1`.
    pub version: String,
    /// How long its answers are remembered.
    pub ttl: Duration,
    /// What it said of tokens and audiences, and until when that counts.
    pub remembered: Mutex<HashMap<[u8; 32], (Instant, Judged)>>,
}

/// The user of a token and the audiences that it is good for, that it is none, or what the webhook says is wrong.
type Judged = Result<Option<(UserInfo, Vec<String>)>, String>;

/// The most answers remembered.
const REMEMBER_AT_MOST: usize = 4096;

impl TokenWebhook {
    /// The user of a token.
    pub async fn authenticate(&self, token: &str, audiences: &[String]) -> Judged {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        });
        let digest: [u8; 32] = sha2::Sha256::digest(review["spec"].to_string()).into();
        if let Some(judged) = self.recall(&digest) {
            return judged;
        }
        let at_most = Duration::from_secs(10);
        match self.webhook.call(&review, at_most).await {
            Ok(answer) => {
                let judged = read(&answer, audiences);
                self.remember(digest, &judged);
                judged
            }
            Err(error) => {
                warn!(error = %telemetry::chain(&error), "the token webhook failed");
                Err(telemetry::chain(&error).to_string())
            }
        }
    }

    fn recall(&self, digest: &[u8; 32]) -> Option<Judged> {
        let remembered = self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        remembered.get(digest).filter(|(until, _)| *until > Instant::now()).map(|(_, judged)| judged.clone())
    }

    fn remember(&self, digest: [u8; 32], judged: &Judged) {
        let now = Instant::now();
        let mut remembered = self.remembered.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if remembered.len() >= REMEMBER_AT_MOST {
            remembered.retain(|_, (until, _)| *until > now);
        }
        if remembered.len() < REMEMBER_AT_MOST && !self.ttl.is_zero() {
            remembered.insert(digest, (now + self.ttl, judged.clone()));
        }
    }
}

fn read(answer: &Value, audiences: &[String]) -> Judged {
    let status = &answer["status"];
    if status["authenticated"] != true {
        return match status["error"].as_str().unwrap_or_default() {
            "" => Ok(None),
            error => Err(error.to_owned()),
        };
    }
    let Ok(user) = serde_json::from_value::<UserInfo>(status["user"].clone()) else { return Ok(None) };
    let own: Vec<String> = serde_json::from_value(status["audiences"].clone()).unwrap_or_default();
    // A webhook that says nothing about audiences judged the token for this server.
    let good: Vec<String> = if own.is_empty() {
        audiences.to_vec()
    } else {
        audiences.iter().filter(|audience| own.contains(audience)).cloned().collect()
    };
    Ok((!user.name.is_empty() && !good.is_empty()).then_some((user, good)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_authenticated_answer_for_the_audience_counts() {
        let wanted = ["a".to_owned()];
        let yes = json!({"status": {"authenticated": true, "user": {"username": "u", "groups": ["g"]}}});
        assert_eq!(read(&yes, &wanted).unwrap().unwrap().0.name, "u");
        let mut other = yes.clone();
        other["status"]["audiences"] = json!(["b"]);
        for none in [other, json!({"status": {"authenticated": false}}), json!(null)] {
            assert_eq!(read(&none, &wanted), Ok(None));
        }
        let no = json!({"status": {"error": "too old"}});
        assert_eq!(read(&no, &wanted), Err("too old".to_owned()));
    }
}
