//! No message of another member stops this one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| etcd::log::feed::messages(input));
