//! Any bytes are a record or an error; a record that is read writes back to one that reads the same.
#![no_main]

use etcd::log::codec::Record;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(record) = Record::decode(input) {
        assert_eq!(Record::decode(&record.encode()), Ok(record));
    }
});
