//! Any file is a snapshot or an error, whichever of its parts the fuzzer has got right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| etcd::log::feed::snapshot(input));
