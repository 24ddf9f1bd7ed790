//! What calls cost, and how large is what they give.

use super::{Entries, Estimator, LETTER, LIST, Node, Size, part, sum};
use crate::functions::Function;
use crate::types::Type;

/// A regular expression costs a quarter for each of its letters.
const PATTERN: f64 = 0.25;
/// A question to the authorizer. Two are what a rule can pay for.
const CHECK: u64 = 350_000;
/// The longest regular expression of a named format, and the longest name of one.
const FORMAT_PATTERN: f64 = 128.0;
const FORMAT_NAME: u64 = 64;

/// What a list costs to sort by values of a type, and how large upstream takes the outcome to be.
pub fn sorting(kind: &Type, count: Size) -> (u64, Size) {
    let factor = match kind {
        Type::String | Type::Bytes | Type::Dyn => 2.0 + LETTER,
        _ => 2.0,
    };
    listing(factor, count.times(count))
}

/// A function that makes a list of this size.
fn listing(factor: f64, size: Size) -> (u64, Size) {
    (sum([part(size.max, factor), 1, LIST]), size)
}

/// Whether a value of a type can be an argument where another is declared.
fn fits(kind: &Type, declared: &Type) -> bool {
    match (kind, declared) {
        (_, Type::Dyn | Type::Param(_)) | (Type::Dyn | Type::Error | Type::Param(_), _) => true,
        (Type::List(one), Type::List(other)) | (Type::Optional(one), Type::Optional(other)) => {
            fits(one, other)
        }
        (Type::Map(key, value), Type::Map(own, other)) => fits(key, own) && fits(value, other),
        _ => kind == declared,
    }
}

/// Learns what the parameters of a declared type stand for.
fn learn(kind: &Type, declared: &Type, known: &mut Vec<(u32, Type)>) {
    match (kind, declared) {
        (kind, Type::Param(index)) if known.iter().all(|(own, _)| own != index) => {
            known.push((*index, kind.clone()));
        }
        (Type::List(one), Type::List(other)) | (Type::Optional(one), Type::Optional(other)) => {
            learn(one, other, known);
        }
        (Type::Map(key, value), Type::Map(own, other)) => {
            learn(key, own, known);
            learn(value, other, known);
        }
        _ => {}
    }
}

fn instance(declared: &Type, known: &[(u32, Type)]) -> Type {
    let inner = |declared: &Type| instance(declared, known);
    match declared {
        Type::Param(index) => {
            known.iter().find(|(own, _)| own == index).map_or(Type::Dyn, |(_, kind)| kind.clone())
        }
        Type::List(item) => Type::list(inner(item)),
        Type::Optional(content) => Type::optional(inner(content)),
        Type::Map(key, value) => Type::Map(inner(key).into(), inner(value).into()),
        other => other.clone(),
    }
}

/// The type of what a call gives.
fn outcome(function: &Function, member: bool, args: &[Node<'_>]) -> Type {
    let mut found: Option<Type> = None;
    for signature in &function.signatures {
        let fitting = signature.member == member
            && signature.params.len() == args.len()
            && args.iter().zip(&signature.params).all(|(arg, declared)| fits(&arg.kind, declared));
        if !fitting {
            continue;
        }
        let mut known = Vec::new();
        args.iter().zip(&signature.params).for_each(|(arg, declared)| learn(&arg.kind, declared, &mut known));
        let kind = instance(&signature.result, &known);
        found = Some(match found {
            Some(other) if other != kind => Type::Dyn,
            _ => kind,
        });
    }
    found.unwrap_or(Type::Dyn)
}

impl<'s> Estimator<'s> {
    /// The cost of a call without that of its arguments; a receiver is the first one.
    pub(super) fn call(
        &self,
        name: &str,
        member: bool,
        function: Option<&'static Function>,
        args: Vec<Node<'s>>,
    ) -> (u64, Node<'s>) {
        if let ("dyn", [only]) = (name, args.as_slice()) {
            let node = Node { kind: Type::Dyn, ..only.clone() };
            return (1, node);
        }
        let kind = function.map_or(Type::Dyn, |function| outcome(function, member, &args));
        let entries = if name == "_+_" && args.len() == 2 {
            Entries::union(args[0].entries, args[1].entries)
        } else {
            None
        };
        let (cost, size) = self.priced(name, member, &args);
        (cost, Node { entries, ..self.made(kind, size) })
    }

    /// The elements of a list, by the schema.
    fn element(&self, list: &Node<'s>) -> Size {
        match list.place {
            super::Place::Nowhere => Size::UNKNOWN,
            place => match self.below(place, super::Decl::items) {
                super::Place::At(decl) => Size::up_to(decl.most()),
                _ => Size::UNKNOWN,
            },
        }
    }

    fn priced(&self, name: &str, member: bool, args: &[Node<'s>]) -> (u64, Option<Size>) {
        let size = |index: usize| args.get(index).map_or(Size::UNKNOWN, Node::or_unknown);
        let pass = |size: Size| part(size.max, LETTER);
        let nothing = |cost: u64| (cost, None);
        let first = size(0);
        let kind = args.first().map(|arg| &arg.kind);
        let is = |wanted: &Type| kind == Some(wanted);
        let text = is(&Type::String) || is(&Type::Bytes);
        let unknown = matches!(kind, None | Some(Type::Dyn | Type::Param(_)));
        match (name, args.len()) {
            ("check", _) => nothing(CHECK),
            ("fieldSelector" | "labelSelector", 2) => {
                let requirements = part(part(size(1).max, 0.5), 50.0);
                nothing(sum([LIST, pass(size(1)), requirements]))
            }
            ("isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf", _) if member => {
                nothing(match kind {
                    Some(Type::List(item)) => {
                        let letters = matches!(**item, Type::String | Type::Bytes);
                        let each = if letters { pass(self.element(&args[0])).saturating_add(1) } else { 1 };
                        first.max.saturating_mul(each)
                    }
                    _ => pass(first),
                })
            }
            ("url" | "jsonpatch.escapeKey", 1) => (pass(first), Some(first)),
            ("lowerAscii" | "upperAscii" | "substring" | "trim", _) => (pass(first), Some(first)),
            ("replace", 3..) => (part(first.max, 2.0 * LETTER), Some(replaced(first, size(1), size(2)))),
            ("split", _) => {
                let most = args.get(2).and_then(|arg| arg.number).map_or(first.max, |number| number as u64);
                (part(first.max, 2.0 * LETTER), Some(Size::up_to(most)))
            }
            ("join", _) => {
                let joined = first.times(self.element(&args[0]));
                let between = |count: u64| count.saturating_sub(1);
                let separators = Size { min: between(first.min), max: between(first.max) };
                let joined = if args.len() > 1 { joined.add(size(1).times(separators)) } else { joined };
                (pass(joined), Some(joined))
            }
            ("find" | "findAll", 2..) => {
                let letters = pass(first.add(Size::exactly(1)));
                let cost = letters.saturating_mul(part(size(1).max, PATTERN));
                (cost, Some(Size::up_to(first.max)))
            }
            ("matches", 2) if member => {
                let letters = pass(first.add(Size::exactly(1)));
                nothing(letters.saturating_mul(part(size(1).max, PATTERN)))
            }
            ("contains", 2) if member => nothing(pass(first).saturating_mul(pass(size(1)))),
            ("startsWith" | "endsWith", 2) => nothing(pass(size(1))),
            ("ip", 1) if member => nothing(1),
            ("cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver" | "isSemver", 1..) => {
                nothing(pass(first))
            }
            ("ip.isCanonical", 1) => nothing(part(first.max, 2.0 * LETTER)),
            ("containsIP", 2) => {
                // Two addresses of sixteen bytes each, and perhaps one that is yet to be read.
                let read = if matches!(args[1].kind, Type::String | Type::Dyn) { pass(size(1)) } else { 0 };
                nothing(sum([4, read]))
            }
            ("containsCIDR", 2) => {
                let read = if matches!(args[1].kind, Type::String | Type::Dyn) { pass(size(1)) } else { 0 };
                nothing(sum([4, 2, 1, read]))
            }
            ("validate", 2) => nothing(part(pass(size(1)), FORMAT_PATTERN * PATTERN)),
            ("_==_", 2) if kind == Some(&args[1].kind) && matches!(kind, Some(Type::Opaque(_))) => {
                nothing(match kind {
                    Some(Type::Opaque("kubernetes.NamedFormat")) => part(FORMAT_NAME, LETTER),
                    Some(Type::Opaque("kubernetes.URL")) => {
                        part(args[1].size.map_or(1, |size| size.max), LETTER)
                    }
                    _ => 1,
                })
            }
            ("_==_" | "_!=_", 2) => nothing(pass(Size::up_to(first.max.min(size(1).max)))),
            ("_<_" | "_<=_" | "_>_" | "_>=_", 2) if text || unknown => {
                let compared = pass(Size::up_to(first.max.min(size(1).max)));
                nothing(if unknown { compared.max(1) } else { compared })
            }
            ("_+_", 2) => {
                let whole = first.add(size(1));
                match kind {
                    Some(Type::String | Type::Bytes) => (pass(whole), Some(whole)),
                    Some(Type::List(_)) => (1, Some(whole)),
                    Some(Type::Dyn | Type::Param(_)) => (pass(whole).max(1), Some(whole)),
                    _ => nothing(1),
                }
            }
            ("@in", 2) => nothing(match args[1].kind {
                Type::Map(..) => 1,
                Type::List(_) => size(1).max,
                _ => size(1).max.max(1),
            }),
            ("bytes", 1) if is(&Type::String) => {
                (pass(first), Some(Size { min: first.min, max: first.max.saturating_mul(4) }))
            }
            ("string", 1) if is(&Type::Bytes) => {
                (pass(first), Some(Size { min: first.min / 4, max: first.max }))
            }
            ("strings.quote", 1) => {
                let max = first.max.saturating_mul(2).saturating_add(2);
                (pass(first), Some(Size { min: first.min.saturating_add(2), max }))
            }
            ("format", 2) if member => nothing(pass(first)),
            ("sets.contains" | "sets.intersects", 2) => nothing(sum([first.times(size(1)).max, 1])),
            ("sets.equivalent", 2) => nothing(sum([part(first.times(size(1)).max, 2.0), 1])),
            ("slice", 3) => {
                let number = |index: usize, otherwise: u64| {
                    args[index].number.map_or(otherwise, |number| number.max(0) as u64)
                };
                let count = number(2, first.max).wrapping_sub(number(1, 0));
                some(listing(1.0, Size::exactly(count)))
            }
            ("lists.range", 1) => {
                let count = args[0].number.map_or(u64::MAX, |number| number.max(0) as u64);
                some(listing(1.0, Size::exactly(count)))
            }
            ("reverse", 1) => some(listing(1.0, first)),
            ("flatten", _) => {
                let depth =
                    args.get(1).map_or(1, |arg| arg.number.map_or(u64::MAX, |number| number.max(0) as u64));
                some(listing(depth as f64, first))
            }
            ("distinct", 1) => some(listing(2.0, first.times(first))),
            ("sort", 1) => {
                let item = match kind {
                    Some(Type::List(item)) => (**item).clone(),
                    _ => Type::Dyn,
                };
                some(sorting(&item, first))
            }
            _ => nothing(1),
        }
    }
}

fn some((cost, size): (u64, Size)) -> (u64, Option<Size>) {
    (cost, Some(size))
}

/// How large a text can be after a part of it was replaced.
fn replaced(whole: Size, old: Size, new: Size) -> Size {
    let (mut count, mut kept) = (Size::exactly(0), Size::exactly(0));
    let parts = |whole: u64, part: u64| (whole as f64 / part as f64).ceil() as u64;
    if old.min == 0 {
        // Nothing is found between all letters.
        count.max = whole.max.saturating_add(1);
        kept.max = whole.max;
    } else if new.max <= old.min {
        kept.max = whole.max;
    } else {
        count.max = parts(whole.max, old.min);
    }
    if old.max == 0 {
        count.min = whole.min.saturating_add(1);
        kept.min = whole.min;
    } else if old.max <= new.min {
        kept.min = whole.min;
    } else {
        count.min = parts(whole.min, old.max);
    }
    count.times(new).add(kept)
}
