//! Names and secrets that are drawn once and kept: infra ID, cluster ID, the administrator's password.

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use crate::graph::AssetError;

/// Kubernetes' alphabet for random names: no vowels, so no words; no 0, 1 or 3, so no look-alikes.
const SAFE: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Letters and digits that people do not confuse.
const READABLE: &[u8] = b"ABCDEFGHIJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789";

/// Who the cluster is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// Name of the cluster that it was drawn for.
    pub cluster_name: String,
    /// A random UUID.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// The name that resources of the infrastructure begin with.
    #[serde(rename = "infraID")]
    pub infra_id: String,
}

impl Identity {
    /// Draws a new one.
    pub fn draw(cluster_name: &str) -> Result<Self, AssetError> {
        Ok(Self {
            cluster_name: cluster_name.to_owned(),
            cluster_id: uuid()?,
            infra_id: infra_id(cluster_name, &draw(SAFE, 5)?),
        })
    }
}

/// The cluster's name in letters, digits and single dashes, cut to 21, with a random ending: 27 at most.
fn infra_id(cluster_name: &str, ending: &str) -> String {
    let mut name = String::new();
    for c in cluster_name.chars() {
        let c = if c.is_ascii_alphanumeric() { c } else { '-' };
        if !(c == '-' && name.ends_with('-')) {
            name.push(c);
        }
    }
    name.truncate(21);
    format!("{}-{ending}", name.trim_end_matches('-'))
}

/// Draws from an alphabet without favouring any of its letters.
fn draw(alphabet: &[u8], count: usize) -> Result<String, AssetError> {
    let random = SystemRandom::new();
    // Bytes beyond the last whole multiple would make the first letters likelier.
    let limit = 256 - 256 % alphabet.len();
    let mut out = String::with_capacity(count);
    let mut bytes = [0u8; 64];
    while out.len() < count {
        random.fill(&mut bytes).map_err(|_| AssetError::Random)?;
        let usable = bytes.iter().map(|byte| usize::from(*byte)).filter(|byte| *byte < limit);
        out.extend(usable.take(count - out.len()).map(|byte| char::from(alphabet[byte % alphabet.len()])));
    }
    Ok(out)
}

fn uuid() -> Result<String, AssetError> {
    let mut bytes = [0u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| AssetError::Random)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// 23 characters in four groups of five, about 116 bits.
pub fn password() -> Result<String, AssetError> {
    let letters = draw(READABLE, 20)?;
    Ok([&letters[..5], &letters[5..10], &letters[10..15], &letters[15..]].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infra_ids_follow_the_rule() {
        assert_eq!(infra_id("ocp4", "abcde"), "ocp4-abcde");
        assert_eq!(infra_id("a.b__c", "x"), "a-b-c-x");
        assert_eq!(infra_id("a-very-long-cluster-name-indeed", "bcdfg"), "a-very-long-cluster-n-bcdfg");
        assert_eq!(infra_id("twenty-characters-is-x", "bcdfg"), "twenty-characters-is-bcdfg");
        assert!(Identity::draw(&"x".repeat(54)).unwrap().infra_id.len() == 27);
    }

    #[test]
    fn what_is_drawn_has_its_form() {
        let id = Identity::draw("a").unwrap().cluster_id;
        assert_eq!((id.len(), &id[14..15]), (36, "4"));
        let password = password().unwrap();
        assert_eq!(password.len(), 23);
        assert_eq!(password.matches('-').count(), 3);
    }
}
