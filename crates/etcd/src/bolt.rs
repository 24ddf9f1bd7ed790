//! Backups in etcd's own form (a bbolt file with etcd's buckets), so that a store can move to etcd and back.
//!
//! Keys with their history, leases, the compacted revision, users and roles are where etcd has them; what else the server keeps stands in a
//! bucket of our own, which etcd leaves alone. Reading takes any bytes: every offset is checked, and no page is visited twice.
//!
//! ```text
//! page   = id u64  flags u16  count u16  overflow u32  content        (4096 bytes, or more by whole pages)
//! meta   = magic u32  version u32  page size u32  flags u32  root u64  sequence u64  freelist u64  pages u64  txid u64  FNV-1a u64
//! leaf   = (flags u32  position u32  key length u32  value length u32)*  keys and values
//! branch = (position u32  key length u32  page u64)*  keys
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};
use thiserror::Error;

use crate::log::snapshot::Capture;
use crate::mutation::State;
use crate::mvcc::keyspace::{Keyspace, Version};
use crate::mvcc::range::KeyRange;
use crate::store::Revision;
use crate::v3::auth;
use crate::v3::kv::wire_kv;
use crate::v3::messages::{KeyValue, StoredRole, StoredUser};

const PAGE: usize = 4096;
const PAGE_HEAD: usize = 16;
const ELEMENT: usize = 16;
const META_LENGTH: usize = 64;
const MAGIC: u32 = 0xed0c_daed;
const VERSION: u32 = 2;

const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const META: u16 = 4;
const FREELIST: u16 = 16;
/// A leaf's element that is a bucket.
const BUCKET: u32 = 1;
/// They say where the rest is.
const META_PAGES: u64 = 2;
/// So many versions are taken over before others may use the keys again.
const GATHERED_AT_ONCE: usize = 10_000;
/// No real tree is deeper.
const MAX_DEPTH: usize = 32;

const KEYS: &[u8] = b"key";
const LEASES: &[u8] = b"lease";
const META_BUCKET: &[u8] = b"meta";
const AUTH: &[u8] = b"auth";
const AUTH_ENABLED: &[u8] = b"authEnabled";
const AUTH_REVISION: &[u8] = b"authRevision";
const USERS: &[u8] = b"authUsers";
const ROLES: &[u8] = b"authRoles";
/// Ours alone, and etcd leaves it be.
const SETTINGS: &[u8] = b"kelson";
const FINISHED: &[u8] = b"finishedCompactRev";
const SCHEDULED: &[u8] = b"scheduledCompactRev";

/// Why a file is not one of etcd's backups.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BoltError {
    /// No usable meta page.
    #[error("it has no valid bbolt header")]
    Header,
    /// A page is not where it should be, or not what it should be.
    #[error("page {0} is damaged")]
    Page(u64),
    /// An entry of etcd's cannot be read.
    #[error("bucket {0:?} holds something else than etcd stores there")]
    Entry(&'static str),
    /// A bucket is missing.
    #[error("it holds no keys of etcd")]
    Empty,
}

/// A lease as etcd stores it.
#[derive(Clone, PartialEq, Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
    #[prost(int64, tag = "3")]
    remaining: i64,
}

fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// A revision as etcd's key of it: big-endian, so that they sort.
fn revision_key(main: Revision, sub: i64, tombstone: bool) -> Vec<u8> {
    let mut out = main.to_be_bytes().to_vec();
    out.push(b'_');
    out.extend(sub.to_be_bytes());
    if tombstone {
        out.push(b't');
    }
    out
}

fn main_revision(key: &[u8]) -> Option<Revision> {
    Some(Revision::from_be_bytes(key.get(..8)?.try_into().ok()?)).filter(|revision| *revision >= 0)
}

/// Writes pages one after the other.
struct Writer<W> {
    out: W,
    next: u64,
}

struct Entry {
    flags: u32,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Writes one page, which may be longer than one; returns its number.
    fn page(&mut self, flags: u16, count: usize, content: &[u8]) -> io::Result<u64> {
        let id = self.next;
        let pages = (PAGE_HEAD + content.len()).div_ceil(PAGE);
        let mut head = Vec::with_capacity(PAGE_HEAD);
        head.extend(id.to_le_bytes());
        head.extend(flags.to_le_bytes());
        head.extend((count as u16).to_le_bytes());
        head.extend((pages as u32 - 1).to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(content)?;
        self.out.write_all(&vec![0; pages * PAGE - PAGE_HEAD - content.len()])?;
        self.next += pages as u64;
        Ok(id)
    }

    fn leaf(&mut self, entries: &[Entry]) -> io::Result<u64> {
        let mut elements = Vec::new();
        let mut data: Vec<u8> = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            // Positions count from the element that holds them.
            let position = (entries.len() - number) * ELEMENT + data.len();
            for field in [entry.flags, position as u32, entry.key.len() as u32, entry.value.len() as u32] {
                elements.extend(field.to_le_bytes());
            }
            data.extend(&entry.key);
            data.extend(&entry.value);
        }
        elements.extend(data);
        self.page(LEAF, entries.len(), &elements)
    }

    fn branch(&mut self, children: &[(Vec<u8>, u64)]) -> io::Result<u64> {
        let mut elements = Vec::new();
        let mut data: Vec<u8> = Vec::new();
        for (number, (key, page)) in children.iter().enumerate() {
            let position = (children.len() - number) * ELEMENT + data.len();
            elements.extend((position as u32).to_le_bytes());
            elements.extend((key.len() as u32).to_le_bytes());
            elements.extend(page.to_le_bytes());
            data.extend(key);
        }
        elements.extend(data);
        self.page(BRANCH, children.len(), &elements)
    }

    /// Writes a tree of entries that come in order; returns its root.
    fn tree(&mut self, entries: impl Iterator<Item = Entry>) -> io::Result<u64> {
        let mut level = Vec::new();
        let mut page: Vec<Entry> = Vec::new();
        let mut size = PAGE_HEAD;
        for entry in entries {
            let more = ELEMENT + entry.key.len() + entry.value.len();
            if size + more > PAGE && !page.is_empty() {
                level.push((page[0].key.clone(), self.leaf(&page)?));
                page.clear();
                size = PAGE_HEAD;
            }
            size += more;
            page.push(entry);
        }
        if !page.is_empty() || level.is_empty() {
            let first = page.first().map(|entry| entry.key.clone()).unwrap_or_default();
            level.push((first, self.leaf(&page)?));
        }
        while level.len() > 1 {
            // Keys of branches are short: a hundred of them fit into a page.
            let mut above = Vec::new();
            for children in level.chunks(100) {
                above.push((children[0].0.clone(), self.branch(children)?));
            }
            level = above;
        }
        Ok(level.first().map_or(0, |(_, page)| *page))
    }
}

/// What a backup is written from. Keys and values are shared with the store.
pub struct Content {
    capture: Capture,
    /// In the order of keys while they are gathered, then in that of revisions.
    versions: Vec<(Bytes, Version)>,
    is_whole: bool,
}

impl Content {
    /// Of a captured state, whose keys are yet to be gathered.
    pub fn new(capture: Capture) -> Self {
        Self { capture, versions: Vec::new(), is_whole: false }
    }

    /// Takes over some more keys; false once it has them all. Compaction must be held meanwhile.
    pub fn gather(&mut self, keys: &Keyspace) -> bool {
        if self.is_whole {
            return false;
        }
        let after = self.versions.last().map(|(key, _)| key.clone());
        let before = self.versions.len();
        for (key, versions) in keys.dump(after.as_deref(), self.capture.revision, usize::MAX) {
            self.versions.extend(versions.map(|version| (key.clone(), version.clone())));
            if self.versions.len() - before >= GATHERED_AT_ONCE {
                return true;
            }
        }
        self.versions.sort_by_key(|(_, version)| version.mod_revision);
        self.is_whole = true;
        false
    }

    /// The versions of all keys in the order of their revisions, as etcd's key bucket has them.
    fn history(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut last = (0, 0);
        self.versions.iter().map(move |(key, version)| {
            let revision = version.mod_revision;
            last = if last.0 == revision { (revision, last.1 + 1) } else { (revision, 0) };
            let value = if version.is_tombstone() {
                KeyValue { key: key.clone(), ..KeyValue::default() }
            } else {
                wire_kv(key, version, false)
            };
            let key = revision_key(revision, last.1, version.is_tombstone());
            Entry { flags: 0, key, value: value.encode_to_vec() }
        })
    }

    /// Writes all pages but the meta pages, which come before them; returns the root and the free list.
    fn pages<W: Write>(&self, writer: &mut Writer<W>) -> io::Result<(u64, u64)> {
        let plain = |key: &[u8], value: Vec<u8>| Entry { flags: 0, key: key.to_vec(), value };
        let freelist = writer.page(FREELIST, 0, &[])?;
        let leases = self.capture.leases.iter().map(|&(id, ttl, remaining)| {
            plain(&id.to_be_bytes(), StoredLease { id, ttl, remaining }.encode_to_vec())
        });
        // In the order of their numbers, negative ones last, as their bytes sort.
        let mut leases: Vec<Entry> = leases.collect();
        leases.sort_by(|left, right| left.key.cmp(&right.key));
        let mut meta = vec![plain(b"consistent_index", self.capture.index.to_be_bytes().to_vec())];
        if self.capture.compacted > 0 {
            let revision = revision_key(self.capture.compacted, 0, false);
            meta.push(plain(FINISHED, revision.clone()));
            meta.push(plain(SCHEDULED, revision));
        }
        let settings = Settings::of(&self.capture.settings);
        let mut buckets: BTreeMap<&[u8], u64> = BTreeMap::new();
        buckets.insert(KEYS, writer.tree(self.history())?);
        buckets.insert(LEASES, writer.tree(leases.into_iter())?);
        buckets.insert(META_BUCKET, writer.tree(meta.into_iter())?);
        buckets.insert(AUTH, writer.tree(settings.auth.into_iter())?);
        buckets.insert(USERS, writer.tree(settings.users.into_iter())?);
        buckets.insert(ROLES, writer.tree(settings.roles.into_iter())?);
        buckets.insert(SETTINGS, writer.tree(settings.others.into_iter())?);
        for empty in [&b"alarm"[..], b"cluster", b"members", b"members_removed"] {
            buckets.insert(empty, writer.tree(std::iter::empty())?);
        }
        let root = writer.tree(buckets.into_iter().map(|(name, root)| Entry {
            flags: BUCKET,
            key: name.to_vec(),
            value: [root.to_le_bytes(), 0_u64.to_le_bytes()].concat(),
        }))?;
        Ok((root, freelist))
    }
}

/// The server's settings by the bucket that they go to, each in order.
#[derive(Default)]
struct Settings {
    auth: Vec<Entry>,
    users: Vec<Entry>,
    roles: Vec<Entry>,
    others: Vec<Entry>,
}

impl Settings {
    fn of(settings: &[(Bytes, Bytes)]) -> Self {
        let plain = |key: &[u8], value: &[u8]| Entry { flags: 0, key: key.to_vec(), value: value.to_vec() };
        let mut sorted = Self::default();
        // As etcd has it from its first start on.
        let (mut enabled, mut revision) = (0, 1);
        for (name, value) in settings {
            if let Some(user) = name.strip_prefix(auth::USER.as_bytes()) {
                sorted.users.push(plain(user, value));
            } else if let Some(role) = name.strip_prefix(auth::ROLE.as_bytes()) {
                sorted.roles.push(plain(role, value));
            } else if name == auth::ENABLED {
                enabled = 1;
            } else if name == auth::REVISION {
                revision = value.as_ref().try_into().map_or(1, u64::from_le_bytes);
            } else {
                sorted.others.push(plain(name, value));
            }
        }
        sorted.auth.push(plain(AUTH_ENABLED, &[enabled]));
        sorted.auth.push(plain(AUTH_REVISION, &revision.to_be_bytes()));
        sorted
    }
}

/// One of etcd's entries about users as a setting of ours; `None` for what says nothing.
fn auth_setting(bucket: &[u8], key: &[u8], value: &[u8]) -> Result<Option<(Bytes, Bytes)>, BoltError> {
    let named = |kind: &str| Bytes::from([kind.as_bytes(), key].concat());
    let known = |is: bool, name: &'static str| if is { Ok(()) } else { Err(BoltError::Entry(name)) };
    let value = Bytes::copy_from_slice(value);
    Ok(match bucket {
        USERS => {
            known(
                StoredUser::decode(value.clone()).is_ok_and(|user| user.name.as_bytes() == key),
                "authUsers",
            )?;
            Some((named(auth::USER), value))
        }
        ROLES => {
            known(
                StoredRole::decode(value.clone()).is_ok_and(|role| role.name.as_bytes() == key),
                "authRoles",
            )?;
            Some((named(auth::ROLE), value))
        }
        AUTH if key == AUTH_ENABLED && value[..] == [1] => {
            Some((auth::ENABLED.into(), Bytes::from_static(b"1")))
        }
        AUTH if key == AUTH_REVISION => {
            let number: Result<[u8; 8], _> = value.as_ref().try_into();
            let number = u64::from_be_bytes(number.map_err(|_| BoltError::Entry("auth"))?);
            Some((auth::REVISION.into(), Bytes::copy_from_slice(&number.to_le_bytes())))
        }
        _ => None,
    })
}

/// Passes bytes on and takes their digest.
struct Digesting<W> {
    out: W,
    digest: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.digest.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Where the pages of a backup will be. The meta pages at its beginning say what is known only at its end, so
/// the pages are made twice, and no backup is ever held as a whole.
pub struct Layout {
    root: u64,
    freelist: u64,
    pages: u64,
}

impl Layout {
    /// Of content that is whole.
    pub fn of(content: &Content) -> io::Result<Self> {
        let mut writer = Writer { out: io::sink(), next: META_PAGES };
        let (root, freelist) = content.pages(&mut writer)?;
        Ok(Self { root, freelist, pages: writer.next })
    }

    /// How many bytes the backup has, its SHA-256 among them.
    pub fn length(&self) -> u64 {
        self.pages * PAGE as u64 + 32
    }
}

/// Writes a backup as etcd does, with its SHA-256 at the end.
pub fn write(content: &Content, layout: &Layout, out: impl Write) -> io::Result<()> {
    let mut writer = Writer { out: Digesting { out, digest: Sha256::new() }, next: META_PAGES };
    for id in 0..META_PAGES {
        let mut page = Vec::with_capacity(PAGE);
        page.extend(id.to_le_bytes());
        page.extend(META.to_le_bytes());
        page.extend([0; 6]);
        for field in [MAGIC, VERSION, PAGE as u32, 0] {
            page.extend(field.to_le_bytes());
        }
        for field in [layout.root, 0, layout.freelist, layout.pages, id] {
            page.extend(field.to_le_bytes());
        }
        let sum = checksum(&page[PAGE_HEAD..]);
        page.extend(sum.to_le_bytes());
        page.resize(PAGE, 0);
        writer.out.write_all(&page)?;
    }
    content.pages(&mut writer)?;
    let Digesting { mut out, digest } = writer.out;
    out.write_all(&digest.finalize())?;
    out.flush()
}

/// A file's pages.
struct Reader<'a> {
    bytes: &'a [u8],
    page_size: usize,
    visited: BTreeSet<u64>,
}

impl<'a> Reader<'a> {
    /// A page with what belongs to it.
    fn page(&mut self, id: u64) -> Result<&'a [u8], BoltError> {
        let damaged = BoltError::Page(id);
        if !self.visited.insert(id) {
            return Err(damaged);
        }
        let start = usize::try_from(id).ok().and_then(|id| id.checked_mul(self.page_size)).ok_or(damaged)?;
        let overflow = u32_at(self.bytes.get(start..).ok_or(damaged)?, 12).ok_or(damaged)? as usize;
        let length =
            overflow.checked_add(1).and_then(|pages| pages.checked_mul(self.page_size)).ok_or(damaged)?;
        self.bytes.get(start..start.checked_add(length).ok_or(damaged)?).ok_or(damaged)
    }

    /// Hands over all entries below a page.
    fn walk(
        &mut self,
        id: u64,
        depth: usize,
        each: &mut dyn FnMut(&mut Self, u32, &'a [u8], &'a [u8]) -> Result<(), BoltError>,
    ) -> Result<(), BoltError> {
        let page = self.page(id)?;
        self.content(id, page, depth, each)
    }

    /// Hands over all entries of a bucket.
    fn bucket(
        &mut self,
        value: &'a [u8],
        each: &mut dyn FnMut(&mut Self, u32, &'a [u8], &'a [u8]) -> Result<(), BoltError>,
    ) -> Result<(), BoltError> {
        match u64_at(value, 0) {
            // A small bucket stands in its parent's page.
            Some(0) => self.content(0, value.get(16..).ok_or(BoltError::Page(0))?, 0, each),
            Some(page) => self.walk(page, 0, each),
            None => Err(BoltError::Page(0)),
        }
    }

    fn content(
        &mut self,
        id: u64,
        page: &'a [u8],
        depth: usize,
        each: &mut dyn FnMut(&mut Self, u32, &'a [u8], &'a [u8]) -> Result<(), BoltError>,
    ) -> Result<(), BoltError> {
        let damaged = BoltError::Page(id);
        let count = usize::from(u16_at(page, 10).ok_or(damaged)?);
        match u16_at(page, 8) {
            Some(LEAF) => {
                for number in 0..count {
                    let element = page.get(PAGE_HEAD + number * ELEMENT..).ok_or(damaged)?;
                    let field = |at: usize| u32_at(element, at).map(|field| field as usize).ok_or(damaged);
                    let (position, key, value) = (field(4)?, field(8)?, field(12)?);
                    let data = element.get(position..).ok_or(damaged)?;
                    let (key, rest) = data.split_at_checked(key).ok_or(damaged)?;
                    let value = rest.get(..value).ok_or(damaged)?;
                    each(self, u32_at(element, 0).ok_or(damaged)?, key, value)?;
                }
                Ok(())
            }
            Some(BRANCH) if depth < MAX_DEPTH => {
                for number in 0..count {
                    let element = page.get(PAGE_HEAD + number * ELEMENT..).ok_or(damaged)?;
                    let child = u64_at(element, 8).ok_or(damaged)?;
                    self.walk(child, depth + 1, each)?;
                }
                Ok(())
            }
            _ => Err(damaged),
        }
    }
}

/// What etcd's tools say of a file: the checksum of all names, keys and values, and how many entries there are.
pub fn digest(bytes: &[u8]) -> Result<(u32, usize), BoltError> {
    let (page_size, root) = newest_meta(bytes).ok_or(BoltError::Header)?;
    let mut reader = Reader { bytes, page_size, visited: BTreeSet::new() };
    let (mut sum, mut entries) = (Castagnoli::default(), 0);
    reader.walk(root, 0, &mut |reader, flags, name, value| {
        if flags & BUCKET == 0 {
            return Ok(());
        }
        sum.update(name);
        let mut entry = |_: &mut Reader<'_>, _: u32, key: &[u8], value: &[u8]| -> Result<(), BoltError> {
            sum.update(key);
            sum.update(value);
            entries += 1;
            Ok(())
        };
        reader.bucket(value, &mut entry)
    })?;
    Ok((sum.finish(), entries))
}

/// CRC-32C, which crc32fast does not have. Backups are looked at seldom: one bit at a time will do.
struct Castagnoli(u32);

impl Default for Castagnoli {
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Castagnoli {
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 ^= u32::from(*byte);
            for _ in 0..8 {
                self.0 = if self.0 & 1 == 1 { self.0 >> 1 ^ 0x82f6_3b78 } else { self.0 >> 1 };
            }
        }
    }

    fn finish(self) -> u32 {
        !self.0
    }
}

/// The meta page to trust: page size and root.
fn newest_meta(bytes: &[u8]) -> Option<(usize, u64)> {
    let read = |start: usize| -> Option<(u64, usize, u64)> {
        let meta = bytes.get(start..)?.get(PAGE_HEAD..PAGE_HEAD + META_LENGTH)?;
        let right = u32_at(meta, 0)? == MAGIC
            && u32_at(meta, 4)? == VERSION
            && u64_at(meta, META_LENGTH - 8)? == checksum(&meta[..META_LENGTH - 8]);
        right.then_some((u64_at(meta, 48)?, u32_at(meta, 8)? as usize, u64_at(meta, 16)?))
    };
    // The second page's place depends on the page size, which the first one says if it is whole.
    let sizes = [u32_at(bytes, PAGE_HEAD + 8)? as usize, PAGE, 16 << 10, 64 << 10];
    let candidates = std::iter::once(read(0)).chain(sizes.into_iter().map(read)).flatten();
    let usable = candidates.filter(|(_, size, _)| (512..=1 << 20).contains(size));
    usable.max_by_key(|(transaction, _, _)| *transaction).map(|(_, size, root)| (size, root))
}

/// Reads a backup of etcd's. If the revision is to be raised, everything before the raised one counts as compacted.
pub fn read(bytes: &[u8], now: Instant, raise: Revision) -> Result<State, BoltError> {
    let (page_size, root) = newest_meta(bytes).ok_or(BoltError::Header)?;
    let mut reader = Reader { bytes, page_size, visited: BTreeSet::new() };
    let mut keys: BTreeMap<Bytes, Vec<Version>> = BTreeMap::new();
    let mut leases = Vec::new();
    let mut settings = BTreeMap::new();
    let (mut revision, mut compacted) = (1, 0);
    let mut found_keys = false;
    reader.walk(root, 0, &mut |reader, flags, name, value| {
        if flags & BUCKET == 0 {
            return Ok(());
        }
        found_keys |= name == KEYS;
        let mut entry = |_: &mut Reader<'_>, _: u32, key: &[u8], value: &[u8]| -> Result<(), BoltError> {
            match name {
                KEYS => {
                    let main = main_revision(key).ok_or(BoltError::Entry("key"))?;
                    let tombstone = key.get(17) == Some(&b't');
                    let kv = KeyValue::decode(value).map_err(|_| BoltError::Entry("key"))?;
                    revision = revision.max(main);
                    let version = Version {
                        mod_revision: main,
                        create_revision: if tombstone { 0 } else { kv.create_revision },
                        version: if tombstone { 0 } else { kv.version.max(1) },
                        lease: if tombstone { 0 } else { kv.lease },
                        value: if tombstone { Bytes::new() } else { Bytes::copy_from_slice(&kv.value) },
                    };
                    let versions = keys.entry(Bytes::copy_from_slice(&kv.key)).or_default();
                    match versions.last() {
                        Some(last) if last.mod_revision > main => return Err(BoltError::Entry("key")),
                        Some(last) if last.mod_revision == main => {
                            versions.pop();
                        }
                        _ => {}
                    }
                    versions.push(version);
                }
                LEASES => {
                    leases.push(StoredLease::decode(value).map_err(|_| BoltError::Entry("lease"))?);
                }
                META_BUCKET if key == FINISHED || key == SCHEDULED => {
                    compacted = compacted.max(main_revision(value).ok_or(BoltError::Entry("meta"))?);
                }
                SETTINGS => {
                    settings.insert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                }
                _ => settings.extend(auth_setting(name, key, value)?),
            }
            Ok(())
        };
        reader.bucket(value, &mut entry)
    })?;
    if !found_keys {
        return Err(BoltError::Empty);
    }
    let revision = revision.max(compacted).saturating_add(raise);
    let compacted = if raise > 0 { revision } else { compacted };
    let keys = Keyspace::restore(keys.into_iter(), revision, compacted);
    let mut state = State { keys, settings, index: 1, ..State::default() };
    for lease in leases {
        state.leases.grant(lease.id, lease.ttl, now);
        state.leases.checkpoint(lease.id, Some(lease.remaining).filter(|left| *left > 0));
    }
    state.leases.restart(now);
    for (key, version) in state.keys.range(&KeyRange::From(Bytes::new()), Revision::MAX) {
        state.leases.move_key(key, 0, version.lease);
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::Mutation;
    use crate::v3::maintenance::hash_of;

    fn sample() -> State {
        let mut state = State::default();
        let now = Instant::now();
        state.apply(2, Mutation::GrantLease { id: 77, ttl: 600 }, now);
        for number in 0..1200_i64 {
            let key = Bytes::from(format!("key-{:04}", number % 700));
            // Some of them longer than a page.
            let value = Bytes::from(vec![number as u8; if number % 300 == 0 { 9000 } else { 150 }]);
            state.apply(number + 2, Mutation::Put { key, value, lease: 77 * (number % 2) }, now);
        }
        state.apply(1202, Mutation::Delete { key: "key-0003".into() }, now);
        state.apply(0, Mutation::Compact { revision: 900 }, now);
        state.prune(usize::MAX);
        let user = StoredUser { name: "root".into(), roles: vec!["root".into()], ..StoredUser::default() };
        let role = StoredRole { name: "some".into(), ..StoredRole::default() };
        let set = |name: &'static str, value: Vec<u8>| (Bytes::from(name), Bytes::from(value));
        state.settings.extend([
            set("auth/user/root", user.encode_to_vec()),
            set("auth/role/some", role.encode_to_vec()),
            set("auth/enabled", b"1".to_vec()),
            set("auth/revision", 7_u64.to_le_bytes().to_vec()),
            set("identity", vec![3; 16]),
        ]);
        state
    }

    fn written(state: &State) -> Vec<u8> {
        let mut content = Content::new(Capture::of(state));
        while content.gather(&state.keys) {}
        let layout = Layout::of(&content).expect("layout");
        let mut bytes = Vec::new();
        write(&content, &layout, &mut bytes).expect("write");
        assert_eq!(bytes.len() as u64, layout.length());
        bytes
    }

    #[test]
    fn a_state_comes_back_with_its_history() {
        let state = sample();
        let bytes = written(&state);
        assert_eq!(bytes.len() % PAGE, 32, "whole pages and a checksum");
        let back = read(&bytes, Instant::now(), 0).expect("readable");
        assert_eq!((back.keys.revision(), back.keys.compacted()), (1202, 900));
        assert_eq!(back.settings, state.settings);
        for revision in [900, 901, 1000, 1201, 1202] {
            assert_eq!(hash_of(&back.keys, revision), hash_of(&state.keys, revision), "at {revision}");
        }
        let lease = |state: &State| state.leases.get(77).map(|lease| (lease.ttl, lease.keys.clone()));
        assert_eq!(lease(&back), lease(&state));
    }

    #[test]
    fn a_raised_revision_hides_the_history_before_it() {
        let state = sample();
        let raised = read(&written(&state), Instant::now(), 1_000_000).expect("readable");
        assert_eq!((raised.keys.revision(), raised.keys.compacted()), (1_001_202, 1_001_202));
        assert_eq!(hash_of(&raised.keys, 1_001_202), hash_of(&state.keys, 1202), "the keys are as they were");
        assert!(raised.keys.check_revision(1202, 1_001_202).is_err(), "old revisions can be read");
        assert_eq!(raised.keys.next_revision(), 1_001_203);
    }

    #[test]
    fn damaged_files_are_refused_or_read_but_never_panic() {
        let bytes = written(&sample());
        for at in (0..600).step_by(7).chain((600..bytes.len()).step_by(30_011)) {
            for bits in [1, 0xff] {
                let mut broken = bytes.clone();
                broken[at] ^= bits;
                let _ = read(&broken, Instant::now(), 0);
            }
        }
        for cut in (0..bytes.len()).step_by(100_003) {
            let _ = read(&bytes[..cut], Instant::now(), 0);
        }
        assert_eq!(read(b"", Instant::now(), 0).err(), Some(BoltError::Header));
    }
}
