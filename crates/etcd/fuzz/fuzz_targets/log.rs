//! Any file is a log, a damaged one or none; reading it neither panics nor yields records out of order.
#![no_main]

use std::io::Write;

use etcd::log::segment;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // With a good header, so that the fuzzer gets to the batches.
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(&segment::header(1)).expect("write");
    file.write_all(input).expect("write");
    let mut next = 1;
    let _ = segment::read(&file, "fuzz".into(), |index, _record| {
        assert_eq!(index, next);
        next += 1;
    });
});
