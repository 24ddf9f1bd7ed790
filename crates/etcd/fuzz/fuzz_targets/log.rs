//! Any file is a log, a damaged one or none; reading it neither panics nor yields records out of order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| etcd::log::feed::log(input));
