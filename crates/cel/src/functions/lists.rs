//! Lists, sets and sizes.

use std::cmp::Ordering;

use super::price::LISTED;
use super::strings::index_of;
use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{ITEM, List, Val};

const SORTABLE: &[&str] = &[
    "list(int).()->bool",
    "list(uint).()->bool",
    "list(double).()->bool",
    "list(bool).()->bool",
    "list(duration).()->bool",
    "list(timestamp).()->bool",
    "list(string).()->bool",
    "list(bytes).()->bool",
];
const EXTREME: &[&str] = &[
    "list(int).()->int",
    "list(uint).()->uint",
    "list(double).()->double",
    "list(bool).()->bool",
    "list(duration).()->duration",
    "list(timestamp).()->timestamp",
    "list(string).()->string",
    "list(bytes).()->bytes",
];
const PLACE: &[&str] = &["string.(string)->int", "string.(string,int)->int", "list(A).(A)->int"];
const SETS: &[&str] = &["(list(A),list(A))->bool"];

/// The functions.
pub const TABLE: &[Entry] = &[
    (
        "size",
        size,
        &[
            "(string)->int",
            "(bytes)->int",
            "(list(A))->int",
            "(map(A,B))->int",
            "string.()->int",
            "bytes.()->int",
            "list(A).()->int",
            "map(A,B).()->int",
        ],
    ),
    ("isSorted", is_sorted, SORTABLE),
    (
        "sum",
        sum,
        &[
            "list(int).()->int",
            "list(uint).()->uint",
            "list(double).()->double",
            "list(duration).()->duration",
        ],
    ),
    ("min", min, EXTREME),
    ("max", max, EXTREME),
    ("indexOf", index, PLACE),
    ("lastIndexOf", last_index, PLACE),
    ("slice", slice, &["list(A).(int,int)->list(A)"]),
    ("flatten", flatten, &["list(list(A)).()->list(A)", "list(dyn).(int)->list(dyn)"]),
    ("sort", sort, &["list(A).()->list(A)"]),
    ("distinct", distinct, &["list(A).()->list(A)"]),
    ("reverse", reverse, &["list(A).()->list(A)"]),
    ("first", first, &["list(A).()->optional(A)"]),
    ("last", last, &["list(A).()->optional(A)"]),
    ("lists.range", range, &["(int)->list(int)"]),
    ("sets.contains", sets_contains, SETS),
    ("sets.equivalent", sets_equivalent, SETS),
    ("sets.intersects", sets_intersects, SETS),
];

fn size<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Int(match args {
        [Val::Text(text)] => text.chars().count() as i64,
        [value @ (Val::Bytes(_) | Val::List(_) | Val::Map(_))] => value.size() as i64,
        _ => return Err(Error::NoOverload),
    }))
}

fn list<'v, 'a>(args: &'v [Val<'a>]) -> Result<&'v List<'a>, Error> {
    match args.first() {
        Some(Val::List(list)) => Ok(list),
        _ => Err(Error::NoOverload),
    }
}

fn order(a: &Val<'_>, b: &Val<'_>) -> Result<Ordering, Error> {
    a.compare(b).ok_or(Error::NoOverload)
}

fn is_sorted<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let mut last: Option<Val<'a>> = None;
    for item in list(args)? {
        let item = item?;
        if let Some(last) = &last
            && order(last, &item)?.is_gt()
        {
            return Ok(Val::Bool(false));
        }
        last = Some(item);
    }
    Ok(Val::Bool(true))
}

fn sum<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let mut total: Option<Val<'a>> = None;
    for item in list(args)? {
        total = Some(match (total, item?) {
            (None, item @ (Val::Int(_) | Val::Uint(_) | Val::Double(_) | Val::Duration(_))) => item,
            (Some(Val::Int(a)), Val::Int(b)) => Val::Int(a.checked_add(b).ok_or(Error::Overflow)?),
            (Some(Val::Uint(a)), Val::Uint(b)) => Val::Uint(a.checked_add(b).ok_or(Error::Overflow)?),
            (Some(Val::Double(a)), Val::Double(b)) => Val::Double(a + b),
            (Some(Val::Duration(a)), Val::Duration(b)) => {
                Val::Duration(a.checked_add(b).ok_or(Error::Overflow)?)
            }
            _ => return Err(Error::NoOverload),
        });
    }
    Ok(total.unwrap_or(Val::Int(0)))
}

fn extreme<'a>(args: &[Val<'a>], name: &str, wanted: Ordering) -> Outcome<'a> {
    let mut best: Option<Val<'a>> = None;
    for item in list(args)? {
        let item = item?;
        let better = match &best {
            None => true,
            Some(best) => order(&item, best)? == wanted,
        };
        if better {
            best = Some(item);
        }
    }
    best.ok_or_else(|| Error::invalid(format!("{name} called on empty list")))
}

fn min<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    extreme(args, "min", Ordering::Less)
}

fn max<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    extreme(args, "max", Ordering::Greater)
}

fn index<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(part)] => index_of(text, part, 0, false).map(Val::Int),
        [Val::Text(text), Val::Text(part), Val::Int(from)] => {
            index_of(text, part, *from, false).map(Val::Int)
        }
        [Val::List(list), wanted] => {
            for (at, item) in list.iter().enumerate() {
                if item?.equals(wanted) {
                    return Ok(Val::Int(at as i64));
                }
            }
            Ok(Val::Int(-1))
        }
        _ => Err(Error::NoOverload),
    }
}

fn last_index<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text), Val::Text(part)] => {
            let end = text.chars().count() as i64;
            index_of(text, part, end, true).map(Val::Int)
        }
        [Val::Text(text), Val::Text(part), Val::Int(from)] => index_of(text, part, *from, true).map(Val::Int),
        [Val::List(list), wanted] => {
            for at in (0..list.len()).rev() {
                if list.get(at)?.equals(wanted) {
                    return Ok(Val::Int(at as i64));
                }
            }
            Ok(Val::Int(-1))
        }
        _ => Err(Error::NoOverload),
    }
}

fn slice<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::List(list), Val::Int(start), Val::Int(end)] = args else { return Err(Error::NoOverload) };
    let bounds = || Error::invalid(format!("cannot slice({start}, {end}), list has {} items", list.len()));
    let place = |index: i64| usize::try_from(index).map_err(|_| bounds());
    let (start, end) = (place(*start)?, place(*end)?);
    if start > end || end > list.len() {
        return Err(bounds());
    }
    run.charge(((end - start) as u64).saturating_add(LISTED))?;
    Ok((start..end).map(|index| list.get(index)).collect::<Result<Vec<_>, _>>()?.into())
}

fn flatten<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let depth = match args {
        [_, Val::Int(depth)] if *depth >= 0 => *depth,
        [_] => 1,
        _ => return Err(Error::invalid("flatten level must be non-negative")),
    };
    fn into<'a>(run: &mut Run<'_>, list: &List<'a>, depth: i64, out: &mut Vec<Val<'a>>) -> Result<(), Error> {
        for item in list {
            // Paid is for the outer list alone. A list inside takes room too, so that those of nothing but empty ones come to an end.
            run.allow(ITEM)?;
            match item? {
                Val::List(inner) if depth > 0 => into(run, &inner, depth - 1, out)?,
                item => out.push(item),
            }
        }
        Ok(())
    }
    let mut out = Vec::new();
    into(run, list(args)?, depth.min(100), &mut out)?;
    Ok(out.into())
}

/// Sorts by keys that go with the values.
pub fn sorted<'a>(mut pairs: Vec<(Val<'a>, Val<'a>)>) -> Outcome<'a> {
    for pair in pairs.windows(2) {
        order(&pair[0].0, &pair[1].0)?;
    }
    pairs.sort_by(|a, b| a.0.compare(&b.0).unwrap_or(Ordering::Equal));
    Ok(pairs.into_iter().map(|(_, value)| value).collect::<Vec<_>>().into())
}

fn sort<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let items = list(args)?.items()?;
    sorted(items.into_iter().map(|item| (item.clone(), item)).collect())
}

fn distinct<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let mut out: Vec<Val<'a>> = Vec::new();
    for item in list(args)? {
        let item = item?;
        if !out.iter().any(|own| own.equals(&item)) {
            out.push(item);
        }
    }
    Ok(out.into())
}

fn reverse<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let mut items = list(args)?.items()?;
    items.reverse();
    Ok(items.into())
}

fn first<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let list = list(args)?;
    if list.is_empty() { Ok(Val::Optional(None)) } else { list.get(0).map(Val::some) }
}

fn last<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let list = list(args)?;
    list.len().checked_sub(1).map_or(Ok(Val::Optional(None)), |end| list.get(end).map(Val::some))
}

fn range<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Int(end)] = args else { return Err(Error::NoOverload) };
    run.charge(u64::try_from(*end).unwrap_or(0).saturating_add(LISTED))?;
    Ok((0..*end).map(Val::Int).collect::<Vec<_>>().into())
}

fn two<'a>(args: &[Val<'a>]) -> Result<(Vec<Val<'a>>, Vec<Val<'a>>), Error> {
    let [Val::List(one), Val::List(other)] = args else { return Err(Error::NoOverload) };
    // Beside an empty list the other one costs nothing, and all that matters is whether it has an item.
    let most = if one.is_empty() || other.is_empty() { 1 } else { usize::MAX };
    let some = |list: &List<'a>| list.iter().take(most).collect::<Result<Vec<_>, _>>();
    Ok((some(one)?, some(other)?))
}

fn within(some: &[Val<'_>], all: &[Val<'_>]) -> bool {
    some.iter().all(|item| all.iter().any(|own| own.equals(item)))
}

fn sets_contains<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (one, other) = two(args)?;
    Ok(Val::Bool(within(&other, &one)))
}

fn sets_equivalent<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (one, other) = two(args)?;
    Ok(Val::Bool(within(&other, &one) && within(&one, &other)))
}

fn sets_intersects<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let (one, other) = two(args)?;
    Ok(Val::Bool(one.iter().any(|item| other.iter().any(|own| own.equals(item)))))
}
