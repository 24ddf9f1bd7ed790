//! Any bytes are a backup or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| etcd::log::feed::backup(input));
