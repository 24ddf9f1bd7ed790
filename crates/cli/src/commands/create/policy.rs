//! Quotas, disruption budgets and priority classes.

use clap::Args;
use serde_json::{Value, json};

use super::{Common, one_name};
use crate::error::{CliError, message};

/// Create a quota with the specified name
#[derive(Args, Debug)]
pub struct Quota {
    names: Vec<String>,
    /// A comma-delimited set of resource=quantity pairs that define a hard limit
    #[arg(long, default_value = "", hide_default_value = true)]
    hard: String,
    /// A comma-delimited set of quota scopes that must all match each object tracked by the quota
    #[arg(long, default_value = "", hide_default_value = true)]
    scopes: String,
    #[command(flatten)]
    pub common: Common,
}

impl Quota {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("quota", &self.names)?;
        let mut spec = json!({});
        for pair in self.hard.split(',').filter(|pair| !pair.is_empty()) {
            let Some((resource, amount)) = pair.split_once('=') else {
                return Err(message(
                    format!("invalid argument syntax {pair:?}, expected <resource>=<value>").replace('"', ""),
                ));
            };
            let canonical = apimachinery::quantity::canonical(amount)
                .map_err(|_| message("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"))?;
            spec["hard"][resource] = canonical.unwrap_or_else(|| amount.to_owned()).into();
        }
        let scopes: Vec<&str> = self.scopes.split(',').filter(|scope| !scope.is_empty()).collect();
        if !scopes.is_empty() {
            spec["scopes"] = json!(scopes);
        }
        Ok(
            json!({"kind": "ResourceQuota", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec, "status": {}}),
        )
    }
}

/// Create a pod disruption budget with the specified name
#[derive(Args, Debug)]
pub struct PodDisruptionBudget {
    names: Vec<String>,
    /// The minimum number or percentage of available pods this budget requires
    #[arg(long, default_value = "", hide_default_value = true)]
    min_available: String,
    /// The maximum number or percentage of unavailable pods this budget requires
    #[arg(long, default_value = "", hide_default_value = true)]
    max_unavailable: String,
    /// A label selector to use for this budget
    #[arg(long, default_value = "", hide_default_value = true)]
    selector: String,
    #[command(flatten)]
    pub common: Common,
}

impl PodDisruptionBudget {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("poddisruptionbudget", &self.names)?;
        if self.selector.is_empty() {
            return Err(message("a selector must be specified"));
        }
        match (self.min_available.is_empty(), self.max_unavailable.is_empty()) {
            (true, true) => return Err(message("one of min-available or max-unavailable must be specified")),
            (false, false) => {
                return Err(message("min-available and max-unavailable cannot be both specified"));
            }
            _ => {}
        }
        let amount = |text: &str| text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from);
        let mut spec = json!({"selector": label_selector(&self.selector)?});
        if self.min_available.is_empty() {
            spec["maxUnavailable"] = amount(&self.max_unavailable);
        } else {
            spec["minAvailable"] = amount(&self.min_available);
        }
        Ok(
            json!({"kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "metadata": {"name": name}, "spec": spec,
            "status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}}),
        )
    }
}

/// A selector's text as `matchLabels` and `matchExpressions`.
pub fn label_selector(text: &str) -> Result<Value, CliError> {
    use apimachinery::selector::{LabelSelector, Operator};
    let selector = LabelSelector::parse(text).map_err(|error| message(error.to_string()))?;
    let mut out = json!({});
    for requirement in selector.requirements() {
        match (requirement.operator, &requirement.values[..]) {
            (Operator::Equals, [one]) => out["matchLabels"][requirement.key.as_str()] = one.clone().into(),
            (operator, values) => {
                let word = match operator {
                    Operator::NotEquals | Operator::NotIn => "NotIn",
                    Operator::Exists => "Exists",
                    Operator::DoesNotExist => "DoesNotExist",
                    Operator::Equals | Operator::In => "In",
                    _ => return Err(message(format!("{text:?} cannot be a label selector of an object"))),
                };
                let mut expression = json!({"key": requirement.key, "operator": word});
                if !values.is_empty() {
                    expression["values"] = json!(values);
                }
                match out["matchExpressions"].as_array_mut() {
                    Some(list) => list.push(expression),
                    None => out["matchExpressions"] = json!([expression]),
                }
            }
        }
    }
    Ok(out)
}

/// Create a priority class with the specified name
#[derive(Args, Debug)]
pub struct PriorityClass {
    names: Vec<String>,
    /// The value of this priority class
    #[arg(long, default_value = "0")]
    value: i32,
    /// Specifies whether this PriorityClass should be considered as the default priority
    #[arg(long)]
    global_default: bool,
    /// An arbitrary string that usually provides guidelines on when this priority class should be used
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// The policy for preempting pods with lower priority
    #[arg(long, default_value = "PreemptLowerPriority")]
    preemption_policy: String,
    #[command(flatten)]
    pub common: Common,
}

impl PriorityClass {
    pub fn object(&self) -> Result<Value, CliError> {
        let name = one_name("priorityclass", &self.names)?;
        let mut object = json!({"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": name},
            "value": self.value, "preemptionPolicy": self.preemption_policy});
        if self.global_default {
            object["globalDefault"] = true.into();
        }
        if !self.description.is_empty() {
            object["description"] = self.description.clone().into();
        }
        Ok(object)
    }
}
