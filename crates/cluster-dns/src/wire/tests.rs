use proptest::prelude::*;

use super::*;

fn question(name: &str, kind: u16) -> Question {
    Question { name: name.to_owned(), kind }
}

fn addresses(name: &str, count: u8) -> Vec<Record> {
    (0..count)
        .map(|n| Record { name: name.to_owned(), ttl: 5, data: Data::A([10, 0, 0, n].into()) })
        .collect()
}

#[test]
fn an_answer_is_read_back_as_written_and_echoes_the_clients_letters() {
    let mut bytes = Query::new(7, question("web.shop.svc.cluster.local", kind::A)).encode(7);
    bytes[HEADER + 1] = b'W';
    let query = Query::parse(&bytes).unwrap().unwrap();
    assert_eq!(query.question.name, "web.shop.svc.cluster.local");
    let response = Response { answers: addresses("web.shop.svc.cluster.local", 2), ..Response::default() };
    let answer = response.encode(&query, 512);
    assert_eq!(&answer[HEADER + 1..HEADER + 4], b"Web");
    let read = Foreign::parse(&answer).unwrap();
    assert_eq!((read.id, read.code, read.truncated), (7, 0, false));
    assert_eq!(read.answers, response.answers);
    assert_eq!(read.smallest_ttl, Some(5));
}

#[test]
fn an_answer_that_does_not_fit_says_so_and_keeps_what_does() {
    let mut query = Query::new(1, question("a.b", kind::A));
    query.edns = None;
    assert_eq!(query.datagram_limit(), 512);
    let response = Response { answers: addresses("a.b", 100), ..Response::default() };
    let answer = response.encode(&query, query.datagram_limit());
    let read = Foreign::parse(&answer).unwrap();
    assert!(read.truncated && answer.len() <= 512);
    assert_eq!(read.answers.len(), 30);
    assert_eq!(Foreign::parse(&response.encode(&query, 65535)).unwrap().answers.len(), 100);
}

#[test]
fn wrong_requests_get_their_code() {
    let good = Query::new(9, question("a", kind::A)).encode(9);
    let change = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Query::parse(&bytes).map(|result| result.map_err(|bad| bad.code).map(|_| ()))
    };
    assert_eq!(change(2, 0x80), None, "a response is not answered");
    assert_eq!(change(2, 0x28), Some(Err(Code::NotImplemented)));
    assert_eq!(change(5, 2), Some(Err(Code::Malformed)));
    assert_eq!(change(HEADER, 0xc0), Some(Err(Code::Malformed)), "a pointer to itself");
    assert_eq!(change(HEADER + 6, 3), Some(Err(Code::Refused)), "another class");
    assert_eq!(Query::parse(&good[..11]), None);
}

proptest! {
    #[test]
    fn no_bytes_make_the_readers_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Query::parse(&bytes);
        let _ = Foreign::parse(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic_either(flips in proptest::collection::vec((0usize..200, any::<u8>()), 1..8)) {
        let query = Query::new(3, question("x.y.svc.cluster.local", kind::SRV));
        let srv = Data::Srv { priority: 0, weight: 1, port: 80, target: "t.x".to_owned() };
        let record = Record { name: "x.y.svc.cluster.local".to_owned(), ttl: 1, data: srv };
        let response = Response { answers: vec![record; 3], ..Response::default() };
        let mut bytes = response.encode(&query, 512);
        for (at, value) in flips {
            let length = bytes.len();
            bytes[at % length] ^= value;
        }
        let _ = Query::parse(&bytes);
        let _ = Foreign::parse(&bytes);
    }

    #[test]
    fn names_survive_the_way_through_bytes(labels in proptest::collection::vec("[a-z0-9_-]{1,20}", 1..8)) {
        let name = labels.join(".");
        let bytes = Query::new(1, question(&name, kind::A)).encode(1);
        prop_assert_eq!(Query::parse(&bytes).unwrap().unwrap().question.name, name);
    }
}
