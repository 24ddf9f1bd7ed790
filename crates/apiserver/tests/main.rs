//! What a client sees: a real server with real TLS on a store in memory, asked in process and by kubectl.

mod authorization;
mod bytes;
mod conversion;
mod custom;
mod harness;
mod health;
mod hook;
mod hooks;
mod kubectl;
mod metrics;
mod objects;
mod patching;
mod policies;
mod python;
mod quota;
mod shapes;
mod watching;
