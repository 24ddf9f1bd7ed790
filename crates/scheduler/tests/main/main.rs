//! What is seen of the scheduler from outside its crate.

mod cluster;
mod extenders;
mod foreign_binding;
mod foreign_plugin;
mod reference;
