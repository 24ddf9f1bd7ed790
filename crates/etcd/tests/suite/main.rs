//! What a user of the store sees: one suite for every implementation of the trait.

mod conformance;
mod durability;
mod faulty;
mod in_process;
