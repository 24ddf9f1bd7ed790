//! What a user of the store sees: one suite for every implementation of the trait.

mod cluster;
mod conformance;
mod crash;
mod ctl;
mod durability;
mod etcdctl;
mod faulty;
mod in_process;
mod learner;
mod linearizability;
mod members;
mod model;
mod order;
mod robustness;
mod server;
