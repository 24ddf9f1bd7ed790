//! A remote server judges tokens: it is sent a TokenReview and its answer is believed.

use std::time::Duration;

use serde_json::{Value, json};
use tracing::warn;

use crate::outbound::Webhook;
use crate::user::UserInfo;

/// Where TokenReviews are sent.
pub struct TokenWebhook {
    /// The server.
    pub webhook: Webhook,
    /// The version of TokenReview that it understands, `v1` or `v1beta1`.
    pub version: String,
}

impl TokenWebhook {
    /// The user of a token.
    pub async fn authenticate(&self, token: &str, audiences: &[String]) -> Option<(UserInfo, Vec<String>)> {
        let review = json!({
            "apiVersion": format!("authentication.k8s.io/{}", self.version), "kind": "TokenReview",
            "spec": {"token": token, "audiences": audiences},
        });
        let at_most = Duration::from_secs(10);
        match self.webhook.call(&review, at_most).await {
            Ok(answer) => read(&answer, audiences),
            Err(error) => {
                warn!(error = %telemetry::chain(&error), "the token webhook failed");
                None
            }
        }
    }
}

fn read(answer: &Value, audiences: &[String]) -> Option<(UserInfo, Vec<String>)> {
    let status = &answer["status"];
    if status["authenticated"] != true {
        return None;
    }
    let user: UserInfo = serde_json::from_value(status["user"].clone()).ok()?;
    let own: Vec<String> = serde_json::from_value(status["audiences"].clone()).unwrap_or_default();
    // A webhook that says nothing about audiences judged the token for this server.
    let good: Vec<String> = if own.is_empty() {
        audiences.to_vec()
    } else {
        audiences.iter().filter(|audience| own.contains(audience)).cloned().collect()
    };
    (!user.name.is_empty() && !good.is_empty()).then_some((user, good))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_authenticated_answer_for_the_audience_counts() {
        let wanted = ["a".to_owned()];
        let yes = json!({"status": {"authenticated": true, "user": {"username": "u", "groups": ["g"]}}});
        assert_eq!(read(&yes, &wanted).unwrap().0.name, "u");
        let mut other = yes.clone();
        other["status"]["audiences"] = json!(["b"]);
        assert!(read(&other, &wanted).is_none());
        assert!(read(&json!({"status": {"authenticated": false}}), &wanted).is_none());
        assert!(read(&json!(null), &wanted).is_none());
    }
}
