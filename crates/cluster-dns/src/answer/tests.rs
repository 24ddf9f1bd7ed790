use client::Key;
use serde_json::json;

use super::*;
use crate::types::{EndpointSlice, Service};

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local.");
    zone.set_namespace("shop", true);
    let mut add = |name: &str, spec: serde_json::Value, slices: serde_json::Value| {
        let service: Service = serde_json::from_value(json!({"spec": spec})).unwrap();
        let slices: Vec<EndpointSlice> = serde_json::from_value(slices).unwrap();
        let slices: Vec<std::sync::Arc<EndpointSlice>> = slices.into_iter().map(Into::into).collect();
        zone.set(&Key::new("shop", name), Entry::of(&service, &slices));
    };
    let http = json!([{"name": "http", "protocol": "TCP", "port": 80}, {"protocol": "UDP", "port": 81}]);
    add(
        "web",
        json!({"clusterIP": "172.30.0.7", "clusterIPs": ["172.30.0.7", "fd02::7"], "ports": http}),
        json!([]),
    );
    let db = json!([{
        "ports": [{"name": "sql", "protocol": "TCP", "port": 5432}],
        "endpoints": [
            {"addresses": ["10.128.0.5"], "hostname": "db-0", "conditions": {"ready": true}},
            {"addresses": ["10.128.0.6"], "conditions": {"ready": true}},
            {"addresses": ["10.128.0.7"], "hostname": "db-2", "conditions": {"ready": false}},
        ],
    }, {"ports": null, "endpoints": null}]);
    add("db", json!({"clusterIP": "None"}), db);
    add("empty", json!({"clusterIP": "None"}), json!([]));
    add("out", json!({"type": "ExternalName", "externalName": "Example.COM."}), json!([]));
    add("loop", json!({"type": "ExternalName", "externalName": "loop.shop.svc.cluster.local"}), json!([]));
    add("alias", json!({"type": "ExternalName", "externalName": "web.shop.svc.cluster.local"}), json!([]));
    add("pending", json!({"clusterIP": ""}), json!([]));
    zone
}

/// The answer as text: the code, then each record's data; `SOA` when the zone speaks for an absence.
fn ask(name: &str, kind: u16) -> String {
    let Some(response) = answer(&Question { name: name.to_owned(), kind }, &zone()) else {
        return "forward".into();
    };
    let mut words = vec![format!("{:?}", response.code)];
    words.extend(response.answers.iter().map(|record| match &record.data {
        Data::A(address) => address.to_string(),
        Data::Aaaa(address) => address.to_string(),
        Data::Cname(name) => format!("={name}"),
        Data::Ptr(name) | Data::Ns(name) | Data::Txt(name) => name.clone(),
        Data::Srv { weight, port, target, .. } => format!("{weight}/{port}/{target}"),
        Data::Soa { .. } => "soa".to_owned(),
    }));
    words.extend(response.authority.iter().map(|_| "SOA".to_owned()));
    words.join(" ")
}

#[test]
fn names_have_the_records_of_the_specification() {
    use kind::{A, AAAA, ANY, CNAME, NS, PTR, SOA, SRV, TXT};
    let web = "100/80/web.shop.svc.cluster.local";
    let cases = [
        ("web.shop.svc.cluster.local", A, "Ok 172.30.0.7"),
        ("web.shop.svc.cluster.local", AAAA, "Ok fd02::7"),
        ("web.shop.svc.cluster.local", TXT, "Ok SOA"),
        ("_http._tcp.web.shop.svc.cluster.local", SRV, &format!("Ok {web}")),
        ("_http._tcp.web.shop.svc.cluster.local", A, "Ok SOA"),
        ("_tcp.web.shop.svc.cluster.local", SRV, "Ok SOA"),
        ("_sctp.web.shop.svc.cluster.local", SRV, "NoSuchName SOA"),
        ("_http._udp.web.shop.svc.cluster.local", SRV, "NoSuchName SOA"),
        ("_._udp.web.shop.svc.cluster.local", SRV, "NoSuchName SOA"),
        ("x.web.shop.svc.cluster.local", A, "NoSuchName SOA"),
        ("db.shop.svc.cluster.local", A, "Ok 10.128.0.6 10.128.0.5"),
        ("db-0.db.shop.svc.cluster.local", A, "Ok 10.128.0.5"),
        ("db-0.db.shop.svc.cluster.local", AAAA, "Ok SOA"),
        ("db-2.db.shop.svc.cluster.local", A, "NoSuchName SOA"),
        ("10-128-0-6.db.shop.svc.cluster.local", A, "Ok 10.128.0.6"),
        (
            "_sql._tcp.db.shop.svc.cluster.local",
            SRV,
            "Ok 50/5432/10-128-0-6.db.shop.svc.cluster.local 50/5432/db-0.db.shop.svc.cluster.local",
        ),
        ("empty.shop.svc.cluster.local", A, "Ok SOA"),
        ("out.shop.svc.cluster.local", CNAME, "Ok =example.com"),
        ("out.shop.svc.cluster.local", A, "Ok =example.com"),
        ("alias.shop.svc.cluster.local", A, "Ok =web.shop.svc.cluster.local 172.30.0.7"),
        ("pending.shop.svc.cluster.local", A, "NoSuchName SOA"),
        ("none.shop.svc.cluster.local", A, "NoSuchName SOA"),
        ("shop.svc.cluster.local", A, "Ok SOA"),
        ("none.svc.cluster.local", A, "NoSuchName SOA"),
        ("svc.cluster.local", A, "Ok SOA"),
        ("cluster.local", SOA, "Ok soa"),
        ("cluster.local", NS, "Ok ns.dns.cluster.local"),
        ("cluster.local", ANY, "Ok soa ns.dns.cluster.local"),
        ("dns-version.cluster.local", TXT, "Ok 1.1.0"),
        ("10-128-0-9.shop.pod.cluster.local", A, "Ok 10.128.0.9"),
        ("fd00--9.shop.pod.cluster.local", AAAA, "Ok fd00::9"),
        ("10-128-0-9.none.pod.cluster.local", A, "NoSuchName SOA"),
        ("x.shop.pod.cluster.local", A, "NoSuchName SOA"),
        ("7.0.30.172.in-addr.arpa", PTR, "Ok web.shop.svc.cluster.local"),
        ("7.0.30.172.in-addr.arpa", A, "Ok SOA"),
        ("5.0.128.10.in-addr.arpa", PTR, "Ok db-0.db.shop.svc.cluster.local"),
        (
            "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.2.0.d.f.ip6.arpa",
            PTR,
            "Ok web.shop.svc.cluster.local",
        ),
        ("8.8.8.8.in-addr.arpa", PTR, "forward"),
        ("example.com", A, "forward"),
        ("notcluster.local", A, "forward"),
        ("", NS, "forward"),
    ];
    for (name, kind, expected) in cases {
        assert_eq!(ask(name, kind), expected, "{name} {kind}");
    }
}

#[test]
fn aliases_in_a_circle_end() {
    assert!(ask("loop.shop.svc.cluster.local", kind::A).starts_with("Ok =loop.shop.svc.cluster.local"));
}

#[test]
fn an_alias_outside_is_left_open_and_services_bring_their_addresses() {
    let zone = zone();
    let of = |name: &str, kind| answer(&Question { name: name.to_owned(), kind }, &zone).unwrap();
    assert_eq!(open_alias(&of("out.shop.svc.cluster.local", kind::A), &zone), Some("example.com"));
    assert_eq!(open_alias(&of("alias.shop.svc.cluster.local", kind::A), &zone), None);
    let srv = of("_http._tcp.web.shop.svc.cluster.local", kind::SRV);
    assert_eq!(srv.additional.len(), 2, "both addresses of the target");
}

#[test]
fn a_removed_service_takes_its_names_along() {
    let mut zone = zone();
    zone.set(&Key::new("shop", "web"), None);
    zone.set(&Key::new("shop", "db"), None);
    assert_eq!(zone.names_of([172, 30, 0, 7].into()).count(), 0);
    assert_eq!(zone.names_of([10, 128, 0, 5].into()).count(), 0);
}
