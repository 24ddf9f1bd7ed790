//! Custom resource definitions.

use crate::Definition;

pub mod approval;
pub mod crd;
mod schema_rules;
pub mod v1beta1;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![crd::definition()]
}
