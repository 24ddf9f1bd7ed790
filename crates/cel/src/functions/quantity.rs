//! Quantities such as `500m` and `1Gi`.

use apimachinery::quantity::Quantity;

use super::{Entry, Outcome, Run};
use crate::error::Error;
use crate::value::{Opaque, Val};

/// Functions of quantities and of versions share names; one table entry serves both.
pub const TABLE: &[Entry] = &[
    ("quantity", quantity, &["(string)->kubernetes.Quantity"]),
    ("isQuantity", is_quantity, &["(string)->bool"]),
    ("sign", sign, &["kubernetes.Quantity.()->int"]),
    (
        "isGreaterThan",
        greater,
        &["kubernetes.Quantity.(kubernetes.Quantity)->bool", "kubernetes.Semver.(kubernetes.Semver)->bool"],
    ),
    (
        "isLessThan",
        less,
        &["kubernetes.Quantity.(kubernetes.Quantity)->bool", "kubernetes.Semver.(kubernetes.Semver)->bool"],
    ),
    (
        "compareTo",
        compare,
        &["kubernetes.Quantity.(kubernetes.Quantity)->int", "kubernetes.Semver.(kubernetes.Semver)->int"],
    ),
    ("asApproximateFloat", float, &["kubernetes.Quantity.()->double"]),
    ("asInteger", integer, &["kubernetes.Quantity.()->int"]),
    ("isInteger", is_integer, &["kubernetes.Quantity.()->bool"]),
    (
        "add",
        add,
        &[
            "kubernetes.Quantity.(kubernetes.Quantity)->kubernetes.Quantity",
            "kubernetes.Quantity.(int)->kubernetes.Quantity",
        ],
    ),
    (
        "sub",
        sub,
        &[
            "kubernetes.Quantity.(kubernetes.Quantity)->kubernetes.Quantity",
            "kubernetes.Quantity.(int)->kubernetes.Quantity",
        ],
    ),
];

fn quantity<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text)] = args else { return Err(Error::NoOverload) };
    let parsed = text.parse::<Quantity>().map_err(|error| Error::invalid(error.to_string()))?;
    Ok(Val::opaque(Opaque::Quantity(parsed)))
}

fn is_quantity<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let [Val::Text(text)] = args else { return Err(Error::NoOverload) };
    Ok(Val::Bool(text.parse::<Quantity>().is_ok()))
}

fn own(args: &[Val<'_>], index: usize) -> Result<Quantity, Error> {
    match args.get(index) {
        Some(Val::Opaque(opaque)) => match &**opaque {
            Opaque::Quantity(quantity) => Ok(*quantity),
            _ => Err(Error::NoOverload),
        },
        Some(Val::Int(value)) => Ok(Quantity::new(*value)),
        _ => Err(Error::NoOverload),
    }
}

fn order(args: &[Val<'_>]) -> Result<i64, Error> {
    let semver = |index: usize| match args.get(index) {
        Some(Val::Opaque(opaque)) => match &**opaque {
            Opaque::Semver(version) => Some(version.clone()),
            _ => None,
        },
        _ => None,
    };
    if let (Some(one), Some(other)) = (semver(0), semver(1)) {
        return Ok(one.cmp(&other) as i64);
    }
    Ok(i64::from(own(args, 0)?.minus(own(args, 1)?).sign()))
}

fn sign<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Int(i64::from(own(args, 0)?.sign())))
}

fn greater<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(order(args)? > 0))
}

fn less<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(order(args)? < 0))
}

fn compare<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    order(args).map(Val::Int)
}

fn float<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Double(own(args, 0)?.as_f64()))
}

fn integer<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let quantity = own(args, 0)?;
    if !quantity.is_whole() {
        return Err(Error::invalid("cannot convert value to integer"));
    }
    Ok(Val::Int(quantity.value()))
}

fn is_integer<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::Bool(own(args, 0)?.is_whole()))
}

fn add<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::opaque(Opaque::Quantity(own(args, 0)?.plus(own(args, 1)?))))
}

fn sub<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    Ok(Val::opaque(Opaque::Quantity(own(args, 0)?.minus(own(args, 1)?))))
}
