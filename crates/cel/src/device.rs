//! Device selectors: which devices of a ResourceSlice fit a request of a ResourceClaim or a DeviceClass.
//!
//! `device.driver`, `device.attributes['domain'].name`, `device.capacity['domain'].name`. Names without a domain belong
//! to the domain of the driver; a domain that a device does not have reads as empty.

use std::collections::BTreeSet;

use apimachinery::quantity::Quantity;
use serde_json::Value as Json;

use crate::ast::{Kind, Literal};
use crate::functions::semver::Semver;
use crate::value::{Map, Opaque};
use crate::{Budget, Env, Error, Program, Type, Val};

/// A compiled selector.
#[derive(Debug)]
pub struct Selector {
    program: Program,
    domains: BTreeSet<String>,
}

/// A device as a selector sees it.
#[derive(Clone, Copy, Debug)]
pub struct Device<'d> {
    /// Name of the driver.
    pub driver: &'d str,
    /// `attributes` of the device, as the ResourceSlice has them.
    pub attributes: &'d Json,
    /// `capacity` of the device.
    pub capacity: &'d Json,
    /// Whether several claims may share it.
    pub allow_multiple_allocations: bool,
}

impl Selector {
    /// Compiles a selector; the error is what the API server tells.
    pub fn compile(source: &str) -> Result<Self, String> {
        let domain = |value: Type| Type::map(Type::map(value));
        let device = Type::object(
            "kubernetes.DRADevice",
            &[
                ("driver", Type::String),
                ("attributes", domain(Type::Dyn)),
                ("capacity", domain(Type::Opaque("kubernetes.Quantity"))),
                ("allowMultipleAllocations", Type::Bool),
            ],
        );
        let program = Env::new().with("device", device).compile(source);
        let program = program.map_err(|issues| format!("compilation failed: {issues}"))?;
        // What type an attribute has is known only when there is a device.
        if !matches!(program.kind(), Type::Bool | Type::Dyn) {
            return Err(format!("must evaluate to bool or the unknown type, not {}", program.kind()));
        }
        let mut domains = BTreeSet::new();
        program.root().walk(&mut |expr| match &expr.kind {
            Kind::Index { key, .. } => {
                if let Kind::Literal(Literal::Text(text)) = &key.kind {
                    domains.insert(text.clone());
                }
            }
            Kind::Select { field, .. } => {
                domains.insert(field.clone());
            }
            _ => {}
        });
        Ok(Self { program, domains })
    }

    /// Whether a device fits.
    pub fn matches(&self, device: &Device<'_>) -> Result<bool, Error> {
        let attributes = self.by_domain(device.driver, device.attributes, attribute)?;
        let capacity = self.by_domain(device.driver, device.capacity, |value| {
            let text = value["value"].as_str().unwrap_or("0");
            let quantity: Quantity =
                text.parse().map_err(|_| Error::invalid("a capacity is not a quantity"))?;
            Ok(Val::opaque(Opaque::Quantity(quantity)))
        })?;
        let entries = vec![
            (Val::from("driver"), Val::from(device.driver)),
            (Val::from("attributes"), attributes),
            (Val::from("capacity"), capacity),
            (Val::from("allowMultipleAllocations"), Val::Bool(device.allow_multiple_allocations)),
        ];
        let values = [Val::Map(Map::made(entries))];
        match self.program.run(&&values[..], None, &mut Budget::default())? {
            Val::Bool(fits) => Ok(fits),
            _ => Err(Error::NoOverload),
        }
    }

    fn by_domain<'v>(
        &'v self,
        driver: &'v str,
        values: &'v Json,
        read: impl Fn(&'v Json) -> Result<Val<'v>, Error>,
    ) -> Result<Val<'v>, Error> {
        let mut domains: Vec<(&str, Vec<(Val<'v>, Val<'v>)>)> =
            self.domains.iter().map(|name| (name.as_str(), Vec::new())).collect();
        for (name, value) in values.as_object().into_iter().flatten() {
            let (domain, name) = name.split_once('/').unwrap_or((driver, name));
            let entry = (Val::from(name), read(value)?);
            match domains.iter_mut().find(|(own, _)| *own == domain) {
                Some((_, entries)) => entries.push(entry),
                None => domains.push((domain, vec![entry])),
            }
        }
        let maps = domains
            .into_iter()
            .map(|(name, entries)| (Val::from(name), Val::Map(Map::made(entries))))
            .collect::<Vec<_>>();
        Ok(Val::Map(Map::made(maps)))
    }
}

fn attribute(value: &Json) -> Result<Val<'_>, Error> {
    if let Some(version) = value["version"].as_str() {
        let parsed = Semver::parse(version, false);
        let version = parsed.ok_or_else(|| Error::invalid("an attribute is not a semantic version"))?;
        return Ok(Val::opaque(Opaque::Semver(version)));
    }
    let plain = ["int", "bool", "string"].into_iter().find_map(|kind| value.get(kind));
    plain.map(Val::json).ok_or_else(|| Error::invalid("an attribute has no value"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_look_at_driver_attributes_and_capacity() {
        let attributes = json!({"model": {"string": "A100"}, "cores": {"int": 8}, "other.example/fw": {"version": "1.2.3"}});
        let capacity = json!({"memory": {"value": "80Gi"}});
        let device = Device {
            driver: "gpu.example",
            attributes: &attributes,
            capacity: &capacity,
            allow_multiple_allocations: false,
        };
        let table = [
            ("device.driver == 'gpu.example'", Some(true)),
            (
                "device.attributes['gpu.example'].model == 'A100' && device.attributes['gpu.example'].cores > 4",
                Some(true),
            ),
            ("device.attributes['other.example'].fw.isGreaterThan(semver('1.2.0'))", Some(true)),
            ("device.capacity['gpu.example'].memory.compareTo(quantity('40Gi')) >= 0", Some(true)),
            ("'nope' in device.attributes['missing.example']", Some(false)),
            ("has(device.attributes['missing.example'].x)", Some(false)),
            ("device.attributes['gpu.example'].nope == 1", None),
            ("device.attributes['gpu.example'].model", None),
        ];
        for (source, wanted) in table {
            let selector = Selector::compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
            assert_eq!(selector.matches(&device).ok(), wanted, "{source}");
        }
        assert!(Selector::compile("device.nope").is_err());
        assert_eq!(
            Selector::compile("device.driver").expect_err("not a condition"),
            "must evaluate to bool or the unknown type, not string"
        );
    }
}
