//! YAML as Go's clients and servers read and write it (`sigs.k8s.io/yaml`): a dialect of version 1.1 in which `yes` is true and
//! `0644` is 420, read into JSON first, whatever it is meant to become.

mod libyaml;
mod read;
mod resolve;
mod write;

pub use read::{Json, to_json};
pub use write::write;
