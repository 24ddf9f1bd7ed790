//! One nftables transaction as netlink messages.

use super::expr::value_data;
use super::{Base, ChainKind, Data, Expr, Family, Set, Value};
use crate::message::{Attributes, Message, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};

const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const NEW_TABLE: u16 = 0;
pub(super) const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
pub(super) const GET_CHAIN: u16 = 4;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
pub(super) const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENTS: u16 = 12;
pub(super) const GET_ELEMENTS: u16 = 13;
const DELETE_ELEMENTS: u16 = 14;
pub(super) const GET_GENERATION: u16 = 16;

const LIST_ELEMENT: u16 = 1;
const SET_INTERVAL: u32 = 0x4;
const SET_MAP: u32 = 0x8;
const SET_TIMEOUT: u32 = 0x10;
const SET_EVAL: u32 = 0x20;
const DATA_TYPE_VERDICT: u32 = 0xffff_ff00;
const ELEMENT_INTERVAL_END: u32 = 1;
const POLICY_ACCEPT: u32 = 1;
/// Elements in one message: their list is one attribute, which holds at most 64 KiB.
const ELEMENTS_PER_MESSAGE: usize = 300;

pub(super) fn kind(message: u16) -> u16 {
    SUBSYSTEM << 8 | message
}

/// `struct nfgenmsg`.
pub(super) fn header(family: u8, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family, 0, high, low]
}

/// Changes of one table that take effect together.
#[derive(Debug)]
pub struct Batch {
    family: Family,
    table: String,
    messages: Vec<Message>,
    names: Vec<String>,
    sets: u32,
}

impl Batch {
    pub fn new(family: Family, table: &str) -> Self {
        Self { family, table: table.to_owned(), messages: Vec::new(), names: Vec::new(), sets: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many changes there are.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// What the transaction does, step by step.
    pub fn describe(&self) -> &[String] {
        &self.names
    }

    /// The messages in the frame that makes them a transaction, and what each does.
    pub(super) fn framed(&self) -> (Vec<Message>, Vec<String>) {
        let frame = |message| Message::new(message, 0, &header(0, SUBSYSTEM));
        let mut messages = Vec::with_capacity(self.messages.len() + 2);
        messages.push(frame(BATCH_BEGIN));
        messages.extend(self.messages.iter().cloned());
        // Older kernels do not acknowledge the frame, so the last change asks for the answer.
        if let Some(last) = messages.last_mut() {
            last.flags |= NLM_F_ACK;
        }
        messages.push(frame(BATCH_END));
        let mut names = vec!["commit nftables transaction".to_owned()];
        names.extend(self.names.iter().cloned());
        (messages, names)
    }

    pub fn add_table(&mut self) {
        let table = self.table.clone();
        let message = self.message(NEW_TABLE, NLM_F_CREATE, |body| {
            body.text(1, &table).be32(2, 0);
        });
        self.push(format!("add table {table}"), message);
    }

    pub fn delete_table(&mut self) {
        let table = self.table.clone();
        let message = self.message(DELETE_TABLE, 0, |body| {
            body.text(1, &table);
        });
        self.push(format!("delete table {table}"), message);
    }

    pub fn add_chain(&mut self, name: &str, base: Option<Base>) {
        let message = self.message(NEW_CHAIN, NLM_F_CREATE, |body| {
            body.text(1, &self.table).text(3, name);
            if let Some(base) = base {
                body.nest(4, |hook| {
                    hook.be32(1, base.hook as u32).be32(2, base.priority.cast_unsigned());
                });
                body.be32(5, POLICY_ACCEPT);
                body.text(7, if base.kind == ChainKind::Nat { "nat" } else { "filter" });
            }
        });
        self.push(format!("add chain {} {name}", self.table), message);
    }

    pub fn flush_chain(&mut self, name: &str) {
        let message = self.message(DELETE_RULE, 0, |body| {
            body.text(1, &self.table).text(2, name);
        });
        self.push(format!("flush chain {} {name}", self.table), message);
    }

    pub fn delete_chain(&mut self, name: &str) {
        let message = self.message(DELETE_CHAIN, 0, |body| {
            body.text(1, &self.table).text(3, name);
        });
        self.push(format!("delete chain {} {name}", self.table), message);
    }

    /// Puts a rule behind the chain's others.
    pub fn add_rule(&mut self, chain: &str, rule: &[Expr]) {
        self.write_rule(chain, rule, NLM_F_APPEND);
        self.names.push(format!("add rule to chain {} {chain}", self.table));
    }

    /// Puts a rule before the chain's others.
    pub fn insert_rule(&mut self, chain: &str, rule: &[Expr]) {
        self.write_rule(chain, rule, 0);
        self.names.push(format!("insert rule into chain {} {chain}", self.table));
    }

    /// Removes one rule of a chain.
    pub fn delete_rule(&mut self, chain: &str, handle: u64) {
        let message = self.message(DELETE_RULE, 0, |body| {
            body.text(1, &self.table).text(2, chain).be64(3, handle);
        });
        self.push(format!("delete rule {handle} of chain {} {chain}", self.table), message);
    }

    fn write_rule(&mut self, chain: &str, rule: &[Expr], place: u16) {
        let message = self.message(NEW_RULE, NLM_F_CREATE | place, |body| {
            body.text(1, &self.table).text(2, chain).nest(4, |list| {
                for step in rule {
                    let (name, data) = step.encode();
                    list.nest(LIST_ELEMENT, |element| {
                        element.text(1, name).nest(2, |inner| {
                            inner.append(&data);
                        });
                    });
                }
            });
        });
        self.messages.push(message);
    }

    pub fn add_set(&mut self, name: &str, set: &Set) {
        self.sets += 1;
        let id = self.sets;
        let message = self.message(NEW_SET, NLM_F_CREATE, |body| {
            let map = if set.data == Data::None { 0 } else { SET_MAP };
            let dynamic = if set.timeout.is_some() { SET_TIMEOUT | SET_EVAL } else { 0 };
            let ranges = if set.ranges { SET_INTERVAL } else { 0 };
            body.text(1, &self.table).text(2, name).be32(3, map | dynamic | ranges);
            body.be32(4, set.key_types).be32(5, set.key_length);
            match set.data {
                Data::None => {}
                Data::Verdict => {
                    body.be32(6, DATA_TYPE_VERDICT).be32(7, 0);
                }
                Data::Bytes { length, types } => {
                    body.be32(6, types).be32(7, length);
                }
            }
            body.be32(10, id);
            if let Some(timeout) = set.timeout {
                body.be64(11, timeout.as_millis() as u64);
            }
        });
        self.push(format!("add set {} {name}", self.table), message);
    }

    pub fn delete_set(&mut self, name: &str) {
        let message = self.message(DELETE_SET, 0, |body| {
            body.text(1, &self.table).text(2, name);
        });
        self.push(format!("delete set {} {name}", self.table), message);
    }

    pub fn add_elements<'a>(&mut self, set: &str, elements: impl Iterator<Item = (&'a Vec<u8>, &'a Value)>) {
        let encoded = elements.map(|(key, value)| {
            let mut element = Attributes::new();
            element.nest(1, |data| value_data(data, key));
            match value {
                Value::None => {}
                Value::End => {
                    element.be32(3, ELEMENT_INTERVAL_END);
                }
                Value::Verdict(verdict) => {
                    element.nest(2, |data| verdict.encode(data));
                }
                Value::Bytes(bytes) => {
                    element.nest(2, |data| value_data(data, bytes));
                }
            }
            element
        });
        let encoded: Vec<_> = encoded.collect();
        for part in encoded.chunks(ELEMENTS_PER_MESSAGE) {
            let message = self.elements_message(NEW_ELEMENTS, NLM_F_CREATE, set, part);
            self.push(format!("add {} elements to set {} {set}", part.len(), self.table), message);
        }
    }

    pub fn delete_elements<'a>(
        &mut self,
        set: &str,
        elements: impl Iterator<Item = (&'a Vec<u8>, &'a Value)>,
    ) {
        let encoded = elements.map(|(key, value)| {
            let mut element = Attributes::new();
            element.nest(1, |data| value_data(data, key));
            if *value == Value::End {
                element.be32(3, ELEMENT_INTERVAL_END);
            }
            element
        });
        let encoded: Vec<_> = encoded.collect();
        for part in encoded.chunks(ELEMENTS_PER_MESSAGE) {
            let message = self.elements_message(DELETE_ELEMENTS, 0, set, part);
            self.push(format!("delete {} elements of set {} {set}", part.len(), self.table), message);
        }
    }

    fn elements_message(&self, message: u16, flags: u16, set: &str, elements: &[Attributes]) -> Message {
        self.message(message, flags, |body| {
            body.text(1, &self.table).text(2, set).nest(3, |list| {
                for element in elements {
                    list.nest(LIST_ELEMENT, |inner| {
                        inner.append(element);
                    });
                }
            });
        })
    }

    fn message(&self, message: u16, flags: u16, fill: impl FnOnce(&mut Attributes)) -> Message {
        let mut message = Message::new(kind(message), flags, &header(self.family as u8, 0));
        fill(&mut message.body);
        message
    }

    fn push(&mut self, name: String, message: Message) {
        self.names.push(name);
        self.messages.push(message);
    }
}
