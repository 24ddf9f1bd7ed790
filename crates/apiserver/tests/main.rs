//! What a client sees: a real server with real TLS on a store in memory, asked in process and by kubectl.

mod authorization;
mod bytes;
mod custom;
mod harness;
mod kubectl;
mod metrics;
mod objects;
mod policies;
mod python;
mod quota;
mod watching;
