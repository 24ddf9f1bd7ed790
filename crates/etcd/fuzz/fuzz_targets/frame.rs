//! Any bytes may come from a client: requests are decoded or refused.
#![no_main]

use etcd::v3::messages::{PutRequest, RangeRequest, TxnRequest, WatchRequest};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|input: &[u8]| {
    let _ = RangeRequest::decode(input);
    let _ = PutRequest::decode(input);
    let _ = WatchRequest::decode(input);
    if let Ok(request) = TxnRequest::decode(input) {
        let _ = etcd::v3::kv::check_txn(&request, etcd::v3::kv::MAX_TXN_OPS);
    }
});
