//! Range, Put, DeleteRange, Txn: validation and evaluation, without I/O.
//!
//! A transaction is checked completely before it changes anything, so it cannot fail halfway. Comparisons of nested
//! transactions are decided before the first change, as etcd does.

use std::cmp::Ordering;

use bytes::Bytes;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::engine::draft::Keys;
use crate::engine::{Shared, Transaction};
use crate::mvcc::keyspace::Version;
use crate::mvcc::range::KeyRange;
use crate::store::Revision;
use crate::v3::frame::PREFIX;
use crate::v3::messages::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, KeyValue, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, RequestOpRequest, ResponseHeader, ResponseOp, ResponseOpResponse, TargetUnion,
    TxnRequest, TxnResponse,
};
use crate::v3::status::{self, Status};

/// The most operations in one transaction, as etcd's default.
pub const MAX_TXN_OPS: usize = 128;

const ASCEND: i32 = 1;
const DESCEND: i32 = 2;

/// What to sort a range by.
const BY_KEY: i32 = 0;
const BY_VERSION: i32 = 1;
const BY_CREATE: i32 = 2;
const BY_MOD: i32 = 3;
const BY_VALUE: i32 = 4;

fn range_of(key: &Bytes, end: &Bytes) -> KeyRange {
    KeyRange::from_wire(key.clone(), end.clone())
}

/// A key with a version, as the wire has it.
pub fn wire_kv(key: &Bytes, version: &Version, keys_only: bool) -> KeyValue {
    KeyValue {
        key: key.clone(),
        create_revision: version.create_revision,
        mod_revision: version.mod_revision,
        version: version.version,
        value: if keys_only { Bytes::new() } else { version.value.clone() },
        lease: version.lease,
    }
}

/// Checks what a range request says by itself.
pub fn check_range(request: &RangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::EMPTY_KEY);
    }
    if !(0..=DESCEND).contains(&request.sort_order) || !(BY_KEY..=BY_VALUE).contains(&request.sort_target) {
        return Err(status::INVALID_SORT);
    }
    Ok(())
}

fn check_put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::EMPTY_KEY);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(status::VALUE_PROVIDED);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(status::LEASE_PROVIDED);
    }
    Ok(())
}

fn check_delete(request: &DeleteRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() { Err(status::EMPTY_KEY) } else { Ok(()) }
}

/// Whether the request can be answered by walking the keys in order.
fn in_key_order(request: &RangeRequest) -> bool {
    let filtered = request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0;
    !filtered && (request.sort_target == BY_KEY && request.sort_order != DESCEND)
}

fn passes(request: &RangeRequest, version: &Version) -> bool {
    let within = |min: i64, max: i64, value: i64| (min == 0 || value >= min) && (max == 0 || value <= max);
    within(request.min_mod_revision, request.max_mod_revision, version.mod_revision)
        && within(request.min_create_revision, request.max_create_revision, version.create_revision)
}

fn compare_by(target: i32, left: (&Bytes, &Version), right: (&Bytes, &Version)) -> Ordering {
    match target {
        BY_VERSION => left.1.version.cmp(&right.1.version),
        BY_CREATE => left.1.create_revision.cmp(&right.1.create_revision),
        BY_MOD => left.1.mod_revision.cmp(&right.1.mod_revision),
        BY_VALUE => left.1.value.cmp(&right.1.value),
        _ => left.0.cmp(right.0),
    }
}

/// What a range finds: the items to return, whether there are more, and how many keys the range has.
struct Found<'a> {
    items: Vec<(&'a Bytes, &'a Version)>,
    more: bool,
    count: i64,
}

fn find<'a>(found: impl Iterator<Item = (&'a Bytes, &'a Version)>, request: &RangeRequest) -> Found<'a> {
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    if request.count_only {
        return Found { items: Vec::new(), more: false, count: found.count() as i64 };
    }
    if in_key_order(request) {
        let mut found = found;
        let items: Vec<_> = found.by_ref().take(limit).collect();
        let rest = found.count();
        return Found { more: rest > 0, count: (items.len() + rest) as i64, items };
    }
    let mut items: Vec<_> = found.collect();
    let count = items.len() as i64;
    items.retain(|(_, version)| passes(request, version));
    // Without an order, a target other than the key sorts ascending, as etcd does.
    if request.sort_order == DESCEND {
        items.sort_by(|left, right| compare_by(request.sort_target, *right, *left));
    } else if request.sort_order == ASCEND || request.sort_target != BY_KEY {
        items.sort_by(|left, right| compare_by(request.sort_target, *left, *right));
    }
    let more = items.len() > limit;
    items.truncate(limit);
    Found { items, more, count }
}

/// Evaluates a range inside of a transaction.
fn range_in(keys: Keys<'_>, request: &RangeRequest) -> RangeResponse {
    let range = range_of(&request.key, &request.range_end);
    let at = if request.revision > 0 { request.revision } else { Revision::MAX };
    let found = find(keys.range(&range, at), request);
    RangeResponse {
        header: Some(ResponseHeader { revision: keys.revision(), ..ResponseHeader::default() }),
        kvs: found.items.iter().map(|(key, version)| wire_kv(key, version, request.keys_only)).collect(),
        more: found.more,
        count: found.count,
    }
}

/// Answers a range: the framed response, encoded straight from the state.
pub(crate) fn range(
    shared: &Shared,
    header: ResponseHeader,
    request: &RangeRequest,
) -> Result<Vec<u8>, Status> {
    check_range(request)?;
    let range = range_of(&request.key, &request.range_end);
    let state = shared.read();
    let current = shared.visible();
    let at = if request.revision > 0 { request.revision } else { current };
    state.keys.check_revision(at, current).map_err(Status::from)?;
    let found = find(state.keys.range(&range, at), request);
    let header = ResponseHeader { revision: current, ..header };
    let answer = encode_range(&header, &found, request.keys_only);
    drop(found);
    drop(state);
    shared.note_read(answer.len());
    Ok(answer)
}

fn kv_len(key: &[u8], version: &Version, keys_only: bool) -> usize {
    let field = |value: i64| if value == 0 { 0 } else { 1 + encoded_len_varint(value as u64) };
    let bytes = |length: usize| if length == 0 { 0 } else { 1 + encoded_len_varint(length as u64) + length };
    bytes(key.len())
        + field(version.create_revision)
        + field(version.mod_revision)
        + field(version.version)
        + bytes(if keys_only { 0 } else { version.value.len() })
        + field(version.lease)
}

fn put_field(out: &mut Vec<u8>, number: u8, value: i64) {
    if value != 0 {
        out.push(number << 3);
        encode_varint(value as u64, out);
    }
}

fn put_bytes(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    if !value.is_empty() {
        out.push(number << 3 | 2);
        encode_varint(value.len() as u64, out);
        out.extend_from_slice(value);
    }
}

fn encode_range(header: &ResponseHeader, found: &Found<'_>, keys_only: bool) -> Vec<u8> {
    use prost::Message;
    let lengths: usize = found
        .items
        .iter()
        .map(|(key, version)| {
            let length = kv_len(key, version, keys_only);
            1 + encoded_len_varint(length as u64) + length
        })
        .sum();
    let mut out = Vec::with_capacity(PREFIX + lengths + 64);
    out.resize(PREFIX, 0);
    put_bytes(&mut out, 1, &header.encode_to_vec());
    for (key, version) in &found.items {
        out.push(2 << 3 | 2);
        encode_varint(kv_len(key, version, keys_only) as u64, &mut out);
        put_bytes(&mut out, 1, key);
        put_field(&mut out, 2, version.create_revision);
        put_field(&mut out, 3, version.mod_revision);
        put_field(&mut out, 4, version.version);
        if !keys_only {
            put_bytes(&mut out, 5, &version.value);
        }
        put_field(&mut out, 6, version.lease);
    }
    put_field(&mut out, 3, i64::from(found.more));
    put_field(&mut out, 4, found.count);
    out
}

/// Checks a put against the state.
fn check_put_in(transaction: &Transaction<'_>, request: &PutRequest) -> Result<(), Status> {
    if request.lease != 0 && !transaction.has_lease(request.lease) {
        return Err(status::LEASE_NOT_FOUND);
    }
    let exists = || transaction.keys().version(&request.key, Revision::MAX).is_some();
    if (request.ignore_value || request.ignore_lease) && !exists() {
        return Err(status::KEY_NOT_FOUND);
    }
    Ok(())
}

fn put_in(transaction: &mut Transaction<'_>, request: PutRequest) -> PutResponse {
    let current = (request.ignore_value || request.ignore_lease)
        .then(|| transaction.keys().version(&request.key, Revision::MAX).cloned())
        .flatten();
    // Copied out of the receive buffer: a stored value must not keep a whole network buffer alive.
    let value = match &current {
        Some(version) if request.ignore_value => version.value.clone(),
        _ => Bytes::copy_from_slice(&request.value),
    };
    let lease = match &current {
        Some(version) if request.ignore_lease => version.lease,
        _ => request.lease,
    };
    let key = Bytes::copy_from_slice(&request.key);
    let previous = transaction.put(key, value, lease);
    PutResponse {
        header: Some(ResponseHeader { revision: transaction.revision(), ..ResponseHeader::default() }),
        prev_kv: previous.filter(|_| request.prev_kv).map(|version| wire_kv(&request.key, &version, false)),
    }
}

fn delete_in(transaction: &mut Transaction<'_>, request: &DeleteRangeRequest) -> DeleteRangeResponse {
    let range = range_of(&request.key, &request.range_end);
    let keys: Vec<Bytes> =
        transaction.keys().range(&range, Revision::MAX).map(|(key, _)| key.clone()).collect();
    let mut response = DeleteRangeResponse::default();
    for key in keys {
        if let Some(version) = transaction.delete(&key) {
            response.deleted += 1;
            if request.prev_kv {
                response.prev_kvs.push(wire_kv(&key, &version, false));
            }
        }
    }
    response.header = Some(ResponseHeader { revision: transaction.revision(), ..ResponseHeader::default() });
    response
}

/// Puts one key.
pub(crate) fn put(
    shared: &Shared,
    transaction: &mut Transaction<'_>,
    request: PutRequest,
) -> Result<PutResponse, Status> {
    check_put(&request)?;
    check_put_in(transaction, &request)?;
    shared.check_space(transaction.keys(), request.key.len() + request.value.len())?;
    Ok(put_in(transaction, request))
}

/// Deletes a range.
pub fn delete_range(
    transaction: &mut Transaction<'_>,
    request: &DeleteRangeRequest,
) -> Result<DeleteRangeResponse, Status> {
    check_delete(request)?;
    Ok(delete_in(transaction, request))
}

/// Checks what a transaction says by itself.
pub fn check_txn(request: &TxnRequest, max_ops: usize) -> Result<(), Status> {
    for operations in [&request.success, &request.failure] {
        if operations.len() > max_ops {
            return Err(status::TOO_MANY_OPS);
        }
    }
    if request.compare.len() > max_ops {
        return Err(status::TOO_MANY_OPS);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(status::EMPTY_KEY);
    }
    for operations in [&request.success, &request.failure] {
        for operation in operations {
            match operation.request.as_ref().ok_or(status::KEY_NOT_FOUND)? {
                RequestOpRequest::Range(range) => check_range(range)?,
                RequestOpRequest::Put(put) => check_put(put)?,
                RequestOpRequest::DeleteRange(delete) => check_delete(delete)?,
                RequestOpRequest::Txn(nested) => check_txn(nested, max_ops)?,
            }
        }
        let mut touched = Touched::default();
        touched.branch(operations)?;
    }
    Ok(())
}

/// What a branch of a transaction writes: no key may be written twice.
#[derive(Default)]
struct Touched {
    puts: std::collections::BTreeSet<Bytes>,
    deletes: Vec<KeyRange>,
}

impl Touched {
    /// Adds all of a branch; nested transactions count with both of their branches, each by itself.
    fn branch(&mut self, operations: &[RequestOp]) -> Result<(), Status> {
        for operation in operations {
            match &operation.request {
                Some(RequestOpRequest::DeleteRange(delete)) => {
                    let range = range_of(&delete.key, &delete.range_end);
                    if self.puts.iter().any(|key| range.contains(key)) {
                        return Err(status::DUPLICATE_KEY);
                    }
                    self.deletes.push(range);
                }
                Some(RequestOpRequest::Put(put)) => {
                    let deleted = self.deletes.iter().any(|range| range.contains(&put.key));
                    if deleted || !self.puts.insert(put.key.clone()) {
                        return Err(status::DUPLICATE_KEY);
                    }
                }
                Some(RequestOpRequest::Txn(nested)) => {
                    let mut either = Touched::default();
                    for branch in [&nested.success, &nested.failure] {
                        let mut one = Touched::default();
                        one.branch(branch)?;
                        let clash = one.puts.iter().any(|key| {
                            self.puts.contains(key) || self.deletes.iter().any(|range| range.contains(key))
                        }) || one
                            .deletes
                            .iter()
                            .any(|range| self.puts.iter().any(|key| range.contains(key)));
                        if clash {
                            return Err(status::DUPLICATE_KEY);
                        }
                        either.puts.extend(one.puts);
                        either.deletes.extend(one.deletes);
                    }
                    self.puts.extend(either.puts);
                    self.deletes.extend(either.deletes);
                }
                Some(RequestOpRequest::Range(_)) | None => {}
            }
        }
        Ok(())
    }
}

/// Whether a transaction can change anything.
pub fn is_read_only(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).all(|operation| match &operation.request {
        Some(RequestOpRequest::Range(_)) | None => true,
        Some(RequestOpRequest::Txn(nested)) => is_read_only(nested),
        Some(RequestOpRequest::Put(_) | RequestOpRequest::DeleteRange(_)) => false,
    })
}

/// Whether a comparison holds; the keys of a range must all pass.
fn holds(keys: Keys<'_>, compare: &Compare) -> bool {
    let range = range_of(&compare.key, &compare.range_end);
    let mut found = keys.range(&range, Revision::MAX).map(|(_, version)| version).peekable();
    if found.peek().is_none() {
        // A missing key compares as one with zero everywhere, but has no value to compare.
        let absent =
            Version { mod_revision: 0, create_revision: 0, version: 0, lease: 0, value: Bytes::new() };
        return !matches!(compare.target_union, Some(TargetUnion::Value(_)))
            && compare.target != 3
            && compares(compare, &absent);
    }
    found.all(|version| compares(compare, version))
}

fn compares(compare: &Compare, version: &Version) -> bool {
    let number = |wanted: i64, actual: i64| actual.cmp(&wanted);
    let union = compare.target_union.as_ref();
    let wanted = match union {
        Some(
            TargetUnion::Version(value)
            | TargetUnion::CreateRevision(value)
            | TargetUnion::ModRevision(value)
            | TargetUnion::Lease(value),
        ) => *value,
        _ => 0,
    };
    let order = match compare.target {
        0 => number(wanted, version.version),
        1 => number(wanted, version.create_revision),
        2 => number(wanted, version.mod_revision),
        3 => match union {
            Some(TargetUnion::Value(value)) => version.value.as_ref().cmp(value),
            _ => version.value.as_ref().cmp(&[]),
        },
        4 => number(wanted, version.lease),
        _ => return false,
    };
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        3 => order.is_ne(),
        _ => false,
    }
}

/// Which branches are taken, outermost first, in the order in which nested transactions are met.
fn decide(keys: Keys<'_>, request: &TxnRequest, path: &mut Vec<bool>) {
    let succeeded = request.compare.iter().all(|compare| holds(keys, compare));
    path.push(succeeded);
    let chosen = if succeeded { &request.success } else { &request.failure };
    for operation in chosen {
        if let Some(RequestOpRequest::Txn(nested)) = &operation.request {
            decide(keys, nested, path);
        }
    }
}

/// Checks the chosen branches against the state; returns how much they add.
fn check_chosen(
    transaction: &Transaction<'_>,
    request: &TxnRequest,
    path: &mut std::slice::Iter<'_, bool>,
    current: Revision,
) -> Result<usize, Status> {
    let succeeded = path.next().copied().unwrap_or(false);
    let mut size = 0;
    for operation in if succeeded { &request.success } else { &request.failure } {
        match &operation.request {
            Some(RequestOpRequest::Range(range)) if range.revision > 0 => {
                transaction.keys().check_revision(range.revision, current)?;
            }
            Some(RequestOpRequest::Put(put)) => {
                check_put_in(transaction, put)?;
                size += put.key.len() + put.value.len();
            }
            Some(RequestOpRequest::Txn(nested)) => size += check_chosen(transaction, nested, path, current)?,
            _ => {}
        }
    }
    Ok(size)
}

fn run_chosen(
    transaction: &mut Transaction<'_>,
    request: TxnRequest,
    path: &mut std::slice::Iter<'_, bool>,
) -> TxnResponse {
    let succeeded = path.next().copied().unwrap_or(false);
    let chosen = if succeeded { request.success } else { request.failure };
    let responses = chosen
        .into_iter()
        .filter_map(|operation| {
            let response = match operation.request? {
                RequestOpRequest::Range(range) => {
                    ResponseOpResponse::Range(range_in(transaction.keys(), &range))
                }
                RequestOpRequest::Put(put) => ResponseOpResponse::Put(put_in(transaction, put)),
                RequestOpRequest::DeleteRange(delete) => {
                    ResponseOpResponse::DeleteRange(delete_in(transaction, &delete))
                }
                RequestOpRequest::Txn(nested) => {
                    ResponseOpResponse::Txn(run_chosen(transaction, nested, path))
                }
            };
            Some(ResponseOp { response: Some(response) })
        })
        .collect();
    let header = ResponseHeader { revision: transaction.revision(), ..ResponseHeader::default() };
    TxnResponse { header: Some(header), succeeded, responses }
}

/// Runs a transaction that [`check_txn`] has passed.
pub(crate) fn txn(
    shared: &Shared,
    transaction: &mut Transaction<'_>,
    request: TxnRequest,
) -> Result<TxnResponse, Status> {
    let mut path = Vec::new();
    decide(transaction.keys(), &request, &mut path);
    let size = check_chosen(transaction, &request, &mut path.iter(), transaction.revision())?;
    if size > 0 {
        shared.check_space(transaction.keys(), size)?;
    }
    Ok(run_chosen(transaction, request, &mut path.iter()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Config, open};
    use crate::local::Etcd;
    use lifecycle::Tasks;
    use prost::Message;
    use std::sync::Arc;

    fn store() -> (Arc<Etcd>, Tasks) {
        let tasks = Tasks::new();
        (open(Config::default(), &tasks).expect("open in memory"), tasks)
    }

    fn put_op(key: &'static str, value: &'static str) -> RequestOp {
        let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
        RequestOp { request: Some(RequestOpRequest::Put(put)) }
    }

    fn delete_op(key: &'static str, end: &'static str) -> RequestOp {
        let delete =
            DeleteRangeRequest { key: key.into(), range_end: end.into(), ..DeleteRangeRequest::default() };
        RequestOp { request: Some(RequestOpRequest::DeleteRange(delete)) }
    }

    fn nested(txn: TxnRequest) -> RequestOp {
        RequestOp { request: Some(RequestOpRequest::Txn(txn)) }
    }

    fn value_is(key: &'static str, value: &'static str) -> Compare {
        let target_union = Some(TargetUnion::Value(value.into()));
        Compare { result: 0, target: 3, key: key.into(), target_union, range_end: Bytes::new() }
    }

    async fn run(etcd: &Etcd, request: TxnRequest) -> Result<TxnResponse, Status> {
        check_txn(&request, MAX_TXN_OPS)?;
        etcd.transact(|transaction| txn(&etcd.shared, transaction, request)).await
    }

    async fn fill(etcd: &Etcd, pairs: &[(&'static str, &'static str)]) {
        for (key, value) in pairs {
            let request = TxnRequest { success: vec![put_op(key, value)], ..TxnRequest::default() };
            run(etcd, request).await.expect("put");
        }
    }

    fn keys_of(etcd: &Etcd, request: &RangeRequest) -> (String, bool, i64) {
        let out = range(&etcd.shared, ResponseHeader::default(), request).expect("range");
        let response = RangeResponse::decode(&out[PREFIX..]).expect("decodes");
        let keys: Vec<String> =
            response.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect();
        (keys.join(""), response.more, response.count)
    }

    #[tokio::test]
    async fn a_branch_is_chosen_before_anything_changes() {
        let (etcd, _tasks) = store();
        fill(&etcd, &[("a", "old")]).await;
        // The inner comparison sees the state before the outer put.
        let inner = TxnRequest {
            compare: vec![value_is("a", "old")],
            success: vec![put_op("b", "yes")],
            failure: vec![put_op("b", "no")],
        };
        let outer = TxnRequest { success: vec![put_op("a", "new"), nested(inner)], ..TxnRequest::default() };
        let response = run(&etcd, outer).await.expect("txn");
        assert!(response.succeeded);
        let kv = etcd.get_now(b"b").expect("written");
        assert_eq!(&kv.value[..], b"yes");
        assert_eq!(
            etcd.get_now(b"a").expect("written").mod_revision,
            kv.mod_revision,
            "one revision for all"
        );
    }

    #[tokio::test]
    async fn a_key_cannot_be_written_twice() {
        let (etcd, _tasks) = store();
        let branches = [
            vec![put_op("a", "1"), put_op("a", "2")],
            vec![put_op("b", "1"), delete_op("a", "c")],
            vec![delete_op("a", "c"), put_op("b", "1")],
            vec![
                put_op("a", "1"),
                nested(TxnRequest { failure: vec![put_op("a", "2")], ..TxnRequest::default() }),
            ],
        ];
        for success in branches {
            let request = TxnRequest { success, ..TxnRequest::default() };
            assert_eq!(run(&etcd, request).await, Err(status::DUPLICATE_KEY));
        }
        // Either branch of a nested transaction may write it: only one is taken.
        let either = TxnRequest {
            success: vec![put_op("a", "1")],
            failure: vec![put_op("a", "2")],
            ..TxnRequest::default()
        };
        let request = TxnRequest { success: vec![nested(either)], ..TxnRequest::default() };
        assert!(run(&etcd, request).await.is_ok());
    }

    #[tokio::test]
    async fn a_refused_operation_leaves_nothing_of_the_transaction() {
        let (etcd, _tasks) = store();
        let leased = PutRequest { key: "b".into(), lease: 99, ..PutRequest::default() };
        let kept = PutRequest { key: "b".into(), ignore_value: true, ..PutRequest::default() };
        for (bad, expected) in [(leased, status::LEASE_NOT_FOUND), (kept, status::KEY_NOT_FOUND)] {
            let bad = RequestOp { request: Some(RequestOpRequest::Put(bad)) };
            let request = TxnRequest { success: vec![put_op("a", "1"), bad], ..TxnRequest::default() };
            assert_eq!(run(&etcd, request).await, Err(expected));
            assert_eq!((etcd.get_now(b"a"), etcd.revision()), (None, 1));
        }
    }

    #[tokio::test]
    async fn comparisons_mean_what_etcd_means() {
        let (etcd, _tasks) = store();
        fill(&etcd, &[("a", "1"), ("a", "2"), ("b", "2")]).await;
        let compare = |key: &'static str, end: &'static str, target, result, union| Compare {
            result,
            target,
            key: key.into(),
            target_union: Some(union),
            range_end: end.into(),
        };
        let cases = [
            (compare("a", "", 0, 0, TargetUnion::Version(2)), true),
            (compare("a", "", 1, 2, TargetUnion::CreateRevision(3)), true),
            (compare("a", "", 2, 1, TargetUnion::ModRevision(3)), false),
            (compare("a", "", 3, 3, TargetUnion::Value("1".into())), true),
            (compare("a", "c", 3, 0, TargetUnion::Value("2".into())), true),
            (compare("a", "c", 0, 0, TargetUnion::Version(2)), false),
            (compare("missing", "", 1, 0, TargetUnion::CreateRevision(0)), true),
            (compare("missing", "", 3, 0, TargetUnion::Value("".into())), false),
            (compare("a", "", 4, 0, TargetUnion::Lease(0)), true),
        ];
        for (compare, expected) in cases {
            let request = TxnRequest { compare: vec![compare.clone()], ..TxnRequest::default() };
            assert_eq!(run(&etcd, request).await.expect("txn").succeeded, expected, "{compare:?}");
        }
    }

    #[tokio::test]
    async fn ranges_are_filtered_sorted_and_cut() {
        let (etcd, _tasks) = store();
        fill(&etcd, &[("a", "3"), ("b", "1"), ("c", "2"), ("a", "3")]).await;
        let all = RangeRequest { key: "a".into(), range_end: "z".into(), ..RangeRequest::default() };
        let cases = [
            (all.clone(), ("abc", false, 3)),
            (RangeRequest { limit: 2, ..all.clone() }, ("ab", true, 3)),
            (RangeRequest { sort_order: DESCEND, ..all.clone() }, ("cba", false, 3)),
            (RangeRequest { sort_target: BY_VALUE, ..all.clone() }, ("bca", false, 3)),
            (
                RangeRequest { sort_target: BY_MOD, sort_order: DESCEND, limit: 1, ..all.clone() },
                ("a", true, 3),
            ),
            (
                RangeRequest { sort_target: BY_VERSION, sort_order: DESCEND, limit: 1, ..all.clone() },
                ("a", true, 3),
            ),
            (RangeRequest { min_mod_revision: 4, ..all.clone() }, ("ac", false, 3)),
            (RangeRequest { max_create_revision: 2, ..all.clone() }, ("a", false, 3)),
            (RangeRequest { count_only: true, ..all.clone() }, ("", false, 3)),
            (RangeRequest { revision: 3, ..all.clone() }, ("ab", false, 2)),
            (RangeRequest { key: "b".into(), range_end: "\0".into(), ..all.clone() }, ("bc", false, 2)),
            (RangeRequest { key: "z".into(), range_end: "a".into(), ..all.clone() }, ("", false, 0)),
        ];
        for (request, (keys, more, count)) in cases {
            assert_eq!(keys_of(&etcd, &request), (keys.to_owned(), more, count), "{request:?}");
        }
        let wrong = RangeRequest { sort_target: 9, ..all };
        assert_eq!(range(&etcd.shared, ResponseHeader::default(), &wrong).err(), Some(status::INVALID_SORT));
    }
}
