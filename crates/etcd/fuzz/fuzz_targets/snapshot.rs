//! Any file is a snapshot or an error, whichever of its parts the fuzzer has got right.
#![no_main]

use std::io::Write;
use std::time::Instant;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(input).expect("write");
    let _ = etcd::log::snapshot::load(&file, "fuzz".into(), Instant::now());
});
