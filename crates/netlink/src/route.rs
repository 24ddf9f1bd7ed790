//! Links, addresses, routes and neighbours (`NETLINK_ROUTE`).
//!
//! Creation is idempotent where the kernel can tell that the thing there is the thing wanted (addresses, routes,
//! neighbours); a link that exists is an error that the caller looks at, since it may be someone else's.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::path::Path;

use ipnet::IpNet;

use crate::message::{
    self, Attributes, Message, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, attributes, find, ne_u32,
};
use crate::{Error, Protocol, Socket, if_absent};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_NEWQDISC: u16 = 36;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_MASTER: u16 = 10;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET_CONF: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;
const IFLA_VXLAN_ID: u16 = 1;
const IFLA_VXLAN_LOCAL: u16 = 4;
const IFLA_VXLAN_LEARNING: u16 = 7;
const IFLA_VXLAN_PORT: u16 = 15;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTNH_F_ONLINK: u32 = 4;
const RTPROT_STATIC: u8 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RTN_UNICAST: u8 = 1;
const RTN_BLACKHOLE: u8 = 6;
const RTN_UNREACHABLE: u8 = 7;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;
const NTF_SELF: u8 = 2;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const LINKLAYER_ETHERNET: u8 = 1;
const IFF_UP: u32 = 1;
const IFNAMSIZ: usize = 16;

/// A hardware address.
pub type Mac = [u8; 6];

/// IPv4 settings of one interface, by the numbers of the kernel's `IPV4_DEVCONF_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv4Setting {
    Forwarding = 1,
    SendRedirects = 6,
    RpFilter = 8,
    RouteLocalnet = 26,
}

/// A link as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub kind: Option<String>,
    pub mac: Option<Mac>,
    pub mtu: u32,
    pub up: bool,
}

/// What to create.
#[derive(Clone, Debug)]
pub enum Kind<'a> {
    Bridge,
    /// A pair whose other end appears in the namespace as `peer`.
    Veth {
        peer: &'a str,
        peer_mac: Mac,
        netns: &'a Path,
    },
    /// An overlay device without learning: whoever makes it writes its forwarding entries.
    Vxlan {
        id: u32,
        port: u16,
        local: IpAddr,
    },
}

/// A link to create; it is down until [`Routing::set_up`].
#[derive(Clone, Debug)]
pub struct NewLink<'a> {
    pub name: &'a str,
    pub kind: Kind<'a>,
    pub mac: Option<Mac>,
    pub mtu: u32,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Out of a link, directly.
    Link { index: u32 },
    /// To a neighbour behind a link, whether or not an address of the link covers it.
    Via { gateway: IpAddr, index: u32 },
    /// Nowhere: the sender is told.
    Unreachable,
    /// Nowhere, silently.
    Blackhole,
}

/// A route of the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    pub to: IpNet,
    pub target: Target,
    /// The source address that this host's own packets take.
    pub source: Option<IpAddr>,
}

/// A route that a program (not the kernel) put into the main table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedRoute {
    pub to: IpNet,
    pub index: Option<u32>,
    pub gateway: Option<IpAddr>,
}

/// The route part of the kernel, in one network namespace.
#[derive(Debug)]
pub struct Routing {
    socket: Socket,
}

impl Routing {
    /// In the calling thread's namespace.
    pub fn open() -> Result<Self, Error> {
        Ok(Self { socket: Socket::open(Protocol::Route)? })
    }

    /// In the namespace that `path` names.
    pub fn open_in(path: &Path) -> Result<Self, Error> {
        Ok(Self { socket: Socket::open_in(path, Protocol::Route)? })
    }

    pub fn links(&self) -> Result<Vec<Link>, Error> {
        let mut links = Vec::new();
        let request = Message::new(RTM_GETLINK, 0, &link_header(0, 0, 0));
        self.socket.dump("list links", request, |body| links.extend(parse_link(body)))?;
        Ok(links)
    }

    pub fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        check_name(name)?;
        let mut request = Message::new(RTM_GETLINK, 0, &link_header(0, 0, 0));
        request.body.text(IFLA_IFNAME, name);
        self.socket.get(&format!("find link {name}"), request, parse_link)
    }

    pub fn create(&self, new: &NewLink<'_>) -> Result<(), Error> {
        let mut request = Message::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &link_header(0, 0, 0));
        check_name(new.name)?;
        request.body.text(IFLA_IFNAME, new.name).u32(IFLA_MTU, new.mtu);
        if let Some(mac) = new.mac {
            request.body.bytes(IFLA_ADDRESS, &mac);
        }
        // The namespace's file must stay open until the request was answered.
        let mut open_namespace = None;
        let (kind, data) = match &new.kind {
            Kind::Bridge => ("bridge", Attributes::new()),
            Kind::Veth { peer, peer_mac, netns } => {
                check_name(peer)?;
                let file = File::open(netns)
                    .map_err(|source| Error::Namespace { path: netns.to_path_buf(), source })?;
                let fd = file.as_raw_fd().cast_unsigned();
                open_namespace = Some(file);
                let mut data = Attributes::new();
                data.nest_after(VETH_INFO_PEER, &link_header(0, 0, 0), |other| {
                    other.text(IFLA_IFNAME, peer).u32(IFLA_MTU, new.mtu).bytes(IFLA_ADDRESS, peer_mac);
                    other.u32(IFLA_NET_NS_FD, fd);
                });
                ("veth", data)
            }
            Kind::Vxlan { id, port, local } => {
                let mut data = Attributes::new();
                data.u32(IFLA_VXLAN_ID, *id).u8(IFLA_VXLAN_LEARNING, 0).be16(IFLA_VXLAN_PORT, *port);
                data.address(IFLA_VXLAN_LOCAL, *local);
                ("vxlan", data)
            }
        };
        request.body.nest(IFLA_LINKINFO, |info| {
            info.text(IFLA_INFO_KIND, kind);
            if !data.is_empty() {
                info.nest(IFLA_INFO_DATA, |inner| {
                    inner.append(&data);
                });
            }
        });
        let result = self.socket.request(&format!("create {kind} link {}", new.name), request);
        drop(open_namespace);
        result
    }

    /// Brings a link up with these settings and without automatic IPv6 addresses, which would only make chatter on
    /// links that have no use for them.
    pub fn set_up(&self, index: u32, ipv4: &[(Ipv4Setting, u32)]) -> Result<(), Error> {
        let configure = |family: libc::c_int, fill: &dyn Fn(&mut Attributes)| {
            let mut request = Message::new(RTM_NEWLINK, 0, &link_header(index, 0, 0));
            request.body.nest(IFLA_AF_SPEC, |families| {
                families.nest(family as u16, |settings| fill(settings));
            });
            self.socket.request(&format!("configure link {index}"), request)
        };
        // A kernel without IPv6 refuses its settings; then there are no automatic addresses either.
        let _ = configure(libc::AF_INET6, &|inet6| {
            inet6.u8(IFLA_INET6_ADDR_GEN_MODE, ADDR_GEN_MODE_NONE);
        });
        if !ipv4.is_empty() {
            configure(libc::AF_INET, &|inet| {
                inet.nest(IFLA_INET_CONF, |settings| {
                    for (setting, value) in ipv4 {
                        settings.u32(*setting as u16, *value);
                    }
                });
            })?;
        }
        let request = Message::new(RTM_NEWLINK, 0, &link_header(index, IFF_UP, IFF_UP));
        self.socket.request(&format!("bring link {index} up"), request)
    }

    /// Makes a link a port of a bridge.
    pub fn set_master(&self, index: u32, bridge: u32) -> Result<(), Error> {
        let mut request = Message::new(RTM_NEWLINK, 0, &link_header(index, 0, 0));
        request.body.u32(IFLA_MASTER, bridge);
        self.socket.request(&format!("make link {index} a port of {bridge}"), request)
    }

    pub fn delete_link(&self, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let mut request = Message::new(RTM_DELLINK, 0, &link_header(0, 0, 0));
        request.body.text(IFLA_IFNAME, name);
        self.socket.request(&format!("delete link {name}"), request)
    }

    pub fn addresses(&self) -> Result<Vec<(u32, IpNet)>, Error> {
        let mut found = Vec::new();
        let request = Message::new(RTM_GETADDR, 0, &[0; 8]);
        self.socket.dump("list addresses", request, |body| {
            let Some((header, rest)) = body.split_at_checked(8) else { return };
            let address = find(rest, IFA_LOCAL).or(find(rest, IFA_ADDRESS)).and_then(message::address);
            if let (Some(address), Some(index)) = (address, ne_u32(header, 4))
                && let Ok(network) = IpNet::new(address, header[1])
            {
                found.push((index, network));
            }
        })?;
        Ok(found)
    }

    /// Gives a link an address; no error if it has it.
    pub fn add_address(&self, index: u32, address: IpNet) -> Result<(), Error> {
        let mut header = [family(address.addr()), address.prefix_len(), 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        let mut request = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header);
        request.body.address(IFA_LOCAL, address.addr()).address(IFA_ADDRESS, address.addr());
        if address.addr().is_ipv6() {
            // Addresses are handed out once, so there is no duplicate to look for, and no second to lose by looking.
            request.body.u32(IFA_FLAGS, IFA_F_NODAD);
        }
        if_absent(self.socket.request(&format!("add address {address} to link {index}"), request))
    }

    /// Takes an address from a link.
    pub fn delete_address(&self, index: u32, address: IpNet) -> Result<(), Error> {
        let mut header = [family(address.addr()), address.prefix_len(), 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        let mut request = Message::new(RTM_DELADDR, 0, &header);
        request.body.address(IFA_LOCAL, address.addr());
        self.socket.request(&format!("delete address {address} of link {index}"), request)
    }

    /// Puts a route into the main table, in the place of one to the same destination.
    pub fn set_route(&self, route: &Route) -> Result<(), Error> {
        let request = route_message(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, route);
        self.socket.request(&format!("set route to {}", route.to), request)
    }

    pub fn delete_route(&self, to: IpNet) -> Result<(), Error> {
        let mut header = route_header(to, 0, 0);
        header[6] = 255;
        let mut request = Message::new(RTM_DELROUTE, 0, &header);
        request.body.address(RTA_DST, to.network());
        self.socket.request(&format!("delete route to {to}"), request)
    }

    /// Routes of the main table that were added by programs like this one.
    pub fn routes(&self) -> Result<Vec<ListedRoute>, Error> {
        let mut found = Vec::new();
        let request = Message::new(RTM_GETROUTE, 0, &[0; 12]);
        self.socket.dump("list routes", request, |body| {
            let Some((header, rest)) = body.split_at_checked(12) else { return };
            if header[4] != RT_TABLE_MAIN || header[5] != RTPROT_STATIC {
                return;
            }
            let to = find(rest, RTA_DST).and_then(message::address);
            if let Some(to) = to.and_then(|address| IpNet::new(address, header[1]).ok()) {
                let index = find(rest, RTA_OIF).and_then(|value| ne_u32(value, 0));
                let gateway = find(rest, RTA_GATEWAY).and_then(message::address);
                found.push(ListedRoute { to, index, gateway });
            }
        })?;
        Ok(found)
    }

    /// Tells for good which hardware address a neighbour has: no ARP for it.
    pub fn set_neighbour(&self, index: u32, address: IpAddr, mac: Mac) -> Result<(), Error> {
        let header = neighbour_header(family(address), index, 0);
        let mut request = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &header);
        request.body.address(NDA_DST, address).bytes(NDA_LLADDR, &mac);
        self.socket.request(&format!("set neighbour {address}"), request)
    }

    /// Tells an overlay link behind which host a hardware address lives.
    pub fn set_forwarding(&self, index: u32, mac: Mac, host: IpAddr) -> Result<(), Error> {
        let header = neighbour_header(libc::AF_BRIDGE as u8, index, NTF_SELF);
        let mut request = Message::new(RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &header);
        request.body.address(NDA_DST, host).bytes(NDA_LLADDR, &mac);
        self.socket.request(&format!("set forwarding to host {host}"), request)
    }

    /// Limits what leaves through a link to this many bits per second (a token bucket).
    pub fn limit(&self, index: u32, bits_per_second: u64) -> Result<(), Error> {
        let rate = (bits_per_second / 8).max(1);
        // A tenth of a second may leave at once, and wait in the queue; but always a few packets.
        let burst = u32::try_from(rate / 10).unwrap_or(u32::MAX / 4).max(32 << 10);
        let mut header = [0; 20];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
        let mut request = Message::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &header);
        // struct tc_tbf_qopt: two rates of twelve bytes, then the queue's length, the burst in ticks, the packet size.
        let mut parameters = [0; 36];
        parameters[1] = LINKLAYER_ETHERNET;
        let short = u32::try_from(rate).unwrap_or(u32::MAX);
        parameters[8..12].copy_from_slice(&short.to_ne_bytes());
        parameters[24..28].copy_from_slice(&burst.saturating_mul(2).to_ne_bytes());
        request.body.text(TCA_KIND, "tbf").nest(TCA_OPTIONS, |options| {
            options.bytes(TCA_TBF_PARMS, &parameters).u32(TCA_TBF_BURST, burst);
            if rate >= u64::from(u32::MAX) {
                options.bytes(TCA_TBF_RATE64, &rate.to_ne_bytes());
            }
        });
        self.socket.request(&format!("limit link {index} to {bits_per_second} bit/s"), request)
    }

    /// Forgets what [`set_forwarding`](Self::set_forwarding) told.
    pub fn delete_forwarding(&self, index: u32, mac: Mac) -> Result<(), Error> {
        let header = neighbour_header(libc::AF_BRIDGE as u8, index, NTF_SELF);
        let mut request = Message::new(RTM_DELNEIGH, 0, &header);
        request.body.bytes(NDA_LLADDR, &mac);
        self.socket.request("delete forwarding", request)
    }

    /// Forgets what [`set_neighbour`](Self::set_neighbour) told.
    pub fn delete_neighbour(&self, index: u32, address: IpAddr) -> Result<(), Error> {
        let mut request = Message::new(RTM_DELNEIGH, 0, &neighbour_header(family(address), index, 0));
        request.body.address(NDA_DST, address);
        self.socket.request(&format!("delete neighbour {address}"), request)
    }
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

/// `struct rtmsg`.
fn route_header(to: IpNet, kind: u8, flags: u32) -> [u8; 12] {
    let mut header =
        [family(to.addr()), to.prefix_len(), 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, 0, kind, 0, 0, 0, 0];
    header[8..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// `struct ndmsg`.
fn neighbour_header(family: u8, index: u32, flags: u8) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family;
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..10].copy_from_slice(&NUD_PERMANENT.to_ne_bytes());
    header[10] = flags;
    header
}

fn route_message(kind: u16, flags: u16, route: &Route) -> Message {
    let (route_kind, header_flags) = match route.target {
        Target::Link { .. } => (RTN_UNICAST, 0),
        Target::Via { .. } => (RTN_UNICAST, RTNH_F_ONLINK),
        Target::Unreachable => (RTN_UNREACHABLE, 0),
        Target::Blackhole => (RTN_BLACKHOLE, 0),
    };
    let mut header = route_header(route.to, route_kind, header_flags);
    if let Target::Link { .. } = route.target {
        header[6] = libc::RT_SCOPE_LINK;
    }
    let mut request = Message::new(kind, flags, &header);
    if route.to.prefix_len() > 0 {
        request.body.address(RTA_DST, route.to.network());
    }
    if let Some(source) = route.source {
        request.body.address(RTA_PREFSRC, source);
    }
    match route.target {
        Target::Link { index } => {
            request.body.u32(RTA_OIF, index);
        }
        Target::Via { gateway, index } => {
            request.body.address(RTA_GATEWAY, gateway).u32(RTA_OIF, index);
        }
        Target::Unreachable | Target::Blackhole => {}
    }
    request
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let (header, rest) = body.split_at_checked(16)?;
    let mut link = Link {
        index: ne_u32(header, 4)?,
        name: String::new(),
        kind: None,
        mac: None,
        mtu: 0,
        up: ne_u32(header, 8)? & IFF_UP != 0,
    };
    for attribute in attributes(rest) {
        match attribute.kind {
            IFLA_IFNAME => link.name = message::text(attribute.value)?.to_owned(),
            IFLA_MTU => link.mtu = ne_u32(attribute.value, 0)?,
            IFLA_ADDRESS => link.mac = attribute.value.try_into().ok(),
            IFLA_LINKINFO => {
                link.kind = find(attribute.value, IFLA_INFO_KIND).and_then(message::text).map(str::to_owned);
            }
            _ => {}
        }
    }
    Some(link)
}

fn check_name(name: &str) -> Result<(), Error> {
    let fits =
        !name.is_empty() && name.len() < IFNAMSIZ && !name.bytes().any(|byte| byte == 0 || byte == b'/');
    if fits { Ok(()) } else { Err(Error::BadName { name: name.to_owned() }) }
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}
