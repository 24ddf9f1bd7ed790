//! The patches that `apply` sends: from what was applied last, what shall be, and what is.

pub mod merge;
pub mod strategic;
