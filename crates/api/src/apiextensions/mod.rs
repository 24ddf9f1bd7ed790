//! Custom resource definitions.

use crate::Definition;

pub mod approval;
pub mod crd;
mod schema_rules;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![crd::definition()]
}
