//! Events in their newer form; stored as core events.

use crate::Definition;

/// The kinds of this group.
pub fn definitions() -> Vec<Definition> {
    vec![crate::core::event::events()]
}
