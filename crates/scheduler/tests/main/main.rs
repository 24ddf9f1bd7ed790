//! The scheduler as another crate sees it.

mod foreign_plugin;
mod reference;
