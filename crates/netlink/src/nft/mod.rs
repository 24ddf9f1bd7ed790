//! nftables: a table as a value, and the transactions that make the kernel's table equal to it.
//!
//! A [`Table`] holds all chains and sets that a component owns. [`Table::replace`] writes it whole, whatever was there
//! before; [`Table::update`] writes only what differs from the table last written. Both are one transaction: packets see
//! the old rules or the new ones. Who is in doubt whether others left a table alone asks [`Nftables::holds`], and replaces.

mod batch;
mod expr;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::io::Errno;

use crate::message::{self, Message};
use crate::{Error, Protocol, Socket};
pub use batch::Batch;
pub use expr::{
    Address, CtKey, Expr, MetaKey, Reg, STATE_ESTABLISHED, STATE_NEW, STATE_RELATED, STATUS_DST_NAT,
    TYPE_LOCAL, Verdict,
};

/// The address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    Ip = 2,
    Ip6 = 10,
}

/// What a base chain does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    Filter,
    Nat,
}

/// Where a base chain sees packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// The kernel's usual place for changes of the destination.
pub const PRIORITY_DSTNAT: i32 = -100;
/// The kernel's usual place for filters.
pub const PRIORITY_FILTER: i32 = 0;
/// The kernel's usual place for changes of the source.
pub const PRIORITY_SRCNAT: i32 = 100;

/// A chain that the kernel calls; others are called by rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    pub kind: ChainKind,
    pub hook: Hook,
    pub priority: i32,
}

/// What a rule does, step by step; it ends at the first step that does not match.
pub type Rule = Vec<Expr>;

/// Rules in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// What a set's elements carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing: membership is all.
    None,
    /// What to do with the packet.
    Verdict,
    /// This many bytes (each field padded to four), shown by `nft` as the types given.
    Bytes { length: u32, types: u32 },
}

/// One element's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    None,
    Verdict(Verdict),
    Bytes(Vec<u8>),
    /// In a set of ranges: the first key behind a range.
    End,
}

/// A set or map. Keys are concatenated fields, each padded to four bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub key_length: u32,
    /// Field types for `nft list`: see [`types`].
    pub key_types: u32,
    pub data: Data,
    /// Rules add elements, which leave after this long without use.
    pub timeout: Option<Duration>,
    /// Elements are ranges of one field: from a key to before the next [`Value::End`], or to the last key of all. They
    /// must neither overlap nor touch.
    pub ranges: bool,
    pub elements: BTreeMap<Vec<u8>, Value>,
}

/// The numbers by which the `nft` program knows a field's type, for people who list the rules.
pub mod types {
    /// Any number of four bytes; `nft` has no plain type of a known length.
    pub const NUMBER: u32 = 19;
    pub const IPV4: u32 = 7;
    pub const IPV6: u32 = 8;
    pub const PROTOCOL: u32 = 12;
    pub const PORT: u32 = 13;
    /// The name of a link, sixteen bytes.
    pub const LINK: u32 = 41;

    /// The type of concatenated fields.
    pub fn concat(fields: &[u32]) -> u32 {
        fields.iter().fold(0, |all, field| all << 6 | field)
    }
}

/// Everything a component has in nftables for one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub family: Family,
    pub name: String,
    pub chains: BTreeMap<String, Chain>,
    pub sets: BTreeMap<String, Set>,
}

impl Table {
    pub fn new(family: Family, name: impl Into<String>) -> Self {
        Self { family, name: name.into(), chains: BTreeMap::new(), sets: BTreeMap::new() }
    }

    /// Removes whatever bears the table's name and writes this one.
    pub fn replace(&self) -> Batch {
        let mut batch = self.remove();
        batch.add_table();
        self.write_difference(&Self::new(self.family, self.name.clone()), &mut batch);
        batch
    }

    /// Removes the table; no error if it is not there.
    pub fn remove(&self) -> Batch {
        let mut batch = Batch::new(self.family, &self.name);
        // Adding first makes the deletion of a missing table a success.
        batch.add_table();
        batch.delete_table();
        batch
    }

    /// Makes `old`, as written earlier, equal to this table.
    pub fn update(&self, old: &Self) -> Batch {
        let mut batch = Batch::new(self.family, &self.name);
        self.write_difference(old, &mut batch);
        batch
    }

    /// The order matters to the kernel: a chain or set may go only when nothing refers to it, and must be there
    /// before something does.
    fn write_difference(&self, old: &Self, batch: &mut Batch) {
        let kept_set = |name: &String| {
            let (old, new) = (old.sets.get(name)?, self.sets.get(name)?);
            old.same_shape(new).then_some((old, new))
        };
        let changed_chain = |name: &String, chain: &Chain| old.chains.get(name) != Some(chain);
        let same_base =
            |name: &String, chain: &Chain| old.chains.get(name).is_some_and(|o| o.base == chain.base);

        for (name, set) in &old.sets {
            let gone = set.elements.iter().filter(|(key, value)| match kept_set(name) {
                Some((_, new)) => new.elements.get(*key) != Some(value),
                // What refers to nothing goes with its set.
                None => set.data == Data::Verdict,
            });
            batch.delete_elements(name, gone);
        }
        for (name, chain) in &old.chains {
            if self.chains.get(name) != Some(chain) {
                batch.flush_chain(name);
            }
        }
        for (name, chain) in &old.chains {
            if !self.chains.get(name).is_some_and(|new| new.base == chain.base) {
                batch.delete_chain(name);
            }
        }
        for name in old.sets.keys().filter(|name| kept_set(name).is_none()) {
            batch.delete_set(name);
        }

        for (name, set) in self.sets.iter().filter(|(name, _)| kept_set(name).is_none()) {
            batch.add_set(name, set);
        }
        for (name, chain) in self.chains.iter().filter(|(name, chain)| !same_base(name, chain)) {
            batch.add_chain(name, chain.base);
        }
        for (name, chain) in self.chains.iter().filter(|(name, chain)| changed_chain(name, chain)) {
            for rule in &chain.rules {
                batch.add_rule(name, rule);
            }
        }
        for (name, set) in &self.sets {
            let added = set.elements.iter().filter(|(key, value)| match kept_set(name) {
                Some((old, _)) => old.elements.get(*key) != Some(value),
                None => true,
            });
            batch.add_elements(name, added);
        }
    }
}

impl Set {
    fn same_shape(&self, other: &Self) -> bool {
        (self.key_length, self.key_types, self.data, self.timeout, self.ranges)
            == (other.key_length, other.key_types, other.data, other.timeout, other.ranges)
    }
}

/// The nftables part of the kernel, in one network namespace.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    /// In the calling thread's namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Protocol::Netfilter)? })
    }

    /// Sends one transaction: all of it takes effect or none.
    pub fn commit(&self, batch: &Batch) -> Result<(), Error> {
        if batch.is_empty() {
            return Ok(());
        }
        let (messages, names) = batch.framed();
        self.socket.transact("change nftables", &messages)?.map_err(|(index, errno)| {
            let what = names.get(index).map_or("commit nftables transaction", String::as_str);
            Error::refused(what, errno)
        })
    }

    /// Names of the tables of a family.
    pub fn tables(&self, family: Family) -> Result<Vec<String>, Error> {
        const NFTA_TABLE_NAME: u16 = 1;
        let request = Message::new(batch::kind(batch::GET_TABLE), 0, &batch::header(family as u8, 0));
        let mut names = Vec::new();
        let result = self.socket.dump("list nftables tables", request, |body| {
            let name =
                body.get(4..).and_then(|rest| message::find(rest, NFTA_TABLE_NAME)).and_then(message::text);
            names.extend(name.map(str::to_owned));
        });
        match result {
            Err(error) if error.errno() == Some(Errno::NOENT) => Ok(Vec::new()),
            other => other.map(|()| names),
        }
    }
}

/// A base chain of any table, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedChain {
    pub table: String,
    pub name: String,
    pub hook: u32,
    /// Whether packets that no rule decides are dropped.
    pub drops: bool,
}

/// A rule of any table; what it does is left in the kernel's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedRule {
    pub handle: u64,
    pub expressions: Vec<u8>,
}

impl Nftables {
    /// The base chains of all tables of a family.
    pub fn base_chains(&self, family: Family) -> Result<Vec<ListedChain>, Error> {
        let request = Message::new(batch::kind(batch::GET_CHAIN), 0, &batch::header(family as u8, 0));
        let mut chains = Vec::new();
        self.socket.dump("list nftables chains", request, |body| chains.extend(parse_chain(body)))?;
        Ok(chains)
    }

    /// The rules of one chain, in order.
    pub fn rules(&self, family: Family, table: &str, chain: &str) -> Result<Vec<ListedRule>, Error> {
        let mut request = Message::new(batch::kind(batch::GET_RULE), 0, &batch::header(family as u8, 0));
        request.body.text(1, table).text(2, chain);
        let mut rules = Vec::new();
        self.socket.dump("list nftables rules", request, |body| {
            let Some(rest) = body.get(4..) else { return };
            // Older kernels ignore the filter and list everything.
            let named = |kind, name| message::find(rest, kind).and_then(message::text) == Some(name);
            let handle =
                message::find(rest, 3).and_then(|value| value.try_into().ok()).map(u64::from_be_bytes);
            if let (true, true, Some(handle)) = (named(1, table), named(2, chain), handle) {
                let expressions = message::find(rest, 4).unwrap_or_default().to_vec();
                rules.push(ListedRule { handle, expressions });
            }
        })?;
        Ok(rules)
    }
}

impl Nftables {
    /// The number of the rule set's state: every transaction of anybody makes it another.
    pub fn generation(&self) -> Result<Option<u32>, Error> {
        let request = Message::new(batch::kind(batch::GET_GENERATION), 0, &batch::header(0, 0));
        self.socket.get("see the nftables generation", request, |body| {
            let number = message::find(body.get(4..)?, 1)?;
            Some(u32::from_be_bytes(number.try_into().ok()?))
        })
    }

    /// Whether the kernel has all of a table and no more: its chains, as many rules in each, and the elements of its sets but
    /// for those that rules fill. What a rule says is not compared; nobody can change that without making a new one.
    pub fn holds(&self, table: &Table) -> Result<bool, Error> {
        let request = |kind| Message::new(batch::kind(kind), 0, &batch::header(table.family as u8, 0));
        let text = |rest: &[u8], kind| message::find(rest, kind).and_then(message::text).map(str::to_owned);
        let mut rules: BTreeMap<String, usize> = BTreeMap::new();
        self.socket.dump("list nftables chains", request(batch::GET_CHAIN), |body| {
            let Some(rest) = body.get(4..) else { return };
            if text(rest, 1).as_deref() == Some(&table.name) {
                rules.extend(text(rest, 3).map(|name| (name, 0)));
            }
        })?;
        let mut all = request(batch::GET_RULE);
        all.body.text(1, &table.name);
        self.socket.dump("list nftables rules", all, |body| {
            let Some(rest) = body.get(4..) else { return };
            let count = text(rest, 2).and_then(|chain| rules.get_mut(&chain));
            if let (Some(count), true) = (count, text(rest, 1).as_deref() == Some(&table.name)) {
                *count += 1;
            }
        })?;
        let wanted = table.chains.iter().map(|(name, chain)| (name, chain.rules.len()));
        if !wanted.eq(rules.iter().map(|(name, count)| (name, *count))) {
            return Ok(false);
        }
        for (name, set) in table.sets.iter().filter(|(_, set)| set.timeout.is_none()) {
            let mut keys = BTreeSet::new();
            let mut elements = request(batch::GET_ELEMENTS);
            elements.body.text(1, &table.name).text(2, name);
            let listed = self.socket.dump("list the elements of a set", elements, |body| {
                let list = body.get(4..).and_then(|rest| message::find(rest, 3)).unwrap_or_default();
                for element in message::attributes(list) {
                    let key = message::find(element.value, 1).and_then(|key| message::find(key, 1));
                    keys.extend(key.map(<[u8]>::to_vec));
                }
            });
            match listed {
                Err(error) if error.is_missing() => return Ok(false),
                other => other?,
            }
            // In sets of ranges the kernel marks the room below the first one, too.
            if set.ranges {
                let bottom = vec![0; set.key_length as usize];
                if !set.elements.contains_key(&bottom) {
                    keys.remove(&bottom);
                }
            }
            if !set.elements.keys().eq(keys.iter()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn parse_chain(body: &[u8]) -> Option<ListedChain> {
    let rest = body.get(4..)?;
    let text = |kind| message::find(rest, kind).and_then(message::text).map(str::to_owned);
    let be32 = |value: &[u8]| Some(u32::from_be_bytes(value.try_into().ok()?));
    // Chains without a hook are not base chains.
    let hook = message::find(message::find(rest, 4)?, 1).and_then(be32)?;
    let drops = message::find(rest, 5).and_then(be32) == Some(0);
    Some(ListedChain { table: text(1)?, name: text(3)?, hook, drops })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(chains: &[(&str, u32)], elements: &[(u8, &str)]) -> Table {
        let mut table = Table::new(Family::Ip, "t");
        for (name, modulus) in chains {
            let rules = vec![vec![Expr::Random { modulus: *modulus, to: 0 }]];
            table.chains.insert((*name).to_owned(), Chain { base: None, rules });
        }
        let elements = elements
            .iter()
            .map(|(key, chain)| (vec![*key, 0, 0, 0], Value::Verdict(Verdict::Goto((*chain).to_owned()))));
        let set = Set {
            key_length: 4,
            key_types: types::NUMBER,
            data: Data::Verdict,
            timeout: None,
            ranges: false,
            elements: elements.collect(),
        };
        table.sets.insert("m".to_owned(), set);
        table
    }

    #[test]
    fn an_update_touches_only_what_differs() {
        let old = table(&[("a", 2), ("b", 3)], &[(1, "a"), (2, "b")]);
        assert!(old.update(&old.clone()).is_empty());
        let one_rule = table(&[("a", 9), ("b", 3)], &[(1, "a"), (2, "b")]);
        assert_eq!(one_rule.update(&old).describe(), ["flush chain t a", "add rule to chain t a"]);
        let one_element = table(&[("a", 2), ("b", 3)], &[(1, "b"), (2, "b")]);
        assert_eq!(
            one_element.update(&old).describe(),
            ["delete 1 elements of set t m", "add 1 elements to set t m"]
        );
    }

    #[test]
    fn references_go_before_what_they_refer_to_and_come_after_it() {
        let old = table(&[("a", 2)], &[(1, "a")]);
        let new = table(&[("b", 2)], &[(1, "b")]);
        assert_eq!(
            new.update(&old).describe(),
            [
                "delete 1 elements of set t m",
                "flush chain t a",
                "delete chain t a",
                "add chain t b",
                "add rule to chain t b",
                "add 1 elements to set t m"
            ]
        );
    }
}
