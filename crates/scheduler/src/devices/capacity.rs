//! What an allocation takes of a device whose capacity is shared.

use std::collections::BTreeMap;

use apimachinery::quantity::Quantity;
use serde::Deserialize;

use super::{CapacityRequirements, Device};

/// Amounts by capacity name.
pub type Amounts = BTreeMap<Box<str>, Quantity>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Capacity {
    value: Quantity,
    request_policy: Option<Policy>,
}

/// Which amounts a driver hands out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Policy {
    default: Option<Quantity>,
    valid_values: Vec<Quantity>,
    valid_range: Option<Range>,
}

#[derive(Debug, Deserialize)]
struct Range {
    min: Quantity,
    max: Option<Quantity>,
    step: Option<Quantity>,
}

impl Capacity {
    /// What is taken for a request: rounded up to what the policy hands out; without a request the policy's default,
    /// or all there is. `None` if the policy allows nothing of the kind.
    fn taken(&self, asked: Option<Quantity>) -> Option<Quantity> {
        let none = Policy::default();
        let policy = self.request_policy.as_ref().unwrap_or(&none);
        let Some(asked) = asked else { return Some(policy.default.unwrap_or(self.value)) };
        if let Some(range) = &policy.valid_range {
            let amount = range.round_up(asked);
            return range.max.is_none_or(|max| amount <= max).then_some(amount);
        }
        if policy.valid_values.is_empty() {
            return Some(asked);
        }
        policy.valid_values.iter().copied().find(|valid| asked <= *valid)
    }
}

impl Range {
    fn round_up(&self, asked: Quantity) -> Quantity {
        if asked <= self.min {
            return self.min;
        }
        match self.step.map(Quantity::value) {
            Some(step) if step > 0 => {
                let above = asked.value() - self.min.value();
                let steps = above / step + i64::from(above % step != 0);
                Quantity::bytes(self.min.value() + step * steps)
            }
            _ => asked,
        }
    }
}

/// What an allocation takes of each capacity, on top of `used`; `None` if there is not enough, or no such capacity.
pub fn share(device: &Device, asked: &CapacityRequirements, used: Option<&Amounts>) -> Option<Amounts> {
    // A capacity that is written in no known way can be neither measured nor shared.
    let all: BTreeMap<Box<str>, Capacity> = match &device.capacity {
        serde_json::Value::Null => BTreeMap::new(),
        capacity => BTreeMap::deserialize(capacity).ok()?,
    };
    if asked.requests.keys().any(|name| !all.contains_key(name)) {
        return None;
    }
    let mut amounts = Amounts::new();
    for (name, capacity) in all {
        let taken = capacity.taken(asked.requests.get(&name).copied())?;
        let before = used.and_then(|used| used.get(&name)).copied().unwrap_or(Quantity::new(0));
        if before.plus(taken) > capacity.value {
            return None;
        }
        amounts.insert(name, taken);
    }
    Some(amounts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn taken(capacity: Value, asked: Value, used: Value) -> Option<String> {
        let device: Device = serde_json::from_value(json!({"capacity": {"mem": capacity}})).unwrap();
        let asked: CapacityRequirements = serde_json::from_value(json!({"requests": asked})).unwrap();
        let used: Amounts = serde_json::from_value(used).unwrap();
        Some(share(&device, &asked, Some(&used))?["mem"].to_string())
    }

    #[test]
    fn requests_are_rounded_up_to_what_a_policy_hands_out() {
        let range = json!({"value": "10Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "6Gi", "step": "2Gi"}}});
        let values =
            json!({"value": "10Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi", "4Gi"]}});
        let plain = json!({"value": "10Gi"});
        let none = json!({});
        for (capacity, asked, used, wanted) in [
            (&plain, json!({"mem": "3Gi"}), &none, Some("3Gi")),
            (&plain, json!({}), &none, Some("10Gi")),
            (&plain, json!({"mem": "3Gi"}), &json!({"mem": "8Gi"}), None),
            (&plain, json!({"cores": "1"}), &none, None),
            (&range, json!({}), &none, Some("1Gi")),
            (&range, json!({"mem": "512Mi"}), &none, Some("1Gi")),
            (&range, json!({"mem": "2Gi"}), &none, Some("3Gi")),
            (&range, json!({"mem": "7Gi"}), &none, None),
            (&values, json!({"mem": "2Gi"}), &none, Some("4Gi")),
            (&values, json!({"mem": "5Gi"}), &none, None),
        ] {
            assert_eq!(
                taken(capacity.clone(), asked.clone(), used.clone()).as_deref(),
                wanted,
                "{capacity} {asked}"
            );
        }
    }
}
