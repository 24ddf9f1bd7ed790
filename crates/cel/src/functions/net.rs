//! Addresses and ranges of addresses.

use std::net::{IpAddr, Ipv4Addr};

use super::{Entry, Outcome, Run, price};
use crate::error::Error;
use crate::value::{Opaque, Val};

const IS: &[&str] = &["net.IP.()->bool"];

/// The functions.
pub const TABLE: &[Entry] = &[
    ("ip", ip, &["(string)->net.IP", "net.CIDR.()->net.IP"]),
    ("isIP", is_ip, &["(string)->bool"]),
    ("ip.isCanonical", is_canonical, &["(string)->bool"]),
    ("family", family, &["net.IP.()->int"]),
    ("isUnspecified", is_unspecified, IS),
    ("isLoopback", is_loopback, IS),
    ("isLinkLocalMulticast", is_link_local_multicast, IS),
    ("isLinkLocalUnicast", is_link_local_unicast, IS),
    ("isGlobalUnicast", is_global_unicast, IS),
    ("cidr", cidr, &["(string)->net.CIDR"]),
    ("isCIDR", is_cidr, &["(string)->bool"]),
    ("containsIP", contains_ip, &["net.CIDR.(string)->bool", "net.CIDR.(net.IP)->bool"]),
    ("containsCIDR", contains_cidr, &["net.CIDR.(string)->bool", "net.CIDR.(net.CIDR)->bool"]),
    ("prefixLength", prefix_length, &["net.CIDR.()->int"]),
    ("masked", masked, &["net.CIDR.()->net.CIDR"]),
];

fn parse_ip(text: &str) -> Result<IpAddr, Error> {
    let bad = |why: &str| {
        Error::invalid(format!("IP Address {text:?} parse error during conversion from string: {why}"))
    };
    let ip: IpAddr = text.parse().map_err(|_| bad("invalid address"))?;
    if let IpAddr::V6(six) = ip
        && six.to_ipv4_mapped().is_some()
    {
        return Err(bad("IPv4-mapped IPv6 address is not allowed"));
    }
    Ok(ip)
}

fn parse_cidr(text: &str) -> Result<(IpAddr, u8), Error> {
    let bad =
        || Error::invalid(format!("network address parse error during conversion from string: {text:?}"));
    let (ip, length) = text.split_once('/').ok_or_else(bad)?;
    let ip = parse_ip(ip)?;
    let whole = if ip.is_ipv4() { 32 } else { 128 };
    let plain = length == "0" || !length.starts_with(['0', '+']);
    let length: u8 = length.parse().ok().filter(|length| plain && *length <= whole).ok_or_else(bad)?;
    Ok((ip, length))
}

fn mask(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(four) => {
            let bits = u32::from(four);
            Ipv4Addr::from(bits & u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0)).into()
        }
        IpAddr::V6(six) => {
            let bits = u128::from(six);
            std::net::Ipv6Addr::from(bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0))
                .into()
        }
    }
}

fn opaque<'v>(args: &'v [Val<'_>]) -> Option<&'v Opaque> {
    match args.first() {
        Some(Val::Opaque(opaque)) => Some(opaque),
        _ => None,
    }
}

fn ip<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match (args, opaque(args)) {
        ([Val::Text(text)], _) => Ok(Val::opaque(Opaque::Ip(parse_ip(text)?))),
        ([_], Some(Opaque::Cidr(ip, _))) => Ok(Val::opaque(Opaque::Ip(*ip))),
        _ => Err(Error::NoOverload),
    }
}

fn is_ip<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text)] => Ok(Val::Bool(parse_ip(text).is_ok())),
        _ => Err(Error::NoOverload),
    }
}

fn is_canonical<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text)] => Ok(Val::Bool(parse_ip(text)?.to_string() == **text)),
        _ => Err(Error::NoOverload),
    }
}

fn asked<'a>(args: &[Val<'a>], question: fn(IpAddr) -> bool) -> Outcome<'a> {
    match opaque(args) {
        Some(Opaque::Ip(ip)) => Ok(Val::Bool(question(*ip))),
        _ => Err(Error::NoOverload),
    }
}

fn family<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match opaque(args) {
        Some(Opaque::Ip(ip)) => Ok(Val::Int(if ip.is_ipv4() { 4 } else { 6 })),
        _ => Err(Error::NoOverload),
    }
}

fn is_unspecified<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    asked(args, |ip| ip.is_unspecified())
}

fn is_loopback<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    asked(args, |ip| ip.is_loopback())
}

fn is_link_local_multicast<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    asked(args, |ip| match ip {
        IpAddr::V4(four) => four.octets()[..3] == [224, 0, 0],
        IpAddr::V6(six) => six.segments()[0] & 0xff0f == 0xff02,
    })
}

fn link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_unicast<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    asked(args, link_local)
}

fn is_global_unicast<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    asked(args, |ip| {
        let broadcast = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
        !broadcast && !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && !link_local(ip)
    })
}

fn cidr<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text)] => {
            let (ip, length) = parse_cidr(text)?;
            Ok(Val::opaque(Opaque::Cidr(ip, length)))
        }
        _ => Err(Error::NoOverload),
    }
}

fn is_cidr<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match args {
        [Val::Text(text)] => Ok(Val::Bool(parse_cidr(text).is_ok())),
        _ => Err(Error::NoOverload),
    }
}

/// Comparing a range with an address, and reading that if it is text.
fn charge_range(run: &mut Run<'_>, args: &[Val<'_>], masked: bool) -> Result<(), Error> {
    let size = opaque(args).map_or(1, price::address);
    let read = if let Some(text @ Val::Text(_)) = args.get(1) { price::size(text).div_ceil(10) } else { 0 };
    let mask = if masked { size.div_ceil(10) + 1 } else { 0 };
    run.charge((2 * size).div_ceil(10) + mask + read)
}

fn contains_ip<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let Some(Opaque::Cidr(net, length)) = opaque(args) else { return Err(Error::NoOverload) };
    charge_range(run, args, false)?;
    let ip = match (args.get(1), opaque(args.get(1..).unwrap_or_default())) {
        (Some(Val::Text(text)), _) => parse_ip(text)?,
        (_, Some(Opaque::Ip(ip))) => *ip,
        _ => return Err(Error::NoOverload),
    };
    Ok(Val::Bool(ip.is_ipv4() == net.is_ipv4() && mask(ip, *length) == mask(*net, *length)))
}

fn contains_cidr<'a>(run: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    let Some(Opaque::Cidr(net, length)) = opaque(args) else { return Err(Error::NoOverload) };
    charge_range(run, args, true)?;
    let (ip, inner) = match (args.get(1), opaque(args.get(1..).unwrap_or_default())) {
        (Some(Val::Text(text)), _) => parse_cidr(text)?,
        (_, Some(Opaque::Cidr(ip, inner))) => (*ip, *inner),
        _ => return Err(Error::NoOverload),
    };
    let same = ip.is_ipv4() == net.is_ipv4() && inner >= *length;
    Ok(Val::Bool(same && mask(ip, *length) == mask(*net, *length)))
}

fn prefix_length<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match opaque(args) {
        Some(Opaque::Cidr(_, length)) => Ok(Val::Int(i64::from(*length))),
        _ => Err(Error::NoOverload),
    }
}

fn masked<'a>(_: &mut Run<'_>, args: &[Val<'a>]) -> Outcome<'a> {
    match opaque(args) {
        Some(Opaque::Cidr(ip, length)) => Ok(Val::opaque(Opaque::Cidr(mask(*ip, *length), *length))),
        _ => Err(Error::NoOverload),
    }
}
