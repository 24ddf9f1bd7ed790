//! Arithmetic on networks.

use std::net::IpAddr;

use ipnet::IpNet;

/// The address `offset` places after the network's own.
pub fn nth(net: &IpNet, offset: u128) -> IpAddr {
    match net.network() {
        IpAddr::V4(first) => IpAddr::V4((u32::from(first).wrapping_add(offset as u32)).into()),
        IpAddr::V6(first) => IpAddr::V6((u128::from(first).wrapping_add(offset)).into()),
    }
}

/// How many addresses a network has; huge ones count as the largest number.
pub fn size(net: &IpNet) -> u128 {
    1u128.checked_shl(u32::from(net.max_prefix_len() - net.prefix_len())).unwrap_or(u128::MAX)
}

/// Whether two networks share an address.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Whether an address is of the sixth version.
pub fn is_v6(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_counted_from_the_network() {
        let net: IpNet = "172.30.0.0/16".parse().unwrap();
        assert_eq!(nth(&net, 10).to_string(), "172.30.0.10");
        assert_eq!(size(&net), 65536);
        let six: IpNet = "fd02::/112".parse().unwrap();
        assert_eq!(nth(&six, 1).to_string(), "fd02::1");
        assert!(overlap(&net, &"172.0.0.0/8".parse().unwrap()));
        assert!(!overlap(&net, &"172.31.0.0/16".parse().unwrap()));
    }
}
