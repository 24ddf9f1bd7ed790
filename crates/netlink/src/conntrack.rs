//! The kernel's table of connections: removal of entries whose destination is gone.
//!
//! A UDP client that keeps its port keeps its entry, and with it an endpoint that may no longer exist; TCP notices by
//! itself. So kube-proxy removes the entries of UDP services whose endpoints went away.

use std::net::IpAddr;

use crate::message::{self, Message, find};
use crate::{Error, Protocol, Socket, if_present};

const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;

/// One tracked connection: where the client sent to, and who answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    pub protocol: u8,
    /// Who began it.
    pub source: IpAddr,
    /// The destination as the client named it.
    pub original: (IpAddr, u16),
    /// The source of the answers: the endpoint, if the destination was translated.
    pub answering: (IpAddr, u16),
    family: u8,
    tuple: Vec<u8>,
}

/// Connections of one protocol for which `stale` says yes are forgotten. Returns how many.
pub fn forget(protocol: u8, mut stale: impl FnMut(&Flow) -> bool) -> Result<usize, Error> {
    forget_any(|flow| flow.protocol == protocol && stale(flow))
}

/// Connections of any protocol for which `stale` says yes are forgotten. Returns how many.
pub fn forget_any(mut stale: impl FnMut(&Flow) -> bool) -> Result<usize, Error> {
    let socket = Socket::open(Protocol::Netfilter)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET as u8, libc::AF_INET6 as u8] {
        let request = Message::new(GET, 0, &[family, 0, 0, 0]);
        socket.dump("list connections", request, |body| {
            found.extend(parse(body).filter(|flow| stale(flow)));
        })?;
    }
    for flow in &found {
        let mut request = Message::new(DELETE, 0, &[flow.family, 0, 0, 0]);
        request.body.bytes(CTA_TUPLE_ORIG | 0x8000, &flow.tuple);
        if_present(socket.request("forget a connection", request))?;
    }
    Ok(found.len())
}

fn parse(body: &[u8]) -> Option<Flow> {
    let (header, rest) = body.split_at_checked(4)?;
    let tuple = find(rest, CTA_TUPLE_ORIG)?;
    let (protocol, client, destination, port) = endpoints(tuple)?;
    let (_, source, _, _) = endpoints(find(rest, CTA_TUPLE_REPLY)?)?;
    let reply = find(find(rest, CTA_TUPLE_REPLY)?, CTA_TUPLE_PROTO)?;
    let source_port = find(reply, CTA_PROTO_DST_PORT - 1).and_then(be16).unwrap_or(0);
    Some(Flow {
        protocol,
        source: client,
        original: (destination, port),
        answering: (source, source_port),
        family: header[0],
        tuple: tuple.to_vec(),
    })
}

/// Protocol, source, destination and destination port of a tuple.
fn endpoints(tuple: &[u8]) -> Option<(u8, IpAddr, IpAddr, u16)> {
    let addresses: Vec<IpAddr> = message::attributes(find(tuple, CTA_TUPLE_IP)?)
        .filter_map(|attribute| message::address(attribute.value))
        .collect();
    let transport = find(tuple, CTA_TUPLE_PROTO)?;
    let protocol = *find(transport, CTA_PROTO_NUM)?.first()?;
    let port = find(transport, CTA_PROTO_DST_PORT).and_then(be16).unwrap_or(0);
    Some((protocol, *addresses.first()?, *addresses.get(1)?, port))
}

fn be16(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.get(..2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Attributes;

    #[test]
    fn a_translated_flow_shows_both_ends() {
        let tuple = |source: [u8; 4], destination: [u8; 4], from: u16, to: u16| {
            let mut tuple = Attributes::new();
            tuple.nest(CTA_TUPLE_IP, |ip| {
                ip.bytes(1, &source).bytes(2, &destination);
            });
            tuple.nest(CTA_TUPLE_PROTO, |transport| {
                transport.u8(1, 17).be16(2, from).be16(3, to);
            });
            tuple
        };
        let mut message = Message::new(GET, 0, &[2, 0, 0, 0]);
        message.body.nest(CTA_TUPLE_ORIG, |out| {
            out.append(&tuple([10, 0, 0, 2], [172, 30, 0, 10], 4000, 53));
        });
        message.body.nest(CTA_TUPLE_REPLY, |out| {
            out.append(&tuple([10, 0, 0, 9], [10, 0, 0, 2], 5353, 4000));
        });
        let mut bytes = Vec::new();
        message.write(1, &mut bytes);
        let flow = parse(&bytes[message::HEADER..]).unwrap();
        assert_eq!(flow.protocol, 17);
        assert_eq!(flow.source, std::net::IpAddr::from([10, 0, 0, 2]));
        assert_eq!(flow.original, ([172, 30, 0, 10].into(), 53));
        assert_eq!(flow.answering, ([10, 0, 0, 9].into(), 5353));
    }
}
