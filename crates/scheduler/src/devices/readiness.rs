//! Whether allocated devices are ready for their pod: conditions that drivers set on the claim.

use std::time::Duration;

use jiff::Timestamp;

use super::{AllocatedDevice, ResourceClaim};

/// How far allocated devices are.
#[derive(Debug, PartialEq)]
pub enum Readiness {
    Ready,
    /// Some driver has not said yet that its device can be used.
    Pending,
    /// A driver says that it cannot be.
    Failed(String),
}

impl ResourceClaim {
    /// Whether some allocated device has to be made ready first.
    pub fn has_binding_conditions(&self) -> bool {
        self.allocated().any(|device| !device.binding_conditions.is_empty())
    }

    fn allocated(&self) -> impl Iterator<Item = &AllocatedDevice> {
        self.status.allocation.iter().flat_map(|allocation| &allocation.devices.results)
    }

    pub fn readiness(&self) -> Readiness {
        if self.status.allocation.is_none() {
            return Readiness::Pending;
        }
        for device in self.allocated().filter(|device| !device.binding_conditions.is_empty()) {
            let status = self.status.devices.iter().find(|status| {
                (&status.driver, &status.pool, &status.device, &status.share_id)
                    == (&device.driver, &device.pool, &device.device, &device.share_id)
            });
            let Some(status) = status else { return Readiness::Pending };
            let holds =
                |name: &str| status.conditions.iter().find(|it| *it.r#type == *name && &*it.status == "True");
            if let Some(failed) = device.binding_failure_conditions.iter().find_map(|name| holds(name)) {
                return Readiness::Failed(format!(
                    "device binding failed: claim={}, reason={}, message={:?}",
                    self.metadata.name, failed.reason, failed.message
                ));
            }
            if !device.binding_conditions.iter().all(|name| holds(name).is_some()) {
                return Readiness::Pending;
            }
        }
        Readiness::Ready
    }

    /// Whether devices that had to be made ready failed, or took too long: then others have to be found.
    pub fn has_given_up(&self, longest: Duration, now: Timestamp) -> bool {
        if !self.has_binding_conditions() {
            return false;
        }
        let since = self.status.allocation.as_ref().and_then(|allocation| allocation.allocation_timestamp);
        let late = since.is_some_and(|since| since + longest < now);
        match self.readiness() {
            Readiness::Ready => false,
            Readiness::Failed(_) => true,
            Readiness::Pending => late,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(conditions: Value) -> ResourceClaim {
        let device = json!({"request": "r", "driver": "d", "pool": "p", "device": "x",
            "bindingConditions": ["ok"], "bindingFailureConditions": ["bad"]});
        let status = json!({"driver": "d", "pool": "p", "device": "x", "conditions": conditions});
        let devices = if conditions.is_null() { json!([]) } else { json!([status]) };
        let value = json!({"metadata": {"name": "c"}, "status": {"devices": devices, "allocation": {
            "devices": {"results": [device]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}}});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_device_is_ready_once_all_its_conditions_hold_and_none_of_the_bad_ones() {
        let condition = |name: &str, status: &str| json!({"type": name, "status": status, "reason": "R"});
        let (soon, later): (Timestamp, Timestamp) =
            ("2026-01-01T00:00:05Z".parse().unwrap(), "2026-01-01T00:20:00Z".parse().unwrap());
        let longest = Duration::from_secs(600);
        for (conditions, wanted, given_up) in [
            (json!(null), Readiness::Pending, [false, true]),
            (json!([condition("ok", "False")]), Readiness::Pending, [false, true]),
            (json!([condition("ok", "True")]), Readiness::Ready, [false, false]),
            (
                json!([condition("ok", "True"), condition("bad", "True")]),
                Readiness::Failed("device binding failed: claim=c, reason=R, message=\"\"".into()),
                [true, true],
            ),
        ] {
            let claim = claim(conditions);
            assert_eq!(claim.readiness(), wanted);
            assert_eq!([soon, later].map(|now| claim.has_given_up(longest, now)), given_up, "{wanted:?}");
        }
    }
}
