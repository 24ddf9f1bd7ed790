//! Any bytes are a record or an error; a record that is read writes back to one that reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| etcd::log::feed::record(input));
