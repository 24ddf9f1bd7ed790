//! The language, case by case: what an expression gives, what it refuses, how it fails.

use serde_json::json;

use crate::{Budget, Env, Type, Val};

fn object() -> serde_json::Value {
    json!({
        "spec": {"replicas": 3, "name": "web", "ports": [80, 443], "on": true, "none": null, "ratio": 0.5,
            "labels": {"app": "web", "tier": "front"},
            "containers": [{"name": "a", "image": "i:1", "cpu": "500m"}, {"name": "b", "image": "j:2"}]},
        "metadata": {"namespace": "default", "name": "x"},
    })
}

fn run(source: &str) -> Result<String, String> {
    let object = object();
    let env = Env::new().with("object", Type::Dyn).with_patches();
    let program = env.compile(source).map_err(|issues| issues.list()[0].message.clone())?;
    let values = [Val::json(&object)];
    program
        .run(&&values[..], None, &mut Budget::default())
        .map(|value| format!("{value:?}"))
        .map_err(|error| error.to_string())
}

#[test]
fn expressions_give_what_the_language_says() {
    let table: &[(&str, &str)] = &[
        ("1 + 2 * 3", "7"),
        ("(1 + 2) * 3", "9"),
        ("7 / 2", "3"),
        ("-7 % 3", "-1"),
        ("2u + 3u", "5u"),
        ("1.5 + 1.5", "3.0"),
        ("0x1F", "31"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("1e3", "1000.0"),
        ("'a' + \"b\"", "\"ab\""),
        (r"'\n\x41\u00e4'", "\"\\nAä\""),
        (r"r'\n'", r#""\\n""#),
        ("'''a'b'''", "\"a'b\""),
        ("b'ab' == bytes('ab')", "true"),
        ("1 < 2 && 2.0 > 1 && 1u <= 1", "true"),
        ("1 == 1 || 1/0 == 1", "true"),
        ("1/0 == 1 || true", "true"),
        ("!(false && 1/0 == 1)", "true"),
        ("true ? 'y' : 'n'", "\"y\""),
        ("'b' in ['a', 'b']", "true"),
        ("'a' in {'a': 1}", "true"),
        ("[1, 2] + [3]", "[1, 2, 3]"),
        ("([1] + [2, 3])[2] + ([] + [4])[0] + ([5] + [])[0]", "12"),
        ("[1] + [2, 3] == [1, 2] + [3] && [1] + [2] != [1] + [3] && size([1] + [2]) == 2", "true"),
        ("443 in [1] + object.spec.ports && !(2 in [1] + [3])", "true"),
        ("(object.spec.ports + [1]).map(p, p + 1)", "[81, 444, 2]"),
        ("(object.spec.ports + [1]).map(p, [p] + [0])[1]", "[443, 0]"),
        ("([3] + [1, 2]).sort() + ([3] + [1]).reverse()", "[1, 2, 3, 1, 3]"),
        ("([1] + [2] + [3, 4]).slice(1, 3)", "[2, 3]"),
        ("([1] + [2]).first().value() + ([1] + [2]).last().value()", "3"),
        ("([1] + [2, 1]).lastIndexOf(1) + ([1] + [2]).indexOf(2) + ([1] + [2]).sum()", "6"),
        ("([[1]] + [[2] + [3]]).flatten()", "[1, 2, 3]"),
        ("'%s'.format([['a'] + ['b']]) + (['a'] + ['b']).join('+')", "\"[a, b]a+b\""),
        ("{'a': 1}.a", "1"),
        ("{1: 'a', 2: 'b'}[dyn(2.0)] + {true: 'c'}[true] + {2u: 'd'}[dyn(2)]", "\"bcd\""),
        ("{'a': 1}.transformMap(k, v, v) == {'a': 1} && !('b' in {'a': 1})", "true"),
        ("[duration('1h'), duration('2h')].map(d, d.getHours())", "[1, 2]"),
        ("{'a': {'b': [1, 2]}}.a.b[1]", "2"),
        ("[1,2,3][0]", "1"),
        ("[1, 2] == [1, 2] && {'a': 1} == {'a': 1}", "true"),
        ("dyn(1) == 1.0", "true"),
        ("null == null", "true"),
        ("size('äb') == 2 && [1,2].size() == 2 && size({'a':1}) == 1", "true"),
        // objects
        ("object.spec.replicas > 1", "true"),
        ("object.metadata.namespace", "\"default\""),
        ("has(object.spec.replicas) && !has(object.spec.nope)", "true"),
        ("object.spec.containers[1].image", "\"j:2\""),
        ("object.spec.none == null", "true"),
        ("object.spec.ratio * 2.0", "1.0"),
        ("object.spec.labels['app']", "\"web\""),
        // macros
        ("object.spec.containers.all(c, c.image.contains(':'))", "true"),
        ("object.spec.containers.exists(c, c.name == 'b')", "true"),
        ("object.spec.ports.exists_one(p, p == 80)", "true"),
        ("object.spec.containers.map(c, c.name)", "[\"a\", \"b\"]"),
        ("object.spec.ports.map(p, p > 100, p + 1)", "[444]"),
        ("object.spec.ports.filter(p, p < 100)", "[80]"),
        ("object.spec.labels.all(k, k.size() >= 3)", "true"),
        ("object.spec.labels.exists(k, v, k == 'tier' && v == 'front')", "true"),
        ("[1, 2].all(i, v, i + 1 == v)", "true"),
        ("[3, 1].transformList(i, v, i * 10 + v)", "[3, 11]"),
        ("{'a': 1}.transformMap(k, v, v + 1)", "{\"a\": 2}"),
        ("['x'].transformMapEntry(i, v, {v: i})", "{\"x\": 0}"),
        ("[1, 2, 3].exists(x, [2].exists(y, x == y))", "true"),
        ("cel.bind(a, 2, a * a)", "4"),
        ("[{'a': 3}, {'a': 1}].sortBy(m, m.a).map(m, m.a)", "[1, 3]"),
        ("[1, 0].exists(x, 1 / x == 1)", "true"),
        ("[0, 1].exists(x, 1 / x == 1)", "true"),
        // optionals
        ("object.?spec.?nope.orValue('d')", "\"d\""),
        ("object.?spec.name.orValue('d')", "\"web\""),
        ("object.spec.labels[?'app'].hasValue()", "true"),
        ("object.spec.ports[?5].hasValue()", "false"),
        ("optional.of(1).value() + optional.none().orValue(2)", "3"),
        ("[?optional.none(), ?optional.of(2)]", "[2]"),
        ("{?'a': optional.none(), 'b': 1}", "{\"b\": 1}"),
        ("optional.of(2).optMap(x, x + 1).value()", "3"),
        ("optional.of(2).optFlatMap(x, optional.none()).hasValue()", "false"),
        ("optional.ofNonZeroValue('').or(optional.of('z')).value()", "\"z\""),
        // conversions
        ("int('42') + int(1.9) + int(2u)", "45"),
        ("string(1) + string(true) + string(1.5)", "\"1true1.5\""),
        ("double('1.5')", "1.5"),
        ("uint(3)", "3u"),
        ("bool('true')", "true"),
        ("string(b'ab')", "\"ab\""),
        ("type(1) == int && type('a') == string && type([]) == list", "true"),
        // strings
        ("'hello'.startsWith('he') && 'hello'.endsWith('lo') && 'hello'.contains('ell')", "true"),
        ("'abc123'.matches('^[a-z]+[0-9]+$')", "true"),
        ("matches('ab', 'b')", "true"),
        ("'tacocat'.indexOf('ac') + 'tacocat'.lastIndexOf('a')", "6"),
        ("'abca'.indexOf('a', 1)", "3"),
        ("'a,b,c'.split(',')", "[\"a\", \"b\", \"c\"]"),
        ("'a,b,c'.split(',', 2)", "[\"a\", \"b,c\"]"),
        ("['a', 'b'].join('-')", "\"a-b\""),
        ("'Ab'.lowerAscii() + 'Ab'.upperAscii()", "\"abAB\""),
        ("' a '.trim()", "\"a\""),
        ("'aXbX'.replace('X', '-')", "\"a-b-\""),
        ("'aXbX'.replace('X', '-', 1)", "\"a-bX\""),
        ("'hello'.substring(1, 3)", "\"el\""),
        ("'hello'.charAt(1)", "\"e\""),
        ("'%s has %d of %.1f%%'.format(['a', 3, 1.25])", "\"a has 3 of 1.2%\""),
        ("'%x %X %b %o'.format([255, 255, 5, 8])", "\"ff FF 101 10\""),
        ("'%s %s'.format([[1, 2], {'k': true}])", "\"[1, 2] {k: true}\""),
        (
            "'%s %s'.format([optional.of(['a']), {'b': [], 'a': [null]}])",
            "\"optional.of([\\\"a\\\"]) {a: [null], b: []}\"",
        ),
        ("'%x %X %x'.format(['Az', b'Az', -255])", "\"417a 417A -ff\""),
        ("'a1b22'.find('[0-9]+')", "\"1\""),
        ("'a1b22'.findAll('[0-9]+')", "[\"1\", \"22\"]"),
        // lists and sets
        ("[1, 2, 3].sum() + [4, 2].min() + [4, 2].max()", "12"),
        ("[1, 2, 2].isSorted()", "true"),
        ("['a', 'b'].indexOf('b') + ['a', 'a'].lastIndexOf('a')", "2"),
        ("[3, 1, 2].sort()", "[1, 2, 3]"),
        ("[1, 1, 2].distinct()", "[1, 2]"),
        ("[1, 2, 3].slice(1, 3)", "[2, 3]"),
        ("[1, 2].slice(2, 2) + [].slice(0, 0)", "[]"),
        ("[].first().hasValue() || [].last().hasValue()", "false"),
        ("sets.contains([1], []) && !sets.contains([], [1]) && sets.equivalent([], [])", "true"),
        ("sets.equivalent([], [1]) || sets.intersects([], [1])", "false"),
        ("[[1], [2]].flatten()", "[1, 2]"),
        ("lists.range(3)", "[0, 1, 2]"),
        ("[1, 2].reverse()", "[2, 1]"),
        ("sets.contains([1, 2], [2]) && sets.equivalent([1, 1], [1]) && !sets.intersects([1], [2])", "true"),
        // times
        ("timestamp('2024-02-03T04:05:06Z').getFullYear()", "2024"),
        ("timestamp('2024-02-03T04:05:06Z').getMonth()", "1"),
        ("timestamp('2024-02-03T04:05:06Z').getHours('+02:00')", "6"),
        ("timestamp('2024-02-03T00:00:00Z') - timestamp('2024-02-02T00:00:00Z') == duration('24h')", "true"),
        ("timestamp('2024-02-03T00:00:00Z') + duration('1h') > timestamp('2024-02-03T00:00:00Z')", "true"),
        ("duration('90m').getMinutes()", "90"),
        // kubernetes libraries
        ("quantity('500m').isLessThan(quantity('1'))", "true"),
        ("quantity('1Gi').asInteger()", "1073741824"),
        ("quantity('1k').add(quantity('1k')) == quantity('2000')", "true"),
        ("quantity('1').compareTo(quantity('2'))", "-1"),
        ("isQuantity('1x') || !isQuantity('1Mi')", "false"),
        ("url('https://a.example:8080/p%20q?x=1&x=2&y=3').getPort()", "\"8080\""),
        ("url('https://[::1]:80/').getHostname()", "\"::1\""),
        ("url('https://a/p%20q').getEscapedPath()", "\"/p%20q\""),
        ("url('https://a/?x=1&x=2').getQuery()['x']", "[\"1\", \"2\"]"),
        ("isURL('nope') || isURL('https://a b')", "false"),
        ("ip('127.0.0.1').isLoopback() && ip('10.0.0.1').family() == 4", "true"),
        ("isIP('1.2.3.4.5')", "false"),
        ("ip.isCanonical('::1') && !ip.isCanonical('0:0::1')", "true"),
        (
            "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.1'))",
            "true",
        ),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')", "true"),
        ("string(cidr('10.1.2.3/8').masked())", "\"10.0.0.0/8\""),
        ("cidr('10.1.2.3/8').prefixLength()", "8"),
        (
            "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-a').isLessThan(semver('1.0.0'))",
            "true",
        ),
        ("semver('v1.2', true).minor()", "2"),
        ("isSemver('1.2')", "false"),
        ("format.dns1123Label().validate('a-b').hasValue()", "false"),
        ("format.named('dns1123Label').value().validate('A').hasValue()", "true"),
        // patches
        ("Object{spec: Object.spec{replicas: 3}}", "{\"spec\": {\"replicas\": 3}}"),
        (
            "[JSONPatch{op: 'add', path: '/a', value: 1}]",
            "[{\"op\": \"add\", \"path\": \"/a\", \"value\": 1}]",
        ),
        ("jsonpatch.escapeKey('a/b~c')", "\"a~1b~0c\""),
        ("Object{?a: optional.none()}", "{}"),
    ];
    for (source, wanted) in table {
        assert_eq!(run(source).as_deref(), Ok(*wanted), "{source}");
    }
}

#[test]
fn mistakes_are_found_before_anything_runs() {
    let table: &[(&str, &str)] = &[
        ("1x", "Syntax error: extraneous input 'x' expecting <EOF>"),
        ("1 x y", "Syntax error: mismatched input 'x' expecting <EOF>"),
        ("1 +", "Syntax error: mismatched input '<EOF>' expecting an expression"),
        ("1 + 'a'", "found no matching overload for '_+_' applied to '(int, string)'"),
        ("1 > 'a'", "found no matching overload for '_>_' applied to '(int, string)'"),
        ("'a' == 1", "found no matching overload for '_==_' applied to '(string, int)'"),
        ("nope", "undeclared reference to 'nope' (in container '')"),
        ("nope(1)", "undeclared reference to 'nope' (in container '')"),
        ("'a'.b", "type 'string' does not support field selection"),
        (
            "1.all(x, true)",
            "expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("[1].all(x, x)", "expected type 'bool' but found 'int'"),
        ("[1, 'a']", "expected type 'int' but found 'string'"),
        ("true && 1", "found no matching overload for '_&&_' applied to '(bool, int)'"),
        ("true ? 1 : 'a'", "found no matching overload for '_?_:_' applied to '(bool, int, string)'"),
        ("'a'.size(1)", "found no matching overload for 'size' applied to '(string, int)'"),
        ("namespace", "reserved identifier: namespace"),
        ("has(1)", "invalid argument to has() macro"),
        ("Foo{a: 1}", "undeclared reference to 'Foo' (in container '')"),
        ("JSONPatch{nope: 1}", "undefined field 'nope'"),
        ("duration('1 day')", "invalid duration argument"),
        ("'a'.matches('[')", "invalid matches argument"),
        ("'a", "Syntax error: unterminated string literal"),
        ("99999999999999999999", "invalid int literal"),
    ];
    for (source, wanted) in table {
        assert_eq!(run(source).as_ref().map_err(String::as_str), Err(*wanted), "{source}");
    }
}

#[test]
fn failures_say_why() {
    let table: &[(&str, &str)] = &[
        ("object.spec.nope == 1", "no such key: nope"),
        ("object.spec.labels['x'] == ''", "no such key: x"),
        ("object.spec.ports[9] == 1", "index out of bounds: 9"),
        ("([1] + [2])[2]", "index out of bounds: 2"),
        ("[1, 2].slice(1, 3)", "cannot slice(1, 3), list has 2 items"),
        ("[1, 2].slice(2, 1)", "cannot slice(2, 1), list has 2 items"),
        ("{'a': 1, 'a': 2}", "Failed with repeated key"),
        ("{object.spec.name: 1, 'web': 2}", "Failed with repeated key"),
        ("[1, 2].transformMapEntry(i, v, {'a': v})", "insert failed: key already exists"),
        ("1 / 0", "division by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("'a' + object.spec.replicas", "no such overload"),
        ("object.spec.replicas.size()", "no such overload"),
        ("optional.none().value()", "optional.none() dereference"),
        ("int('x')", "type conversion error from 'string' to 'int': \"x\""),
        (
            "[1,1,1,1,1,1,1,1,1,1].map(a, [1,1,1,1,1,1,1,1,1,1].map(b, [1,1,1,1,1,1,1,1,1,1].map(c, lists.range(10000))))",
            "operation cancelled: actual cost limit exceeded",
        ),
    ];
    for (source, wanted) in table {
        assert_eq!(run(source).as_ref().map_err(String::as_str), Err(*wanted), "{source}");
    }
}

#[test]
fn nesting_is_bounded_and_chains_are_not() {
    let deep = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(run(&deep).is_err_and(|message| message.contains("recursion limit")));
    let unary = format!("{}true", "!".repeat(5000));
    assert!(run(&unary).is_err());
    let sum = vec!["1"; 5000].join(" + ");
    assert!(run(&sum).is_err());
    let select = format!("object{}", ".a".repeat(5000));
    assert!(run(&select).is_err());
    let chain = vec!["false"; 3000].join(" || ");
    assert_eq!(run(&chain).as_deref(), Ok("false"));
}

/// Bytes of JSON stay as they are until someone looks at them.
#[test]
fn bytes_are_read_from_base64() {
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "string", "format": "byte"}, "none": {"type": "string", "format": "byte"}}});
    let kind = crate::schema::from_openapi(&schema, false).expect("an object");
    let object = json!({"a": "aGVsbG8=", "none": ""});
    let env = Env::new().with("self", kind.clone());
    let run = |source: &str| {
        let program = env.compile(source).unwrap_or_else(|issues| panic!("{source}: {issues}"));
        let values = [Val::typed(&object, &kind).expect("fits")];
        let outcome = program.run(&&values[..], None, &mut Budget::default());
        outcome.map(|value| (format!("{value:?}"), value.to_json().ok()))
    };
    for source in [
        "self.a == b'hello' && bytes('hello') == self.a && self.a == self.a",
        "self.a.size() == 5 && self.none.size() == 0 && self.none == b''",
        "self.a + b'!' == b'hello!' && string(self.a) == 'hello'",
        "b'a' < self.a && self.a in [b'hello'] && '%x'.format([self.a]) == '68656c6c6f'",
    ] {
        assert_eq!(run(source), Ok(("true".to_owned(), Some(json!(true)))), "{source}");
    }
    assert_eq!(run("self.a"), Ok(("b\"hello\"".to_owned(), Some(json!("aGVsbG8=")))));
    let bytes = Val::typed(&object["a"], &Type::Bytes);
    assert!(matches!(bytes, Ok(Val::Bytes(crate::value::Bytes::Encoded(_)))));
    assert!(Val::typed(&json!("aGVsbG8"), &Type::Bytes).is_err());
}

#[test]
fn mistakes_are_shown_below_their_line() {
    let env = Env::new().with("object", Type::Dyn);
    let issues = env.compile("true &&\n  1 > 'a'").expect_err("a number and a text");
    assert_eq!(
        issues.to_string(),
        "ERROR: <input>:2:5: found no matching overload for '_>_' applied to '(int, string)'\n |   1 > 'a'\n | ....^"
    );
}

#[test]
fn schemas_become_types() {
    let schema = json!({"type": "object", "properties": {
        "namespace": {"type": "string"}, "a-b": {"type": "integer"}, "when": {"type": "string", "format": "date-time"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "either": {"x-kubernetes-int-or-string": true}}});
    let kind = crate::schema::from_openapi(&schema, true).expect("an object");
    let object = json!({"namespace": "n", "a-b": 2, "when": "2024-01-01T00:00:00Z", "list": [{"n": 1}], "map": {"k": "v"},
        "either": "10%", "metadata": {"name": "x"}});
    let env = Env::new().with("self", kind.clone());
    let good = [
        "self.__namespace__ == 'n'",
        "self.a__dash__b + 1 == 3",
        "self.when.getFullYear() == 2024",
        "self.list.all(l, l.n > 0.5)",
        "self.map['k'] == 'v' && self.map.k == 'v'",
        "type(self.either) == string && self.either == '10%'",
        "self.metadata.name == 'x'",
        "has(self.when) && !has(self.kind)",
    ];
    for source in good {
        let program = env.compile(source).unwrap_or_else(|issues| panic!("{source}: {issues}"));
        assert_eq!(*program.kind(), Type::Bool, "{source}");
        let values = [Val::typed(&object, &kind).expect("fits")];
        let outcome = program.run(&&values[..], None, &mut Budget::default());
        assert!(matches!(outcome, Ok(Val::Bool(true))), "{source}: {outcome:?}");
    }
    for source in
        ["self.nope", "self.namespace", "self.a__dash__b + 'x'", "self.list[0].x", "self.metadata.labels"]
    {
        assert!(env.compile(source).is_err(), "{source}");
    }
}
