//! Whether a device is what a selector's expression asks for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cel::device::{Device as View, Selector};
use serde_json::Value;

use super::{Device, DeviceSelector};

/// Compiled expressions that are kept; there are as many as classes and claims have.
const MOST_COMPILED: usize = 1024;

type Compiled = Result<Arc<Selector>, Arc<str>>;

/// Expressions that were compiled before, and those that cannot be.
#[derive(Debug, Default)]
pub struct Compiler(Mutex<HashMap<Box<str>, Compiled>>);

impl Compiler {
    fn get(&self, expression: &str) -> Compiled {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiled) = known.get(expression) {
            return compiled.clone();
        }
        let compiled =
            Selector::compile(expression).map(Arc::new).map_err(|problem| Arc::from(problem.as_str()));
        if known.len() >= MOST_COMPILED {
            known.clear();
        }
        known.insert(expression.into(), compiled.clone());
        compiled
    }

    /// Whether all selectors hold. An expression that cannot be evaluated is an error, as upstream has it.
    pub fn matches(
        &self,
        selectors: &[DeviceSelector],
        driver: &str,
        device: &Device,
    ) -> Result<bool, String> {
        for cel in selectors.iter().filter_map(|selector| selector.cel.as_ref()) {
            let told = |problem: &dyn std::fmt::Display| format!("selector {:?}: {problem}", cel.expression);
            let selector = self.get(&cel.expression).map_err(|problem| told(&problem))?;
            let (attributes, capacity) = (&device.attributes, &device.capacity);
            let allow_multiple_allocations = device.allow_multiple_allocations;
            let view = View { driver, attributes, capacity, allow_multiple_allocations };
            if !selector.matches(&view).map_err(|error| told(&error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Attributes by name, wherever they are kept as JSON.
pub fn attribute<'d>(attributes: &'d Value, name: &str) -> Option<&'d Value> {
    let short = name.split_once('/').map_or(name, |(_, short)| short);
    attributes.get(name).or_else(|| attributes.get(short))
}
